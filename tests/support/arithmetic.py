"""How far managers on CPU devices of this process are from the two references of `benchmarks.verify.oracle`."""

from __future__ import annotations

import functools

import numpy as np

from benchmarks.devices import device_plan
from benchmarks.process.tensorflow_setup import Devices
from benchmarks.verify import cases, oracle
from variable_mgr import expected
from variable_mgr.modifiers import Modifiers

NO_MODIFIERS = Modifiers()


def scalar_error(
    manager: str, towers: int, optimizer: str, *, shared_on: str = "cpu", modifiers: Modifiers = NO_MODIFIERS
) -> float:
    """Trains two scalars and returns the error against NumPy."""
    plan = device_plan.plan(Devices(num_devices=towers), shared_on=shared_on)
    rule, options = expected.Rule(optimizer), device_plan.session_config(Devices(num_devices=towers))
    got = oracle.trained(cases.maker(manager, plan, modifiers), plan, rule, options)
    return got.error(expected.of_manager(manager, modifiers, rule, towers))


def weights_error(manager: str, towers: int, modifiers: Modifiers) -> float:
    """Trains a small network and returns the error against one device that has the batches of all towers."""
    plan = device_plan.plan(Devices(num_devices=towers), shared_on="cpu")
    got = oracle.convolutional_weights(
        cases.maker(manager, plan, modifiers),
        plan,
        towers,
        device_plan.session_config(Devices(num_devices=towers)),
        divided=modifiers.fc_model_parallel,
    )
    return cases.largest_difference(got, _weights_of_one_device(towers))


@functools.cache
def _weights_of_one_device(towers: int) -> dict[str, np.ndarray]:
    plan = device_plan.plan(Devices(), shared_on="cpu")
    make = cases.maker("replicated", plan, NO_MODIFIERS)
    return oracle.convolutional_weights(make, plan, towers, device_plan.session_config(Devices()))
