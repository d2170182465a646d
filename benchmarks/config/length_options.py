"""How long a run takes. Imports without TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.config.run_flags import DEFAULTS
from variable_mgr.modifiers import Modifiers


def resolve(given: Mapping[str, Any], modifiers: Modifiers, *, on_gpu: bool) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Returns how long a run takes, and sentences on it.

    Of rounds of several steps, the first one is warm-up, since it sets up what is done once a round, and whole ones are
    measured, since their steps differ.
    """
    steps_per_round = 1 if given["forward_only"] or given["eval"] else max(1, modifiers.local_sgd_steps)
    batches = given["num_batches"] or (None if given["num_epochs"] else DEFAULTS["num_batches"])
    warmup = given["num_warmup_batches"]
    if warmup is None:
        warmup = 10 if on_gpu else 3
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
    return {**whole, "num_epochs": given["num_epochs"], "time_limit_seconds": given["time_limit_seconds"]}, notices
