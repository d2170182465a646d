"""One run of a training loop that is not this suite's, with devices, model, images and optimizer as of our own."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import keras
import tensorflow as tf

from benchmarks.config.config import Config
from benchmarks.measure.run_log import RunLog
from benchmarks.run import reference_steps, steps
from benchmarks.run.display import Display
from benchmarks.run.reference_steps import Trained
from benchmarks.run.steps import FIRST_STEPS, measure
from benchmarks.run.team import Team
from benchmarks.topology import devices as device_planning
from benchmarks.topology.devices import Devices
from benchmarks.training import run_input
from models import building, specs

_LOOPS = {"keras_fit": reference_steps.keras_fit, "mirrored_strategy": reference_steps.mirrored_strategy}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForeignRun:
    """What is trained, on what, and where it is."""

    trained: Trained
    input: run_input.RunInput
    placement: Mapping[str, Any]


def build(config: Config) -> ForeignRun:
    """Builds all that the loop of `config` needs, in the eager runtime, which must not have begun yet.

    Raises:
        UsageError: the devices are not there.
    """
    devices = _devices(config)
    tower_input = run_input.build(config, devices.towers, None)
    if config.num_devices > 1 or config.variable_update == "mirrored_strategy":
        strategy = tf.distribute.MirroredStrategy(devices.towers)
    else:
        strategy = tf.distribute.get_strategy()
    with strategy.scope():
        model = _model(config)
        optimizer = _SGDWithDecay(
            model, config.weight_decay / config.num_devices, config.learning_rate, _momentum(config)
        )
        optimizer.build(model.keras_model.trainable_variables)
    trained = Trained(
        model=model.keras_model,
        optimizer=optimizer,
        strategy=strategy,
        batches=tower_input.towers,
        learns_on=devices.towers,
    )
    return ForeignRun(
        trained=trained,
        input=_described(tower_input, config),
        placement=_placement(trained, devices, config),
    )


def run(config: Config, log: RunLog, display: Display, team: Team) -> None:
    """Runs the loop of `config` and fills `log` as it goes.

    Raises:
        UsageError: the devices are not there.
        OutOfMemoryError: a device's or the host's memory does not suffice.
        InvalidRunError: a loss was not finite.
    """
    team.expect("Building the model", FIRST_STEPS * config.step_timeout_seconds)
    built = build(config)
    log.started("graph")
    log.placement = built.placement
    display.start(steps.facts(config, built.input.description, log.placement))
    try:
        with _LOOPS[config.variable_update](built.trained) as stepper:
            measure(config, steps.steps_to_measure(config, built.input), stepper, log, display, team)
        team.expect("Looking at the variables after the run", FIRST_STEPS * config.step_timeout_seconds)
        log.replica_drift = _drift(built.trained)
        log.weights_are_finite = _all_finite(built.trained)
    except tf.errors.OpError as error:
        raise built.input.translate(error, config.num_classes) from error
    team.expect_nothing()


def _devices(config: Config) -> Devices:
    device_planning.require_gpus(config.runtime, eager=True)
    if config.device == "cpu" and config.data_format == "NCHW":
        device_planning.require_nchw_on_cpu(config.runtime)
    device_planning.configure_eager_runtime(config.runtime)
    return device_planning.plan(
        config.device, config.num_devices, virtual_gpus=config.virtual_gpus, shared_on=config.shared_on
    )


def _model(config: Config) -> building.Model:
    options: dict[str, Any] = {
        "data_format": config.data_format,
        "num_classes": config.num_classes,
        "seed": config.seed,
        "precision": config.precision,
    }
    if config.keras_application:
        return building.build_application(**options)
    return building.build_owning(specs.find(config.model), **options)


def _momentum(config: Config) -> float:
    return config.momentum if config.optimizer == "momentum" else 0.0


class _SGDWithDecay(keras.optimizers.SGD):  # type: ignore[misc]
    """Keras' SGD, which adds the gradient of weight decay to that of the loss, as this suite does.

    Keras' own `weight_decay` does not go through the momentum, and a regularizer would be part of the loss.

    Args:
        model: says which of its variables are decayed.
        factor: each replica adds so much of its weights; their gradients are summed.
        learning_rate: of the update.
        momentum: 0 for plain SGD.
    """

    def __init__(self, model: building.Model, factor: float, learning_rate: float, momentum: float) -> None:
        super().__init__(learning_rate, momentum, name="sgd")  # a name must not begin with _
        weights = model.keras_model.trainable_variables
        described = model.variables[: len(weights)]
        self._factor = {id(v): factor for v, facts in zip(weights, described, strict=True) if facts.decayed and factor}

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Applies gradients, one per variable."""
        decayed = [
            gradient + self._factor[id(variable)] * variable if id(variable) in self._factor else gradient
            for gradient, variable in zip(grads, trainable_variables, strict=True)
        ]
        return super().apply(decayed, trainable_variables)


def _described(tower_input: run_input.RunInput, config: Config) -> run_input.RunInput:
    """Returns the input with what happens to it in words."""
    if config.variable_update != "keras_fit":
        return tower_input
    size = specs.find(config.model).image_size
    described = f"synthetic, {size}x{size} pixels, made once on the host, where tf.data repeats it"
    return dataclasses.replace(tower_input, description=described)


def _placement(trained: Trained, devices: Devices, config: Config) -> dict[str, Any]:
    """Returns where everything is, for the record; see `benchmarks.training.placement_table`."""
    weights = trained.model.trainable_variables
    return {
        "devices": devices.description,
        "tower_devices": list(devices.towers),
        "manager": _in_words(trained, config),
        "variables": len(trained.model.variables) * config.num_devices,
        "weights": len(weights) * config.num_devices,
        "variable_bytes_per_device": _bytes_per_device(trained, trained.model.variables),
        "slot_bytes_per_device": _bytes_per_device(trained, trained.optimizer.variables),
        "gradient_bytes_per_device": _bytes_per_device(trained, weights),
        "sent_per_step": {},
    }


def _in_words(trained: Trained, config: Config) -> str:
    application = "Keras' own ResNet-50, " if config.keras_application else ""
    copies = "one copy per device under MirroredStrategy, gradients all-reduced"
    if config.variable_update == "mirrored_strategy":
        return f"{copies}, a tf.function per step"
    return f"{application}Keras' fit, {copies if config.num_devices > 1 else 'one copy'}"


def _copies(trained: Trained, variable: keras.Variable) -> tuple[tf.Variable, ...]:
    """Returns the variable of each replica."""
    return trained.strategy.experimental_local_results(variable.value)


def _bytes_per_device(trained: Trained, variables: Iterable[keras.Variable]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for variable in variables:
        for copy in _copies(trained, variable):
            device = tf.DeviceSpec.from_string(copy.device)
            name = tf.DeviceSpec(device_type=device.device_type, device_index=device.device_index).to_string()
            total[name] += math.prod(copy.shape) * copy.dtype.size
    return dict(total)


def _drift(trained: Trained) -> float | None:
    """Returns by how much copies of a weight differ at most; None if there is one copy."""
    if trained.strategy.num_replicas_in_sync == 1:
        return None
    differences = []
    for variable in trained.model.trainable_variables:
        first, *others = (copy.numpy() for copy in _copies(trained, variable))
        differences += [float(abs(first - other).max()) for other in others]
    return max(differences)


def _all_finite(trained: Trained) -> bool:
    """Returns whether every weight and average of the first copy is finite."""
    copies = [_copies(trained, variable)[0] for variable in trained.model.variables]
    return all(bool(tf.reduce_all(tf.math.is_finite(copy))) for copy in copies if copy.dtype.is_floating)
