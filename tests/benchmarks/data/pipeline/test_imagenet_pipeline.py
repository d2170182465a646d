"""What TensorFlow may read, and how the pipeline is traced and shared."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from benchmarks.data.options import InputOptions
from benchmarks.data.pipeline import imagenet_pipeline, photo_decoding
from benchmarks.data.sources import tfrecord
from benchmarks.data.sources.imagenet_files import Photos
from tests.support import damage
from tests.support.images import decoded_photos, find, take, take_batches, to_folder
from tests.support.rotation import rotating

_ONE_AHEAD = InputOptions(parallel_calls=1, prefetch_batches=0)


def _names(source: Photos) -> set[bytes]:
    """Returns the names of all files as TensorFlow gets them in two epochs."""

    def dataset() -> tf.data.Dataset:
        return imagenet_pipeline.checked(source, imagenet_pipeline.numbered_files(source)).repeat()

    return {name for _, name in take(dataset, 2 * len(source.files))}


def test_a_fifo_among_photos_never_passes(fake_imagenet: Path, tmp_path: Path) -> None:
    to_folder(fake_imagenet, tmp_path)
    source = find(tmp_path)
    bad = source.files[17]
    bad.unlink()
    os.mkfifo(bad)
    assert _names(source) == {os.fsencode(file) for file in source.files} - {os.fsencode(bad)} | {
        os.fsencode(bad / "unsafe")
    }


def test_the_lengths_of_a_shard_are_walked_again_only_if_it_has_changed(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = find(copied)
    walked: list[Path] = []
    usual = tfrecord.lengths_are_safe
    monkeypatch.setattr(tfrecord, "lengths_are_safe", lambda path: walked.append(path) or usual(path))
    assert _names(source) == _names(source) == {os.fsencode(file) for file in source.files}
    assert sorted(walked) == sorted(source.files)
    changed = source.files[1]
    damage.state_length(changed, 2**40)
    os.utime(changed, (1, 1))
    assert os.fsencode(changed / "unsafe") in _names(source)
    assert walked[len(source.files) :] == [changed]


@pytest.mark.fault("R4", "a FIFO in place of a shard", survives="a sentence names it before it is opened")
def test_a_shard_that_is_a_fifo_is_not_opened(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = find(copied)
    source.files[2].unlink()
    os.mkfifo(source.files[2])
    opened: list[Path] = []
    usual = tfrecord.lengths_are_safe
    monkeypatch.setattr(tfrecord, "lengths_are_safe", lambda path: opened.append(path) or usual(path))
    assert os.fsencode(source.files[2] / "unsafe") in _names(source)
    assert source.files[2] not in opened and len(opened) == 3


def test_the_pipeline_is_traced_as_it_is_written(fake_imagenet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not as AutoGraph would rewrite it, which takes more than a second of a process."""
    callers: list[str] = []
    usual = photo_decoding.augment

    def augment(*arguments: Any) -> tf.Tensor:
        callers.append(sys._getframe(1).f_code.co_filename)
        return usual(*arguments)

    monkeypatch.setattr(photo_decoding, "augment", augment)
    take_batches(fake_imagenet, 1)
    assert callers == [imagenet_pipeline.__file__]


@rotating("workers", [2, 5], first=1)
def test_no_two_workers_decode_the_same_photo(
    fake_imagenet: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """Four shards: two workers read two each, and five read all of them but decode their own records only."""
    decoded = decoded_photos(monkeypatch)
    for worker in range(workers):
        before = len(decoded)
        # Fewer than the worker's share, since photos are also decoded ahead, and those of the next epoch are others.
        take_batches(fake_imagenet, 2, batch_per_device=1, worker=worker, workers=workers, options=_ONE_AHEAD)
        assert len(decoded) - before < 40 // workers
    assert len(set(decoded)) == len(decoded) >= 2 * workers
