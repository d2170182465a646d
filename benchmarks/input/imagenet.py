"""Finds photos on disk: in TFRecords of three layouts, as JPEGs or as pixels, or JPEGs in a folder of class folders.

The keys of the first record decide the layout of TFRecords, not the names of the files. Needs TensorFlow only for its
protocol buffers.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from benchmarks.errors import DataError
from benchmarks.input import decoded, tfrecord
from benchmarks.input.catalog import existing_directory
from benchmarks.input.tfrecord import Defect
from models.model_spec import IMAGENET_CLASSES

BOX = "image/object/bbox/"
# The usual folder names of each split.
FOLDERS_OF = {"train": ("train",), "validation": ("validation", "val")}
_SHARD = re.compile(
    r"(?P<set>.+[-.])?(?P<split>train|validation)(?P<tfds>\.tfrecord)?-(?P<number>\d{5})-of-(?P<total>\d{5})"
)
_JPEG_ENDINGS = (".jpeg", ".jpg")
_PHOTO_ENDINGS = (*_JPEG_ENDINGS, ".png")
_EXAMPLES_NAMED = 3
_RECORDS_DESCRIBED = 64


@dataclasses.dataclass(frozen=True)
class Layout:
    """The keys of a photo and of its label in a tf.train.Example. Labels below `first_label` are background.

    With `has_boxes`, a record may have boxes in `image/object/bbox/*`. With `sides`, the keys of height and width, the
    photo is not a JPEG but its pixels, uint8, row by row.
    """

    title: str
    encoded: str
    label: str
    first_label: int
    has_boxes: bool
    sides: tuple[str, ...] = ()


INCEPTION = Layout("Inception TFRecords", "image/encoded", "image/class/label", 1, True)
TFDS = Layout("TFDS TFRecords", "image", "label", 0, False)
DECODED = Layout("decoded TFRecords", "image/pixels", INCEPTION.label, 1, True, (decoded.HEIGHT, decoded.WIDTH))
_LAYOUTS = (INCEPTION, TFDS, DECODED)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhotoRecords:
    """Photos in TFRecords."""

    directory: str
    split: str
    files: Sequence[Path]
    layout: Layout

    def count(self) -> int:
        """Returns the number of photos; reads only the lengths of the records."""
        return sum(tfrecord.count(file) for file in self.files)

    def identify(self) -> str:
        """Returns what distinguishes this data set: layout, and a checksum of names and sizes of its files."""
        sizes = [file.stat().st_size for file in self.files]
        files = [f"{file.name} {size}" for file, size in zip(self.files, sizes, strict=True)]
        return f"{self.layout.title}, {len(files)} files, {sum(sizes) / 1e6:.0f} MB, {digest(files)}"

    def describe(self) -> str:
        """Returns a description of one line: layout, shards, and the labels of the first records."""
        labels = [
            features_of(record.payload)[self.layout.label].int64_list.value[0]
            for record in itertools.islice(tfrecord.walk(self.files[0]), _RECORDS_DESCRIBED)
            if isinstance(record, tfrecord.FramedRecord)
            and problem_of_example(record.payload, self.layout, lowest_label=0) is None
        ]
        seen = f", labels {min(labels)} to {max(labels)} in the first {len(labels)} records" if labels else ""
        return f"{self.layout.title}, {len(self.files)} {self.split} shards in {self.directory}{seen}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhotoFolder:
    """Photos as files in one folder per class. A label is the position of the folder in the order of names."""

    directory: str
    split: str
    files: Sequence[Path]
    labels: Sequence[int]
    classes: Sequence[str]

    @functools.cached_property
    def known_safe(self) -> np.ndarray:
        """By file, whether a pipeline of this process has looked at it and found it safe to read."""
        return np.zeros(len(self.files), bool)

    def count(self) -> int:
        """Returns the number of photos."""
        return len(self.files)

    def identify(self) -> str:
        """Returns what distinguishes this data set: the number of photos, and a checksum of their names."""
        files = [f"{self.classes[label]}/{file.name}" for file, label in zip(self.files, self.labels, strict=True)]
        return f"folder of class folders, {len(files)} photos, {digest(files)}"

    def describe(self) -> str:
        """Returns a description of one line."""
        empty = len(self.classes) - len(set(self.labels))
        return (
            f"folder of class folders, {len(self.files)} photos of {len(self.classes)} classes ({self.classes[0]} ...)"
            f"{f', of which {empty} have none,' if empty else ''} in {self.directory}"
        )


Photos = PhotoRecords | PhotoFolder


def is_decoded(source: Photos) -> bool:
    """Returns whether the photos are stored as pixels."""
    return isinstance(source, PhotoRecords) and bool(source.layout.sides)


def digest(lines: Sequence[str]) -> str:
    """Returns a short hash of lines, which may hold names that are not UTF-8."""
    return hashlib.sha256(os.fsencode("\n".join(lines))).hexdigest()[:8]


def lowest_label(source: Photos, num_classes: int) -> int:
    """Returns the label of class 0: the background, or without a background the first class of photos."""
    first_label = source.layout.first_label if isinstance(source, PhotoRecords) else 0
    return first_label - (num_classes - IMAGENET_CLASSES)


def find(directory: str, split: str) -> Photos:
    """Finds the photos of a directory and checks that no shard is missing.

    Raises:
        DataError: the directory is missing, holds no known data set, or only a part of one.
    """
    path = existing_directory("imagenet", directory)
    if records := find_records(directory, split):
        return records
    otherwise = path if split == "train" else None
    folder = next((path / name for name in FOLDERS_OF[split] if (path / name).is_dir()), otherwise)
    found = photos_in_folders(folder, split, _JPEG_ENDINGS) if folder else None
    if found is None:
        names = _names_in(directory)
        holds = f"it holds {', '.join(names[:_EXAMPLES_NAMED])}, ..." if names else "it is empty"
        raise DataError(
            f"--data_dir={directory}: no file is named like {split}-00000-of-00008 or "
            f"imagenet2012-{split}.tfrecord-00000-of-00008, and there is no folder of JPEGs for each class"
            f"{' in a folder named ' + ' or '.join(FOLDERS_OF[split]) if split != 'train' else ''}; {holds}. "
            "Make a fake ImageNet with 'run_bench.py data make-imagenet DIR', or drop --data_dir for synthetic images."
        )
    return found


def _names_in(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError as error:
        raise DataError(f"--data_dir={directory} cannot be read: {error.strerror}.") from error


def find_records(directory: str, split: str) -> PhotoRecords | None:
    """Returns the TFRecords of a directory; None without any file that is named like one.

    Raises:
        DataError: they are not one complete data set of a known layout.
    """
    names = _names_in(directory)
    shards = {name: match for name in names if (match := _SHARD.fullmatch(name)) and match["split"] == split}
    if not shards:
        return None
    totals = {(match["set"] or "", match["tfds"] or "", int(match["total"])) for match in shards.values()}
    if len(totals) > 1:
        named = " and ".join(f"...{tfds}-of-{total:05d}" for _, tfds, total in sorted(totals))
        raise DataError(f"--data_dir={directory} mixes shards of {len(totals)} data sets ({named}): keep one.")
    some = next(iter(shards.values()))
    total, stem = int(some["total"]), some.string[: some.start("number")]
    missing = sorted(set(range(total)) - {int(match["number"]) for match in shards.values()})
    if missing:
        examples = ", ".join(f"{stem}{number:05d}-of-{total:05d}" for number in missing[:_EXAMPLES_NAMED])
        raise DataError(
            f"--data_dir={directory}: {len(missing)} of {total} shards are missing: {examples}"
            f"{', ...' if len(missing) > _EXAMPLES_NAMED else ''}. Copy or make them again."
        )
    files = [Path(directory) / name for name in shards]
    for file in files:
        if not file.is_file():
            raise DataError(f"{file} is a broken link or no file: link, copy or make it again.")
        if file.stat().st_size == 0:
            raise DataError(f"{file} is empty (0 bytes): copy or make it again.")
    return PhotoRecords(directory=directory, split=split, files=files, layout=layout_of(files))


def layout_of(files: Sequence[Path]) -> Layout:
    """Returns the layout of the first record that is not damaged."""
    first_defect = None
    for file, record in ((path, record) for path in files for record in tfrecord.walk(path)):
        if isinstance(record, Defect):
            first_defect = first_defect or record
            continue
        try:
            keys = features_of(record.payload)
        except DecodeError:
            reason = "it is no tf.train.Example"
        else:
            for layout in _LAYOUTS:
                if layout.encoded in keys and layout.label in keys:
                    return layout
            wanted = " nor ".join(f"'{layout.encoded}' and '{layout.label}'" for layout in _LAYOUTS)
            reason = f"it has neither {wanted}, only {_some_of(keys)}"
        reason += "; convert the photos with 'run_bench.py data convert' (docs/howto/real-data.md)"
        raise Defect(file, record.number, record.offset, "keys", reason).error()
    assert first_defect is not None, "files that are not empty hold a record or a defect"
    raise first_defect.error()


def features_of(payload: bytes) -> Mapping[str, tf.train.Feature]:
    """Returns the features of a serialised tf.train.Example.

    Raises:
        DecodeError: the bytes are no tf.train.Example.
    """
    return tf.train.Example.FromString(payload).features.feature


def _some_of(keys: Iterable[str]) -> str:
    """Returns the first keys for a sentence; they may hold anything, of any length."""
    return ", ".join(ascii(key[:40])[1:-1] for key in sorted(keys)[:5]) or "nothing"


def encoded_of(payload: bytes, layout: Layout) -> bytes:
    """Returns the JPEG, or the pixels, of a record without a problem."""
    return bytes(features_of(payload)[layout.encoded].bytes_list.value[0])


def problem_of_example(payload: bytes, layout: Layout, lowest_label: int) -> tuple[str, str] | None:
    """Returns the kind of defect of a record's keys, label or pixels, and the reason; None for a sound record.

    A JPEG is not looked at.
    """
    try:
        feature = features_of(payload)
    except DecodeError:
        return "keys", "it is no tf.train.Example; make the file again"
    for key in (layout.encoded, layout.label):
        if key not in feature:
            return "keys", f"it has no '{key}', only {_some_of(feature)}; make the file again"
    label, encoded = feature[layout.label].int64_list.value, feature[layout.encoded].bytes_list.value
    highest = layout.first_label + IMAGENET_CLASSES - 1
    lowest = max(0, lowest_label)
    if len(label) != 1 or not lowest <= label[0] <= highest:
        return "label", f"its label is {list(label[:5])}, not one number of {lowest} to {highest}; correct it"
    if len(encoded) != 1:
        return "keys", f"it holds {len(encoded)} images instead of one; make it again"
    return decoded.problem(feature, encoded[0]) if layout.sides else None


def photos_in_folders(directory: Path, split: str, endings: tuple[str, ...] = _PHOTO_ENDINGS) -> PhotoFolder | None:
    """Returns the photos of a folder of class folders; None without any photo.

    Raises:
        DataError: a folder cannot be read, or there are more classes than ImageNet has.
    """
    try:
        # Empty folders count: a class that one split lacks must not change the labels of the others.
        classes = sorted(entry.name for entry in os.scandir(directory) if entry.is_dir() and entry.name[0] != ".")
        found = [
            (directory / name / photo, label)
            for label, name in enumerate(classes)
            for photo in sorted(os.listdir(directory / name))
            if photo.lower().endswith(endings) and photo[0] != "."
        ]
    except OSError as error:
        raise DataError(f"{error.filename} cannot be read: {error.strerror}.") from error
    if not found:
        return None
    if len(classes) > IMAGENET_CLASSES:
        raise DataError(f"{directory} holds {len(classes)} class folders, more than ImageNet's {IMAGENET_CLASSES}.")
    files, labels = [file for file, _ in found], [label for _, label in found]
    return PhotoFolder(directory=str(directory), split=split, files=files, labels=labels, classes=classes)
