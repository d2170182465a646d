"""The input of a run: from the configuration to what the towers train on, and what to say if it fails."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from benchmarks.config.config import Config
from benchmarks.errors import OutOfMemoryError, headline
from benchmarks.input import checks, host_pipeline, tower_input
from benchmarks.input.bad_records import Skipping
from benchmarks.input.catalog import DATA_SETS, SYNTHETIC_HOST
from benchmarks.input.options import InputOptions
from benchmarks.input.small_images import Pixels
from models import specs
from variable_mgr.catalog import IN_GRAPH


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunInput:
    """What the towers train on.

    Attributes:
        towers: one input per tower.
        initializers: must run in this order before the first step.
        description: in words.
        source: what is read; None where nothing is.
        skipping: counts bad records, where such are left out.
        file_sizes: of the source's files when they were found.
    """

    towers: list[tower_input.TowerInput]
    initializers: list[tf.Operation]
    description: str
    source: host_pipeline.Source | None = None
    skipping: Skipping | None = None
    file_sizes: Sequence[int] = ()

    def translate(self, error: tf.errors.OpError, num_classes: int) -> Exception:
        """Turns an error of a session that uses the input into one that says what to do, where that is known."""
        if isinstance(error, tf.errors.ResourceExhaustedError):
            return OutOfMemoryError(f"Out of memory: {headline(error)} Try a smaller --batch_size.")
        if self.skipping and self.skipping.failure:
            return self.skipping.failure
        # A callable's errors carry no operation, so the message has to say where it came from.
        from_input = isinstance(error, tf.errors.DataLossError) or "IteratorGetNext" in str(error.message)
        if self.source is None or isinstance(self.source, Pixels) or not from_input:
            return error
        return checks.explain_failure(self.source, num_classes, error, self.file_sizes)


def spec_of(config: Config) -> tower_input.InputSpec:
    """Returns what a run wants of its input."""
    model = specs.find(config.model)
    return tower_input.InputSpec(
        batch_per_device=config.batch_per_device,
        image_size=model.image_size,
        channels=model.channels,
        data_format=config.data_format,
        num_classes=config.num_classes,
        seed=config.seed,
        worker=config.cluster.own.index if config.cluster and config.variable_update not in IN_GRAPH else 0,
        workers=config.num_workers if config.variable_update not in IN_GRAPH else 1,
    )


def find(config: Config) -> host_pipeline.Source | None:
    """Finds the data set of a run; None if it reads none.

    Raises:
        DataError: it is not there, or not whole.
    """
    if config.input is None or config.data_dir is None:
        return None
    return host_pipeline.find(config.data_name, config.data_dir, config.input.split)


def skipping(source: host_pipeline.Source, options: InputOptions) -> Skipping | None:
    """Returns what skips bad records and counts them; None if a bad record ends the run."""
    return Skipping(source.files) if options.on_bad_record == "skip" and not isinstance(source, Pixels) else None


def of_source(source: host_pipeline.Source) -> RunInput:
    """Returns an input of which nothing has been built."""
    sizes = () if isinstance(source, Pixels) else checks.sizes_of(source)
    return RunInput(towers=[], initializers=[], description="", source=source, file_sizes=sizes)


def build(config: Config, tower_devices: Sequence[str], source: host_pipeline.Source | None) -> RunInput:
    """Builds the towers' input in the default graph.

    Args:
        config: of the run.
        tower_devices: one per tower.
        source: what `find` has found.
    """
    spec = spec_of(config)
    size = f"{spec.image_size}x{spec.image_size} pixels"
    if config.input is None:
        towers = tower_input.synthetic(tower_devices, spec)
        return RunInput(towers=towers, initializers=[], description=f"synthetic, {size}, made once on each device")
    if source is None:
        batches = host_pipeline.synthetic_batches(spec, spec.channels)
        description = f"{SYNTHETIC_HOST}, {size}, made once on the host and copied in every step"
        built = RunInput(towers=[], initializers=[], description=description)
    else:
        left_out = skipping(source, config.input)
        batches = host_pipeline.batches(source, spec, config.input, left_out)
        description = f"{DATA_SETS[config.data_name].title}: {source.describe()}, {size}"
        built = dataclasses.replace(of_source(source), description=description, skipping=left_out)
    towers, initializers = host_pipeline.deal(
        host_pipeline.configured(batches, config.input, len(tower_devices)),
        tower_devices,
        DATA_SETS[specs.find(config.model).data_name],
        config.data_format,
        in_turn=not config.modifiers.asynchronous,
        pipelined=config.pipelined_input,
    )
    return dataclasses.replace(built, towers=towers, initializers=initializers)
