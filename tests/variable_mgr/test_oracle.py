"""Every manager against arithmetic in NumPy that was written independently of the code under test.

See `benchmarks.oracle`, which `run_bench.py verify` uses on the user's devices.
"""

from __future__ import annotations

import functools

import pytest

from benchmarks import devices, expectations, oracle, tolerances
from benchmarks.tolerances import EXACT
from benchmarks.verify import TRANSFERS, wanted_of
from variable_mgr import factory
from variable_mgr.algorithms import ALGORITHMS, Place
from variable_mgr.catalog import IN_ONE_PROCESS
from variable_mgr.modifiers import Modifiers, why_not


def _error(manager: str, towers: int, optimizer: str, *, shared_on: str = "cpu", modifiers: Modifiers) -> float:
    plan = devices.plan("cpu", towers, virtual_gpus=1, shared_on=shared_on)
    place = Place(plan.towers, devices.HOST)
    make = functools.partial(factory.make, manager, place, shared_devices=plan.shared, modifiers=modifiers)
    wanted = wanted_of(manager, modifiers, towers, optimizer)
    return oracle.trained(make, plan, optimizer, devices.session_config("cpu", towers)).error(wanted)


every_count = pytest.mark.parametrize("towers", [1, 2, 3, 4])
every_optimizer = pytest.mark.parametrize("optimizer", ["sgd", "momentum"])


@pytest.mark.parametrize("shared_on", ["cpu", "gpu"])
@every_optimizer
@every_count
@pytest.mark.parametrize("manager", IN_ONE_PROCESS)
def test_manager_does_the_arithmetic(manager: str, towers: int, optimizer: str, shared_on: str) -> None:
    assert _error(manager, towers, optimizer, shared_on=shared_on, modifiers=Modifiers()) <= EXACT


@pytest.mark.parametrize("transfer", TRANSFERS)
@every_count
@pytest.mark.parametrize("spec", ALGORITHMS)
def test_reduction_does_the_arithmetic(spec: str, towers: int, transfer: str) -> None:
    modifiers = Modifiers(all_reduce_spec=spec, **TRANSFERS[transfer])
    place = Place(tuple(f"/cpu:{i}" for i in range(towers)), devices.HOST)
    sentence = why_not("replicated", modifiers, place)
    if sentence:
        pytest.skip(sentence)
    assert _error("replicated", towers, "sgd", modifiers=modifiers) <= tolerances.of(modifiers)


@pytest.mark.parametrize("shared_on", ["cpu", "gpu"])
@every_optimizer
@every_count
def test_staging_delays_exactly_as_it_says(towers: int, optimizer: str, shared_on: str) -> None:
    modifiers = Modifiers(staged_vars=True)
    assert _error("parameter_server", towers, optimizer, shared_on=shared_on, modifiers=modifiers) <= EXACT


@pytest.mark.parametrize("steps", [1, 2, 3])
@every_optimizer
@every_count
def test_local_sgd_averages_weights_when_it_says(towers: int, optimizer: str, steps: int) -> None:
    assert _error("local_sgd", towers, optimizer, modifiers=Modifiers(local_sgd_steps=steps)) <= EXACT


def test_averaging_weights_after_every_step_of_sgd_is_averaging_gradients() -> None:
    weights = wanted_of("local_sgd", Modifiers(local_sgd_steps=1), 3, "sgd")
    assert weights.error(wanted_of("replicated", Modifiers(), 3, "sgd")) < 1e-12


def test_the_oracle_by_hand() -> None:
    """One tower, one step: x = -1, 0; loss = -0.5 * 1 * 2; gradients -0.5 * 2 + 1/16 and -0.5 * 1 + 2/16."""
    first = expectations.expected(1, "sgd", exchanged=True)
    assert first.loss[0] == -1.0
    assert first.a[0] == [1.0 - (-1.0 + 1 / 16) / 32]
    assert first.b[0] == [2.0 - (-0.5 + 2 / 16) / 32]
    # Two towers: x = -1, 0 and 1, 2; the mean of the gradients.
    second = expectations.expected(2, "sgd", exchanged=True)
    assert second.a[0] == [1.0 - (0.5 * (-1.0 + 3.0) + 1 / 16) / 32] * 2


def test_the_oracle_tells_everything_apart() -> None:
    """A check that cannot fail checks nothing."""
    kinds = [
        expectations.expected(2, optimizer, exchanged=exchanged, mode=mode)
        for optimizer in ("sgd", "momentum")
        for exchanged in (True, False)
        for mode in ("plain", "relaxed", "staged")
    ]
    for index, one in enumerate(kinds):
        for other in kinds[index + 1 :]:
            assert one.error(other) > 0.01
    assert kinds[0].error(expectations.Trajectory()) == float("inf")
