"""How fast each stage of the input is: the pipeline ended after each of them, and decoding alone for comparison."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from benchmarks.config.config import Config
from benchmarks.console import warn
from benchmarks.errors import BenchError, headline
from benchmarks.input import host_pipeline, imagenet_pipeline, small_images
from benchmarks.input.small_images import Pixels
from benchmarks.measure.timing import Clock
from benchmarks.system import hardware
from benchmarks.topology.devices import HOST, session_config
from benchmarks.training import run_input

BARE_DECODE, COPY = "bare decode", "copy"


@dataclasses.dataclass(frozen=True)
class Probe:
    """A pipeline that ends somewhere.

    Attributes:
        name: the stage after which it ends; BARE_DECODE is another pipeline, that does nothing else.
        take: takes as many images as a step would.
        images: how many these are.
        waiting: how often it can be taken without anything being made, since that lies ready.
    """

    name: str
    take: Callable[[], object]
    images: int
    waiting: int


@contextlib.contextmanager
def probes(config: Config, source: host_pipeline.Source, tower_devices: Sequence[str] = ()) -> Iterator[list[Probe]]:
    """Builds the pipelines of a run's configuration in a graph and a session of their own.

    Args:
        config: of the run.
        source: what is read.
        tower_devices: if given, the last stage brings the batches there and normalises them.

    Raises (also of what is done with the probes):
        DataError: a record is bad.
    """
    with tf.Graph().as_default() as graph:
        with tf.device(HOST):
            iterators = {
                name: tf.compat.v1.data.make_initializable_iterator(dataset)
                for name, dataset in _datasets(config, source).items()
            }
            # Only labels or sizes leave the session; of the images nothing is computed after they are there.
            fetches: dict[str, Any] = {name: _last(iterator.get_next()) for name, iterator in iterators.items()}
        initializers = [iterator.initializer for iterator in iterators.values()]
        built = run_input.of_source(source)
        if tower_devices:
            built = run_input.build(config, tower_devices, source)
            initializers += built.initializers
            # Something that depends on all of a batch, small, and asked for: what nobody asks for is not computed.
            fetches[COPY] = [[tf.reduce_sum(i.images), i.labels, i.stage] for i in built.towers]
        kind = config.device if tower_devices else "cpu"
        options = session_config(kind, config.num_devices, **config.runtime.session_options())
        if kind == "cpu":
            options.device_count["GPU"] = 0
        with _explaining(config, built), tf.compat.v1.Session(graph=graph, config=options) as session:
            for initializer in initializers:
                session.run(initializer)
            yield [_probe(session, name, fetched, config) for name, fetched in fetches.items()]


def _last(drawn: Any) -> Any:
    return tf.nest.flatten(drawn)[-1]


def _probe(session: tf.compat.v1.Session, name: str, fetched: object, config: Config) -> Probe:
    images = config.batch_global if name == COPY else config.batch_per_device
    ahead = config.input.prefetch_batches if config.input else 0
    take = session.make_callable([part for part in tf.nest.flatten(fetched) if part is not None])
    return Probe(name, take, images, ahead * (1 if name == COPY else config.num_devices))


def _datasets(config: Config, source: host_pipeline.Source) -> dict[str, tf.data.Dataset]:
    spec, options = run_input.spec_of(config), config.input
    assert options is not None, "what is read has options"
    if isinstance(source, Pixels):
        stages = {name: small_images.stage(source, spec, options, name) for name in small_images.STAGES}
    else:
        stages = {}
        for name in imagenet_pipeline.STAGES:
            skipping = run_input.skipping(config, source)
            what = imagenet_pipeline.Reading(source=source, spec=spec, options=options, skipping=skipping)
            stages[name] = imagenet_pipeline.stage(what, name)
        stages[BARE_DECODE] = _bare_decode(source, config.batch_per_device, options.on_bad_record == "skip")
    return {name: host_pipeline.configured(dataset, options, config.num_devices) for name, dataset in stages.items()}


def _bare_decode(source: imagenet_pipeline.Photos, batch: int, source_may_be_bad: bool) -> tf.data.Dataset:
    """Returns a pipeline that decodes whole photos, as libjpeg-turbo does, one after the other on every core."""
    names = [str(file) for file in source.files]
    records = tf.data.Dataset.from_tensor_slices(names).repeat()
    records = imagenet_pipeline.encoded_photos(records, source)
    shapes = records.map(
        lambda encoded: tf.shape(tf.io.decode_jpeg(encoded, channels=3)),
        num_parallel_calls=hardware.usable_cores(),
        deterministic=False,
    )
    if source_may_be_bad:
        shapes = shapes.ignore_errors()
    return shapes.batch(batch, drop_remainder=True)


@dataclasses.dataclass
class Rates:
    """What was measured of a probe: images per second in each of its turns, and the times of its batches, seconds."""

    turns: list[float] = dataclasses.field(default_factory=list)
    batch_seconds: list[float] = dataclasses.field(default_factory=list)
    images: int = 0

    @property
    def images_per_sec(self) -> float:
        """All images over all time."""
        return self.images * len(self.batch_seconds) / sum(self.batch_seconds)


def measure(
    found: Sequence[Probe],
    *,
    rounds: int,
    seconds: float,
    clock: Clock = time.perf_counter,
    after_turn: Callable[[str], None] = lambda name: None,
) -> dict[str, Rates]:
    """Measures probes in turns, so that whatever else the machine does meets all of them.

    Args:
        found: what is measured.
        rounds: how many turns each has.
        seconds: how long a turn is, at least.
        clock: seconds, monotonic.
        after_turn: called after each.
    """
    rates = {probe.name: Rates(images=probe.images) for probe in found}
    for _ in range(rounds):
        for probe in found:
            for _ in range(probe.waiting + 1):  # what was made during the turns of others
                probe.take()
            times: list[float] = []
            begin = end = clock()
            while end - begin < seconds:
                probe.take()
                times.append(clock() - end)
                end += times[-1]
            rates[probe.name].turns.append(probe.images * len(times) / (end - begin))
            rates[probe.name].batch_seconds += times
            after_turn(probe.name)
    return rates


def ratios(rates: Rates, to: Rates) -> list[float]:
    """Returns the ratio of two probes' rates in each round."""
    return [one / other for one, other in zip(rates.turns, to.turns, strict=True)]


def measure_after_run(config: Config, source: host_pipeline.Source) -> dict[str, float]:
    """Returns images per second of the input alone, by stage, measured for some seconds on the host.

    Nothing that goes wrong here may spoil the run that was: then nothing is known of the stages.
    """
    try:
        return _measure_briefly(config, source)
    except (BenchError, tf.errors.OpError) as error:
        warn(f"The stages of the input could not be measured: {headline(error)}")
        return {}


def _measure_briefly(config: Config, source: host_pipeline.Source) -> dict[str, float]:
    with probes(config, source) as found:
        stages = [probe for probe in found if probe.name != BARE_DECODE]
        return {name: rates.images_per_sec for name, rates in measure(stages, rounds=2, seconds=0.5).items()}


@contextlib.contextmanager
def _explaining(config: Config, built: run_input.RunInput) -> Iterator[None]:
    """Turns TensorFlow's error about a record into one that names it."""
    try:
        yield
    except tf.errors.OpError as error:
        raise built.translate(error, config.num_classes) from error
