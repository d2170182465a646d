"""Photos on disk: what is found, what is missing, and how they reach the towers."""

from __future__ import annotations

import collections
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.errors import DataError
from benchmarks.input import imagenet
from tests.support.images import labels_of, read_towers, take_batches, to_folder, to_tfds
from tests.support.rotation import rotating


def test_the_data_set_starts_again(fake_imagenet: Path) -> None:
    steps = read_towers(fake_imagenet, towers=1, steps=25)
    labels = [int(label) for ((_, labels),) in steps for label in labels]
    every = labels_of(fake_imagenet)
    assert sorted(labels[:40]) == sorted(labels[40:80]) == every, "two epochs, and a half"
    assert len(labels) == 100 and not collections.Counter(labels[80:]) - collections.Counter(every)


def test_equal_seeds_read_equal_images_and_others_do_not(fake_imagenet: Path) -> None:
    first, again, other = (read_towers(fake_imagenet, 2, 3, seed=seed) for seed in (1, 1, 2))
    for one, two in zip(first, again, strict=True):
        for (images, labels), (same_images, same_labels) in zip(one, two, strict=True):
            np.testing.assert_array_equal(images, same_images)
            np.testing.assert_array_equal(labels, same_labels)
    assert (first[0][0][0] != other[0][0][0]).any()


@pytest.fixture(scope="module")
def plain(fake_imagenet: Path) -> list[list[tuple[np.ndarray, np.ndarray]]]:
    """An epoch as two towers see it, neither staged nor asynchronous."""
    return read_towers(fake_imagenet, 2, 5)


def test_towers_share_one_epoch_without_overlap(
    fake_imagenet: Path, plain: list[list[tuple[np.ndarray, np.ndarray]]]
) -> None:
    seen = sorted(int(label) for step in plain for _, labels in step for label in labels)
    assert seen == labels_of(fake_imagenet)
    assert len({image.tobytes() for step in plain for images, _ in step for image in images}) == 40


@pytest.mark.parametrize(("in_turn", "pipelined"), [(True, True), (False, True), (False, False)])
def test_no_image_is_lost_or_seen_twice_on_the_way(
    fake_imagenet: Path, plain: list[list[tuple[np.ndarray, np.ndarray]]], in_turn: bool, pipelined: bool
) -> None:
    """Staging moves what a step sees neither forth nor back, whether or not the towers step together."""
    other = read_towers(fake_imagenet, 2, 5, in_turn=in_turn, pipelined=pipelined)
    if in_turn:
        for one, two in zip(plain, other, strict=True):
            for (images, labels), (same_images, same_labels) in zip(one, two, strict=True):
                np.testing.assert_array_equal(images, same_images)
                np.testing.assert_array_equal(labels, same_labels)
    seen = sorted(int(label) for step in other for _, labels in step for label in labels)
    assert seen == labels_of(fake_imagenet)


def test_layout_and_classes_are_as_asked(fake_imagenet: Path) -> None:
    ((nhwc, labels),) = read_towers(fake_imagenet, 1, 1)[0]
    ((nchw, fewer),) = read_towers(fake_imagenet, 1, 1, data_format="NCHW", num_classes=1000)[0]
    np.testing.assert_array_equal(nchw.transpose(0, 2, 3, 1), nhwc)
    np.testing.assert_array_equal(fewer, labels - 1)


def test_images_are_counted(fake_imagenet: Path) -> None:
    assert imagenet.find(str(fake_imagenet), "train").count() == 40


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
    feature = {"picture": tf.train.Feature(), "word": tf.train.Feature()}
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
        (_rename, "no file is named like train-00000-of-00008 or .*; it holds train-00000-of-00004.tfrecord"),
        (_lose_one, "1 of 4 shards are missing: train-00002-of-00004"),
        (_mix, "mixes shards of 2 data sets"),
        (_empty_one, "train-00003-of-00004 is empty"),
        (_break_link, "train-00001-of-00004 is a broken link"),
        (_other_layout, "record 0 at byte 0: it has neither 'image/encoded' and .* only picture, word; convert"),
        (_no_example, "record 0 at byte 0: it is no tf.train.Example"),
    ],
)
def test_unusable_directories_are_explained(copied: Path, damage: Callable[[Path], None], words: str) -> None:
    damage(copied)
    with pytest.raises(DataError, match=words):
        imagenet.find(str(copied), "train")


def test_both_layouts_of_records_are_told_by_their_content(fake_imagenet: Path, tmp_path: Path) -> None:
    to_tfds(fake_imagenet, tmp_path / "tfds")
    inception, tfds = (imagenet.find(str(where), "train") for where in (fake_imagenet, tmp_path / "tfds"))
    assert inception.describe().startswith("Inception TFRecords, 4 train shards in")
    assert tfds.describe().startswith("TFDS TFRecords, 4 train shards in")
    for num_classes in (1000, 1001):
        one, other = (take_batches(where, 3, num_classes=num_classes) for where in (fake_imagenet, tmp_path / "tfds"))
        for (_, labels), (_, same_labels) in zip(one, other, strict=True):
            np.testing.assert_array_equal(labels, same_labels)


def test_tfds_names_may_hold_records_of_inception(fake_imagenet: Path, tmp_path: Path) -> None:
    for number, file in enumerate(sorted(fake_imagenet.iterdir())):
        shutil.copy(file, tmp_path / f"imagenet2012-train.tfrecord-{number:05d}-of-00004")
    assert imagenet.find(str(tmp_path), "train").layout is imagenet.INCEPTION


def test_missing_tfds_shards_are_named(fake_imagenet: Path, tmp_path: Path) -> None:
    to_tfds(fake_imagenet, tmp_path / "tfds")
    (tmp_path / "tfds" / "imagenet2012-train.tfrecord-00001-of-00004").unlink()
    with pytest.raises(DataError, match="1 of 4 shards are missing: imagenet2012-train.tfrecord-00001-of-00004"):
        imagenet.find(str(tmp_path / "tfds"), "train")


def test_a_folder_of_class_folders_is_read(fake_imagenet: Path, tmp_path: Path) -> None:
    to_folder(fake_imagenet, tmp_path / "train")
    for directory in (tmp_path, tmp_path / "train"):
        found = imagenet.find(str(directory), "train")
        assert found.count() == 40
    classes = sorted({label for label in labels_of(fake_imagenet)})
    assert list(found.classes) == [f"n{label:08d}" for label in classes]
    seen = sorted(int(label) for _, labels in take_batches(tmp_path, 10, num_classes=1000) for label in labels)
    assert seen == sorted(classes.index(label) for label in labels_of(fake_imagenet))


def test_splits_are_kept_apart(fake_imagenet: Path) -> None:
    with pytest.raises(DataError, match="no file is named like validation-00000-of-00008"):
        imagenet.find(str(fake_imagenet), "validation")


@pytest.fixture(scope="module")
def one_by_one(fake_imagenet: Path) -> list[bytes]:
    """Every photo of an epoch, as a lone worker reads it."""
    return sorted(images.tobytes() for images, _ in take_batches(fake_imagenet, 40, batch_per_device=1))


@rotating("workers", [3, 2, 6], first=1)
def test_workers_share_an_epoch_and_treat_each_photo_alike(
    fake_imagenet: Path, one_by_one: list[bytes], workers: int
) -> None:
    """With more workers than files, records are dealt out instead of files."""
    together = []
    for worker in range(workers):
        share = 40 // workers if workers > 4 or 4 % workers == 0 else {0: 20, 1: 10, 2: 10}[worker]
        share += workers == 6 and worker < 4
        batches = take_batches(fake_imagenet, share, batch_per_device=1, worker=worker, workers=workers)
        together += [images.tobytes() for images, _ in batches]
    assert sorted(together) == one_by_one


def test_another_epoch_brings_the_same_photos_in_other_crops(fake_imagenet: Path) -> None:
    batches = take_batches(fake_imagenet, 20)
    first, second = batches[:10], batches[10:]
    assert sorted(np.concatenate([labels for _, labels in first])) == sorted(
        np.concatenate([labels for _, labels in second])
    )
    assert not {i.tobytes() for images, _ in first for i in images} & {
        i.tobytes() for images, _ in second for i in images
    }


def test_an_empty_class_folder_moves_no_label(fake_imagenet: Path, tmp_path: Path) -> None:
    to_folder(fake_imagenet, tmp_path)
    before = imagenet.find(str(tmp_path), "train")
    first = tmp_path / before.classes[0]
    shutil.rmtree(first)
    first.mkdir()
    (tmp_path / ".thumbnails").mkdir()
    (tmp_path / ".thumbnails" / "x.jpg").write_bytes(b"x")
    after = imagenet.find(str(tmp_path), "train")
    labels = dict(zip(before.files, before.labels, strict=True))
    assert list(after.labels) == [labels[file] for file in after.files]
    assert "of which 1 have none" in after.describe()


def test_training_photos_are_not_taken_for_validation(fake_imagenet: Path, tmp_path: Path) -> None:
    to_folder(fake_imagenet, tmp_path)
    with pytest.raises(DataError, match="in a folder named validation or val"):
        imagenet.find(str(tmp_path), "validation")


def test_data_sets_are_told_apart(fake_imagenet: Path, tmp_path: Path) -> None:
    to_folder(fake_imagenet, tmp_path / "folder")
    to_tfds(fake_imagenet, tmp_path / "tfds")
    shutil.copytree(fake_imagenet, tmp_path / "same")
    there = [fake_imagenet, tmp_path / "folder", tmp_path / "tfds", tmp_path / "same"]
    first, *others, same = [imagenet.find(str(directory), "train").identify() for directory in there]
    assert first == same and len({first, *others}) == 3
    next((tmp_path / "folder").rglob("*.JPEG")).unlink()
    assert imagenet.find(str(tmp_path / "folder"), "train").identify() != others[0]


def test_the_file_that_has_another_layout_is_named_behind_one_that_is_damaged(copied: Path) -> None:
    first, second = (copied / f"train-0000{number}-of-00004" for number in (0, 1))
    _no_example(copied)
    (copied / "train-00000-of-00004").rename(second)
    first.write_bytes(b"nothing that could be read")
    with pytest.raises(DataError, match=f"{second}: record 0 at byte 0: it is no tf.train.Example"):
        imagenet.find(str(copied), "train")


def test_a_path_that_nobody_can_look_at_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read: File name too long"):
        imagenet.find(str(tmp_path / ("x" * 300)), "train")
