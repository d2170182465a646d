"""Training loops that users know, run step by step as a reference: devices, model, images and optimizer are as ours.

They run in TensorFlow's eager runtime on a model whose variables Keras owns.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from benchmarks.cluster.member import Team
from benchmarks.config.config import Config
from benchmarks.data.pipeline.tower_input import TowerInput
from benchmarks.errors import UsageError
from benchmarks.graph import run_graph
from benchmarks.graph.stepper import Stepper
from benchmarks.measure import async_towers, injected_delay
from benchmarks.measure.display import Display
from benchmarks.measure.run_log import RunLog
from benchmarks.measure.timing import Numbers, Taken, timed
from benchmarks.run import loop
from benchmarks.training import objectives
from benchmarks.training.loss_scale import all_finite
from benchmarks.training.placement_table import per_device, size_bytes
from models import building, specs
from models.convolutions import Kernels

_ENDLESS_STEPS = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Trained:
    """What a reference loop trains: a model and an optimizer of the strategy, and each replica's batch and device."""

    model: keras.Model
    optimizer: keras.optimizers.Optimizer
    strategy: tf.distribute.Strategy
    batches: Sequence[TowerInput]
    devices: Sequence[str]


def run_reference_loop(config: Config, log: RunLog, display: Display, team: Team) -> None:
    """Runs the reference loop of `config` and fills `log`; the eager runtime must not have started yet.

    Raises:
        BenchError: as `benchmarks.run.train.run_loop`.
    """
    workload, training, variables = config.workload, config.training, config.variables
    team.deadlines.preparation("Building the model")
    display.phase("building the model", None)
    devices = run_graph.plan_devices(config, eager=True)
    input_spec = run_graph.input_spec(config)
    tower_input = run_graph.build_input(workload, config.data, input_spec, devices.towers)
    in_fit, copies = variables.variable_update == "keras_fit", len(devices.towers)
    strategy = tf.distribute.get_strategy()
    if copies > 1 or not in_fit:
        strategy = tf.distribute.MirroredStrategy(devices.towers)
    build: Callable[..., building.Model] = functools.partial(
        building.build,
        specs.find_model(workload.model),
        owning=True,
        kernels=Kernels(that_pad=config.devices.on_gpu),  # as our own towers
    )
    if variables.keras_application:
        build = building.build_application
    with strategy.scope():
        model = build(
            data_format=workload.data_format,
            num_classes=workload.num_classes,
            seed=training.seed,
            precision=config.computing.precision,
        )
        momentum = training.momentum if training.optimizer == "momentum" else 0.0
        optimizer = _SGDWithDecay(model, training.weight_decay / copies, training.learning_rate, momentum)
        optimizer.build(model.keras_model.trainable_variables)
    trained = Trained(model.keras_model, optimizer, strategy, tower_input.towers, devices.towers)
    log.started("graph")
    description = _description(in_fit, copies, variables.keras_application)
    log.placement = _placement(trained, devices.description, description)
    images = tower_input.description
    if in_fit:
        size = f"{input_spec.image_size}x{input_spec.image_size} pixels"
        images = f"synthetic, {size}, made once on the host, where tf.data repeats it"
    display.start(run_graph.shown_facts(config, images, log.placement))
    try:
        with (keras_fit if in_fit else mirrored_strategy)(trained) as stepper:
            loop.measure_reference(config, stepper, log, display, team)
        log.observe(replica_drift=_drift(trained))
        first_copies = [_copies(trained, variable)[0] for variable in trained.model.variables]
        log.weights_are_finite = bool(all_finite(first_copies))
    except tf.errors.OpError as error:
        raise tower_input.translate(error, workload.num_classes) from error
    team.deadlines.none()


class _SGDWithDecay(keras.optimizers.SGD):  # type: ignore[misc]
    """Keras' SGD, with the gradient of weight decay added to that of the loss, as in this suite.

    Keras' own `weight_decay` bypasses the momentum, and a regularizer would be part of the loss. `factor` is that of
    each replica's weights, since the replicas' gradients are summed.
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


def _description(in_fit: bool, num_devices: int, application: bool) -> str:
    copies = "one copy per device under MirroredStrategy, gradients all-reduced"
    if not in_fit:
        return f"{copies}, a tf.function per step"
    model = "Keras' own ResNet-50, " if application else ""
    return f"{model}Keras' fit, {copies if num_devices > 1 else 'one copy'}"


def _copies(trained: Trained, variable: keras.Variable) -> tuple[tf.Variable, ...]:
    return trained.strategy.experimental_local_results(variable.value)


def _bytes_per_device(trained: Trained, variables: Iterable[keras.Variable]) -> dict[str, int]:
    sizes = []
    for copy in itertools.chain.from_iterable(_copies(trained, variable) for variable in variables):
        device = tf.DeviceSpec.from_string(copy.device)
        name = tf.DeviceSpec(device_type=device.device_type, device_index=device.device_index).to_string()
        sizes.append((name, size_bytes(copy)))
    return per_device(sizes)


def _drift(trained: Trained) -> float | None:
    """Returns the largest difference between copies of a weight; None if there is one copy."""
    if trained.strategy.num_replicas_in_sync == 1:
        return None
    copies = ([copy.numpy() for copy in _copies(trained, v)] for v in trained.model.trainable_variables)
    return max(float(abs(first - other).max()) for first, *others in copies for other in others)


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

    def step() -> tuple[float, int, Numbers]:
        return float(all_replicas(images, labels)), 0, {}

    yield Stepper(timed(injected_delay.slowed(step)))


@contextlib.contextmanager
def keras_fit(trained: Trained) -> Iterator[Stepper]:
    """Yields the stepper of Keras' `fit` on a repeated batch, in a thread of its own that pauses between steps."""
    trained.model.compile(
        optimizer=trained.optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,  # by default Keras decides whether XLA compiles the step
    )
    with tf.device("/cpu:0"):
        batch = [tf.concat([getattr(part, name) for part in trained.batches], axis=0) for name in ("images", "labels")]
    data = tf.data.Dataset.from_tensors(tuple(batch)).repeat()
    first, *others = trained.devices
    if "gpu" in first and not others:  # a strategy of several devices prefetches by itself
        data = data.apply(tf.data.experimental.prefetch_to_device(first))
    pauses = _Pauses()

    def fit() -> None:
        trained.model.fit(data, steps_per_epoch=_ENDLESS_STEPS, shuffle=False, verbose=0, callbacks=[pauses])

    thread = threading.Thread(target=pauses.run, args=(fit,), name="fit", daemon=True)
    thread.start()
    try:
        yield Stepper(pauses.take)
    finally:
        pauses.stop()
        async_towers.join([thread])


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
            self._completed.put(UsageError("Keras' fit has ended early: unset KERAS_MAX_STEPS_PER_EPOCH."))
        except BaseException as error:  # `take` raises it in the thread that waits
            self._completed.put(error)

    def take(self) -> Taken:
        """Lets `fit` take one step, and waits for its end; raises what `fit` raised."""
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
