"""What limits the input, in words: from the rates of pipelines that end after each stage."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

# Below this share of a step, waiting for input is not worth a word.
WORTH_A_WORD = 0.05

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
    """A stage: images per second of the pipeline up to it, what it adds per image in seconds, and its share of all."""

    name: str
    images_per_sec: float
    seconds_per_image: float
    share: float


def costs(stages: Mapping[str, float]) -> list[StageCost]:
    """Returns what each stage adds. One that seems to take less than nothing, which is noise, adds nothing."""
    added, before = {}, 0.0
    for name, rate in stages.items():
        added[name] = max(0.0, 1 / rate - before)
        before = max(before, 1 / rate)
    whole = sum(added.values())
    return [StageCost(name, rate, added[name], added[name] / whole) for name, rate in stages.items()]


def limiting_stage(stages: Mapping[str, float]) -> StageCost | None:
    """Returns the stage that adds most; None if no stage was measured."""
    return max(costs(stages), key=lambda cost: cost.share, default=None)


def advice(stages: Mapping[str, float]) -> str:
    """Returns a sentence on what takes most and what to try; empty if no stage was measured."""
    stage = limiting_stage(stages)
    if stage is None:
        return ""
    return f"{stage.share:.0%} of the pipeline's time goes into {_ADVICE.get(stage.name, stage.name)}."


def verdict(wait_share: float | None, stages: Mapping[str, float], needed_images_per_sec: float | None) -> str:
    """Returns whether a run was held up by its input, and by what; empty if it was not.

    Args:
        wait_share: share of the measured time in which there was nothing to compute on.
        stages: rates of the input alone, by stage.
        needed_images_per_sec: what the run would have reached without waiting.
    """
    if wait_share is None or wait_share < WORTH_A_WORD:
        return ""
    sentence = f"The run is input-bound: {wait_share:.0%} of the time it only waited for images."
    if stages and needed_images_per_sec:
        alone = list(stages.values())[-1]
        sentence += f" The input alone makes {alone:.0f} images/sec"
        if alone < needed_images_per_sec:
            sentence += f", {needed_images_per_sec:.0f} are needed"
        else:
            sentence += ", but shares its cores with the steps, or its files are now in memory and were not before"
        return f"{sentence}; {advice(stages)}"
    return f"{sentence} 'run_bench.py input' with the same flags says what takes the time."
