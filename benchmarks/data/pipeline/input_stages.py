"""Measures the input pipeline, ended after each of its stages, and decoding alone for comparison."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.console import progress, warn
from benchmarks.data.options import InputOptions
from benchmarks.data.pipeline import imagenet_pipeline, input_pipeline
from benchmarks.data.pipeline.tower_input import InputSpec
from benchmarks.data.sources import imagenet_files
from benchmarks.data.sources.class_folders import PhotoFolder
from benchmarks.data.sources.imagenet_files import Photos
from benchmarks.data.sources.small_images import Pixels
from benchmarks.devices.device_plan import HOST
from benchmarks.errors import BenchError, headline
from benchmarks.machine import hardware
from benchmarks.measure.timing import Clock
from benchmarks.process.deadlines import NO_DEADLINES, Deadlines

BARE_DECODE, COPY = "bare decode", "copy"


@dataclasses.dataclass(frozen=True)
class Probe:
    """A pipeline that ends after some stage, or BARE_DECODE, which only decodes."""

    name: str
    take: Callable[[], object]
    images: int  # in each take
    waiting: int  # takes that the prefetched batches can serve


@dataclasses.dataclass
class Rates:
    """What was measured of a probe: images per second in each round, and the seconds of each batch."""

    rounds: list[float] = dataclasses.field(default_factory=list)
    batch_seconds: list[float] = dataclasses.field(default_factory=list)
    images: int = 0

    @property
    def images_per_sec(self) -> float:
        """All images over all time."""
        return self.images * len(self.batch_seconds) / sum(self.batch_seconds)


@contextlib.contextmanager
def probes(
    source: input_pipeline.Source,
    spec: InputSpec,
    options: InputOptions,
    *,
    num_devices: int,
    session_config: tf.compat.v1.ConfigProto,
    build_copy: Callable[[], input_pipeline.RunInput] | None = None,
    deadlines: Deadlines = NO_DEADLINES,
) -> Iterator[list[Probe]]:
    """Builds the pipelines of a run on `num_devices` devices in their own graph and session.

    `build_copy` builds the towers' input in the default graph, for the stage COPY; None leaves that stage out. Raises
    DataError, also while the probes are used, if a record is bad.
    """
    datasets = {}
    deadlines.preparation("Building the input's stages")
    with tf.Graph().as_default() as graph:
        with tf.device(HOST):
            whole = dataclasses.replace(spec, worker=0, workers=1)
            for stage in input_pipeline.stages(source):
                skipping = input_pipeline.skipping(source, options)
                datasets[stage] = input_pipeline.batches(source, whole, options, skipping, stage)
            if not isinstance(source, Pixels) and not imagenet_files.is_decoded(source):
                datasets[BARE_DECODE] = _bare_decode(source, spec.batch_per_device, options.on_bad_record == "skip")
            initializers, fetches = [], {}
            for name, dataset in datasets.items():
                configured = input_pipeline.configured(dataset, options, num_devices)
                iterator = tf.compat.v1.data.make_initializable_iterator(configured)
                initializers.append(iterator.initializer)
                # The last component is labels or sizes: large images need not leave the session.
                fetches[name] = tf.nest.flatten(iterator.get_next())[-1:]
        built = build_copy() if build_copy else input_pipeline.of_source(source)
        initializers += built.initializers
        if build_copy:
            # A small value that depends on the whole batch: TensorFlow computes only what is fetched.
            fetches[COPY] = [
                value
                for tower in built.towers
                for value in (tf.reduce_sum(tower.images), tower.labels, tower.stage)
                if value is not None
            ]
        try:
            with tf.compat.v1.Session(graph=graph, config=session_config) as session:
                for initializer in initializers:
                    session.run(initializer)
                found = []
                for name, fetched in fetches.items():
                    towers = num_devices if name == COPY else 1
                    images, waiting = spec.batch_per_device * towers, options.prefetch_batches * num_devices // towers
                    found.append(Probe(name, session.make_callable(fetched), images, waiting))
                yield found
        except tf.errors.OpError as error:
            deadlines.none()  # finding the bad record has a limit of its own
            raise built.translate(error, spec.num_classes) from error


@tf.autograph.experimental.do_not_convert
def _bare_decode(source: Photos, batch: int, skip_bad: bool) -> tf.data.Dataset:
    """Returns a pipeline that reads photos and decodes them whole, one at a time on every core."""
    numbered = imagenet_pipeline.checked(source, imagenet_pipeline.numbered_files(source))
    names = numbered.map(lambda file, name: name).repeat()
    if isinstance(source, PhotoFolder):
        photos = names.map(tf.io.read_file, num_parallel_calls=tf.data.AUTOTUNE)
    else:
        key, jpeg = source.layout.encoded, tf.io.FixedLenFeature([], tf.string)
        records = tf.data.TFRecordDataset(names, source.compression)
        photos = records.map(lambda record: tf.io.parse_single_example(record, {key: jpeg})[key])
    shapes = photos.map(
        lambda encoded: tf.shape(tf.io.decode_jpeg(encoded, channels=3)),  # which reads PNGs, too
        num_parallel_calls=hardware.usable_cores(),
        deterministic=False,
    )
    return (shapes.ignore_errors() if skip_bad else shapes).batch(batch, drop_remainder=True)


def measure(
    found: Sequence[Probe],
    *,
    rounds: int,
    seconds: float,
    clock: Clock = time.perf_counter,
    deadlines: Deadlines = NO_DEADLINES,
) -> dict[str, Rates]:
    """Measures the probes in turn, each for some seconds a round, so that a change of the load affects all of them."""
    rates = {probe.name: Rates(images=probe.images) for probe in found}
    with progress.counted("measuring the input's stages", rounds * len(found)):
        for probe in [*found] * rounds:
            what = f"The input up to '{probe.name}'"
            deadlines.preparation(what)
            for _ in range(probe.waiting + 1):  # made while other probes were measured
                probe.take()
            deadlines.step(what, repeated_seconds=seconds)
            times: list[float] = []
            begin = end = clock()
            while end - begin < seconds:
                probe.take()
                times.append(clock() - end)
                end += times[-1]
            rates[probe.name].rounds.append(probe.images * len(times) / (end - begin))
            rates[probe.name].batch_seconds += times
            progress.end()  # of what is measured
            progress.advance()
    deadlines.none()
    return rates


def measure_after_run(
    source: input_pipeline.Source,
    spec: InputSpec,
    options: InputOptions,
    *,
    num_devices: int,
    session_config: tf.compat.v1.ConfigProto,
    deadlines: Deadlines = NO_DEADLINES,
) -> dict[str, float]:
    """Returns images per second of each stage on the host, measured for some seconds without GPUs.

    A failure is only a warning, since the run before it was valid; the result is then empty.
    """
    try:
        with probes(
            source, spec, options, num_devices=num_devices, session_config=session_config, deadlines=deadlines
        ) as found:
            stages = [probe for probe in found if probe.name != BARE_DECODE]
            rates = measure(stages, rounds=2, seconds=0.5, deadlines=deadlines)
            return {name: one.images_per_sec for name, one in rates.items()}
    except (BenchError, tf.errors.OpError) as error:
        warn(f"The stages of the input could not be measured: {headline(error)}")
        return {}


# More than are alive at a time: the pipeline reads ahead into the next epochs.
_EPOCHS = 64


def shuffle_buffer(
    source: input_pipeline.Source,
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
            skipping = input_pipeline.skipping(source, options)
            batches = imagenet_pipeline.batches(source, whole, options, skipping, shuffle=shuffle)
            configured = input_pipeline.configured(batches, options, num_devices)
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
            raise input_pipeline.of_source(source).translate(error, spec.num_classes) from error
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


def shuffle_buffer_in_words(found: Mapping[str, float]) -> str:
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
