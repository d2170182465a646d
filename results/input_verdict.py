"""Sentences on which stage limits the input, from the rates of pipelines that end after each stage."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

# A smaller share of waiting is not reported.
LEAST_REPORTED_WAIT = 0.05

_ADVICE = {
    "read": "reading the files: put them on a faster disk, or give --datasets_use_caching if they fit into memory",
    "parse": "parsing the records: make them smaller, with fewer features",
    "decode": "decoding the photos: store them smaller (data convert --resize), give --decode_scaling if they are "
    "large, or use a host with more cores per device",
    "augment": "resizing and distorting: leave out --distortions, take --resize_method=bilinear, or use a host with "
    "more cores per device",
    "batch": "putting batches together: a larger --datasets_prefetch_buffer_size hides it",
    "copy": "bringing batches to the devices and normalising them: leave --pipelined_input on, or use a larger batch",
}


@dataclasses.dataclass(frozen=True)
class StageCost:
    """A stage: the rate of the pipeline up to it, the seconds it adds per image, and its share of the total time."""

    name: str
    images_per_sec: float
    seconds_per_image: float
    share: float


def costs(stages: Mapping[str, float]) -> list[StageCost]:
    """Returns the cost of each stage; a negative difference, which is noise, counts as 0."""
    added, before = {}, 0.0
    for name, rate in stages.items():
        added[name] = max(0.0, 1 / rate - before)
        before = max(before, 1 / rate)
    whole = sum(added.values())
    return [StageCost(name, rate, added[name], added[name] / whole) for name, rate in stages.items()]


def advice(stages: Mapping[str, float]) -> str:
    """Returns a sentence on the most expensive stage and what to try; empty if no stage was measured."""
    stage = max(costs(stages), key=lambda cost: cost.share, default=None)
    if stage is None:
        return ""
    return f"{stage.share:.0%} of the pipeline's time goes into {_ADVICE.get(stage.name, stage.name)}."


def verdict(wait_share: float | None, stages: Mapping[str, float], needed_images_per_sec: float | None) -> str:
    """Returns sentences on how the input limits a run; empty if it does not.

    Args:
        wait_share: share of the measured time spent waiting for images.
        stages: images per second of the input alone, by stage.
        needed_images_per_sec: the rate that the run would reach without waiting.
    """
    if wait_share is None or wait_share < LEAST_REPORTED_WAIT:
        return ""
    sentence = f"The run is input-bound: {wait_share:.0%} of the time it waited for images."
    if stages and needed_images_per_sec:
        alone = list(stages.values())[-1]
        sentence += f" The input alone reaches {alone:.0f} images/sec"
        if alone < needed_images_per_sec:
            sentence += f", {needed_images_per_sec:.0f} are needed"
        else:
            sentence += ", but it shares its cores with the steps, or its files were not yet in memory during the run"
        return f"{sentence}; {advice(stages)}"
    return f"{sentence} 'run_bench.py input' with the same flags measures each stage."
