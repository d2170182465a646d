"""A pipeline that begins after some images continues exactly where one that began with the training would be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.data.options import InputOptions
from benchmarks.data.pipeline import input_pipeline
from benchmarks.data.sources.bad_records import Skipping
from benchmarks.data.sources.small_images import Pixels
from tests.support.images import decoded_photos, spec, take, take_batches, to_folder
from tests.support.rotation import rotating

STEPS = 9


def _require_continued(batches: Callable[..., list[Any]], at: tuple[int, ...], images_per_step: int) -> None:
    whole = batches(count=STEPS)
    for before in at:
        continued = batches(count=STEPS - before, images_before=before * images_per_step)
        for drawn, expected in zip(continued, whole[before:], strict=True):
            for values, wanted in zip(drawn, expected, strict=True):
                np.testing.assert_array_equal(values, wanted)


@rotating("workers", [1, 2], first=1)
@pytest.mark.parametrize("cache", ["none", "one_record"])
def test_small_images(workers: int, cache: Any) -> None:
    draw = np.random.default_rng(0)
    images, labels = draw.integers(0, 256, (15, 32, 32, 3), dtype=np.uint8), np.arange(15)
    source = Pixels(layout="", directory="", split="train", images=images, labels=labels)
    for worker in range(workers):

        def batches(count: int, worker: int = worker, **changes: Any) -> list[Any]:
            wanted = spec(worker=worker, workers=workers, **changes)
            return take(lambda: input_pipeline.batches(source, wanted, InputOptions(cache=cache)), count)

        _require_continued(batches, (1, 4, 8), 4 * workers)


DISTORTED = {"distortions": True, "resize_method": "round_robin", "shuffle_records": 5}


@rotating(
    ("options", "workers", "folder"),
    [
        (InputOptions(**DISTORTED), 1, False),
        (InputOptions(**DISTORTED), 3, False),  # 4 shards: one worker reads two of them in each epoch
        (InputOptions(**DISTORTED), 5, False),  # all workers read all shards
        (InputOptions(cache="records"), 3, False),
        (InputOptions(cache="one_record"), 2, False),
        (InputOptions(), 3, True),
    ],
    first=1,
)
def test_photos(fake_imagenet: Path, tmp_path: Path, options: InputOptions, workers: int, folder: bool) -> None:
    directory = fake_imagenet
    if folder:
        directory = tmp_path
        to_folder(fake_imagenet, directory)

    def batches(count: int, **changes: Any) -> list[Any]:
        return take_batches(directory, count, options=options, worker=workers - 1, workers=workers, **changes)

    _require_continued(batches, (5,), 4 * workers)


def test_photos_of_earlier_steps_are_not_decoded(fake_imagenet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = decoded_photos(monkeypatch)
    take_batches(fake_imagenet, 1, options=InputOptions(parallel_calls=1), images_before=40 + 32)
    assert 4 <= len(decoded) < 16


def test_records_before_the_start_are_not_counted_as_bad(fake_imagenet: Path) -> None:
    source = input_pipeline.find_source("imagenet", str(fake_imagenet), "train")
    skipping = Skipping()
    take(lambda: input_pipeline.batches(source, spec(images_before=52), InputOptions(), skipping), 2)
    assert skipping.close() == 0
