"""The start of most verbs that use TensorFlow: environment, import, devices. Imports TensorFlow late."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.process import tensorflow_setup
from benchmarks.process.deadlines import NO_DEADLINES, Deadlines
from benchmarks.process.tensorflow_setup import Runtime

if TYPE_CHECKING:
    import tensorflow as tf

    from benchmarks.devices.device_plan import DevicePlan


def start(runtime: Runtime, deadlines: Deadlines = NO_DEADLINES) -> tuple[DevicePlan, tf.compat.v1.ConfigProto]:
    """Imports TensorFlow in an environment prepared for it, and returns the devices and a session's configuration.

    A run takes the same steps apart: it describes the machine between them.

    Raises:
        UsageError: TensorFlow does not see the devices.
    """
    deadlines.importing()
    tensorflow_setup.prepare(runtime)
    tensorflow_setup.import_tensorflow()
    from benchmarks.devices import device_plan

    device_plan.require_gpus(runtime.devices)
    device_plan.set_arithmetic(runtime)
    started = device_plan.plan(runtime.devices, shared_on="cpu"), device_plan.session_config(runtime.devices)
    deadlines.none()
    return started
