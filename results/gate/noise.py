"""How much do equal runs differ on this machine? Estimated from A/A rounds, and stored for later thresholds."""

from __future__ import annotations

import bisect
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from results import store
from results.gate.decision import CONFIDENCE, POWER, supported_threshold
from results.gate.findings import Verdict
from results.gate.trial import SHORTEST_TRIAL, Trial
from results.loading import read_small

_TRIALS = 400


class NoiseFileError(ValueError):
    """A noise file cannot be read, or contains something else."""


class Noise(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The variation of one configuration between equal runs on one machine.

    Attributes:
        noise: standard deviation of one round's log rate (0.02 is 2 %), without variation that its pair shares.
        low, high: ends of its 95 % interval.
        rounds: number of pairs that it was estimated from.
        time_utc: time of the estimate.
        suite_commit: the suite's commit that made it; None if unknown.
        title: what was run, in words.
        is_interleaved: whether the runs of a pair interleaved their steps instead of running one after the other.
    """

    noise: Annotated[float, msgspec.Meta(ge=0)]
    low: float
    high: float
    rounds: int
    time_utc: str = ""
    suite_commit: str | None = None
    title: str = ""
    is_interleaved: bool = False

    @property
    def threshold(self) -> float:
        """Returns the threshold that the machine supports, as a share."""
        return supported_threshold(self.noise)


def estimate(base_rates: Sequence[float], candidate_rates: Sequence[float]) -> Noise:
    """Estimates the noise from pairs of equal rounds.

    A pair's log ratio has twice the variance of a round, without variation that both rounds share, such as a slow
    drift, which does not affect a comparison of pairs either. The interval is that of a normal variance (chi square).
    """
    from scipy import stats  # slow to import

    ratios = [math.log(candidate / base) for base, candidate in zip(base_rates, candidate_rates, strict=True)]
    noise = statistics.stdev(ratios) / math.sqrt(2)
    degrees, tail = len(ratios) - 1, (1 - CONFIDENCE) / 2
    low, high = (noise * math.sqrt(degrees / float(stats.chi2.ppf(share, degrees))) for share in (1 - tail, tail))
    return Noise(noise=noise, low=low, high=high, rounds=len(ratios))


def rounds_needed(noise: float, *, drop: float, threshold: float, most: int) -> int | None:
    """Returns the max_rounds with which a trial finds a drop in 95 % of the cases, by a seeded simulation of trials.

    `noise` of one round, `drop` and `threshold` are shares. None is returned if `most` pairs do not suffice.
    """
    generator = np.random.default_rng(0)
    mean, spread = math.log1p(-drop), math.sqrt(2) * noise
    samples = np.exp(generator.normal(mean, spread, size=(_TRIALS, most))).tolist()

    def finds(ratios: Sequence[float], max_rounds: int) -> bool:
        trial = Trial(threshold, max_rounds=max_rounds)
        for ratio in ratios:
            trial.add(1.0, ratio)
            if trial.is_over:
                break
        return trial.decision.verdict is Verdict.REGRESSED

    def suffices(rounds: int) -> bool:
        return sum(finds(sample, rounds) for sample in samples) >= POWER * _TRIALS

    if not suffices(most):
        return None
    return SHORTEST_TRIAL + bisect.bisect_left(range(SHORTEST_TRIAL, most), True, key=suffices)


def path_of(baselines_dir: Path, hardware_key: str) -> Path:
    """Returns the noise file of a machine."""
    return baselines_dir / hardware_key / "noise.json"


def load(path: Path) -> dict[str, Noise]:
    """Returns the noise of each configuration, by its config_key; none if the file is missing or empty.

    Raises:
        NoiseFileError: the file contains something else, or cannot be read.
    """
    try:
        # `locked` creates the file empty before the first save.
        return msgspec.json.decode(read_small(path) or b"{}", type=dict[str, Noise])
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeError, msgspec.MsgspecError, RecursionError) as error:
        raise NoiseFileError(f"{path}: {error}. Remove it, and run `track calibrate` again.") from error


def save(path: Path, noises: dict[str, Noise]) -> None:
    """Adds noises, by config_key, to a file atomically; of two processes at once, one waits for the other.

    Raises:
        NoiseFileError: the file exists and contains something else.
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with store.locked(path):
        entries = msgspec.to_builtins(load(path) | noises)
        store.replace(path, json.dumps(entries, indent=2, sort_keys=True) + "\n")
