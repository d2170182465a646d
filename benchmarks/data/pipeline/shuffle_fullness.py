"""How full the shuffle buffer of photos is: what has entered it minus what has left it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.data.options import InputOptions
from benchmarks.data.pipeline import host_pipeline, imagenet_pipeline, run_input
from benchmarks.data.pipeline.tower_input import InputSpec
from benchmarks.data.sources.small_images import Pixels
from benchmarks.devices.device_plan import HOST
from benchmarks.measure.timing import Clock
from benchmarks.process.deadlines import NO_DEADLINES, Deadlines

# More than are alive at a time: the pipeline reads ahead into the next epochs.
_EPOCHS = 64


def measure(
    source: host_pipeline.Source,
    spec: InputSpec,
    options: InputOptions,
    *,
    num_devices: int,
    session_config: tf.compat.v1.ConfigProto,
    seconds: float,
    clock: Clock = time.perf_counter,
    deadlines: Deadlines = NO_DEADLINES,
) -> Mapping[str, float]:
    """Draws batches for some seconds, as fast as they come, from a pipeline that counts around its shuffle.

    The counters cost time, so this pipeline is not one whose speed is measured.

    Returns:
        What `results.measurement.Measurement.shuffle_buffer` describes; nothing if one record is repeated, or for small
        images, of which whole epochs are shuffled.

    Raises:
        DataError: a record is bad.
    """
    if isinstance(source, Pixels) or options.cache == "one_record":
        return {}
    capacity = max(1, options.shuffle_records)
    deadlines.preparation("Filling the shuffle buffer")
    with tf.Graph().as_default() as graph:
        with tf.device(HOST):
            entered, left = (tf.Variable(tf.zeros([_EPOCHS], tf.int64), trainable=False) for _ in range(2))

            def shuffle(records: tf.data.Dataset, size: int, *, seed: tf.Tensor) -> tf.data.Dataset:
                epoch = (seed - spec.seed) % _EPOCHS
                return _counted(_counted(records, entered, epoch).shuffle(size, seed=seed), left, epoch)

            whole = dataclasses.replace(spec, worker=0, workers=1)
            skipping = run_input.skipping(source, options)
            batches = imagenet_pipeline.batches(source, whole, options, skipping, shuffle=shuffle)
            configured = host_pipeline.configured(batches, options, num_devices)
            iterator = tf.compat.v1.data.make_initializable_iterator(configured)
            drawn = tf.nest.flatten(iterator.get_next())[-1]
            held = entered.read_value() - left.read_value()
        try:
            with tf.compat.v1.Session(graph=graph, config=session_config) as session:
                session.run([entered.initializer, left.initializer])
                begin = clock()
                session.run(iterator.initializer)
                session.run(drawn)
                first = end = clock()
                samples = _Samples(capacity)
                samples.add(session.run(held))
                deadlines.step("Drawing from the shuffle buffer", repeated_seconds=seconds)
                while end - first < seconds:
                    session.run(drawn)
                    samples.add(session.run(held))
                    end = clock()
        except tf.errors.OpError as error:
            deadlines.none()  # finding the bad record has a limit of its own
            raise run_input.of_source(source).translate(error, spec.num_classes) from error
    found = samples.held
    return {
        "capacity": capacity,
        "fill_seconds": first - begin,
        "at_start": found[0],
        "at_end": found[-1],
        "least": min(found),
        "share_half_full": sum(2 * held >= capacity for held in found) / len(found),
    }


class _Samples:
    """How many records the buffer of the epoch that is drawn from held; those of later epochs are filled ahead."""

    def __init__(self, capacity: int) -> None:
        self.held: list[int] = []
        self._capacity, self._epoch = capacity, 0

    def add(self, held: np.ndarray) -> None:
        """Adds a sample: the records in the buffer of each epoch, modulo _EPOCHS; after its epoch a buffer is empty."""
        alive = [step for step in range(_EPOCHS) if held[(self._epoch + step) % _EPOCHS] > 0]
        self._epoch += alive[0] if alive else 0
        # The counters are read while they change.
        self.held.append(min(self._capacity, int(held[self._epoch % _EPOCHS])))


def _counted(dataset: tf.data.Dataset, counter: tf.Variable, epoch: tf.Tensor) -> tf.data.Dataset:
    """Adds 1 to an epoch's counter for every element."""

    def count(*element: Any) -> Any:
        one = tf.ones([], tf.int64)
        with tf.control_dependencies(
            [tf.raw_ops.ResourceScatterAdd(resource=counter.handle, indices=epoch, updates=one)]
        ):
            return tf.nest.map_structure(tf.identity, element)

    return dataset.map(count)


def in_words(found: Mapping[str, float]) -> str:
    """Returns the sentences for the user."""
    capacity = found["capacity"]
    text = (
        f"Shuffle buffer: {found['at_start']:.0f} of {capacity:.0f} records after the first batch, which took "
        f"{found['fill_seconds']:.2f} s; {found['at_end']:.0f} at the end, {found['least']:.0f} at least. It was at "
        f"least half full in {found['share_half_full']:.0%} of the samples."
    )
    if found["at_start"] < capacity // 2:
        return f"{text} It never fills, because an epoch has fewer records than it holds."
    return f"{text} It empties at the end of each epoch." if found["least"] < capacity // 2 else text
