"""The input of a run: from the configuration to what the towers train on, and what to say if it fails."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from benchmarks import inputs
from benchmarks.config import Config
from benchmarks.datasets import checking, finding, reading
from benchmarks.datasets.catalog import DATA_SETS, SYNTHETIC, SYNTHETIC_HOST
from benchmarks.datasets.pixels import Pixels
from benchmarks.datasets.skipping import Skipping
from benchmarks.errors import DataError
from models import specs


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

    towers: list[inputs.TowerInput]
    initializers: list[tf.Operation]
    description: str
    source: reading.Source | None = None
    skipping: Skipping | None = None
    file_sizes: Sequence[int] = ()

    def explain(self, error: tf.errors.OpError, num_classes: int) -> DataError | None:
        """Returns what is behind an error of the session if that is the input, else None."""
        if self.skipping and self.skipping.failure:
            return self.skipping.failure
        # A callable's errors carry no operation, so the message has to say where it came from.
        from_input = isinstance(error, tf.errors.DataLossError) or "IteratorGetNext" in str(error.message)
        if self.source is None or isinstance(self.source, Pixels) or not from_input:
            return None
        return checking.explain_failure(self.source, num_classes, error, self.file_sizes)


def spec_of(config: Config) -> inputs.InputSpec:
    """Returns what a run wants of its input."""
    model = specs.find(config.model)
    return inputs.InputSpec(
        batch_per_device=config.batch_per_device,
        image_size=model.image_size,
        channels=model.channels,
        data_format=config.data_format,
        num_classes=config.num_classes,
        seed=config.seed,
    )


def find(config: Config) -> reading.Source | None:
    """Finds the data set of a run; None if it reads none.

    Raises:
        DataError: it is not there, or not whole.
    """
    if config.input is None or config.data_dir is None:
        return None
    return finding.find(config.data_name, config.data_dir, config.input.split)


def build(config: Config, tower_devices: Sequence[str]) -> RunInput:
    """Builds the towers' input in the default graph.

    Raises:
        DataError: the data set is not there, or not whole.
    """
    spec = spec_of(config)
    size = f"{spec.image_size}x{spec.image_size} pixels"
    if config.data_name == SYNTHETIC or config.input is None:
        towers = inputs.synthetic(tower_devices, spec)
        return RunInput(towers=towers, initializers=[], description=f"synthetic, {size}, made once on each device")
    source = find(config)
    skipping = None
    if source is None:
        batches = reading.synthetic_batches(spec, spec.channels)
        description = f"{SYNTHETIC_HOST}, {size}, made once on the host and copied in every step"
    else:
        if config.input.on_bad_record == "skip" and not isinstance(source, Pixels):
            skipping = Skipping(source.files)
        batches = reading.batches(source, spec, config.input, skipping)
        description = f"{DATA_SETS[config.data_name].title}: {source.describe()}, {size}"
    towers, initializers = reading.deal(
        reading.configured(batches, config.input, len(tower_devices)),
        tower_devices,
        DATA_SETS[specs.find(config.model).data_name],
        config.data_format,
        in_turn=not config.modifiers.asynchronous,
        pipelined=config.pipelined_input,
    )
    return RunInput(
        towers=towers,
        initializers=initializers,
        description=description,
        source=source,
        skipping=skipping,
        file_sizes=() if source is None or isinstance(source, Pixels) else checking.sizes_of(source),
    )
