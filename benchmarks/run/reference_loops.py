"""Training loops that users know, run step by step as a reference: devices, model, images and optimizer are as ours.

They run in TensorFlow's eager runtime on a model whose variables Keras owns.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from benchmarks.cluster.member import Team
from benchmarks.config.config import Config
from benchmarks.console import warn
from benchmarks.input.tower_input import TowerInput
from benchmarks.measure import injected_delay
from benchmarks.measure.run_log import RunLog
from benchmarks.measure.timing import Numbers, Taken, timed
from benchmarks.run import graph, steps
from benchmarks.run.display import Display
from benchmarks.run.steps import FIRST_STEPS, Stepper
from benchmarks.topology import devices as device_planning
from benchmarks.topology.devices import Devices
from benchmarks.training import objectives
from benchmarks.training.loss_scale import all_finite
from models import building, specs

_ENDLESS_STEPS = 2**31 - 1
_JOIN_SECONDS = 60.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trained:
    """What a reference loop trains.

    Attributes:
        model: owned by the strategy, as the optimizer.
        strategy: Keras' own default on one device, or MirroredStrategy.
        batches: one per replica, each on its device.
        devices: of the replicas.
    """

    model: keras.Model
    optimizer: keras.optimizers.Optimizer
    strategy: tf.distribute.Strategy
    batches: Sequence[TowerInput]
    devices: Sequence[str]


def run(config: Config, log: RunLog, display: Display, team: Team) -> None:
    """Runs the reference loop of `config` and fills `log`; the eager runtime must not have started yet.

    Raises:
        UsageError: a device is missing.
        OutOfMemoryError: a device or the host is out of memory.
        InvalidRunError: a loss was not finite.
    """
    team.expect("Building the model", FIRST_STEPS * config.step_timeout_seconds)
    devices = _plan_devices(config)
    tower_input = graph.build_input(config, devices.towers)
    in_fit = config.variable_update == "keras_fit"
    strategy = tf.distribute.get_strategy()
    if config.num_devices > 1 or not in_fit:
        strategy = tf.distribute.MirroredStrategy(devices.towers)
    options: dict[str, Any] = {
        "data_format": config.data_format,
        "num_classes": config.num_classes,
        "seed": config.seed,
        "precision": config.precision,
    }
    spec = specs.find(config.model)
    with strategy.scope():
        if config.keras_application:
            model = building.build_application(**options)
        else:
            model = building.build(spec, **options, owning=True)
        momentum = config.momentum if config.optimizer == "momentum" else 0.0
        optimizer = _SGDWithDecay(model, config.weight_decay / config.num_devices, config.learning_rate, momentum)
        optimizer.build(model.keras_model.trainable_variables)
    trained = Trained(
        model=model.keras_model,
        optimizer=optimizer,
        strategy=strategy,
        batches=tower_input.towers,
        devices=devices.towers,
    )
    log.started("graph")
    log.placement = _placement(trained, devices.description, _description(config))
    images = tower_input.description
    if in_fit:
        size = f"{spec.image_size}x{spec.image_size} pixels"
        images = f"synthetic, {size}, made once on the host, where tf.data repeats it"
    display.start(steps.facts(config, images, log.placement))
    try:
        with (keras_fit if in_fit else mirrored_strategy)(trained) as stepper:
            steps.measure(config, steps.steps_to_measure(config, tower_input), stepper, log, display, team)
        team.expect("Checking the variables after the run", FIRST_STEPS * config.step_timeout_seconds)
        log.observe(replica_drift=_drift(trained))
        first_copies = [_copies(trained, variable)[0] for variable in trained.model.variables]
        log.weights_are_finite = bool(all_finite(copy for copy in first_copies if copy.dtype.is_floating))
    except tf.errors.OpError as error:
        raise tower_input.translate(error, config.num_classes) from error
    team.expect_nothing()


def _plan_devices(config: Config) -> Devices:
    device_planning.require_gpus(config.runtime, eager=True)
    if config.device == "cpu" and config.data_format == "NCHW":
        device_planning.require_nchw_on_cpu(config.runtime)
    device_planning.configure_eager_runtime(config.runtime)
    return device_planning.plan(
        config.device, config.num_devices, virtual_gpus=config.virtual_gpus, shared_on=config.shared_on
    )


class _SGDWithDecay(keras.optimizers.SGD):  # type: ignore[misc]
    """Keras' SGD, with the gradient of weight decay added to that of the loss, as in this suite.

    Keras' own `weight_decay` bypasses the momentum, and a regularizer would be part of the loss.

    Args:
        model: states which of its variables are decayed.
        factor: of each replica's weights; the replicas' gradients are summed.
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


def _placement(trained: Trained, devices: str, description: str) -> dict[str, Any]:
    """Returns the placement for the record; see `benchmarks.training.placement_table`."""
    weights, copies = trained.model.trainable_variables, trained.strategy.num_replicas_in_sync
    return {
        "devices": devices,
        "tower_devices": list(trained.devices),
        "manager": description,
        "variables": len(trained.model.variables) * copies,
        "weights": len(weights) * copies,
        "variable_bytes_per_device": _bytes_per_device(trained, trained.model.variables),
        "slot_bytes_per_device": _bytes_per_device(trained, trained.optimizer.variables),
        "gradient_bytes_per_device": _bytes_per_device(trained, weights),
        "sent_per_step": {},
    }


def _description(config: Config) -> str:
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
    """Returns the largest difference between copies of a weight; None if there is one copy."""
    if trained.strategy.num_replicas_in_sync == 1:
        return None
    differences = []
    for variable in trained.model.trainable_variables:
        first, *others = (copy.numpy() for copy in _copies(trained, variable))
        differences += [float(abs(first - other).max()) for other in others]
    return max(differences)


@contextlib.contextmanager
def mirrored_strategy(trained: Trained) -> Iterator[Stepper]:
    """Yields the stepper of a `tf.function` with one step of all replicas, as in TensorFlow's guide."""
    model, strategy = trained.model, trained.strategy

    def one_replica(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = objectives.cross_entropy(model(images, training=True), labels)
            share = loss / strategy.num_replicas_in_sync  # the optimizer sums over the replicas
        gradients = tape.gradient(share, model.trainable_variables)
        trained.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function(jit_compile=False)  # type: ignore[untyped-decorator]
    def all_replicas(images: Any, labels: Any) -> tf.Tensor:
        return strategy.reduce("MEAN", strategy.run(one_replica, args=(images, labels)), axis=None)

    images, labels = (
        strategy.experimental_distribute_values_from_function(
            lambda context, name=name: getattr(trained.batches[context.replica_id_in_sync_group], name)
        )
        for name in ("images", "labels")
    )

    def step() -> tuple[float, Numbers]:
        return float(all_replicas(images, labels)), {}

    yield Stepper(timed(injected_delay.slowed(step)))


@contextlib.contextmanager
def keras_fit(trained: Trained) -> Iterator[Stepper]:
    """Yields the stepper of Keras' `fit`, which runs in a thread of its own and pauses between steps."""
    trained.model.compile(
        optimizer=trained.optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,  # by default Keras decides whether XLA compiles the step
    )
    pauses = _Pauses()
    thread = threading.Thread(target=pauses.run, args=(_fitting(trained, pauses),), name="fit", daemon=True)
    thread.start()
    try:
        yield Stepper(pauses.take)
    finally:
        pauses.stop()
        thread.join(_JOIN_SECONDS)
        if thread.is_alive():
            warn(f"fit did not end its step within {_JOIN_SECONDS:g} s; the run ends without it.")


def _fitting(trained: Trained, pauses: _Pauses) -> Callable[[], object]:
    """Returns the call of `fit`, on a data set that repeats one batch."""
    with tf.device("/cpu:0"):
        batch = [tf.concat([getattr(part, name) for part in trained.batches], axis=0) for name in ("images", "labels")]
    data = tf.data.Dataset.from_tensors(tuple(batch)).repeat()
    (first, *others) = trained.devices
    if "gpu" in first and not others:  # a strategy of several devices prefetches by itself
        data = data.apply(tf.data.experimental.prefetch_to_device(first))
    return lambda: trained.model.fit(data, steps_per_epoch=_ENDLESS_STEPS, shuffle=False, verbose=0, callbacks=[pauses])


class _Pauses(keras.callbacks.Callback):  # type: ignore[misc]
    """Pauses `fit` after every step until the next is requested, and times the steps.

    A step is everything that `fit` does from one end of a batch to the next, including fetching the loss; the first
    step includes what `fit` does before it.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__()
        self._clock = clock
        self._completed: queue.SimpleQueue[Taken | BaseException] = queue.SimpleQueue()
        self._may_continue = threading.Semaphore(0)
        self._stopped = False
        self._begun = 0.0

    def run(self, fit: Callable[[], object]) -> None:
        """Runs `fit`, in its own thread, once the first step is requested."""
        self._wait()
        if self._stopped:
            return
        try:
            fit()
            self._completed.put(RuntimeError("Keras' fit has ended early: is KERAS_MAX_STEPS_PER_EPOCH set?"))
        except BaseException as error:  # `take` raises it in the thread that waits
            self._completed.put(error)

    def take(self) -> Taken:
        """Lets `fit` take one step, and waits for its end.

        Raises:
            Exception: what `fit` raised.
        """
        self._may_continue.release()
        completed = self._completed.get()
        if isinstance(completed, BaseException):
            raise completed
        return completed

    def stop(self) -> None:
        """Lets `fit` end with its current step."""
        self._stopped = True
        self._may_continue.release()

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Reports the completed step, and pauses."""
        if injected_delay.share():
            injected_delay.busy(injected_delay.share() * (self._clock() - self._begun))
        end = self._clock()
        loss = (logs or {})["loss"]
        self.model.reset_metrics()  # otherwise the loss would be the mean of all steps
        self._completed.put(Taken(end - self._begun, loss, ended_at=end))
        self._wait()
        self.model.stop_training = self._stopped

    def _wait(self) -> None:
        self._may_continue.acquire()
        self._begun = self._clock()
