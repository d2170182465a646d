"""Folders and archives of photos become TFRecords that say the same."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from benchmarks.data.sources import bad_records, jpeg_header
from benchmarks.data.sources.photo_layouts import DECODED, INCEPTION
from benchmarks.data.writing import convert, originals
from benchmarks.errors import DataError, UsageError
from tests.support import damage
from tests.support.images import features_in, find, labels_of, rewrite_value, take_batches, to_folder, to_tfds
from tests.support.rotation import rotating


@pytest.fixture
def folder(fake_imagenet: Path, tmp_path: Path) -> Path:
    """The photos of the fake ImageNet in class folders."""
    to_folder(fake_imagenet, tmp_path / "folder")
    return tmp_path / "folder"


def _convert(
    source: Path, target: Path, *, split: str = "train", shards: int = 4, resize: int | None = None, **changes: Any
) -> convert.Conversion:
    found = originals.find_originals(source, split)
    part = convert.divided(found, split, -(-40 // shards))
    return convert.convert(found, target, split=part, shorter_side=resize, seed=1, **changes)


def _photos_of(directory: Path) -> dict[str, tuple[str, int, bytes]]:
    """Returns class, label and JPEG of each record by its file's name."""
    found = {}
    for feature in features_in(directory):
        name, synset = (feature[f"image/{key}"].bytes_list.value[0].decode() for key in ("filename", "class/synset"))
        label, encoded = feature[INCEPTION.label].int64_list, feature[INCEPTION.encoded].bytes_list
        found[name] = (synset, label.value[0], encoded.value[0])
    return found


def _as_folder(folder: Path, target: Path) -> Path:
    return folder


def _as_tars(folder: Path, target: Path) -> Path:
    target.mkdir()
    for of_class in sorted(folder.iterdir()):
        with tarfile.open(target / f"{of_class.name}.tar", "w:") as archive:
            for photo in sorted(of_class.iterdir()):
                archive.add(photo, photo.name)
    return target


def _as_tar_of_tars(folder: Path, target: Path) -> Path:
    with tarfile.open(target.with_suffix(".tar"), "w:") as outer:
        for file in sorted(_as_tars(folder, target).iterdir()):
            outer.add(file, file.name)
    return target.with_suffix(".tar")


@rotating("form", [_as_folder, _as_tars, _as_tar_of_tars], first=1)
def test_every_photo_arrives_unchanged(folder: Path, tmp_path: Path, form: Callable[[Path, Path], Path]) -> None:
    outcome = _convert(form(folder, tmp_path / "source"), tmp_path / "out")
    assert (outcome.written, outcome.encoded_anew, outcome.left_out) == (40, 0, [])
    classes = sorted(entry.name for entry in folder.iterdir())
    found = _photos_of(tmp_path / "out")
    assert len(found) == 40
    for name, (synset, label, encoded) in found.items():
        assert encoded == (folder / synset / name).read_bytes()
        assert label == 1 + classes.index(synset)
    seen = sorted(int(label) for _, labels in take_batches(tmp_path / "out", 10) for label in labels)
    assert seen == labels_of(tmp_path / "out")


def test_shards_hold_classes_mixed(folder: Path, tmp_path: Path) -> None:
    _convert(folder, tmp_path / "out", shards=2)
    labels = [new[INCEPTION.label].int64_list.value[0] for new in features_in(tmp_path / "out")]
    for of_shard in (labels[:20], labels[20:]):
        assert len(of_shard) == 20 and of_shard != sorted(of_shard)


@pytest.mark.fault(
    "R13",
    "data convert where a shard is missing, as after a kill",
    survives="all photos are there, and finished shards are left alone",
)
def test_an_interrupted_conversion_goes_on(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    _convert(folder, out)
    expected = {file.name: file.read_bytes() for file in out.glob("train-*")}
    done, lost = out / "train-00000-of-00004", out / "train-00002-of-00004"
    stamp = done.stat().st_mtime_ns
    lost.unlink()
    assert _convert(folder, out).written == 40
    assert {file.name: file.read_bytes() for file in out.glob("train-*")} == expected
    assert done.stat().st_mtime_ns == stamp, "it was left alone"


def test_two_conversions_are_not_mixed(folder: Path, tmp_path: Path, fake_imagenet: Path) -> None:
    _convert(folder, tmp_path / "out")
    with pytest.raises(UsageError, match="or part of a conversion of other photos"):
        _convert(folder, tmp_path / "out", shards=3)
    photo = next(folder.rglob("*.JPEG"))
    photo.rename(photo.with_name("another.JPEG"))
    with pytest.raises(UsageError, match="or part of a conversion of other photos"):
        _convert(folder, tmp_path / "out")
    with pytest.raises(UsageError, match="holds other train shards"):
        _convert(folder, fake_imagenet)


def test_what_is_no_rgb_jpeg_is_encoded_anew_and_what_is_nothing_is_named(folder: Path, tmp_path: Path) -> None:
    damaged = dict(zip(("png", "cmyk", "truncated", "zero_length"), sorted(folder.rglob("*.JPEG")), strict=False))
    for kind, photo in damaged.items():
        photo.write_bytes(damage.damaged_image(photo.read_bytes(), kind))
    outcome = _convert(folder, tmp_path / "out")
    assert outcome.encoded_anew == 2 and outcome.written == 38
    left_out = " ".join(outcome.left_out)
    for kind in ("truncated", "zero_length"):
        assert f"{damaged[kind].parent.name}/{damaged[kind].name}: its " in left_out
    source = find(tmp_path / "out")
    assert [d for _, found in bad_records.defects(source, 1000) for d in found] == []
    for kind in ("png", "cmyk"):
        *_, encoded = _photos_of(tmp_path / "out")[damaged[kind].name]
        assert jpeg_header.read_jpeg_header(encoded).components == 3


def test_photos_can_be_made_smaller(folder: Path, tmp_path: Path) -> None:
    outcome = _convert(folder, tmp_path / "out", resize=300)
    sizes = [jpeg_header.read_jpeg_header(encoded) for *_, encoded in _photos_of(tmp_path / "out").values()]
    assert max(min(size.height, size.width) for size in sizes) == 300
    assert outcome.encoded_anew == sum(min(size.height, size.width) == 300 for size in sizes) > 20


_BOXES = [f"image/object/bbox/{name}" for name in ("ymin", "xmin", "ymax", "xmax", "label")]


@pytest.mark.parametrize("decoded", [False, True])
def test_records_keep_shards_order_labels_and_boxes(fake_imagenet: Path, tmp_path: Path, decoded: bool) -> None:
    outcome = _convert(fake_imagenet, tmp_path / "out", resize=100, decoded=decoded)
    assert (outcome.written, outcome.left_out) == (40, [])
    for old, new in zip(features_in(fake_imagenet), features_in(tmp_path / "out"), strict=True):
        for key in (INCEPTION.label, "image/filename", "image/class/synset", "image/class/text", *_BOXES):
            assert new[key] == old[key], key
        assert min(new[f"image/{side}"].int64_list.value[0] for side in ("height", "width")) == 100
    assert any(new[_BOXES[0]].float_list.value for new in features_in(tmp_path / "out"))
    assert sorted(file.name for file in (tmp_path / "out").glob("train-*")) == sorted(os.listdir(fake_imagenet))


def test_tfds_records_count_from_one_after_conversion(fake_imagenet: Path, tmp_path: Path) -> None:
    to_tfds(fake_imagenet, tmp_path / "tfds")
    _convert(tmp_path / "tfds", tmp_path / "out")
    for old, new in zip(features_in(fake_imagenet), features_in(tmp_path / "out"), strict=True):
        assert new[INCEPTION.label] == old[INCEPTION.label] and new[INCEPTION.encoded] == old[INCEPTION.encoded]
        assert new["image/filename"].bytes_list.value[0] == b"n0.JPEG"


def test_a_damaged_record_is_left_out_and_named(copied: Path, tmp_path: Path) -> None:
    found = [
        damage.corrupt(file, kind)
        for file, kind in zip(sorted(copied.iterdir())[:2], ("crc", "bad_label"), strict=True)
    ]
    outcome = _convert(copied, tmp_path / "out", decoded=True)
    assert outcome.written == 38
    for defect, sentence in zip(found, outcome.left_out, strict=True):
        assert sentence.startswith(f"{defect.path.name}, record {defect.number}: "), sentence


def test_pixels_are_those_of_the_photo_made_smaller(fake_imagenet: Path, tmp_path: Path) -> None:
    _convert(fake_imagenet, tmp_path / "out", resize=256, decoded=True)
    for old, new in list(zip(features_in(fake_imagenet), features_in(tmp_path / "out"), strict=True))[:12]:
        photo = Image.open(io.BytesIO(old[INCEPTION.encoded].bytes_list.value[0]))
        height, width = (new[key].int64_list.value[0] for key in DECODED.sides)
        stored = np.frombuffer(new[DECODED.encoded].bytes_list.value[0], np.uint8).reshape(height, width, 3)
        smaller = photo if min(photo.size) <= 256 else photo.resize((width, height), Image.Resampling.LANCZOS)
        np.testing.assert_array_equal(stored, np.asarray(smaller))
        assert width / height == pytest.approx(photo.width / photo.height, rel=0.01)


def test_pixels_are_not_converted_again(fake_imagenet: Path, tmp_path: Path) -> None:
    _convert(fake_imagenet, tmp_path / "out", resize=64, decoded=True)
    with pytest.raises(DataError, match="holds pixels, not JPEGs: convert the photos that they were made of"):
        originals.find_originals(tmp_path / "out", "train")


def test_pixels_above_the_limit_of_a_record_are_left_out(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convert, "MOST_PHOTO_BYTES", 700_000)
    outcome = _convert(folder, tmp_path / "out", shards=1, decoded=True)
    assert outcome.written > 20 and outcome.left_out, "photos of 700x525 pixels take 1.1 MB"
    assert all("above the limit of 700000: pass --resize" in sentence for sentence in outcome.left_out)
    shutil.rmtree(tmp_path / "out")
    outcome = _convert(folder, tmp_path / "out", shards=1, decoded=True, resize=500)
    assert outcome.left_out and all(text.endswith("pass a smaller --resize") for text in outcome.left_out)
    shutil.rmtree(tmp_path / "out")
    assert _convert(folder, tmp_path / "out", shards=1, decoded=True, resize=256).written == 40


def test_photos_that_have_changed_are_converted_again(folder: Path, tmp_path: Path) -> None:
    repaired = next(folder.rglob("*.JPEG"))
    sound = repaired.read_bytes()
    repaired.write_bytes(b"nothing")
    assert len(_convert(folder, tmp_path / "out").left_out) == 1
    others = {file: file.stat().st_mtime_ns for file in (tmp_path / "out").glob("train-*")}
    time.sleep(0.02)  # more than a tick of the clock of a file system
    (tmp_path / "repaired").write_bytes(sound)
    os.utime(tmp_path / "repaired", (0, 0))
    (tmp_path / "repaired").replace(repaired)
    # As if the conversion was killed before it gave the new shard its name.
    for notes in (tmp_path / "out").glob(".train-*.json"):
        notes.touch()
    outcome = _convert(folder, tmp_path / "out")
    assert (outcome.written, outcome.left_out) == (40, [])
    assert _photos_of(tmp_path / "out")[repaired.name][2] == sound
    assert sum(file.stat().st_mtime_ns != written for file, written in others.items()) == 1


def test_a_directory_whose_shards_were_removed_takes_another_conversion(folder: Path, tmp_path: Path) -> None:
    _convert(folder, tmp_path / "out")
    for shard in (tmp_path / "out").glob("train-*"):
        shard.unlink()
    shutil.rmtree(next(folder.iterdir()))
    assert _convert(folder, tmp_path / "out", shards=2).written == len([*folder.rglob("*.JPEG")])


def test_a_shard_without_any_photo_is_no_data_set(folder: Path, tmp_path: Path) -> None:
    next(folder.rglob("*.JPEG")).write_bytes(b"nothing")
    with pytest.raises(DataError, match="pass a larger --images_per_shard"):
        _convert(folder, tmp_path / "out", shards=40)


def _of_one_photo(directory: Path, image: Image.Image, name: str, **how: Any) -> np.ndarray:
    """Returns the pixels that a photo has after its conversion, as the only one."""
    (directory / "source" / "class").mkdir(parents=True)
    image.save(directory / "source" / "class" / name, **how)
    outcome = _convert(directory / "source", directory / "out", shards=1)
    assert (outcome.written, outcome.left_out) == (1, [])
    ((_, label, encoded),) = _photos_of(directory / "out").values()
    assert label == 1
    return tf.io.decode_jpeg(encoded).numpy()


@pytest.mark.parametrize("ending", ["webp", "BMP", "gif", "tif", "TIFF", "Png", "jfif", "jpe"])
def test_every_format_that_pillow_reads_is_converted(tmp_path: Path, ending: str) -> None:
    pixels = _of_one_photo(tmp_path, Image.new("RGB", (40, 30), (10, 20, 200)), f"sky.{ending}")
    np.testing.assert_allclose(pixels.mean((0, 1)), (10, 20, 200), atol=4)


def test_splits_of_other_classes_are_not_written_to_one_directory(folder: Path, tmp_path: Path) -> None:
    _convert(folder, tmp_path / "out")
    shutil.copytree(folder, tmp_path / "other" / "train")
    shutil.copytree(folder, tmp_path / "other" / "val")
    for split in ("train", "val"):
        (tmp_path / "other" / split / "a_class_before_the_others").mkdir()
    with pytest.raises(UsageError, match="holds train shards whose labels are of other classes: convert both splits"):
        _convert(tmp_path / "other", tmp_path / "out", split="validation")
    assert not list((tmp_path / "out").glob("validation-*"))


def test_records_of_any_number_of_classes_keep_their_labels(fake_imagenet: Path, tmp_path: Path) -> None:
    shutil.copytree(fake_imagenet, tmp_path / "source")
    for file in sorted((tmp_path / "source").iterdir()):
        rewrite_value(file, 0, INCEPTION.label, 2000)
    source = tmp_path / "source"
    assert len(_convert(source, tmp_path / "usual").left_out) == 4
    assert _convert(source, tmp_path / "more", num_classes=2000).left_out == []
    assert labels_of(tmp_path / "more") == labels_of(tmp_path / "source")
    for number, file in enumerate(sorted((tmp_path / "source").iterdir())):
        rewrite_value(file, 0, INCEPTION.label, number)
    assert _convert(source, tmp_path / "from_0", num_classes=1500).left_out == []
    assert labels_of(tmp_path / "from_0") == [label + 1 for label in labels_of(tmp_path / "source")]


def test_transparency_is_dropped_without_a_warning_of_pillow(tmp_path: Path) -> None:
    image = Image.new("RGB", (40, 30), (10, 20, 200)).quantize(4)
    with warnings.catch_warnings(record=True) as warned:
        _of_one_photo(tmp_path, image, "sky.png", transparency=b"\x80" * 4)
    assert not warned


def test_sixteen_bits_are_scaled_not_clipped(tmp_path: Path) -> None:
    values = np.linspace(0, 65535, 64 * 64).reshape(64, 64).astype(np.uint16)
    assert _of_one_photo(tmp_path, Image.fromarray(values), "deep.png").mean() == pytest.approx(127.5, abs=2)


def test_names_that_are_not_utf8_keep_their_bytes(tmp_path: Path, folder: Path) -> None:
    photo = next(folder.rglob("*.JPEG"))
    photo.parent.rename(photo.parent.with_name("caf\udce9"))
    assert not _convert(folder, tmp_path / "out").left_out
    assert not _convert(tmp_path / "out", tmp_path / "again").left_out
    for written in ("out", "again"):
        synsets = {feature["image/class/synset"].bytes_list.value[0] for feature in features_in(tmp_path / written)}
        assert b"caf\xe9" in synsets


def _saved(kind: str, *shape: int, dtype: type = np.uint8) -> Callable[[Path], None]:
    return lambda photo: Image.fromarray(np.zeros(shape, dtype)).save(photo, format=kind)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda photo: os.truncate(photo, 2**40), "it has 1099511627776 bytes, and the limit is 67108864"),
        (_saved("EPS", 8, 8, 3), "cannot be decoded (UnidentifiedImageError)"),  # Pillow would start a program
        (_saved("TIFF", 8, 8, dtype=np.float32), "no integers of 8 or 16 bits, so white is not known; replace it"),
        (_saved("TIFF", 8, 8, dtype=np.int32), "no integers of 8 or 16 bits, so white is not known; replace it"),
        (
            _saved("JPEG", 1001, 1000, 3),
            "its image is of 1000x1001 pixels, above the limit of 1 million; make it smaller",
        ),
        (
            _saved("PNG", 1001, 1000, 3),
            "its image is of 1000x1001 pixels, above the limit of 1 million; make it smaller",
        ),
        (
            _saved("BMP", 1001, 1000, 3),
            "its image is of 1000x1001 pixels, above the limit of 1 million; make it smaller",
        ),
    ],
)
def test_a_photo_that_cannot_be_used_is_left_out(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None], words: str
) -> None:
    monkeypatch.setattr(jpeg_header, "MOST_PIXELS", 1000 * 1000)
    photo = next(folder.rglob("*.JPEG"))
    make(photo)
    (left_out,) = _convert(folder, tmp_path / "out").left_out
    assert left_out.startswith(f"{photo.parent.name}/{photo.name}: ") and left_out.endswith(words)


@pytest.mark.parametrize(("resize", "advice"), [(None, "pass --resize or --decoded"), (64, "pass --decoded")])
def test_a_photo_that_is_too_long_for_a_jpeg_is_left_out(
    folder: Path, tmp_path: Path, resize: int | None, advice: str
) -> None:
    _saved("BMP", 2, 65501, 3)(next(folder.rglob("*.JPEG")))
    (left_out,) = _convert(folder, tmp_path / "out", resize=resize).left_out
    assert left_out.endswith(f": a side is above 65500 pixels, the most of a JPEG: {advice}")


@pytest.mark.fault("R4", "a FIFO among photos or archives, data convert", survives="it is named and not waited for")
def test_a_fifo_is_left_out_or_refused(folder: Path, tmp_path: Path) -> None:
    photo = next(folder.rglob("*.JPEG"))
    photo.unlink()
    os.mkfifo(photo)
    (left_out,) = _convert(folder, tmp_path / "out").left_out
    assert left_out.endswith(f"{photo.name}: it is not a regular file")
    os.mkfifo(tmp_path / "photos.tar")
    with pytest.raises(DataError, match=r"photos.tar is no tar archive .*it is not a regular file"):
        originals.find_originals(tmp_path / "photos.tar", "train")


def test_notes_of_an_earlier_conversion_that_are_damaged_are_not_believed(folder: Path, tmp_path: Path) -> None:
    _convert(folder, tmp_path / "out")
    (tmp_path / "out" / ".train-00001-of-00004.json").write_text("{")
    assert _convert(folder, tmp_path / "out").written == 40
    (tmp_path / "out" / ".train-conversion.json").write_text("{")
    with pytest.raises(UsageError, match="or part of a conversion of other photos"):
        _convert(folder, tmp_path / "out")
