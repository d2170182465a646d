"""What a run evaluates, and writes for TensorBoard, between its measured steps. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from benchmarks.errors import UsageError
from benchmarks.option import Flag, filled, flags_of, option

_WHEN = "eval_during_training_"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """When a training is evaluated on the validation set.

    Attributes:
        eval_at_steps, eval_at_epochs: an evaluation follows these.
        eval_batch_size: images per device and step of an evaluation; 0: as in training.
    """

    eval_every_steps: int = option(
        "evaluate on the validation set every this many steps, counted from the first, and at the end",
        default=0,
        flag=f"{_WHEN}every_n_steps",
        at_least=0,
    )
    eval_every_epochs: float = option(
        "evaluate on the validation set every this many epochs, and at the end",
        default=0.0,
        flag=f"{_WHEN}every_n_epochs",
        at_least=0,
    )
    eval_at_steps: tuple[int, ...] = ()
    eval_at_epochs: tuple[float, ...] = ()
    stop_at_top_1_accuracy: float | None = option(
        "end training when an evaluation reaches this top-1 accuracy, such as 0.75",
        default=None,
        above=0,
        at_most=1,
        unset=0,
    )
    eval_batch_size: int = option(
        "evaluation images per device and step", default=0, default_text="as in training", at_least=1, unset=0
    )

    @property
    def is_scheduled(self) -> bool:
        """Whether training is evaluated; if so, at least at its end."""
        return bool(self.eval_every_steps or self.eval_every_epochs or self.eval_at_steps or self.eval_at_epochs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summaries:
    """What is written of a training for TensorBoard."""

    summary_verbosity: int = option(
        "what to write for TensorBoard into --train_dir; 0: nothing; 1: graph, loss, learning rate, images/s and "
        "accuracies; 2: also histograms of gradients; 3: also histograms and norms of weights",
        default=0,
        at_least=0,
        at_most=3,
    )
    save_summaries_steps: int = option("write summaries every this many steps; 0: never", default=0, at_least=0)


EVALUATION_FLAGS = (
    *flags_of(Evaluation),
    Flag(f"{_WHEN}at_specified_steps", str, "evaluate after these steps, such as 100,200", unset=""),
    Flag(f"{_WHEN}at_specified_epochs", str, "evaluate after these epochs, such as 1,2.5", unset=""),
    Flag(
        "eval",
        bool,
        "evaluate the latest checkpoint of --train_dir once instead of training, and print accuracy and images/s",
    ),
)
WHEN_TO_EVALUATE = tuple(flag.name for flag in EVALUATION_FLAGS if flag.name.startswith(_WHEN))


def decide(given: Mapping[str, Any]) -> Evaluation:
    """Returns when a training is evaluated.

    Raises:
        UsageError: a list of steps or epochs is not one.
    """
    return filled(
        Evaluation,
        given,
        eval_at_steps=tuple(int(step) for step in _numbers(given, f"{_WHEN}at_specified_steps", int)),
        eval_at_epochs=tuple(_numbers(given, f"{_WHEN}at_specified_epochs", float)),
    )


def _numbers(given: Mapping[str, Any], flag: str, kind: type[float]) -> list[float]:
    """Returns the numbers of a list; an empty entry is none.

    Raises:
        UsageError: an entry is no such number, or not above 0.
    """
    try:
        found = [kind(entry) for entry in (given[flag] or "").split(",") if entry.strip()]
    except ValueError:
        found = [-1]
    if not all(0 < number < math.inf for number in found):
        wanted = "whole numbers" if kind is int else "numbers"
        raise UsageError(f"--{flag}={given[flag]}: give {wanted} above 0 with commas between them, such as 1,2,5.")
    return found
