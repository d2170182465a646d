"""Photos on disk: what is found, what is missing, and how they reach the towers."""

from __future__ import annotations

import dataclasses
import errno
import gzip
import os
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from benchmarks.data.options import InputOptions
from benchmarks.data.pipeline import input_pipeline, photo_decoding
from benchmarks.data.sources import bad_records, class_folders, imagenet_files, tfrecord
from benchmarks.data.sources.photo_layouts import INCEPTION
from benchmarks.data.sources.tfrecord import Defect
from benchmarks.data.writing.photo_records import Original, photo_example
from benchmarks.errors import DataError
from tests.support.images import (
    find,
    labels_of,
    make_files,
    read_towers,
    relabelled,
    take_batches,
    to_folder,
    to_tfds,
)
from tests.support.rotation import rotating

FIRST = "train-00000-of-00004"
Batch = tuple[np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def plain(fake_imagenet: Path) -> list[list[Batch]]:
    """An epoch as two towers see it, neither staged nor asynchronous."""
    return read_towers(fake_imagenet, 2, 5)


@pytest.mark.row("S3.6")
def test_towers_share_one_epoch_without_overlap(fake_imagenet: Path, plain: list[list[Batch]]) -> None:
    assert _labels(plain) == labels_of(fake_imagenet)
    assert len({image.tobytes() for step in plain for images, _ in step for image in images}) == 40


@pytest.mark.parametrize(("in_turn", "pipelined"), [(True, True), (False, True), (False, False)])
def test_no_image_is_lost_or_seen_twice_on_the_way(
    fake_imagenet: Path, plain: list[list[Batch]], in_turn: bool, pipelined: bool
) -> None:
    """Staging moves what a step sees neither forth nor back, whether or not the towers step together."""
    other = read_towers(fake_imagenet, 2, 5, in_turn=in_turn, pipelined=pipelined)
    if in_turn:
        np.testing.assert_equal(other, plain)
    assert _labels(other) == labels_of(fake_imagenet)


def _labels(steps: list[list[Batch]]) -> list[int]:
    return sorted(int(label) for step in steps for _, labels in step for label in labels)


def test_layout_classes_and_seed_are_as_asked(fake_imagenet: Path, plain: list[list[Batch]]) -> None:
    ((nhwc, labels),) = read_towers(fake_imagenet, 1, 1)[0]
    ((nchw, fewer),) = read_towers(fake_imagenet, 1, 1, data_format="NCHW", num_classes=1000)[0]
    np.testing.assert_array_equal(nchw.transpose(0, 2, 3, 1), nhwc)
    np.testing.assert_array_equal(fewer, labels - 1)
    np.testing.assert_array_equal(nhwc, plain[0][0][0], "the first tower's, by the same seed")
    ((other, _),) = read_towers(fake_imagenet, 1, 1, seed=8)[0]
    assert (other != nhwc).any()


def _replace_by_file(directory: Path) -> None:
    shutil.rmtree(directory)
    directory.write_text("")


def _empty(directory: Path) -> None:
    for file in directory.iterdir():
        file.unlink()


def _break_link(directory: Path) -> None:
    (directory / "train-00001-of-00004").unlink()
    (directory / "train-00001-of-00004").symlink_to(directory / "gone")


def _write_first(directory: Path, payload: bytes) -> None:
    with tf.io.TFRecordWriter(str(directory / FIRST)) as writer:
        writer.write(payload)


def _other_layout(directory: Path) -> None:
    feature = {"picture": tf.train.Feature(), "word": tf.train.Feature()}
    example = tf.train.Example(features=tf.train.Features(feature=feature))
    _write_first(directory, example.SerializeToString())


def _no_example(directory: Path) -> None:
    _write_first(directory, b"\xff\xff\xff")


def _compress_first(directory: Path) -> None:
    (directory / FIRST).write_bytes(gzip.compress((directory / FIRST).read_bytes()))


def _in_two_data_sets_of_tfds(directory: Path) -> None:
    _of_tfds(directory)
    shutil.copytree(directory / "imagenet2012", directory / "imagenette")


def _named(form: str) -> Callable[[Path], None]:
    """Renames the shards; the form takes their numbers."""

    def rename(directory: Path) -> None:
        for number, file in enumerate(sorted(directory.iterdir())):
            target = directory / form.format(number)
            target.parent.mkdir(parents=True, exist_ok=True)
            file.rename(target)

    return rename


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (shutil.rmtree, "does not exist: .*make_imagenet"),
        (_replace_by_file, "is a file"),
        (_empty, " is empty: name the directory .*make_imagenet"),
        (
            _named("train-{:05d}-of-00004.copy"),
            "no file is named like train-00000-of-00008 or .* holds train-00000-of-00004.copy, .* called like train-0",
        ),
        (
            lambda directory: shutil.copy(directory / FIRST, directory / "train-00000-of-00008"),
            r"mixes shards of 2 data sets \(train-...-of-00004 and train-...-of-00008\)",
        ),
        (lambda directory: shutil.copy(directory / FIRST, directory / "train-0-of-00004"), "holds several shards 0 "),
        (lambda directory: shutil.copytree(directory, directory / "train"), "/train both hold train shards: keep one"),
        (
            lambda directory: [file.write_bytes(b"") for file in directory.iterdir()],
            "train-00000-of-00004 holds no record: copy or make it again",
        ),
        (_break_link, "train-00001-of-00004 is a broken link"),
        (_other_layout, "record 0 at byte 0: it has neither 'image/encoded' and .* only picture, word; convert"),
        (_no_example, "record 0 at byte 0: it is no tf.train.Example"),
        (
            _named("validation-{:05d}-of-00004"),
            "only validation shards can be read: pass --data_split=validation",
        ),
        (_compress_first, "some shards are compressed, and others are not"),
        (_in_two_data_sets_of_tfds, "holds several data sets of TFDS .*imagenet2012.*imagenette.*: name one"),
        (
            lambda directory: [file.write_bytes(b"what cannot be read") for file in directory.iterdir()],
            "00000-of-00004: record 0 at byte 0: the checksum .* does not match: damaged, or no TFRecord file",
        ),
    ],
)
def test_unusable_directories_are_explained(copied: Path, damage: Callable[[Path], None], words: str) -> None:
    damage(copied)
    with pytest.raises(DataError, match=words):
        find(copied)


def test_an_evaluation_without_validation_shards_is_not_sent_to_the_training_set(fake_imagenet: Path) -> None:
    words = "only train shards can be read: name a directory that holds validation .* Without an evaluation, --data_sp"
    with pytest.raises(DataError, match=words):
        find(fake_imagenet, "validation")


def test_both_layouts_of_records_are_told_by_their_content(fake_imagenet: Path, tmp_path: Path) -> None:
    to_tfds(fake_imagenet, tmp_path / "tfds")
    inception, tfds = (find(where) for where in (fake_imagenet, tmp_path / "tfds"))
    assert inception.describe().startswith("Inception TFRecords, 4 train shards in")
    assert tfds.describe().startswith("TFDS TFRecords, 4 train shards in")
    for source, first in ((inception, 1), (tfds, 0)):
        assert imagenet_files.labels_of(source, 1000) == range(first, first + 1000)
        assert imagenet_files.labels_of(source, 1001) == range(first - 1, first + 1000), "a background is before them"


@pytest.mark.parametrize("form", ["train-{:05d}-of-00004", "train_{:02d}.tfrecord"])
def test_a_part_of_the_shards_is_read_with_a_notice(
    copied: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    _named(form)(copied)
    (copied / form.format(2)).unlink()
    found = find(copied)
    assert "holds 3 of 4 train shards, and only their photos are read" in capsys.readouterr().err
    assert found.count < 40 and "3 train shards of 4 in" in found.describe()


def _in_one_file(name: str) -> Callable[[Path], None]:
    def join(directory: Path) -> None:
        parts = sorted(directory.iterdir())
        content = b"".join(part.read_bytes() for part in parts)
        for part in parts:
            part.unlink()
        (directory / name).write_bytes(content)

    return join


def _of_tfds(directory: Path) -> None:
    _named("imagenet2012/5.1.0/imagenet2012-train.tfrecord-{:05d}-of-00004")(directory)
    unfinished = directory / "imagenet2012" / "incomplete.9AB_5.1.1"
    shutil.copytree(directory / "imagenet2012" / "5.1.0", unfinished)
    (unfinished / "imagenet2012-train.tfrecord-00000-of-00004").unlink()
    for version in ("5.1.0", unfinished.name):
        (directory / "imagenet2012" / version / "dataset_info.json").write_text("{}")


def _compressed(compress: Callable[[bytes], bytes], ending: str) -> Callable[[Path], None]:
    def rewrite(directory: Path) -> None:
        for file in sorted(directory.iterdir()):
            file.write_bytes(compress(file.read_bytes()))
            file.rename(file.with_name(file.name + ending))

    return rewrite


def _in_two_streams(data: bytes) -> bytes:
    return gzip.compress(data[:1000]) + gzip.compress(data[1000:])


def _defects(directory: Path) -> list[Defect]:
    source = find(directory)
    return [defect for _, bad in bad_records.defects(source, 1000) for defect in bad]


@pytest.mark.parametrize(
    "arrange",
    [
        _named("train-{:05d}-of-00004.tfrecord"),
        _named("flowers_train_{:05d}-of-00004.tfrecord"),
        _named("coco_train.record-{:05d}-of-00004"),
        _named("imagenet2012-train.tfrecord-{:05d}-of-00004"),
        _named("Train/TRAIN-{:05d}-of-00004.TFRECORD"),
        _named("train-{:05d}-of-00004.tfrec"),
        _named("train_{:05d}.tfrecord"),
        _named("train/flowers-train{:05d}.records"),
        _in_one_file("train.tfrecords"),
        _in_one_file("flowers_train.tfrecord"),
        _of_tfds,
    ],
)
def test_usual_names_and_places_of_shards(copied: Path, arrange: Callable[[Path], None]) -> None:
    arrange(copied)
    (copied / "._train-00000-of-00004").write_bytes(b"as macOS leaves them")
    assert find(copied).count == 40


@pytest.mark.parametrize(
    "compress",
    [_compressed(gzip.compress, ".gz"), _compressed(_in_two_streams, ""), _compressed(zlib.compress, "")],
)
def test_compressed_shards(fake_imagenet: Path, copied: Path, compress: Callable[[Path], None]) -> None:
    compress(copied)
    seen = take_batches(copied, 10)
    assert len({image.tobytes() for images, _ in seen for image in images}) == 40
    assert _labels([seen]) == labels_of(fake_imagenet)
    assert find(copied).count == 40
    assert _defects(copied) == []


def test_records_with_names_of_no_split_are_to_be_renamed(copied: Path) -> None:
    _named("val/00-224x224-{:05d}.tfrec")(copied)
    with pytest.raises(DataError, match="/val holds 00-224x224-.*tfrec, .* Name the folder of shards called like val"):
        find(copied, "validation")


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_shards_without_records_are_reported(
    copied: Path, capsys: pytest.CaptureFixture[str], compress: Callable[[bytes], bytes]
) -> None:
    for file in copied.iterdir():
        file.write_bytes(compress(file.read_bytes()))
    (copied / "train-00002-of-00004").write_bytes(compress(b""))
    found = find(copied)
    assert "holds 1 shard without records (train-00002-of-00004)" in capsys.readouterr().err
    assert found.count == 30 and "3 train shards of 4" in found.describe()


def test_a_compressed_shard_that_is_cut_off_is_named(copied: Path) -> None:
    _compressed(gzip.compress, "")(copied)
    file = copied / FIRST
    file.write_bytes(file.read_bytes()[:-2000])
    assert [defect.path for defect in _defects(copied)] == [file]


@pytest.mark.parametrize("first", [0, 1])
def test_the_training_images_tell_whether_classes_are_numbered_from_0_or_1(
    fake_imagenet: Path, tmp_path: Path, first: int
) -> None:
    relabelled(fake_imagenet, tmp_path, "train", lambda number: first + number % 5)
    labels = relabelled(fake_imagenet, tmp_path, "validation", lambda number: first + 1 + number % 3)
    training, validation = (find(tmp_path, split) for split in ("train", "validation"))
    assert imagenet_files.labels_of(training, 5) == imagenet_files.labels_of(validation, 5) == range(first, first + 5)
    assert imagenet_files.labels_of(training, 1000) == range(first, first + 1000)
    assert imagenet_files.labels_of(training, 1001) == range(1001), "ImageNet's are known"
    relabelled(fake_imagenet, tmp_path / "other", "train", lambda number: first + 1 + number % 5)
    to_tfds(tmp_path / "other", tmp_path / "tfds")  # which takes 1 from each
    assert imagenet_files.labels_of(find(tmp_path / "tfds"), 5) == range(first, first + 5)
    batches = take_batches(tmp_path, 10, options=InputOptions(split="validation"), num_classes=5)
    assert _labels([batches]) == sorted(label - first for label in labels)
    with pytest.raises(tf.errors.InvalidArgumentError, match="label out of range"):
        take_batches(tmp_path, 20, num_classes=4)


def test_labels_that_do_not_tell_are_warned_of_once(
    fake_imagenet: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    relabelled(fake_imagenet, tmp_path, "train", lambda number: 3)
    source = find(tmp_path)
    for _ in range(2):
        assert imagenet_files.labels_of(source, 7) == range(1, 8)
    assert capsys.readouterr().err.count("Labels are taken to count from 1: of 40 training images") == 1
    relabelled(fake_imagenet, tmp_path / "alone", "validation", lambda number: 3)
    assert imagenet_files.labels_of(find(tmp_path / "alone", "validation"), 7) == range(1, 8)
    assert capsys.readouterr().err.count("Labels are taken to count from 1: of 40 validation images") == 1
    relabelled(fake_imagenet, tmp_path, "train", lambda number: -1)
    assert imagenet_files.labels_of(find(tmp_path), 7) == range(1, 8)
    assert capsys.readouterr().err == "", "no label is read"


def test_a_folder_of_class_folders_is_read(fake_imagenet: Path, tmp_path: Path) -> None:
    to_folder(fake_imagenet, tmp_path / "train")
    for directory in (tmp_path, tmp_path / "train"):
        found = find(directory)
        assert found.count == 40
    classes = sorted({*labels_of(fake_imagenet)})
    assert list(found.classes) == [f"n{label:08d}" for label in classes]
    seen = _labels([take_batches(tmp_path, 10, num_classes=1000)])
    assert seen == [classes.index(label) for label in labels_of(fake_imagenet)]


@pytest.fixture(scope="module")
def one_by_one(fake_imagenet: Path) -> list[bytes]:
    """Every photo of an epoch, as a lone worker reads it."""
    return sorted(images.tobytes() for images, _ in take_batches(fake_imagenet, 40, batch_per_device=1))


@rotating("workers", [3, 2, 6], first=1)
def test_workers_share_an_epoch_and_treat_each_photo_alike(
    fake_imagenet: Path, one_by_one: list[bytes], workers: int
) -> None:
    """With more workers than files, records are dealt out instead of files, in one order even if it does not matter."""
    options = InputOptions(sloppy=workers > 4)
    together = []
    for worker in range(workers):
        share = 40 // workers if workers > 4 or 4 % workers == 0 else {0: 20, 1: 10, 2: 10}[worker]
        share += workers == 6 and worker < 4
        place = {"worker": worker, "workers": workers}
        batches = take_batches(fake_imagenet, share, options=options, batch_per_device=1, **place)
        together += [images.tobytes() for images, _ in batches]
    assert sorted(together) == one_by_one


def test_another_epoch_brings_the_same_photos_in_other_crops(fake_imagenet: Path) -> None:
    batches = take_batches(fake_imagenet, 20)
    assert _labels([batches[:10]]) == _labels([batches[10:]])
    first, second = (
        {image.tobytes() for images, _ in epoch for image in images} for epoch in (batches[:10], batches[10:])
    )
    assert not first & second


BY_CLASS = "Name the folder of shards called like train-00000-of-00008, or of one folder of photos for each class"


@pytest.mark.parametrize(
    ("files", "split", "words"),
    [
        (["cifar-10-batches-py/"], "train", "it holds CIFAR-10, not photos: pass --data_name=cifar10"),
        (["train-images-idx3-ubyte/"], "train", "it holds MNIST,"),
        (["train/0.jpg", "test1/0.jpg"], "train", "photos of .*train are in one folder. Move them into one folder per"),
        (["train_images/0.jpg", "test_images/0.jpg", "annotations/"], "train", BY_CLASS),
        (["train2017/0.jpg", "val2017/0.jpg", "annotations/"], "train", BY_CLASS),
        (["cars_train/0.jpg", "cars_test/0.jpg"], "train", BY_CLASS),
        (
            ["train/ants/0.webp", "train/bees/"],
            "train",
            "/train holds ants, bees, with files such as .*/ants/0.webp. .* convert' takes .* WebP",
        ),
        (["train/ants/0.jpg", "val/ants/0.webp"], "validation", "/val holds ants, with files such as .*/0.webp. "),
        (["skin_images_part_1/0.jpg", "skin_images_part_2/0.jpg"], "train", BY_CLASS),
        (["part1/0.jpg", "part2/0.jpg"], "train", BY_CLASS),
        (["train/a/0.jpg", "val/0.jpg"], "validation", "or LOC_val_solution.csv, from Kaggle. Move each photo"),
        (["train/a/0.jpg", "val/a/0.jpg", "val/b/0.jpg"], "validation", "train lacks 1 class folder of .*val: b"),
        (["train/a/0.jpg", "val/images/0.jpg"], "validation", "of .*val: images. ImageNet's validation photos have no"),
        (["train/cafe\u0301/0.jpg", "val/caf\u00e9/0.jpg"], "validation", r"val: caf\u00e9\. Accents have another"),
        (["all/train/a/0.jpg", "all/val/a/0.jpg"], "validation", "files such as .*/all/.*/a/0.jpg. Name the"),
        (["training_set/a/0.jpg", "test_set/a/0.jpg"], "train", "/a/0.jpg. Name the folder"),
        (["val/a/0.jpg", "val/b/0.jpg"], "validation", "val has 2 class folders, and there is no folder train beside"),
        (
            ["train/a/0.jpg", "val/a/0.jpg", "validation/a/0.jpg"],
            "validation",
            "/validation and .*/val both hold class folders for validation: keep one",
        ),
    ],
)
def test_folders_whose_labels_are_not_known_are_explained(
    tmp_path: Path, files: list[str], split: str, words: str
) -> None:
    make_files(tmp_path, *files)
    with pytest.raises(DataError, match=words):
        find(tmp_path, split)


def test_a_broken_link_may_have_been_a_class(tmp_path: Path) -> None:
    make_files(tmp_path, "b/0.jpg", "c/0.jpg")
    (tmp_path / "a").symlink_to(tmp_path / "gone")
    with pytest.raises(DataError, match="/a is a broken link. If it was a class, the labels .* would move"):
        find(tmp_path)


def test_a_folder_of_a_split_may_be_named_itself_or_linked_to(tmp_path: Path) -> None:
    make_files(tmp_path, "train/ants/0.jpg", "val/ants/0.jpg", "validation/ants/0.jpg")
    assert find(tmp_path / "val", "validation").directory == str(tmp_path / "val")
    (tmp_path / "training").symlink_to("train")
    assert find(tmp_path).directory == str(tmp_path / "train")


@pytest.mark.parametrize("parent_is_listed", [True, False])
def test_folders_of_splits_may_be_in_capitals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parent_is_listed: bool
) -> None:
    train = "Train" if parent_is_listed else "train"
    make_files(tmp_path, f"{train}/ants/0.jpg", f"{train}/bees/0.jpg", "VAL/bees/0.jpg")
    list_directory = Path.iterdir

    def refuse(path: Path) -> Iterator[Path]:
        if path == tmp_path:
            raise PermissionError(13, "Permission denied", str(path))
        return list_directory(path)

    if parent_is_listed:
        assert find(tmp_path).directory == str(tmp_path / train)
        assert find(tmp_path, "validation").directory == str(tmp_path / "VAL")
    else:
        monkeypatch.setattr(Path, "iterdir", refuse)
    assert find(tmp_path / "VAL", "validation").labels == [1]


def test_labels_are_those_of_the_training_images_in_every_split(tmp_path: Path) -> None:
    beside = ("__MACOSX/0.jpg", "lost+found/", "@eaDir/0.jpg", "#snapshot/0.jpg", ".hidden/0.jpg")
    photos = ("ants/0.jpg", "bees/0.jpg", "bees/1.jpg", "cats/", "dogs/0.jpg")
    make_files(tmp_path / "train", *photos, *beside)
    make_files(tmp_path / "val", "bees/0.jpg", "dogs/0.jpg", "dogs/1.jpg", "@eaDir/0.jpg")
    training, validation = (find(tmp_path, split) for split in ("train", "validation"))
    assert training.classes == validation.classes == ["ants", "bees", "cats", "dogs"]
    assert (training.labels, validation.labels) == ([0, 1, 1, 3], [1, 3, 3])
    for split in ("validation", "train"):
        assert find(tmp_path / "val", split).labels == [1, 3, 3], "train is beside it"
    assert "of which 1 without any (cats)" in training.describe()
    assert "(4 folders of other kinds passed over)" in training.describe()


@pytest.mark.parametrize(("form", "is_imagenet"), [("n{:08d}", True), ("{}", False), ("goldfish {}", False)])
def test_only_synsets_are_classes_of_imagenet_without_its_training_images(
    tmp_path: Path, form: str, is_imagenet: bool
) -> None:
    make_files(tmp_path / "val", *(f"{form.format(number)}/" for number in range(1000)), f"{form.format(0)}/0.jpg")
    if is_imagenet:
        assert len(find(tmp_path, "validation").classes) == 1000
        return
    with pytest.raises(DataError, match="val has 1000 class folders, and there is no folder train beside it"):
        find(tmp_path, "validation")


@pytest.mark.parametrize("folders", [["train", "bus"], ["bullet_train", "test_tube"], ["bullet_train", "model_train"]])
def test_classes_may_be_called_like_splits(tmp_path: Path, folders: list[str]) -> None:
    make_files(tmp_path, *(f"{folder}/0.jpg" for folder in folders), "annotations/")
    assert len({*find(tmp_path).labels}) == 2


def test_more_classes_than_the_model_has_are_refused_and_fewer_have_a_notice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_files(tmp_path, "ants/0.jpg", "bees/0.jpg", "cats/0.jpg")
    found = find(tmp_path)
    assert imagenet_files.labels_of(found, 3) == range(3)
    assert not capsys.readouterr().err
    assert imagenet_files.labels_of(found, 1001) == range(-1, 1000)
    assert "3 class folders, and the model tells 1000 apart: no image is of the others" in capsys.readouterr().err
    assert imagenet_files.labels_of(dataclasses.replace(found, classes=["ants"]), 2) == range(2)
    assert capsys.readouterr().err.endswith(
        " 1 class folder, and the model tells 2 apart: no image is of the others.\n"
    )
    with pytest.raises(DataError, match="3 class folders, and the model tells 2 apart: remove folders that .*=3"):
        imagenet_files.labels_of(found, 2)
    many = dataclasses.replace(found, classes=[str(number) for number in range(1001)])
    with pytest.raises(DataError, match="pass --num_classes=1002"):
        imagenet_files.labels_of(many, 1001)
    assert imagenet_files.labels_of(many, 1002) == range(1002)


def test_what_is_passed_over_is_counted_by_ending(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    beside = ("a.webp", "b.WEBP", "c.txt", "README", ".DS_Store", "deeper/0.jpg")
    make_files(
        tmp_path, "ants/0.jpg", "ants/1.jpg", *(f"ants/{name}" for name in beside), "stray.jpg", "bees.tar", "flat.jpg/"
    )
    described = find(tmp_path).describe()
    assert "2 photos of 2 classes" in described
    wanted = (
        "(2 .webp, 1 files without an ending, 1 .txt, 1 folders in class folders, 1 .tar beside the class folders, "
        "1 .jpg beside the class folders passed over)"
    )
    assert wanted in described
    assert "All 2 photos of" in (warned := capsys.readouterr().err) and "in one folder (ants). Move them" in warned


def test_folders_that_are_usually_no_classes_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_files(tmp_path, "JPEGImages/0.jpg", "SegmentationClass/0.png", "bees/0.jpg", "Annotations/0.xml")
    assert "4 classes" in find(tmp_path).describe()
    assert "counts JPEGImages, SegmentationClass as classes, but" in capsys.readouterr().err


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P"])
def test_a_png_is_read_as_pillow_reads_it(tmp_path: Path, mode: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (300, 260, 3), np.uint8)
    (tmp_path / "a").mkdir()
    Image.fromarray(pixels).convert(mode).save(tmp_path / "a" / "one.PNG")
    options = InputOptions(crop="central", shuffle_records=0)
    ((images, labels),) = take_batches(tmp_path, 1, options=options, batch_per_device=1, num_classes=2)
    Image.open(tmp_path / "a" / "one.PNG").convert("RGB").save(tmp_path / "plain.png")
    plain = tf.io.decode_png((tmp_path / "plain.png").read_bytes(), channels=3)
    part = photo_decoding.window(tf.shape(plain), tf.zeros([1, 0, 4]), tf.zeros([2], tf.int64), options)
    top, left, height, width = part.numpy()
    cropped = tf.image.resize(plain[top : top + height, left : left + width], images.shape[1:3]).numpy()
    assert labels.tolist() == [0]
    assert np.abs(images[0] - cropped).mean() < 1.0


def test_records_of_pngs_are_read_as_the_same_photos_in_folders_are(tmp_path: Path) -> None:
    """So are JPEGs among them."""
    make_files(tmp_path, "folder/a/", "records/")
    payloads = []
    for number, kind in enumerate(("PNG", "JPEG", "PNG")):
        pixels = np.random.default_rng(number).integers(0, 256, (40, 50, 3), np.uint8)
        photo = tmp_path / "folder" / "a" / f"{number}.jpg"
        Image.fromarray(pixels).save(photo, kind)
        payloads.append(photo_example(Original(photo.read_bytes(), 1, "a", photo.name), (40, 50), INCEPTION))
    with (tmp_path / "records" / "train-00000-of-00001").open("wb") as file:
        for payload in payloads:
            tfrecord.write(file, payload)
    options = InputOptions(crop="central", shuffle_records=0)

    def images(directory: Path) -> list[bytes]:
        batches = take_batches(directory, 3, options=options, batch_per_device=1, num_classes=2)
        return sorted(batch.tobytes() for batch, _ in batches)

    assert images(tmp_path / "records") == images(tmp_path / "folder")


def test_the_search_for_photos_in_other_places_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory may be the root of a file system."""
    make_files(tmp_path, "a/b/c/d/0.jpg")
    for most, words in ((100, "files such as .*/c/d/0.jpg"), (3, " holds a. Name the folder")):
        monkeypatch.setattr(class_folders, "_FOLDERS_SEARCHED", most)
        with pytest.raises(DataError, match=words):
            find(tmp_path)


def test_data_sets_are_told_apart(fake_imagenet: Path, tmp_path: Path) -> None:
    to_folder(fake_imagenet, tmp_path / "folder")
    to_tfds(fake_imagenet, tmp_path / "tfds")
    shutil.copytree(fake_imagenet, tmp_path / "same")
    there = [fake_imagenet, tmp_path / "folder", tmp_path / "tfds", tmp_path / "same"]
    first, *others, same = [find(directory).identify() for directory in there]
    assert first == same and len({first, *others}) == 3
    next((tmp_path / "folder").rglob("*.JPEG")).unlink()
    assert find(tmp_path / "folder").identify() != others[0]


def test_files_that_cannot_be_looked_at_are_named(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a directory that may be listed and not entered; root may enter all."""
    usual = Path.stat

    def refuse(path: Path, **how: Any) -> os.stat_result:
        if path.name == FIRST:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return usual(path, **how)

    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(DataError, match=f"{copied / FIRST} cannot be read: Permission denied"):
        input_pipeline.find_source("imagenet", str(copied), "train")


def test_a_path_that_cannot_be_examined_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read: File name too long"):
        find(tmp_path / ("x" * 300))


@pytest.mark.parametrize(
    ("photos", "root", "split"),
    [
        (["train/a/images/1.jpg"], "", "train"),
        (["train/a/1.jpg", "val/a/1.jpg"], "train", "validation"),
        (["a/1.jpg"], "", "validation"),
    ],
)
def test_photos_in_other_places_are_named(tmp_path: Path, photos: list[str], root: str, split: str) -> None:
    make_files(tmp_path, *photos)
    named = {"train": "train or training", "validation": "validation or val or valid"}[split]
    with pytest.raises(DataError, match=f"with files such as .*/1.jpg.* Name the folder .* in one named {named}"):
        find(tmp_path / root, split)


@pytest.mark.parametrize(("rare", "first"), [(0, 0), (300, 1)])
def test_a_rare_first_or_last_class_tells_how_labels_count(tmp_path: Path, rare: int, first: int) -> None:
    jpeg = tf.io.encode_jpeg(np.zeros((8, 8, 3), np.uint8)).numpy()
    with (tmp_path / "train-00000-of-00001").open("wb") as file:
        for number in range(1600):
            photo = Original(jpeg, label=rare if number == 1500 else 5, class_name="n5", name="5.JPEG")
            tfrecord.write(file, photo_example(photo, (8, 8), INCEPTION))
    source = find(tmp_path)
    assert imagenet_files.labels_of(source, 300) == range(first, first + 300)
