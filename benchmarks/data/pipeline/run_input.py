"""The input of a run: what the towers train on, and the explanation if it fails."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from benchmarks.data.options import InputOptions
from benchmarks.data.pipeline import host_pipeline, tower_input
from benchmarks.data.sources import checks
from benchmarks.data.sources.bad_records import Skipping
from benchmarks.data.sources.data_sets import SYNTHETIC_HOST, data_set_of
from benchmarks.data.sources.small_images import Pixels
from benchmarks.errors import OutOfMemoryError, headline, lack_of_memory
from models.model_spec import ModelSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunInput:
    """What the towers train on.

    Attributes:
        towers: one input per tower.
        initializers: must run in this order before the first step.
        description: for the user.
        source: the data set; None if none is read.
        skipping: counts bad records, if they are skipped.
        file_sizes: of the source's files when they were found.
    """

    towers: list[tower_input.TowerInput]
    initializers: list[tf.Operation]
    description: str
    source: host_pipeline.Source | None = None
    skipping: Skipping | None = None
    file_sizes: Sequence[int] = ()

    def translate(
        self, error: tf.errors.OpError, num_classes: int, search_seconds: float = checks.SEARCH_SECONDS
    ) -> Exception:
        """Turns an error of a session that uses the input into one with advice, if the cause is known.

        The search for a damaged record ends after `search_seconds`.
        """
        if what := lack_of_memory(error):
            return OutOfMemoryError(f"{what}: {headline(error)} Try a smaller --batch_size.")
        if self.skipping and self.skipping.failure:
            return self.skipping.failure
        # A callable's errors carry no operation, so only the message shows where it came from.
        from_input = isinstance(error, tf.errors.DataLossError) or "IteratorGetNext" in str(error.message)
        if self.source is None or isinstance(self.source, Pixels) or not from_input:
            return error
        return checks.explain_failure(self.source, num_classes, error, self.file_sizes, search_seconds)


def skipping(source: host_pipeline.Source, options: InputOptions) -> Skipping | None:
    """Returns what skips bad records and counts them; None if a bad record ends the run."""
    return Skipping(source.files) if options.on_bad_record == "skip" and not isinstance(source, Pixels) else None


def of_source(source: host_pipeline.Source) -> RunInput:
    """Returns an input of which nothing has been built yet."""
    sizes = () if isinstance(source, Pixels) else checks.sizes_of(source)
    return RunInput(towers=[], initializers=[], description="", source=source, file_sizes=sizes)


def build(
    model: ModelSpec,
    spec: tower_input.InputSpec,
    tower_devices: Sequence[str],
    options: InputOptions | None = None,
    source: host_pipeline.Source | None = None,
    *,
    in_turn: bool = True,
    pipelined: bool = True,
    timed: bool = True,
) -> RunInput:
    """Builds the towers' input in the default graph; the model's data set determines how images are normalised.

    Without `options`, images are made once on each device; without a `source`, one batch is made on the host. With
    `in_turn`, towers draw their batches in a fixed order, which asynchronous towers cannot. With `pipelined`, each
    tower's next batch is copied to its device while it computes. With `timed`, the step's wait for its batch is known.
    """
    size = f"{spec.image_size}x{spec.image_size} pixels"
    if options is None:
        towers = tower_input.synthetic(tower_devices, spec)
        return RunInput(towers=towers, initializers=[], description=f"synthetic, {size}, made once on each device")
    data_set = data_set_of(model.data_name)
    if source is None:
        batches = host_pipeline.synthetic_batches(spec)
        description = f"{SYNTHETIC_HOST}, {size}, made once on the host and copied in every step"
        built = RunInput(towers=[], initializers=[], description=description)
    else:
        skips = skipping(source, options)
        batches = host_pipeline.batches(source, spec, options, skips)
        description = f"{data_set.title}: {source.describe()}, {size}"
        built = dataclasses.replace(of_source(source), description=description, skipping=skips)
    towers, initializers = host_pipeline.deal(
        host_pipeline.configured(batches, options, len(tower_devices)),
        tower_devices,
        data_set,
        spec.data_format,
        in_turn=in_turn,
        pipelined=pipelined,
        timed=timed,
    )
    return dataclasses.replace(built, towers=towers, initializers=initializers)


def build_validation(
    model: ModelSpec,
    spec: tower_input.InputSpec,
    tower_devices: Sequence[str],
    options: InputOptions,
    source: host_pipeline.Source,
) -> RunInput:
    """Builds the towers' input of an evaluation in the default graph; see `host_pipeline.one_pass`.

    The initializers begin a pass.
    """
    skips, data_set = skipping(source, options), data_set_of(model.data_name)
    batches = host_pipeline.configured(
        host_pipeline.one_pass(source, spec, options, skips), options, len(tower_devices)
    )
    towers, initializers = host_pipeline.deal(
        batches, tower_devices, data_set, spec.data_format, in_turn=True, pipelined=False, timed=False
    )
    return dataclasses.replace(of_source(source), towers=towers, initializers=initializers, skipping=skips)
