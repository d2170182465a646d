"""Folders and archives of photos become TFRecords that say the same."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from benchmarks.data.sources import bad_records, imagenet_files, jpeg_header, tfrecord
from benchmarks.data.sources.imagenet_files import DECODED, INCEPTION, encoded_of, features_of
from benchmarks.data.writing import convert, originals
from benchmarks.data.writing.originals import Listing
from benchmarks.errors import DataError, UsageError
from tests.support import damage
from tests.support.images import labels_of, rewrite, take_batches, to_folder, to_tfds
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


def _listing(source: Path, split: str = "train") -> Listing:
    listing = originals.find_originals(source, split)
    assert isinstance(listing, Listing)
    return listing


def _photos_of(directory: Path) -> dict[str, tuple[str, int, bytes]]:
    """Returns class, label and JPEG of each record by its file's name."""
    found = {}
    for file in sorted(directory.glob("train-*")):
        for record in tfrecord.walk(file):
            feature = features_of(record.payload)
            name, synset = (feature[f"image/{key}"].bytes_list.value[0] for key in ("filename", "class/synset"))
            label = feature[INCEPTION.label].int64_list.value[0]
            found[name.decode()] = (synset.decode(), label, encoded_of(record.payload, INCEPTION))
    return found


def _tar_of_class(folder: Path, target: Path) -> None:
    with tarfile.open(target, "w:") as archive:
        for photo in sorted(folder.iterdir()):
            archive.add(photo, photo.name)


def _as_folder(folder: Path, target: Path) -> Path:
    return folder


def _as_tars(folder: Path, target: Path) -> Path:
    target.mkdir()
    for name in sorted(folder.iterdir()):
        _tar_of_class(name, target / f"{name.name}.tar")
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
    for file in (tmp_path / "out").glob("train-*"):
        labels = [features_of(r.payload)[INCEPTION.label].int64_list.value[0] for r in tfrecord.walk(file)]
        assert labels != sorted(labels)
    assert len(labels_of(tmp_path / "out")) == 40


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
    source = imagenet_files.find_imagenet(str(tmp_path / "out"), "train")
    assert [d for _, found in bad_records.defects(source, 1000) for d in found] == []
    for kind in ("png", "cmyk"):
        *_, encoded = _photos_of(tmp_path / "out")[damaged[kind].name]
        assert jpeg_header.read_jpeg_header(encoded).components == 3


def test_photos_can_be_made_smaller(folder: Path, tmp_path: Path) -> None:
    outcome = _convert(folder, tmp_path / "out", resize=300)
    sizes = [jpeg_header.read_jpeg_header(encoded) for *_, encoded in _photos_of(tmp_path / "out").values()]
    assert max(min(size.height, size.width) for size in sizes) == 300
    assert outcome.encoded_anew == sum(min(size.height, size.width) == 300 for size in sizes) > 20
    name, (synset, _, encoded) = next(
        item for item in _photos_of(tmp_path / "out").items() if jpeg_header.read_jpeg_header(item[1][2]).height == 300
    )
    original = tf.io.decode_jpeg((folder / synset / name).read_bytes()).numpy()
    smaller = tf.io.decode_jpeg(encoded).numpy()
    expected = tf.image.resize(original, smaller.shape[:2], antialias=True).numpy()
    assert np.abs(smaller - expected).mean() < 3


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "does not exist: name a folder of class folders"),
        (lambda path: path.write_bytes(b"no archive" * 200), "is no tar archive of tar archives"),
        (lambda path: path.mkdir(), "holds no folders of photos for each class, no tar archives .*; it holds nothing"),
        (lambda path: (path.mkdir(), (path / "data.mdb").touch()), "it holds .*/data.mdb, which is LMDB: write its"),
    ],
)
def test_what_cannot_be_converted_is_explained(tmp_path: Path, make: Callable[[Path], object], words: str) -> None:
    make(tmp_path / "source")
    with pytest.raises(DataError, match=words):
        originals.find_originals(tmp_path / "source", "train")


def _in_order(directory: Path) -> list[Mapping[str, tf.train.Feature]]:
    """Returns the features of all records, in the order of files and records."""
    return [features_of(record.payload) for file in sorted(directory.glob("train-*")) for record in tfrecord.walk(file)]


_BOXES = [f"image/object/bbox/{name}" for name in ("ymin", "xmin", "ymax", "xmax", "label")]


@pytest.mark.parametrize("decoded", [False, True])
def test_records_keep_shards_order_labels_and_boxes(fake_imagenet: Path, tmp_path: Path, decoded: bool) -> None:
    outcome = _convert(fake_imagenet, tmp_path / "out", resize=100, decoded=decoded)
    assert (outcome.written, outcome.left_out) == (40, [])
    for old, new in zip(_in_order(fake_imagenet), _in_order(tmp_path / "out"), strict=True):
        for key in (INCEPTION.label, "image/filename", "image/class/synset", "image/class/text", *_BOXES):
            assert new[key] == old[key], key
        assert min(new[f"image/{side}"].int64_list.value[0] for side in ("height", "width")) == 100
    assert any(new[_BOXES[0]].float_list.value for new in _in_order(tmp_path / "out"))
    assert sorted(file.name for file in (tmp_path / "out").glob("train-*")) == sorted(os.listdir(fake_imagenet))


def test_tfds_records_count_from_one_after_conversion(fake_imagenet: Path, tmp_path: Path) -> None:
    to_tfds(fake_imagenet, tmp_path / "tfds")
    _convert(tmp_path / "tfds", tmp_path / "out")
    for old, new in zip(_in_order(fake_imagenet), _in_order(tmp_path / "out"), strict=True):
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
    for old, new in list(zip(_in_order(fake_imagenet), _in_order(tmp_path / "out"), strict=True))[:12]:
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


def test_each_split_is_converted_from_its_own_folder(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "both").mkdir()
    folder.rename(tmp_path / "both" / "train")
    one = tmp_path / "both" / "val" / "n00000001"
    one.mkdir(parents=True)
    next((tmp_path / "both" / "train").rglob("*.JPEG")).rename(one / "only.JPEG")
    validation, training = (_listing(tmp_path / "both", split) for split in ("validation", "train"))
    assert [photo.name for photo in validation.photos] == ["only.JPEG"]
    assert len(training.photos) == 39 and validation.classes == training.classes


def test_class_folders_win_over_archives_beside_them(folder: Path, tmp_path: Path) -> None:
    _as_tar_of_tars(folder, tmp_path / "ILSVRC2012_img_train")
    (tmp_path / "ILSVRC2012_img_train.tar").rename(folder / "ILSVRC2012_img_train.tar")
    found = _listing(folder)
    assert found.classes == sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    assert len(found.photos) == 40 and all(photo.member is None for photo in found.photos)


def test_of_the_archives_of_both_splits_each_is_its_own(folder: Path, tmp_path: Path) -> None:
    downloads = tmp_path / "downloads"
    downloads.mkdir()
    _as_tar_of_tars(folder, tmp_path / "ILSVRC2012_img_train").rename(downloads / "ILSVRC2012_img_train.tar")
    _tar_of_class(next(folder.iterdir()), downloads / "ILSVRC2012_img_val.tar")
    found = _listing(downloads)
    assert found.classes == sorted(entry.name for entry in folder.iterdir())
    assert {photo.file.name for photo in found.photos} == {"ILSVRC2012_img_train.tar"}
    for source in (downloads, downloads / "ILSVRC2012_img_val.tar"):
        with pytest.raises(DataError, match=r"img_val.tar holds photos, such as .*ILSVRC2012_validation_ground_truth"):
            originals.find_originals(source, "validation")


def test_archives_of_classes_that_are_called_like_splits_are_classes(folder: Path, tmp_path: Path) -> None:
    photos = next(folder.iterdir())
    for name in ("beaker", "bullet_train", "test_tube"):
        _tar_of_class(photos, tmp_path / f"{name}.tar")
    (tmp_path / "._beaker.tar").write_bytes(b"as macOS leaves them")
    with tarfile.open(tmp_path / "beaker.tar", "a:") as archive:
        archive.addfile(tarfile.TarInfo("._photo.JPEG"))
    assert _listing(tmp_path).classes == ["beaker", "bullet_train", "test_tube"]
    assert not any(photo.name.startswith(".") for photo in _listing(tmp_path).photos)
    _tar_of_class(photos, tmp_path / "val.tar")
    assert len(_listing(tmp_path).classes) == 3
    (tmp_path / "val.tar").unlink()
    with pytest.raises(DataError, match="archives of 3 classes. Labels are positions .*: unpack both into folders"):
        originals.find_originals(tmp_path, "validation")


def test_archives_of_folders_are_to_be_unpacked(folder: Path, tmp_path: Path) -> None:
    beside = tmp_path / "beside"
    shutil.copytree(folder, beside / "flowers")
    for name, mode in (("flowers.tgz", "w:gz"), ("flowers.tar", "w:")):
        with tarfile.open(beside / name, mode) as archive:
            archive.add(folder, "flowers")
    with pytest.raises(
        DataError, match="flowers.tar holds photos, such as flowers/n0.* Unpack it, and name the folder"
    ):
        originals.find_originals(beside / "flowers.tar", "train")
    with pytest.raises(DataError, match="flowers.tgz is no tar archive of tar archives, .* unpack it"):
        originals.find_originals(beside / "flowers.tgz", "train")
    (beside / "flowers.tar").unlink()
    with pytest.raises(DataError, match="holds photos in other places, such as .*flowers/n0.*Name the folder"):
        originals.find_originals(beside, "train")


def test_a_file_of_another_format_is_named(tmp_path: Path) -> None:
    (tmp_path / "train-00000-of-00002.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match="does not read .*.parquet, which is Parquet: write its photos as files"):
        originals.find_originals(tmp_path / "train-00000-of-00002.parquet", "train")


def test_classes_have_the_names_of_their_archives(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "dogs").mkdir()
    for name in ("St. Bernard", "St. Charles", "犬"):
        _tar_of_class(next(folder.iterdir()), tmp_path / "dogs" / f"{name}.tar")
    assert "of 3 classes (St. Bernard, St. Charles, 犬) in " in _listing(tmp_path / "dogs").describe()


def test_an_archive_is_of_one_class_and_a_class_of_one_archive(folder: Path, tmp_path: Path) -> None:
    _as_tars(folder, tmp_path / "tars")
    first = min((tmp_path / "tars").iterdir())
    again = shutil.copy(first, first.with_suffix(".part2.tar"))
    with pytest.raises(DataError, match=f"several archives of the class {first.stem}: keep one of each"):
        originals.find_originals(tmp_path / "tars", "train")
    os.unlink(again)
    with tarfile.open(first, "w:") as archive:
        archive.add(folder, "photos")
    with pytest.raises(DataError, match=r"in several folders \(photos/n.*, photos/n.*\), not of one class. Unpack it"):
        originals.find_originals(tmp_path / "tars", "train")


def test_flat_validation_photos_need_labels(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "both" / "val").mkdir(parents=True)
    for photo in folder.rglob("*.JPEG"):
        shutil.copy(photo, tmp_path / "both" / "val")
    folder.rename(tmp_path / "both" / "train")
    for find in (originals.find_originals, lambda source, split: imagenet_files.find_imagenet(str(source), split)):
        with pytest.raises(DataError, match="val are in one folder. .*ILSVRC2012_validation_ground_truth.txt in"):
            find(tmp_path / "both", "validation")


@pytest.mark.parametrize("ending", ["webp", "BMP", "gif", "tif", "TIFF", "Png", "jfif", "jpe"])
def test_every_format_that_pillow_reads_is_converted(tmp_path: Path, ending: str) -> None:
    (tmp_path / "source" / "blue").mkdir(parents=True)
    photo = tmp_path / "source" / "blue" / f"sky.{ending}"
    Image.new("RGB", (40, 30), (10, 20, 200)).save(photo)
    outcome = _convert(tmp_path / "source", tmp_path / "out", shards=1)
    assert (outcome.written, outcome.left_out) == (1, [])
    ((_, label, encoded),) = _photos_of(tmp_path / "out").values()
    assert label == 1
    np.testing.assert_allclose(tf.io.decode_jpeg(encoded).numpy().mean((0, 1)), (10, 20, 200), atol=4)


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
        rewrite(file, 0, lambda feature: feature[INCEPTION.label].int64_list.value.__setitem__(0, 2000))
    source = tmp_path / "source"
    assert len(_convert(source, tmp_path / "usual").left_out) == 4
    assert _convert(source, tmp_path / "more", num_classes=2000).left_out == []
    assert labels_of(tmp_path / "more") == labels_of(tmp_path / "source")
    for number, file in enumerate(sorted((tmp_path / "source").iterdir())):
        rewrite(file, 0, lambda feature, label=number: feature[INCEPTION.label].int64_list.value.__setitem__(0, label))
    assert _convert(source, tmp_path / "from_0", num_classes=1500).left_out == []
    assert labels_of(tmp_path / "from_0") == [label + 1 for label in labels_of(tmp_path / "source")]


def test_sixteen_bits_are_scaled_not_clipped(tmp_path: Path) -> None:
    values = np.linspace(0, 65535, 64 * 64).reshape(64, 64).astype(np.uint16)
    (tmp_path / "source" / "grey").mkdir(parents=True)
    Image.fromarray(values).save(tmp_path / "source" / "grey" / "deep.png")
    outcome = _convert(tmp_path / "source", tmp_path / "out", shards=1)
    assert outcome.written == outcome.encoded_anew == 1
    ((_, _, encoded),) = _photos_of(tmp_path / "out").values()
    assert tf.io.decode_jpeg(encoded).numpy().mean() == pytest.approx(127.5, abs=2)


def test_names_that_are_not_utf8_keep_their_bytes(tmp_path: Path, folder: Path) -> None:
    photo = next(folder.rglob("*.JPEG"))
    photo.parent.rename(photo.parent.with_name("caf\udce9"))
    assert not _convert(folder, tmp_path / "out").left_out
    assert not _convert(tmp_path / "out", tmp_path / "again").left_out
    for written in ("out", "again"):
        synsets = {feature["image/class/synset"].bytes_list.value[0] for feature in _in_order(tmp_path / written)}
        assert b"caf\xe9" in synsets


@pytest.mark.parametrize("form", [_as_tars, _as_tar_of_tars])
@pytest.mark.parametrize("size", [2**33, 2**62])
def test_a_header_of_an_archive_does_not_fill_the_memory(
    folder: Path, tmp_path: Path, form: Callable[[Path, Path], Path], size: int
) -> None:
    """The first member is a name of so many bytes, most of them a hole."""
    header = tarfile.TarInfo("long")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, size
    source = form(folder, tmp_path / "source")
    file = source if source.is_file() else sorted(source.iterdir())[0]
    with file.open("wb") as opened:
        opened.write(header.tobuf(tarfile.GNU_FORMAT))
        opened.truncate(min(size, 2**34))
    with pytest.raises(DataError, match=f"{file} is no .*tar archive"):
        originals.find_originals(source, "train")


def test_a_sparse_member_of_an_archive_is_refused(folder: Path, tmp_path: Path) -> None:
    source = _as_tars(folder, tmp_path / "source")
    file = sorted(source.iterdir())[0]
    member = tarfile.TarInfo("photo.jpg")
    member.type = tarfile.GNUTYPE_SPARSE
    with tarfile.open(file, "w:") as archive:
        archive.addfile(member)
    with pytest.raises(DataError, match=f"{file} is no .*'photo.jpg' is a sparse file"):
        originals.find_originals(source, "train")


@rotating("form", [_as_tars, _as_tar_of_tars], first=1)
def test_an_archive_does_not_end_at_a_damaged_header(
    folder: Path, tmp_path: Path, form: Callable[[Path, Path], Path]
) -> None:
    source = form(folder, tmp_path / "source")
    file = source if source.is_file() else max(source.iterdir(), key=lambda file: file.stat().st_size)
    with tarfile.open(file) as archive:
        *_, last = archive.getmembers()
    with file.open("r+b") as opened:
        opened.seek(last.offset)
        opened.write(b"\xff" * 8)
    with pytest.raises(DataError, match=f"{file} is no .*its header at byte {last.offset} is damaged"):
        originals.find_originals(source, "train")


@pytest.mark.parametrize("ending", ["cls", "json", "txt"])
def test_shards_of_a_webdataset_are_no_classes(folder: Path, tmp_path: Path, ending: str) -> None:
    (tmp_path / "shards").mkdir()
    for number in range(2):
        with tarfile.open(tmp_path / "shards" / f"train-{number:06d}.tar", "w:") as archive:
            archive.add(next(folder.rglob("*.JPEG")), "0001.jpg")
            archive.addfile(tarfile.TarInfo(f"0001.{ending}"))
    with pytest.raises(DataError, match=f"train-000000.tar holds 0001.{ending}, so it is a shard of a WebDataset"):
        originals.find_originals(tmp_path / "shards", "train")


def test_a_file_of_facts_in_the_archive_of_a_class_is_left_out(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "classes").mkdir()
    for name, facts in (("n1", "metadata.json"), ("n2", "metadata.json")):
        with tarfile.open(tmp_path / "classes" / f"{name}.tar", "w:") as archive:
            archive.add(next(folder.rglob("*.JPEG")), f"{name}_1.JPEG")
            archive.addfile(tarfile.TarInfo(facts))
    found = originals.find_originals(tmp_path / "classes", "train")
    assert isinstance(found, originals.Listing) and len(found.classes) == 2


def _saved(kind: str, *shape: int, dtype: type = np.uint8) -> Callable[[Path], None]:
    return lambda photo: Image.fromarray(np.zeros(shape, dtype)).save(photo, format=kind)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda photo: os.truncate(photo, 2**40), "it has 1099511627776 bytes, and the limit is 67108864"),
        (_saved("BMP", 2, 65501, 3), "a side is above 65500 pixels, the most of a JPEG: pass --resize or --decoded"),
        (_saved("EPS", 8, 8, 3), "cannot be decoded (UnidentifiedImageError)"),  # Pillow would start a program
        (_saved("TIFF", 8, 8, dtype=np.float32), "no integers of 8 or 16 bits, so white is not known"),
        (_saved("TIFF", 8, 8, dtype=np.int32), "no integers of 8 or 16 bits, so white is not known"),
        (_saved("JPEG", 1001, 1000, 3), "its image is of 1000x1001 pixels, above the limit of 1 million"),
        (_saved("PNG", 1001, 1000, 3), "its image is of 1000x1001 pixels, above the limit of 1 million"),
        (_saved("BMP", 1001, 1000, 3), "its image is of 1000x1001 pixels, above the limit of 1 million"),
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
