"""What is written of the steps and the graph of a run. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from benchmarks.errors import UsageError
from benchmarks.option import filled, option
from benchmarks.outside_text import whole_number


@dataclasses.dataclass(frozen=True, kw_only=True)
class Traces:
    """What is written of steps and of the graph for other programs to show.

    Attributes:
        profile_steps: the first and the last step that is profiled, from 1.
    """

    profile_steps: tuple[int, int] | None = option(
        "profile these steps, such as 20:25; writes a profile for TensorBoard and operations.csv into --train_dir "
        "or --output_dir, and prints the slowest operations; these steps are not measured",
        default=None,
    )
    trace_file: str | None = option(
        "write a trace of one step on all devices, for chrome://tracing or Perfetto; the step follows the measured "
        "ones; compressed if the name ends in .gz",
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
        "write the optimised graph of each device to a file with this prefix; as text if it ends in txt",
        default=None,
        path="file",
        unset="",
    )


def decide(given: Mapping[str, Any]) -> Traces:
    """Returns what is written of a run.

    Args:
        given: flag values by name; None: not given.

    Raises:
        UsageError: --profile_steps is no range of steps.
    """
    return filled(Traces, given, profile_steps=_step_range(given["profile_steps"]))


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
