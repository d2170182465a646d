"""What a run does between its measured steps: checkpoints, evaluation, summaries, profiles. No TensorFlow."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from benchmarks.errors import UsageError
from benchmarks.option import Flag, filled, flags_of, option
from benchmarks.outside_text import whole_number

_WHEN = "eval_during_training_"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """Where and when the state of a training is saved, and what it begins with."""

    train_dir: str | None = option(
        "where checkpoints and summaries are; a run continues from the newest, and saves one at its end; also an "
        "address such as gs://bucket/x",
        default=None,
        path="directory",
        addresses=True,
        unset="",
    )
    save_model_steps: int = option("save a checkpoint after every so many steps; 0: at the end", default=0, at_least=0)
    save_model_secs: int = option("the same in seconds", default=0, at_least=0)
    max_ckpts_to_keep: int = option("how many checkpoints stay; 0: all", default=5, at_least=0)
    initial_weights: str | None = option(
        "begin a training with the weights of a checkpoint, or of Keras' .keras or .h5; the optimizer begins afresh",
        default=None,
        path="file",
        addresses=True,
        unset="",
    )
    max_restarts: int = option(
        "of a cluster that this command starts: start all tasks again, from the newest checkpoint, up to so many "
        "times after one has died",
        default=0,
        at_least=0,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """When a training is evaluated on the validation set.

    Attributes:
        eval_at_steps, eval_at_epochs: an evaluation follows these.
        eval_batch_size: images per device and step of an evaluation; 0: as in training.
    """

    eval_every_steps: int = option(
        "evaluate on the validation set after every so many steps, counted from the first; and at the end",
        default=0,
        flag=f"{_WHEN}every_n_steps",
        at_least=0,
    )
    eval_every_epochs: float = option(
        "the same in passes over the data set", default=0.0, flag=f"{_WHEN}every_n_epochs", at_least=0
    )
    eval_at_steps: tuple[int, ...] = ()
    eval_at_epochs: tuple[float, ...] = ()
    stop_at_top_1_accuracy: float | None = option(
        "end training when an evaluation reaches this share of correct images, such as 0.75",
        default=None,
        above=0,
        at_most=1,
        unset=0,
    )
    eval_batch_size: int = option(
        "images per device and step of an evaluation", default=0, default_text="as in training", at_least=1, unset=0
    )

    @property
    def is_scheduled(self) -> bool:
        """Whether training is evaluated; if so, at least at its end."""
        return bool(self.eval_every_steps or self.eval_every_epochs or self.eval_at_steps or self.eval_at_epochs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summaries:
    """What is written of a training for other programs to show.

    Attributes:
        profile_steps: the first and the last step that is profiled, from 1.
    """

    summary_verbosity: int = option(
        "what is written for TensorBoard into --train_dir; 0: nothing; 1: the graph, loss, learning rate, "
        "images/sec, accuracies; 2: also histograms of gradients; 3: also histograms and norms of weights",
        default=0,
        at_least=0,
        at_most=3,
    )
    save_summaries_steps: int = option("write it every so many steps; 0: never", default=0, at_least=0)
    profile_steps: tuple[int, int] | None = option(
        "profile these steps, such as 20:25, for TensorBoard into --train_dir or --output_dir; print which "
        "operations took longest, and write all to operations.csv there; they are not measured",
        default=None,
        kind=str,
    )
    trace_file: str | None = option(
        "write what all devices did in one step after the measured ones, for chrome://tracing or Perfetto; "
        "compressed if the name ends in .gz",
        default=None,
        path="file",
        unset="",
    )
    graph_file: str | None = option(
        "write the graph to this file; as text if the name ends in txt, else binary",
        default=None,
        path="file",
        unset="",
    )
    partitioned_graph_file_prefix: str | None = option(
        "write the optimised graph of each device to a file that begins like this; as text if it ends in txt",
        default=None,
        path="file",
        unset="",
    )


EVALUATION_FLAGS = (
    *flags_of(Evaluation),
    Flag(f"{_WHEN}at_specified_steps", str, "evaluate after these, such as 100,200", unset=""),
    Flag(f"{_WHEN}at_specified_epochs", str, "evaluate after these, such as 1,2.5", unset=""),
    Flag(
        "eval",
        bool,
        "do not train: evaluate the latest checkpoint of --train_dir once, and print accuracy and images/s",
    ),
)
WHEN_TO_EVALUATE = tuple(flag.name for flag in EVALUATION_FLAGS if flag.name.startswith(_WHEN))


def evaluation(given: Mapping[str, Any]) -> Evaluation:
    """Returns when a training is evaluated.

    Args:
        given: flag values by name; None: not given.

    Raises:
        UsageError: a list of steps or epochs is not one.
    """
    return filled(
        Evaluation,
        given,
        eval_at_steps=tuple(int(step) for step in _numbers(given, f"{_WHEN}at_specified_steps", int)),
        eval_at_epochs=tuple(_numbers(given, f"{_WHEN}at_specified_epochs", float)),
    )


def summaries(given: Mapping[str, Any]) -> Summaries:
    """Returns what is written of a training.

    Args:
        given: flag values by name; None: not given.

    Raises:
        UsageError: --profile_steps is no range of steps.
    """
    return filled(Summaries, given, profile_steps=_step_range(given["profile_steps"]))


def pauses(checkpoints: Checkpoints, evaluation: Evaluation, summaries: Summaries) -> dict[str, Any] | None:
    """Returns what interrupts training again and again, by the names of the fields; None: nothing does."""
    names = dict.fromkeys(("eval_every_steps", "eval_every_epochs", "eval_at_steps", "eval_at_epochs"), evaluation)
    found: dict[str, Any] = {name: getattr(part, name) for name, part in names.items()}
    if checkpoints.train_dir:
        found |= {name: getattr(checkpoints, name) for name in ("save_model_steps", "save_model_secs")}
    if summaries.summary_verbosity:
        found["save_summaries_steps"] = summaries.save_summaries_steps
    return {name: value for name, value in found.items() if value} or None


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


def _step_range(text: str | None) -> tuple[int, int] | None:
    """Returns the first and the last step of a range; None without one."""
    if text is None:
        return None
    first, last = (whole_number(word) or 0 for word in text.partition(":")[::2])
    if not 2 <= first <= last:
        raise UsageError(
            f"--profile_steps={text}: give the first and the last step to profile, such as 20:25. Steps count from 1, "
            "warm-up included, and the first can be no earlier than 2, since step 1 prepares the graph."
        )
    return first, last
