"""Damaged data sets: what is found by a walk, what ends a run, and what is left out and counted."""

from __future__ import annotations

import itertools
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.data.options import InputOptions
from benchmarks.data.pipeline import imagenet_pipeline, photo_decoding
from benchmarks.data.sources import bad_records, jpeg_header, photo_layouts, tfrecord
from benchmarks.data.sources.bad_records import Skipping
from benchmarks.data.sources.jpeg_header import BadPhotoError, check_header
from benchmarks.data.sources.photo_layouts import INCEPTION
from benchmarks.data.sources.tfrecord import Defect
from benchmarks.errors import DataError
from results.loading import LFS_POINTER
from tests.support import damage
from tests.support.images import find, labels_of, rewrite, rewrite_value, spec, take, take_batches, to_folder, to_tfds
from tests.support.rotation import rotating

DAMAGED = "train-00002-of-00004"
SKIP = InputOptions(on_bad_record="skip")
# What a walk calls it; None where it can be used all the same.
FOUND_AS = {
    "crc": "crc",
    "truncated": "truncated",
    "not_jpeg": "not_jpeg",
    "zero_length": "zero_length",
    "png": "png",
    "cmyk": None,
    "bad_label": "label",
    "cut_file": "truncated",
}


def _defects(directory: Path, check_photo: bad_records.PhotoCheck = check_header) -> list[Defect]:
    return [defect for _, bad in bad_records.defects(find(directory), 1001, check_photo) for defect in bad]


def _fail(directory: Path) -> tuple[Exception, DataError]:
    """Reads until it fails, and returns TensorFlow's error and what is said of it."""
    source = find(directory)
    with pytest.raises(tf.errors.OpError) as caught:
        take_batches(directory, 30)
    return caught.value, bad_records.explain_failure(source, 1001, caught.value)


@pytest.mark.parametrize("kind", damage.KINDS)
def test_a_damaged_record_is_found_by_a_walk(copied: Path, kind: str) -> None:
    file = copied / DAMAGED
    damaged = damage.corrupt(file, kind)
    expected = [] if FOUND_AS[kind] is None else [(file, damaged.number, damaged.offset, FOUND_AS[kind])]
    assert [(defect.path, defect.number, defect.offset, defect.kind) for defect in _defects(copied)] == expected


def test_four_colours_are_read(copied: Path) -> None:
    damage.corrupt(copied / DAMAGED, "cmyk")
    seen = sorted(int(label) for _, labels in take_batches(copied, 10) for label in labels)
    assert seen == labels_of(copied)


# Where reading fails: in TensorFlow's reader, at the label, in the decoder; the other kinds fail in the decoder, too.
FAILING = ["crc", "cut_file", "bad_label", "truncated"]
OTHERS = [kind for kind, found in FOUND_AS.items() if found is not None and kind not in FAILING]


@pytest.mark.fault(
    "R9",
    "a record with a wrong checksum, cut off, no JPEG, or in a file that is cut off",
    survives="reading ends, and file and record are named; with --on_bad_record=skip nothing else is lost",
)
@rotating("kind", [*FAILING, *OTHERS], first=2)
def test_a_damaged_record_ends_reading_is_named_and_can_be_left_out(copied: Path, kind: str) -> None:
    file = copied / DAMAGED
    damaged = damage.corrupt(file, kind)
    _, explained = _fail(copied)
    assert str(explained).startswith(f"{file}: record {damaged.number} at byte {damaged.offset}: ")
    lost = 5 if kind == "cut_file" else 1  # nothing behind the cut is left
    source = find(copied)
    skipping = Skipping()
    one = spec(batch_per_device=1)
    batches = take(lambda: imagenet_pipeline.batches(source, one, SKIP, skipping), 2 * (40 - lost))
    images = [images.tobytes() for images, _ in batches]
    assert len(set(images)) == len(images), "two epochs, every sound record once in each"
    # Each epoch counts it again, if it was reached; a batch of a third one may have been made ahead.
    assert skipping.close() in (1, 2, 3)


def test_a_pointer_of_git_lfs_is_no_record_to_skip(copied: Path) -> None:
    (copied / DAMAGED).write_bytes(LFS_POINTER + b"\n")
    skipping = Skipping()
    source, one = find(copied), spec(batch_per_device=1)
    with pytest.raises(tf.errors.OpError):
        take(lambda: imagenet_pipeline.batches(source, one, SKIP, skipping), 40)
    assert "run git lfs pull" in str(skipping.failure)


def test_skipping_reads_what_plain_reading_reads(fake_imagenet: Path) -> None:
    plain = take_batches(fake_imagenet, 10, batch_per_device=1)
    skipping = take_batches(fake_imagenet, 10, batch_per_device=1, options=SKIP, skipping=True)
    for (images, labels), (same_images, same_labels) in zip(plain, skipping, strict=True):
        np.testing.assert_array_equal(images, same_images)
        np.testing.assert_array_equal(labels, same_labels)


def test_a_data_set_of_nothing_but_bad_records_ends(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.data.sources.bad_records._HOPELESS", 200)
    for file in sorted(copied.iterdir()):
        for number in range(10):
            rewrite_value(file, number, "image/encoded", b"no")
    source = find(copied)
    skipping = Skipping()
    with pytest.raises(tf.errors.OutOfRangeError):
        take(lambda: imagenet_pipeline.batches(source, spec(), SKIP, skipping), 1)
    with pytest.raises(DataError, match="in a row none could be used"):
        skipping.close()


@pytest.mark.parametrize("kind", ["crc", "bad_label"])
def test_damage_where_the_layout_is_looked_for_is_left_to_the_reader(copied: Path, kind: str) -> None:
    """The only shard is damaged within the first records."""
    for file in sorted(copied.iterdir())[1:]:
        file.unlink()
    only = copied / "train-00000-of-00004"
    only = only.rename(copied / "train-00000-of-00001")
    damaged = damage.corrupt(only, kind)
    assert "TFRecords, 1 train shard in" in find(copied).describe()
    (defect,) = _defects(copied)
    assert (defect.number, defect.offset) == (damaged.number, damaged.offset)
    content = only.read_bytes()
    only.write_bytes(content[:20] + b"\0" + content[21:])  # the very first record, too
    assert find(copied).layout is INCEPTION


def test_a_shard_that_goes_away_is_a_defect_and_no_record(copied: Path) -> None:
    source = find(copied)
    (copied / DAMAGED).unlink()
    labels: list[int] = []
    checked = list(bad_records.defects(source, 1001, note_label=labels.append))
    assert sum(count for count, _ in checked) == len(labels) == 30, "a shard that cannot be read is no record"
    (defect,) = [defect for _, bad in checked for defect in bad]
    assert defect.kind == "shard" and str(defect).startswith(f"{copied / DAMAGED}: cannot be read: No such file")


@pytest.mark.fault(
    "R10",
    "a shard is removed, emptied, or cut where a record begins, after the data set was found; training",
    survives="reading ends, and the shard is named",
)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda file: file.unlink(), "cannot be read: No such file"),
        (lambda file: file.write_bytes(file.read_bytes() + b"half a header"), "has changed: it had"),
        (lambda file: file.write_bytes(b""), "has changed: it had .* bytes, and has 0"),
        (lambda file: os.truncate(file, list(tfrecord.walk(file))[4].offset), "has changed"),  # where a record begins
    ],
)
def test_files_that_change_while_they_are_read_are_named(
    copied: Path, change: Callable[[Path], None], words: str
) -> None:
    source, skipping = find(copied), Skipping()
    change(copied / DAMAGED)
    with pytest.raises(tf.errors.OpError) as caught:
        take(lambda: imagenet_pipeline.batches(source, spec(), InputOptions()), 30)
    assert re.search(f"{copied / DAMAGED}: {words}", str(bad_records.explain_failure(source, 1001, caught.value)))
    with pytest.raises(tf.errors.OutOfRangeError):
        take(lambda: imagenet_pipeline.batches(source, spec(), SKIP, skipping), 30)
    assert re.search(f"{copied / DAMAGED} {words}", str(skipping.failure))


@pytest.mark.parametrize(
    ("label", "advice"),
    [
        (5000, "correct it, or pass --num_classes"),
        (0, "correct it; if labels count from 0, shuffle the images over the shards"),
        (-1, "correct it"),
    ],
)
def test_a_label_out_of_range_is_named(copied: Path, label: int, advice: str) -> None:
    rewrite_value(copied / DAMAGED, 6, "image/class/label", label)
    source = find(copied)
    with pytest.raises(tf.errors.InvalidArgumentError, match="label out of range"):
        take_batches(copied, 10, num_classes=1000)
    problem = bad_records.explain_failure(source, 1000, ValueError("words"))
    assert f"{copied / DAMAGED}: record 6 at byte " in str(problem)
    assert f"its label is [{label}], not one number of 1 to 1000: {advice}" in str(problem).replace("; c", ": c", 1)


@pytest.mark.parametrize(
    ("key", "stored", "words"),
    [
        ("image/class/label", {"float_list": {"value": [3]}}, "its 'image/class/label' is float_list, not int64_list"),
        ("image/class/label", {"bytes_list": {"value": [b"3"]}}, "its 'image/class/label' is bytes_list, not int64"),
        ("image/encoded", {"float_list": {"value": [0.5]}}, "its 'image/encoded' is float_list, not bytes_list"),
    ],
)
def test_a_label_or_photo_of_another_type_is_named(copied: Path, key: str, stored: dict, words: str) -> None:
    rewrite(copied / DAMAGED, 6, lambda feature: feature[key].CopyFrom(tf.train.Feature(**stored)))
    (defect,) = _defects(copied)
    assert defect.number == 6 and words in str(defect)
    assert str(_fail(copied)[1]) == str(defect)


def test_a_photo_of_tfds_without_a_label_is_not_of_the_background(fake_imagenet: Path, tmp_path: Path) -> None:
    to_tfds(fake_imagenet, tmp_path / "tfds")
    rewrite_value(next((tmp_path / "tfds").iterdir()), 0, "label", -1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="label out of range"):
        take_batches(tmp_path / "tfds", 10, num_classes=1001)


@pytest.mark.parametrize("corners", [(0.1, 0.1, 0.5, 1.001), (0.1, 0.1, 0.5, None), (10, 10, 50, 80)])
def test_a_box_that_is_not_in_the_photo_is_named(copied: Path, corners: tuple[float | None, ...]) -> None:
    def put(feature: dict) -> None:
        for key, corner in zip(photo_layouts.BOX_CORNERS, corners, strict=True):
            feature[key].Clear()
            if corner is not None:
                values = feature[key].int64_list if isinstance(corner, int) else feature[key].float_list
                values.value.append(corner)

    rewrite(copied / DAMAGED, 6, put)
    (defect,) = _defects(copied)
    assert (defect.kind, defect.number) == ("boxes", 6)
    assert str(_fail(copied)[1]) == str(defect)
    record = list(tfrecord.walk(copied / DAMAGED))[6]
    assert isinstance(record, tfrecord.FramedRecord)
    assert photo_layouts.read_example(record.payload, INCEPTION, range(1001)), "its label counts"


def test_damaged_pixels_are_found_by_decoding(copied: Path) -> None:
    feature = photo_layouts.features_of(list(tfrecord.walk(copied / DAMAGED))[6].payload)
    encoded = photo_layouts.encoded_of(feature, INCEPTION)
    without_tables = encoded.replace(b"\xff\xdb", b"\xff\xfe")  # they become comments
    rewrite_value(copied / DAMAGED, 6, "image/encoded", without_tables)
    assert _defects(copied) == []
    with bad_records.decoding() as check_photo:
        (defect,) = _defects(copied, check_photo)
    assert (defect.kind, defect.number) == ("pixels", 6)


def test_a_failure_that_no_record_explains_keeps_its_own_words(fake_imagenet: Path) -> None:
    source = find(fake_imagenet)
    problem = bad_records.explain_failure(source, 1001, ValueError("disk on fire\nmore"))
    assert "every record in it is sound; the files must not change during a run. TensorFlow reported: disk" in str(
        problem
    ) and "more" not in str(problem)


@pytest.mark.fault(
    "R4", "a FIFO or directory among photos; data check, and training", survives="it is named and not waited for"
)
@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (os.mkfifo, "file", "it is not a regular file"),
        (Path.touch, "zero_length", r"its image is empty \(0 bytes\)"),
        (lambda photo: (photo.touch(), os.truncate(photo, 2**40)), "file", "it has 1099511627776 bytes, and the limit"),
    ],
)
def test_a_bad_photo_in_a_folder_is_named_and_can_be_left_out(
    fake_imagenet: Path, tmp_path: Path, make: Callable[[Path], object], kind: str, words: str
) -> None:
    to_folder(fake_imagenet, tmp_path)
    bad = sorted(tmp_path.rglob("*.JPEG"))[17]
    bad.unlink()
    make(bad)
    (defect,) = _defects(tmp_path)
    assert (defect.path, defect.kind) == (bad, kind) and re.search(words, defect.reason)
    assert str(_fail(tmp_path)[1]) == str(defect) == f"{bad}: {defect.reason}."
    sound = take_batches(tmp_path, 39, batch_per_device=1, options=SKIP, skipping=True)
    assert len({images.tobytes() for images, _ in sound}) == 39, "an epoch, without it"


@pytest.mark.fault(
    "R9",
    "a TFRecord that states a length beyond all memory, with its right checksum; training",
    survives="reading ends, and file, record and byte are named",
)
def test_a_length_beyond_all_memory_ends_reading_and_is_named(copied: Path) -> None:
    """TensorFlow's own reader would crash."""
    length = 2**63 - 1
    damage.state_length(copied / DAMAGED, length)
    _, explained = _fail(copied)
    assert str(explained).startswith(f"{copied / DAMAGED}: record 0 at byte 0: the file ends within its {length} bytes")
    assert len(take_batches(copied, 30, batch_per_device=1, options=SKIP, skipping=True)) == 30


@pytest.mark.fault("R9", "a photo of more pixels than memory holds", survives="it is named and not decoded")
def test_a_photo_of_many_pixels_is_not_decoded(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jpeg_header, "MOST_PIXELS", 1000 * 1000)
    monkeypatch.setattr(photo_decoding, "MOST_PIXELS", 1000 * 1000)
    large = bytes(tf.io.encode_jpeg(np.zeros((1001, 1000, 3), np.uint8)).numpy())
    rewrite_value(copied / DAMAGED, 6, "image/encoded", large)
    raised, explained = _fail(copied)
    assert "photo too large" in str(raised)
    assert f"{copied / DAMAGED}: record 6 at byte " in str(explained)
    assert "its image is of 1000x1001 pixels, above the limit of 1 million; make it smaller" in str(explained)


def test_a_photo_is_not_decoded_whole_before_its_size_is_known_to_be_sound() -> None:
    with tf.Graph().as_default() as graph:
        seed, whole = tf.constant([1, 2], tf.int64), InputOptions(fuse_decode_and_crop=False)
        photo_decoding.decode(tf.constant(b"a JPEG"), tf.zeros([1, 0, 4]), seed, 32, whole)
    (decoding,) = [operation for operation in graph.get_operations() if operation.type == "DecodeJpeg"]
    assert "Assert" in [before.type for before in decoding.control_inputs]


@pytest.mark.slow
def test_names_that_are_not_utf8_are_read_and_named(fake_imagenet: Path, tmp_path: Path) -> None:
    odd = tmp_path / "data\udcff"
    to_folder(fake_imagenet, odd / "train")
    photos = sorted(odd.rglob("*.JPEG"))
    for photo in photos:
        photo.rename(photo.with_name(f"caf\udce9{photo.name}"))
    assert len(take_batches(odd, 40, batch_per_device=1)) == 40
    bad = sorted(odd.rglob("*.JPEG"))[17]
    bad.unlink()
    os.mkfifo(bad)
    assert str(bad) in str(_fail(odd)[1])
    records = shutil.copytree(fake_imagenet, tmp_path / "records\udcff")
    assert len(take_batches(records, 40, batch_per_device=1)) == 40


def test_the_file_that_the_error_names_is_searched_first(copied: Path) -> None:
    damage.corrupt(copied / "train-00000-of-00004", "crc")
    damage.corrupt(copied / DAMAGED, "crc")
    source = find(copied)
    problem = bad_records.explain_failure(source, 1001, ValueError(f"at {copied / DAMAGED}/x"))
    assert str(problem).startswith(f"{copied / DAMAGED}: ")


def test_the_search_within_one_large_file_ends_too(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count()
    monkeypatch.setattr(bad_records, "_SEARCH_SECONDS", 5.0)
    monkeypatch.setattr("benchmarks.data.sources.safe_files.time.monotonic", lambda: next(clock))
    damage.corrupt(copied / "train-00000-of-00004", "crc")
    source = find(copied)
    problem = bad_records.explain_failure(source, 1001, ValueError("disk on fire"))
    assert "the first 0 of 4 files are sound; the files" in str(problem)


def test_keys_and_labels_are_shown_in_part(copied: Path) -> None:
    def many(feature: dict) -> None:
        feature["image/class/label"].int64_list.value.extend(range(10_000))

    rewrite(copied / DAMAGED, 6, many)
    (defect,) = _defects(copied)
    assert defect.kind == "label" and len(defect.reason) < 200
    payload = tf.train.Example(
        features=tf.train.Features(feature={"\x1b[2J" + "x" * 10_000: tf.train.Feature()})
    ).SerializeToString()
    with pytest.raises(BadPhotoError) as caught:
        photo_layouts.read_example(payload, INCEPTION, range(1))
    reason = str(caught.value)
    assert "\x1b" not in reason and "\\x1b[2Jxxx" in reason and len(reason) < 200
