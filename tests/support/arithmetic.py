"""How far managers on CPU devices of this process are from the references of `verify`."""

from __future__ import annotations

from benchmarks.process.tensorflow_setup import Devices
from benchmarks.verify import comparisons
from benchmarks.verify.cases import WHOLE_BATCH, Case, SharedOn
from variable_mgr.modifiers import Modifiers

NO_MODIFIERS = Modifiers()


def scalar_error(
    manager: str,
    towers: int,
    optimizer: str,
    *,
    shared_on: SharedOn = "cpu",
    modifiers: Modifiers = NO_MODIFIERS,
) -> float:
    """Trains two scalars and returns the error against NumPy."""
    return _error(Case(manager, modifiers, shared_on, optimizer, manager), towers)


def weights_error(manager: str, towers: int, modifiers: Modifiers, *, shared_on: SharedOn = "cpu") -> float:
    """Trains a small network and returns the error against one device that has the batches of all towers."""
    return _error(Case(manager, modifiers, shared_on, WHOLE_BATCH, manager), towers)


def _error(case: Case, towers: int) -> float:
    (result,) = comparisons.results(Devices(num_devices=towers), [case])
    assert result.error is not None, result.reason
    return result.error
