"""What the flags of a run become."""

from __future__ import annotations

from benchmarks.config import config, flag, run_flags


def resolve(*words: str, gpus: int = 0) -> config.Config:
    """Returns the configuration of a run with these flags, on a machine with so many GPUs."""
    return config.resolve(flag.parse(words, run_flags.RUN_FLAGS).values, lambda: gpus)
