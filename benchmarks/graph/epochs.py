"""How many steps a run takes, and how many images and epochs the steps of a training are."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from benchmarks.config.workload import Length
from benchmarks.data.pipeline.input_pipeline import Source
from benchmarks.data.sources.data_sets import data_set_of
from benchmarks.errors import UsageError
from models import specs


def images_per_epoch(model: str, source: Source | None) -> int:
    """Returns the images of the data set; an epoch of synthetic images is as long as one of the real data set."""
    return source.count if source else data_set_of(specs.find_model(model).data_name).train_images


@dataclasses.dataclass(frozen=True)
class Epochs:
    """Counts the images and epochs of a training from its steps, the first of which earlier runs may have taken.

    Attributes:
        images_per_epoch: of the data set.
        images_per_step: of all towers, in this run; in earlier ones it may have been another number.
        steps_before, images_before: of earlier runs.
    """

    images_per_epoch: int
    images_per_step: int
    steps_before: int = 0
    images_before: int = 0

    def images_after(self, steps: int) -> int:
        """Returns how many images the training has seen after that many steps."""
        return self.images_before + (steps - self.steps_before) * self.images_per_step

    def after(self, steps: int) -> float:
        """Returns how many epochs that many steps are."""
        return self.images_after(steps) / self.images_per_epoch


def is_one_of_every(count: int, steps: int) -> bool:
    """Returns whether a number of steps is a multiple of `count`; none is one of 0."""
    return count > 0 and steps % count == 0


class Plan(NamedTuple):
    """How many steps a run takes before measuring, the first included, and how many are measured."""

    warmup: int
    measured: int


def plan(
    length: Length, epochs: Epochs, steps_per_round: int, saved_in: str | None = None, ends_at_step: int | None = None
) -> Plan:
    """Returns the steps of a run: whole rounds of so many, after a warm-up that leaves a step to measure.

    A number of epochs is that of the whole training if it is saved in a directory: of earlier runs, and of the warm-up.
    After a restart, the run ends at the step that was planned first, `ends_at_step`. It takes at least two steps.

    Raises:
        UsageError: earlier runs have trained as much.
    """
    warmup = max(1, length.num_warmup_batches)
    if ends_at_step is not None:
        return _within(ends_at_step - epochs.steps_before, warmup)
    if length.num_batches:
        return Plan(warmup, length.num_batches)
    assert length.num_epochs is not None, "the configuration gives either batches or epochs"
    images = length.num_epochs * epochs.images_per_epoch
    if saved_in is None:
        rounds = -(-max(1, round(images / epochs.images_per_step)) // steps_per_round)
        return Plan(warmup, rounds * steps_per_round)
    left = round((images - epochs.images_before) / epochs.images_per_step)
    if left <= 0 and epochs.steps_before:
        raise UsageError(
            f"--num_epochs={length.num_epochs:g}: {saved_in} has a training of {epochs.steps_before} steps, which are "
            "as many epochs. Pass more epochs, another --train_dir, or --num_batches for more steps."
        )
    plan = _within(left, warmup)
    if plan.warmup < warmup:  # what is left is less than a warm-up
        return plan
    return Plan(warmup, -(-plan.measured // steps_per_round) * steps_per_round)


def _within(left: int, warmup: int) -> Plan:
    """Divides the steps that are left between the warm-up and the measurement, at least one for each."""
    warmup = min(warmup, max(1, left - 1))
    return Plan(warmup, max(1, left - warmup))
