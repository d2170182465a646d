"""How long a run takes. Imports without TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from benchmarks.option import filled, flags_of, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class Length:
    """The part of a configuration on how long a run takes; None: not by that."""

    num_batches: int | None = option("measured steps", default=100, in_key=False, at_least=1)
    num_epochs: float | None = option(
        "instead of --num_batches: passes over the data set", default=None, in_key=False, above=0
    )
    num_warmup_batches: int = option(
        "steps before measuring; the first never counts", default_text="10, or 3 on a CPU", at_least=0
    )
    time_limit_seconds: float | None = option(
        "stop measuring at this age of the process; the result is valid", default=None, in_key=False, above=0
    )


LENGTH_FLAGS = flags_of(Length)


def decide(given: Mapping[str, Any], steps_per_round: int, *, on_gpu: bool) -> tuple[Length, tuple[str, ...]]:
    """Returns how long a run takes, and sentences on it.

    Args:
        given: flag values by name; None: not given.
        steps_per_round: after so many steps training repeats what it does. Of rounds of several steps, the first one is
            warm-up, since it sets up what is done once a round, and whole ones are measured, since their steps differ.
        on_gpu: whether GPUs compute.
    """
    asked = filled(Length, given, num_warmup_batches=0)
    warmup = given["num_warmup_batches"]
    if warmup is None:
        warmup = 10 if on_gpu else 3
    batches = None if given["num_epochs"] else asked.num_batches
    whole = {
        "num_batches": batches and -(-batches // steps_per_round) * steps_per_round,
        "num_warmup_batches": max(warmup, steps_per_round) if steps_per_round > 1 else warmup,
    }
    notices = tuple(
        f"--{name}={given[name]} becomes {steps}: whole rounds of {steps_per_round} steps (--local_sgd_steps) are "
        "measured, after the first averaging."
        for name, steps in whole.items()
        if given[name] is not None and given[name] != steps
    )
    return dataclasses.replace(asked, **whole), notices
