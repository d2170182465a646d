from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import devices, imagenet, tfrecord
from benchmarks.errors import DataError
from benchmarks.inputs import InputSpec


@pytest.fixture
def copied(fake_imagenet: Path, tmp_path: Path) -> Path:
    """A data set that a test may damage."""
    return Path(shutil.copytree(fake_imagenet, tmp_path / "copied"))


def _read(
    directory: Path, towers: int, steps: int, *, in_turn: bool = True, pipelined: bool = False, **changes: object
) -> list[list[tuple[np.ndarray, np.ndarray]]]:
    """Per step and tower: images and labels. Towers that do not take turns are asked one after the other."""
    spec = {"batch_per_device": 4, "image_size": 32, "data_format": "NHWC", "num_classes": 1001, "seed": 7} | changes
    names = [f"/cpu:{i}" for i in range(towers)]
    with tf.Graph().as_default():
        shards = imagenet.find_shards(str(directory))
        inputs, initializers = imagenet.read(shards, names, InputSpec(**spec), in_turn=in_turn, pipelined=pipelined)
        fetches = [(i.images, i.labels, *([i.stage] if pipelined else [])) for i in inputs]
        with tf.compat.v1.Session(config=devices.session_config("cpu", towers)) as session:
            for initializer in initializers:
                session.run(initializer)
            together = [fetches] if in_turn else [[fetch] for fetch in fetches]
            found = [[batch[:2] for part in together for batch in session.run(part)] for _ in range(steps)]
    return found


def _labels(directory: Path) -> list[int]:
    payloads = [record.payload for file in sorted(directory.iterdir()) for record in tfrecord.records(file)]
    features = [tf.train.Example.FromString(payload).features.feature for payload in payloads]
    return sorted(feature["image/class/label"].int64_list.value[0] for feature in features)


def test_towers_share_one_epoch_without_overlap(fake_imagenet: Path) -> None:
    steps = _read(fake_imagenet, towers=2, steps=5)  # 2 x 4 x 5 = all 40 images
    seen = sorted(int(label) for step in steps for _, labels in step for label in labels)
    assert seen == _labels(fake_imagenet)
    flat = {image.tobytes() for step in steps for images, _ in step for image in images}
    assert len(flat) == 40


def test_the_data_set_starts_again(fake_imagenet: Path) -> None:
    steps = _read(fake_imagenet, towers=1, steps=25)  # two epochs and a half
    assert len(steps) == 25


def test_images_are_normalised(fake_imagenet: Path) -> None:
    images = np.concatenate([images for step in _read(fake_imagenet, 1, 10) for images, _ in step])
    assert images.dtype == np.float32
    assert images.shape == (40, 32, 32, 3)
    assert abs(images.mean()) < 1.0
    assert 0.05 < images.std() < 2.0


def test_equal_seeds_read_equal_images_and_others_do_not(fake_imagenet: Path) -> None:
    first, again, other = (_read(fake_imagenet, 2, 3, seed=seed) for seed in (1, 1, 2))
    for one, two in zip(first, again, strict=True):
        for (images, labels), (same_images, same_labels) in zip(one, two, strict=True):
            np.testing.assert_array_equal(images, same_images)
            np.testing.assert_array_equal(labels, same_labels)
    assert (first[0][0][0] != other[0][0][0]).any()


@pytest.mark.parametrize("in_turn", [True, False])
@pytest.mark.parametrize("pipelined", [True, False])
def test_no_image_is_lost_or_seen_twice_on_the_way(fake_imagenet: Path, in_turn: bool, pipelined: bool) -> None:
    """Staging moves what a step sees neither forth nor back, whether or not the towers step together."""
    plain = _read(fake_imagenet, 2, 5)
    other = _read(fake_imagenet, 2, 5, in_turn=in_turn, pipelined=pipelined)
    if in_turn:
        for one, two in zip(plain, other, strict=True):
            for (images, labels), (same_images, same_labels) in zip(one, two, strict=True):
                np.testing.assert_array_equal(images, same_images)
                np.testing.assert_array_equal(labels, same_labels)
    seen = sorted(int(label) for step in other for _, labels in step for label in labels)
    assert seen == _labels(fake_imagenet)


def test_layout_and_classes_are_as_asked(fake_imagenet: Path) -> None:
    ((nhwc, labels),) = _read(fake_imagenet, 1, 1)[0]
    ((nchw, fewer),) = _read(fake_imagenet, 1, 1, data_format="NCHW", num_classes=1000)[0]
    np.testing.assert_array_equal(nchw.transpose(0, 2, 3, 1), nhwc)
    np.testing.assert_array_equal(fewer, labels - 1)


def test_images_are_counted(fake_imagenet: Path) -> None:
    assert imagenet.count_images(imagenet.find_shards(str(fake_imagenet))) == 40


def _remove(directory: Path) -> None:
    shutil.rmtree(directory)


def _replace_by_file(directory: Path) -> None:
    shutil.rmtree(directory)
    directory.write_text("")


def _empty(directory: Path) -> None:
    for file in directory.iterdir():
        file.unlink()


def _rename(directory: Path) -> None:
    for file in directory.iterdir():
        file.rename(file.with_suffix(".tfrecord"))


def _lose_one(directory: Path) -> None:
    (directory / "train-00002-of-00004").unlink()


def _mix(directory: Path) -> None:
    shutil.copy(directory / "train-00000-of-00004", directory / "train-00000-of-00008")


def _empty_one(directory: Path) -> None:
    (directory / "train-00003-of-00004").write_bytes(b"")


def _break_link(directory: Path) -> None:
    (directory / "train-00001-of-00004").unlink()
    (directory / "train-00001-of-00004").symlink_to(directory / "gone")


def _other_layout(directory: Path) -> None:
    feature = {"image": tf.train.Feature(), "label": tf.train.Feature()}
    example = tf.train.Example(features=tf.train.Features(feature=feature))
    with tf.io.TFRecordWriter(str(directory / "train-00000-of-00004")) as writer:
        writer.write(example.SerializeToString())


def _no_example(directory: Path) -> None:
    with tf.io.TFRecordWriter(str(directory / "train-00000-of-00004")) as writer:
        writer.write(b"\xff\xff\xff")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_remove, "does not exist: .*make-imagenet"),
        (_replace_by_file, "is a file"),
        (_empty, "it is empty\\. .*make-imagenet"),
        (_rename, "no file is named like train-00000-of-00008; it holds train-00000-of-00004.tfrecord"),
        (_lose_one, "1 of 4 shards are missing: train-00002-of-00004"),
        (_mix, "mixes shards of 2 data sets"),
        (_empty_one, "train-00003-of-00004 is empty"),
        (_break_link, "train-00001-of-00004 is a broken link"),
        (_other_layout, "record 0 at byte 0: it has no 'image/encoded', only image, label; convert"),
        (_no_example, "record 0 at byte 0: it is no tf.train.Example"),
    ],
)
def test_unusable_directories_are_explained(copied: Path, damage: Callable[[Path], None], words: str) -> None:
    damage(copied)
    with pytest.raises(DataError, match=words):
        imagenet.find_shards(str(copied))


def rewrite(file: Path, number: int, *, encoded: bytes | None = None, label: int | None = None) -> None:
    """Writes a shard again with one record changed."""
    payloads = [record.payload for record in tfrecord.records(file)]
    example = tf.train.Example.FromString(payloads[number])
    if encoded is not None:
        example.features.feature["image/encoded"].bytes_list.value[0] = encoded
    if label is not None:
        example.features.feature["image/class/label"].int64_list.value[0] = label
    payloads[number] = example.SerializeToString()
    with tf.io.TFRecordWriter(str(file)) as writer:
        for payload in payloads:
            writer.write(payload)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"encoded": b"no image"}, "its image of 8 bytes does not decode as JPEG"),
        ({"encoded": b""}, "its image of 0 bytes does not decode as JPEG"),
        ({"label": 5000}, r"its label is \[5000\], one number of 1 to 1000 is wanted"),
        ({"label": 0}, r"its label is \[0\], one number of 1 to 1000 is wanted"),
    ],
)
def test_a_bad_record_is_named(copied: Path, change: dict, words: str) -> None:
    file = copied / "train-00002-of-00004"
    rewrite(file, 6, **change)
    offset = list(tfrecord.records(file))[6].offset
    problem = imagenet.explain_failure(imagenet.find_shards(str(copied)), 1000, ValueError("words of TensorFlow"))
    assert isinstance(problem, DataError)
    with pytest.raises(DataError, match=f"{file}: record 6 at byte {offset}: {words}"):
        raise problem


def test_the_search_for_the_record_ends(fake_imagenet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imagenet, "_SEARCH_SECONDS", -1.0)
    problem = imagenet.explain_failure(imagenet.find_shards(str(fake_imagenet)), 1001, ValueError("disk on fire"))
    assert "the first 0 of 4 files are sound: disk on fire" in str(problem)


def test_a_failure_that_no_record_explains_keeps_its_own_words(fake_imagenet: Path) -> None:
    problem = imagenet.explain_failure(imagenet.find_shards(str(fake_imagenet)), 1001, ValueError("disk on fire\nmore"))
    assert "disk on fire" in str(problem) and "more" not in str(problem)
