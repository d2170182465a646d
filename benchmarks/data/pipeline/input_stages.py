"""Measures the input pipeline, ended after each of its stages, decoding alone, and how full the shuffle buffer is."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.console import progress, warn
from benchmarks.data.options import InputOptions, parallel_calls
from benchmarks.data.pipeline import imagenet_pipeline, input_pipeline
from benchmarks.data.pipeline.input_pipeline import RunInput, Source
from benchmarks.data.pipeline.tower_input import InputSpec
from benchmarks.data.sources import small_images
from benchmarks.data.sources.class_folders import PhotoFolder
from benchmarks.data.sources.imagenet_files import Photos
from benchmarks.data.sources.small_images import Pixels
from benchmarks.errors import BenchError, headline
from benchmarks.machine import hardware
from benchmarks.measure.timing import Clock
from benchmarks.process.deadlines import NO_DEADLINES, Deadlines
from variable_mgr.place import HOST

BARE_DECODE, COPY = "bare decode", "copy"
# Shuffle buffers that are counted: more than are alive at a time, as the pipeline reads ahead into the next epochs.
_EPOCHS = 64


@dataclasses.dataclass(frozen=True)
class Probe:
    """A pipeline that ends after some stage, or BARE_DECODE, which only decodes."""

    name: str
    take: Callable[[], object]
    images: int  # in each take
    waiting: int  # takes that the buffers can serve


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measuring:
    """What is measured: the input of a run on `num_devices` devices, in a session of its own. Bad records are named."""

    source: Source
    spec: InputSpec
    options: InputOptions
    num_devices: int
    session_config: tf.compat.v1.ConfigProto
    deadlines: Deadlines = NO_DEADLINES

    @contextlib.contextmanager
    def session(self, graph: tf.Graph, built: RunInput | None = None) -> Iterator[tf.compat.v1.Session]:
        """Yields a session of a graph in which an input may be `built`.

        Raises:
            DataError: a record is bad.
        """
        try:
            with tf.compat.v1.Session(graph=graph, config=self.session_config) as session:
                yield session
        except tf.errors.OpError as error:
            self.deadlines.none()  # finding the bad record has a limit of its own
            built = built or RunInput(source=self.source)
            raise built.translate(error, self.spec.num_classes) from error

    def iterator(self, dataset: tf.data.Dataset) -> tuple[tf.Operation, tf.Tensor]:
        """Returns what begins a pipeline, and its next element's last part: large images need not leave the session."""
        configured = input_pipeline.configured(dataset, self.options, self.num_devices)
        iterator = tf.compat.v1.data.make_initializable_iterator(configured)
        return iterator.initializer, tf.nest.flatten(iterator.get_next())[-1]


@contextlib.contextmanager
def probes(measured: Measuring, build_copy: Callable[[], RunInput] | None = None) -> Iterator[list[Probe]]:
    """Builds the pipelines of a run in their own graph and session.

    `build_copy` builds the towers' input in the default graph, for the stage COPY; None leaves that stage out. Raises
    DataError, also while the probes are used, if a record is bad.
    """
    source, spec, options = measured.source, measured.spec, measured.options
    measured.deadlines.preparation("Building the input's stages")
    with tf.Graph().as_default() as graph:
        with tf.device(HOST):
            datasets = {}
            stages = small_images.STAGES if isinstance(source, Pixels) else imagenet_pipeline.STAGES
            for number, stage in enumerate(stages, start=1):
                # Each has an order of its own, or it would find in memory what another one, or a run, has read.
                whole = dataclasses.replace(spec, worker=0, workers=1, seed=spec.seed + number)
                skipping = input_pipeline.skipping(source, options)
                datasets[stage] = input_pipeline.batches(source, whole, options, skipping, stage)
            if not isinstance(source, Pixels) and not source.is_decoded:
                datasets[BARE_DECODE] = _bare_decode(source, spec.batch_per_device, options.on_bad_record == "skip")
            iterators = {name: measured.iterator(dataset) for name, dataset in datasets.items()}
        initializers = [initializer for initializer, _ in iterators.values()]
        fetches = {name: [drawn] for name, (_, drawn) in iterators.items()}
        built = build_copy() if build_copy else None
        if built:
            initializers += built.initializers
            # A small value that depends on the whole batch: TensorFlow computes only what is fetched.
            fetches[COPY] = [
                value
                for tower in built.towers
                for value in (tf.reduce_sum(tower.images), tower.labels, tower.stage)
                if value is not None
            ]
        with measured.session(graph, built) as session:
            for initializer in initializers:
                session.run(initializer)
            made = []
            # Batches that wait for a place: of small images, each parallel call makes one. AUTOTUNE is -1.
            calls = max(parallel_calls(options), hardware.usable_cores())
            done = calls if isinstance(source, Pixels) else math.ceil(calls / spec.batch_per_device)
            for name, fetched in fetches.items():
                towers = measured.num_devices if name == COPY else 1
                waiting = math.ceil((options.prefetch_batches * measured.num_devices + done) / towers)
                made.append(Probe(name, session.make_callable(fetched), spec.batch_per_device * towers, waiting))
            yield made


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


def _repeat(take: Callable[[], object], seconds: float, clock: Clock) -> list[float]:
    """Calls a function again and again for some seconds; returns the seconds of each call."""
    times: list[float] = []
    begin = end = clock()
    while end - begin < seconds:
        take()
        times.append(clock() - end)
        end += times[-1]
    return times


def measure(
    probes: Sequence[Probe],
    *,
    rounds: int,
    seconds: float,
    clock: Clock = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
    deadlines: Deadlines = NO_DEADLINES,
) -> dict[str, Rates]:
    """Measures the probes in turn, each for some seconds a round, so that a change of the load affects all of them.

    After its turn a pipeline goes on until its buffers are full. The next turn starts after that: otherwise both would
    share the cores, which took 10 to 15 % off the rates of turns of a second.
    """
    rates, fill_seconds = {probe.name: Rates(images=probe.images) for probe in probes}, 0.0
    with progress.counted("measuring the input's stages", rounds * len(probes)):
        for probe in [*probes] * rounds:
            what = f"The input up to '{probe.name}'"
            deadlines.preparation(what)
            sleep(fill_seconds)
            for _ in range(probe.waiting + 1):  # made before
                probe.take()
            deadlines.step(what, repeated_seconds=seconds)
            times = _repeat(probe.take, seconds, clock)
            rates[probe.name].rounds.append(probe.images * len(times) / sum(times))
            rates[probe.name].batch_seconds += times
            fill_seconds = (probe.waiting + 1) * sum(times) / len(times)
            progress.end()  # of what is measured
            progress.advance()
    deadlines.none()
    return rates


def measure_after_run(measured: Measuring) -> dict[str, float]:
    """Returns images per second of each stage on the host, measured for some seconds.

    A failure is only a warning, since the run before it was valid; the result is then empty.
    """
    try:
        with probes(measured) as made:
            stages = [probe for probe in made if probe.name != BARE_DECODE]
            rates = measure(stages, rounds=2, seconds=0.5, deadlines=measured.deadlines)
            return {name: rate.images_per_sec for name, rate in rates.items()}
    except (BenchError, tf.errors.OpError) as error:
        warn(f"The stages of the input could not be measured: {headline(error)}")
        return {}


def shuffle_buffer(measured: Measuring, seconds: float, clock: Clock = time.perf_counter) -> Mapping[str, float]:
    """Draws batches for some seconds, as fast as they come, from a pipeline that counts around its shuffle.

    The counters cost time, so this pipeline is not one whose speed is measured.

    Returns:
        What `results.measurement.Measurement.shuffle_buffer` describes; nothing if one record is repeated, or for small
        images, of which whole epochs are shuffled.

    Raises:
        DataError: a record is bad.
    """
    source, spec, options = measured.source, measured.spec, measured.options
    if isinstance(source, Pixels) or options.cache == "one_record":
        return {}
    capacity = max(1, options.shuffle_records)
    measured.deadlines.preparation("Filling the shuffle buffer")
    with tf.Graph().as_default() as graph, tf.device(HOST):
        entered, left = (tf.Variable(tf.zeros([_EPOCHS], tf.int64), trainable=False) for _ in range(2))

        def shuffle(records: tf.data.Dataset, size: int, *, seed: tf.Tensor) -> tf.data.Dataset:
            epoch = (seed - spec.seed) % _EPOCHS
            return _counted(_counted(records, entered, epoch).shuffle(size, seed=seed), left, epoch)

        whole, skipping = dataclasses.replace(spec, worker=0, workers=1), input_pipeline.skipping(source, options)
        batches = imagenet_pipeline.batches(source, whole, options, skipping, shuffle=shuffle)
        initializer, drawn = measured.iterator(batches)
        held = entered.read_value() - left.read_value()
    samples: list[np.ndarray] = []
    with measured.session(graph) as session:
        session.run([entered.initializer, left.initializer])
        begin = clock()
        session.run(initializer)
        session.run(drawn)
        fill_seconds = clock() - begin
        samples.append(session.run(held))
        measured.deadlines.step("Drawing from the shuffle buffer", repeated_seconds=seconds)

        def draw() -> None:
            session.run(drawn)
            samples.append(session.run(held))

        _repeat(draw, seconds, clock)
    records = _in_drawn_buffer(samples, capacity)
    return {
        "capacity": capacity,
        "fill_seconds": fill_seconds,
        "at_start": records[0],
        "at_end": records[-1],
        "least": min(records),
        "share_half_full": sum(2 * count >= capacity for count in records) / len(records),
    }


def _in_drawn_buffer(samples: Sequence[np.ndarray], capacity: int) -> list[int]:
    """Returns the records in the buffer of the epoch that is drawn from; those of later epochs are filled ahead.

    A sample holds the records in the buffer of each epoch, modulo _EPOCHS. After its epoch, a buffer is empty.
    """
    epoch, records = 0, []
    for sample in samples:
        epoch += next((step for step in range(_EPOCHS) if sample[(epoch + step) % _EPOCHS] > 0), 0)
        records.append(min(capacity, int(sample[epoch % _EPOCHS])))  # the counters are read while they change
    return records


def _counted(dataset: tf.data.Dataset, counter: tf.Variable, epoch: tf.Tensor) -> tf.data.Dataset:
    """Adds 1 to an epoch's counter for every element."""

    def count(*element: Any) -> Any:
        one = tf.ones([], tf.int64)
        with tf.control_dependencies(
            [tf.raw_ops.ResourceScatterAdd(resource=counter.handle, indices=epoch, updates=one)]
        ):
            return tf.nest.map_structure(tf.identity, element)

    return dataset.map(count)


def shuffle_buffer_in_words(measured: Mapping[str, float]) -> str:
    """Returns the sentences for the user on what `shuffle_buffer` measured."""
    capacity, least = measured["capacity"], measured["least"]
    text = (
        f"Shuffle buffer: {measured['at_start']:.0f} of {capacity:.0f} records after the first batch, which took "
        f"{measured['fill_seconds']:.2f} s; {measured['at_end']:.0f} at the end, never fewer than {least:.0f}. It was "
        f"at least half full in {measured['share_half_full']:.0%} of the samples."
    )
    if measured["at_start"] < capacity // 2:
        return f"{text} It never fills, because an epoch has fewer records than it holds."
    return f"{text} It empties at the end of each epoch." if least < capacity // 2 else text
