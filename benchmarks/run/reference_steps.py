"""Training loops that users know, taken step by step, so that they are timed and kept as this suite's own.

They run in TensorFlow's eager runtime on a model whose variables Keras owns.
"""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from benchmarks.console import warn
from benchmarks.input.tower_input import TowerInput
from benchmarks.measure import injected_delay
from benchmarks.measure.timing import Observed, Taken, timed
from benchmarks.run.steps import Stepper
from benchmarks.training import objectives

_ENDLESS_STEPS = 2**31 - 1
_JOIN_SECONDS = 60.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trained:
    """What such a loop trains.

    Attributes:
        model: its variables are of the strategy.
        optimizer: likewise.
        strategy: Keras' own default on one device, or MirroredStrategy.
        batches: one per replica, each on its device.
        learns_on: the replicas' devices.
    """

    model: keras.Model
    optimizer: keras.optimizers.Optimizer
    strategy: tf.distribute.Strategy
    batches: Sequence[TowerInput]
    learns_on: Sequence[str]


@contextlib.contextmanager
def mirrored_strategy(trained: Trained) -> Iterator[Stepper]:
    """Yields what runs a `tf.function` with one step of all replicas, as TensorFlow's guide has it, to its end."""
    model, strategy = trained.model, trained.strategy

    def one_replica(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = objectives.cross_entropy(model(images, training=True), labels)
            share = loss / strategy.num_replicas_in_sync  # the optimizer adds up what the replicas have
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

    def step() -> tuple[float, Observed]:
        return float(all_replicas(images, labels)), {}

    yield Stepper(timed(injected_delay.slowed(step)))


@contextlib.contextmanager
def keras_fit(trained: Trained) -> Iterator[Stepper]:
    """Yields what lets Keras' `fit`, which runs in a thread of its own, go on by one step."""
    trained.model.compile(
        optimizer=trained.optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,  # by default Keras decides by itself whether XLA compiles the step
    )
    turns = _Turns()
    thread = threading.Thread(target=turns.run, args=(_fitting(trained, turns),), name="fit", daemon=True)
    thread.start()
    try:
        yield Stepper(turns.take)
    finally:
        turns.stop()
        thread.join(_JOIN_SECONDS)
        if thread.is_alive():
            warn(f"fit did not end its step within {_JOIN_SECONDS:g} s, and is left behind.")


def _fitting(trained: Trained, turns: _Turns) -> Callable[[], object]:
    """Returns the call of `fit`, on a data set that is one batch again and again."""
    with tf.device("/cpu:0"):
        batch = [tf.concat([getattr(part, name) for part in trained.batches], axis=0) for name in ("images", "labels")]
    data = tf.data.Dataset.from_tensors(tuple(batch)).repeat()
    (first, *others) = trained.learns_on
    if "gpu" in first and not others:  # a strategy of several devices prefetches by itself
        data = data.apply(tf.data.experimental.prefetch_to_device(first))
    return lambda: trained.model.fit(data, steps_per_epoch=_ENDLESS_STEPS, shuffle=False, verbose=0, callbacks=[turns])


class _Turns(keras.callbacks.Callback):  # type: ignore[misc]
    """Holds `fit` up after every step until the next is asked for, and times what lies between.

    That is all that `fit` does from one end of a batch to the next, fetching of the loss included; the first step has
    also what `fit` does before it.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__()
        self._clock = clock
        self._completed: queue.SimpleQueue[Taken | BaseException] = queue.SimpleQueue()
        self._turn = threading.Semaphore(0)
        self._stopped = False
        self._begun = 0.0

    def run(self, fit: Callable[[], object]) -> None:
        """Runs `fit`, in the thread that belongs to it, when the first step is asked for."""
        self._wait()
        if self._stopped:
            return
        try:
            fit()
            self._completed.put(RuntimeError("Keras' fit has ended by itself: is KERAS_MAX_STEPS_PER_EPOCH set?"))
        except BaseException as error:  # it belongs to the thread that waits
            self._completed.put(error)

    def take(self) -> Taken:
        """Lets `fit` go on by one step, and waits for its end.

        Raises:
            Exception: what `fit` raised.
        """
        self._turn.release()
        completed = self._completed.get()
        if isinstance(completed, BaseException):
            raise completed
        return completed

    def stop(self) -> None:
        """Lets `fit` end with the step that it is in."""
        self._stopped = True
        self._turn.release()

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Hands out the step that has ended, and waits for its turn."""
        if injected_delay.share():
            injected_delay.busy(injected_delay.share() * (self._clock() - self._begun))
        end = self._clock()
        loss = (logs or {})["loss"]
        self.model.reset_metrics()  # or the loss would be the mean since the beginning
        self._completed.put(Taken(end - self._begun, loss, ended_at=end))
        self._wait()
        self.model.stop_training = self._stopped

    def _wait(self) -> None:
        self._turn.acquire()
        self._begun = self._clock()
