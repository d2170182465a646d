"""What images cost a run: beside synthetic ones, and which stage limits their input, from rates up to each stage."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from results import loading
from results.intervals import Interval, of_repeats, slower_than_best
from results.record import Record, Status
from results.summary import DATA, Siblings, summarize

# A smaller share of waiting is not reported.
LEAST_REPORTED_WAIT = 0.05

# Of each stage what it does and what to try; a piece of advice may depend on an option, and is left out if that has one
# of the values that follow.
_ADVICE: Mapping[str, tuple[str, Sequence[tuple[Any, ...]]]] = {
    "read": (
        "reading the files",
        [
            ("put them on a faster disk",),
            ("give --datasets_use_caching if they fit into memory", "cache", "records", "one_record"),
        ],
    ),
    "draw": ("drawing images that are in memory", [("use a larger batch",)]),
    "parse": ("parsing the records", [("make them smaller, with fewer features",)]),
    "decode": (
        "decoding the photos",
        [
            ("store them smaller or as pixels (data convert --resize=256 --decoded)",),
            ("give --decode_scaling if they are large", "decode_scaling", True),
            ("give --fuse_decode_and_crop", "fuse_decode_and_crop", True),
            ("use a host with more cores per device",),
        ],
    ),
    "augment": (
        "resizing and distorting",
        [
            ("leave out --distortions", "distortions", False),
            ("take --resize_method=bilinear", "resize_method", "bilinear", "nearest"),
            ("use a host with more cores per device",),
        ],
    ),
    "batch": ("putting batches together", [("a larger --datasets_prefetch_buffer_size hides it",)]),
    "copy": (
        "bringing batches to the devices and normalising them",
        [("give --pipelined_input", "pipelined_input", True), ("use a larger batch",)],
    ),
}


@dataclasses.dataclass(frozen=True)
class StageCost:
    """A stage and what it costs.

    Attributes:
        name: of the stage.
        images_per_sec: of the pipeline up to it; its bounds come from the spread between rounds.
        seconds_per_image: what it adds.
        share: of the total time.
        is_clear: whether the rounds separate it from the slowest stage before; True without rounds.
    """

    name: str
    images_per_sec: Interval
    seconds_per_image: float
    share: float
    is_clear: bool = True


def costs(stages: Mapping[str, float], rounds: Mapping[str, Sequence[float]] | None = None) -> list[StageCost]:
    """Returns the cost of each stage; a negative difference counts as 0. `stages`: images/s of the pipeline up to it.

    All stages take part in each of the `rounds`, so rounds are compared in pairs.
    """
    rounds = rounds or {}
    added: dict[str, float] = {}
    rates: dict[str, Interval] = {}
    clear = {}
    slowest = ""
    for name, rate in stages.items():
        added[name] = max(0.0, 1 / rate - (1 / stages[slowest] if slowest else 0.0))
        rates[name] = Interval(rate)
        if len(rounds.get(name, ())) > 1:
            rates[name] = dataclasses.replace(of_repeats(rounds[name]), value=rate)
        clear[name] = not slowest or name not in rounds or slower_than_best([rounds[name], rounds[slowest]]) == [0]
        slowest = name if not slowest or rate < stages[slowest] else slowest
    whole = sum(added.values())
    return [StageCost(name, rates[name], added[name], added[name] / whole, clear[name]) for name in stages]


def advice(
    stages: Mapping[str, float],
    options: Mapping[str, Any] | None = None,
    rounds: Mapping[str, Sequence[float]] | None = None,
) -> str:
    """Returns a sentence on the most expensive stage and what to try; empty if no stage was measured.

    Of `options` (those of the input, and `pipelined_input`), what is already so is not advised; None: they are unknown.
    """
    stage_costs = costs(stages, rounds)
    stage = max((cost for cost in stage_costs if cost.is_clear), key=lambda cost: cost.share, default=None)
    if stage is None:
        return ""
    what, pieces = _ADVICE.get(stage.name, (stage.name, []))
    values = options or {}
    fitting = [piece[0] for piece in pieces if len(piece) == 1 or values.get(piece[1]) not in piece[2:]]
    last = " or ".join([", ".join(fitting[:-1]), fitting[-1]] if len(fitting) > 1 else fitting)
    return f"{stage.share:.0%} of the pipeline's time goes into {what}{': ' if last else ''}{last}."


def synthetic_ratio(record: Record, results: Path) -> float | None:
    """Returns the rate of a run over that of the same run with synthetic images, which the file `results` may have.

    It is None if there is none, or no rate.
    """
    rate, reads_images = record.derived.images_per_sec, record.config.get("data_name") != "synthetic"
    if rate is None or not reads_images or record.status is not Status.OK or not results.exists():
        return None
    others = loading.load(results).records  # `report` warns of lines that are no records
    rows = summarize([record, *(other for other in others if other.config.get("data_name") == "synthetic")])
    synthetic = Siblings(rows).of(rows[0], DATA, {"data_name": "synthetic"})
    return None if synthetic is None else rate / synthetic.rate
