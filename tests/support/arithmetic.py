"""How far managers on CPU devices of this process are from the two references of `benchmarks.verify.oracle`."""

from __future__ import annotations

import functools

import numpy as np

from benchmarks.cluster.member import Alone
from benchmarks.config.variable_update import Variables
from benchmarks.devices import device_plan
from benchmarks.process.tensorflow_setup import Devices
from benchmarks.verify import comparisons, oracle
from variable_mgr import expected
from variable_mgr.modifiers import Modifiers

NO_MODIFIERS = Modifiers()
_SECONDS = 600.0


def scalar_error(
    manager: str,
    towers: int,
    optimizer: str,
    *,
    shared_on: str = "cpu",
    modifiers: Modifiers = NO_MODIFIERS,
) -> float:
    """Trains two scalars and returns the error against NumPy."""
    plan = device_plan.plan(Devices(num_devices=towers), shared_on=shared_on)
    rule, options = expected.Rule(optimizer), device_plan.session_config(Devices(num_devices=towers))
    training = oracle.OracleSession(plan, options, Alone(), _SECONDS)
    got = oracle.trained(training, Variables(variable_update=manager, shared_on="cpu", modifiers=modifiers), rule)
    return got.error(expected.of_manager(manager, modifiers, rule, towers))


def weights_error(manager: str, towers: int, modifiers: Modifiers, *, shared_on: str = "cpu") -> float:
    """Trains a small network and returns the error against one device that has the batches of all towers."""
    plan = device_plan.plan(Devices(num_devices=towers), shared_on=shared_on)
    got = oracle.convolutional_weights(
        oracle.OracleSession(plan, device_plan.session_config(Devices(num_devices=towers)), Alone(), _SECONDS),
        Variables(variable_update=manager, shared_on="cpu", modifiers=modifiers),
        towers,
    )
    return comparisons.largest_difference(got, _weights_of_one_device(towers))


@functools.cache
def _weights_of_one_device(towers: int) -> dict[str, np.ndarray]:
    plan = device_plan.plan(Devices(), shared_on="cpu")
    training = oracle.OracleSession(plan, device_plan.session_config(Devices()), Alone(), _SECONDS)
    return oracle.convolutional_weights(training, Variables(variable_update="replicated", shared_on="cpu"), towers)
