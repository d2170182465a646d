from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.data.sources import tfrecord
from benchmarks.data.writing import fake_imagenet as making
from benchmarks.data.writing import photo_records
from tests.support.commands import RunBench
from tests.support.images import features_in


def test_shards_are_named_as_usual_and_hold_even_shares(fake_imagenet: Path) -> None:
    assert [path.name for path in sorted(fake_imagenet.iterdir())] == [f"train-{i:05d}-of-00004" for i in range(4)]
    assert [tfrecord.count(path) for path in sorted(fake_imagenet.iterdir())] == [(10, None)] * 4


def test_images_are_like_those_of_imagenet(fake_imagenet: Path) -> None:
    examples = features_in(fake_imagenet)
    sizes = [len(example["image/encoded"].bytes_list.value[0]) for example in examples]
    assert np.mean(sizes) == pytest.approx(110 * 1024, rel=0.07)
    assert np.mean([example["image/width"].int64_list.value[0] for example in examples]) == pytest.approx(500, rel=0.03)
    assert np.mean([example["image/height"].int64_list.value[0] for example in examples]) == pytest.approx(
        375, rel=0.03
    )
    with_boxes = np.mean([len(example["image/object/bbox/xmin"].float_list.value) > 0 for example in examples])
    assert with_boxes == pytest.approx(1 / 3, abs=0.1)


def test_fields_agree_with_each_other(fake_imagenet: Path) -> None:
    for example in features_in(fake_imagenet)[:40]:
        image = tf.io.decode_jpeg(example["image/encoded"].bytes_list.value[0]).numpy()
        height, width = (example[f"image/{side}"].int64_list.value[0] for side in ("height", "width"))
        assert image.shape == (height, width, 3)
        assert image.std() > 5, "a flat image would decode too fast"
        assert 1 <= example["image/class/label"].int64_list.value[0] <= 1000
        corners = [example[f"image/object/bbox/{c}"].float_list.value for c in ("ymin", "xmin", "ymax", "xmax")]
        for ymin, xmin, ymax, xmax in zip(*corners, strict=True):
            assert 0 <= ymin < ymax <= 1 and 0 <= xmin < xmax <= 1


def test_equal_seeds_write_equal_records_and_others_do_not(fake_imagenet: Path, tmp_path: Path) -> None:
    def payloads(directory: Path, *, seed: int) -> list[bytes]:
        making.write(directory, photo_records.split("train", 3, 2), seed=seed)
        return [record.payload for file in sorted(directory.iterdir()) for record in tfrecord.walk(file)]

    first = [record.payload for record in tfrecord.walk(fake_imagenet / "train-00000-of-00004")][:3]
    assert payloads(tmp_path / "same", seed=3) == first, "into however many shards they are divided"
    assert not set(payloads(tmp_path / "other", seed=4)) & set(first)


def test_nothing_is_overwritten_unasked(run_bench: RunBench, tmp_path: Path) -> None:
    make = ("data", "make_imagenet", str(tmp_path))
    assert run_bench(*make, "--train_images=2", "--images_per_shard=1").status == 0
    again = run_bench(*make, "--train_images=2")
    assert again.status == 2 and "already holds 2 train shards (train-00000-of-00002, ...)" in again.stderr
    assert "pass --overwrite" in again.stderr
    assert run_bench(*make, "--train_images=0", "--validation_images=1").status == 0
    assert run_bench(*make, "--train_images=1", "--overwrite").status == 0
    assert [file.name[:5] for file in sorted(tmp_path.iterdir())] == ["train", "valid"]
