"""Finds photos on disk: in TFRecords of three layouts, as JPEGs or as pixels, or JPEGs in a folder of class folders.

The keys of the first record decide the layout of TFRecords, not the names of the files. Needs TensorFlow only for its
protocol buffers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.console import warn, warn_once
from benchmarks.data.sources import class_folders, tfrecord
from benchmarks.data.sources.class_folders import FOLDERS_OF, JPEG_ENDINGS, PhotoFolder, digest, folders_of, some
from benchmarks.data.sources.data_sets import StoredImages, existing_directory, only_one, reading
from benchmarks.data.sources.jpeg_header import PNG_SIGNATURE, BadPhotoError
from benchmarks.data.sources.photo_layouts import (
    LAYOUTS,
    Layout,
    encoded_of,
    features_of,
    label_of,
    read_example,
)
from benchmarks.data.sources.safe_files import for_each
from benchmarks.data.sources.storage import Address, path_of
from benchmarks.data.sources.tfrecord import Defect
from benchmarks.errors import DataError
from models.model_spec import BACKGROUND_CLASSES, IMAGENET_CLASSES
from results.text import counted

# Names of shards in the forms of tf_cnn_benchmarks, TFDS, TF-Slim and the object detection API, or with a number alone.
_KIND = r"(?:\.tfrecords?|\.tfrec|\.records?)"
_SHARD = re.compile(
    rf"(?P<stem>(?:[^.].*[-._])?(?P<split>{'|'.join(sum(FOLDERS_OF.values(), ()))}))"
    rf"(?P<ending>{_KIND}?[-_]\d+-of-(?P<total>\d+){_KIND}?|(?:[-_.]?\d+)?{_KIND})(?:\.gz|\.gzip|\.zlib|\.z)?",
    re.IGNORECASE,
)
_LEAST_DATE = 10_000_000  # 8 digits, as in 20240131
_NUMBER = re.compile(r"(?<!\d)(?<!-of-)\d++(?=-of-|\.)")
# Of the photos that a run reads from folders.
_ENDINGS = (*JPEG_ENDINGS, ".png")
_RECORDS_DESCRIBED = 64
# At most so many records of so many files tell whether labels are numbered from 0 or 1: a class that has its share is
# missing from them once in 3,000 times.
_SAMPLED_PER_CLASS, _LEAST_SAMPLED, _FILES_SAMPLED = 8, 1000, 16
_ANY_LABELS = range(2**31)
_CONVERTED = "convert the photos with 'run_bench.py data convert' (docs/howto/real-data.md)"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhotoRecords(StoredImages):
    """Photos in TFRecords: files with their `sizes` in bytes, `of_shards`; `compression` as TensorFlow calls it.

    `empty` are shards without records, which are not among the files. `training_files` are the same as the files, or
    those of the training images beside these, which tell how classes are numbered.
    """

    layout: Layout
    of_shards: int
    sizes: Mapping[Path, int]
    training_files: Sequence[Path]
    compression: tfrecord.Compression = ""
    empty: Sequence[Path] = ()
    _first_labels: dict[int, int | None] = dataclasses.field(default_factory=dict, init=False, compare=False)

    def first_label(self, num_classes: int) -> int | None:
        """Returns the label of the first class of photos if training images show it; with 1001 classes it is known."""
        if num_classes not in self._first_labels:
            self._first_labels[num_classes] = _find_first_label(self, num_classes)
        return self._first_labels[num_classes]

    @functools.cached_property
    def count(self) -> int:
        """The number of records."""
        return sum(self.counts)

    @property
    def counts(self) -> list[int]:
        """The number of records of each file."""
        return [count for count, _ in self._counted]

    def require_whole_files(self) -> None:
        """Raises DataError if a file is cut off, or the length of a record is damaged."""
        for defect in (defect for _, defect in self._counted if defect):
            raise defect.error()

    @functools.cached_property
    def _counted(self) -> list[tuple[int, Defect | None]]:
        return list(for_each(self.files, tfrecord.count))

    def identify(self) -> str:
        """The checksum is of the files' names and sizes."""
        files = [f"{file.name} {size}" for file, size in self.sizes.items()]
        return f"{self.layout.title}, {len(files)} files, {sum(self.sizes.values()) / 1e6:.0f} MB, {digest(files)}"

    def describe(self) -> str:
        """The line holds layout, shards, and the labels of the first records."""
        labels = [label for label, _ in self._first]
        seen = f", labels {min(labels)} to {max(labels)} in the first {len(labels)} records" if labels else ""
        part = "" if len(self.files) == self.of_shards else f" of {self.of_shards}"
        compressed = f", {self.compression}" if self.compression else ""
        shards = counted(len(self.files), f"{self.split} shard")
        return f"{self.layout.title}, {shards}{part}{compressed} in {self.directory}{seen}"

    @property
    def is_decoded(self) -> bool:
        """Whether the photos are stored as pixels."""
        return bool(self.layout.sides)

    @functools.cached_property
    def may_be_png(self) -> bool:
        """Whether one of the first photos is a PNG."""
        return PNG_SIGNATURE in [beginning for _, beginning in self._first]

    @functools.cached_property
    def _first(self) -> list[tuple[int, bytes]]:
        return list(_first_photos(self.files[:1], self.layout, _RECORDS_DESCRIBED))

    def require_unchanged(self, file: Path) -> None:
        """Raises DataError if a shard has another size than when it was found, or is gone."""
        with reading(file):
            size = file.stat().st_size
        if size != self.sizes[file]:
            raise DataError(f"{file} has changed: it had {self.sizes[file]} bytes, and has {size}. Start again.")


Photos = PhotoRecords | PhotoFolder


def labels_of(source: Photos, num_classes: int) -> range:
    """Returns the labels in the data that stand for classes 0, 1, ...; with 1001 classes, class 0 is the background.

    Raises:
        DataError: the folder has more classes.
    """
    background = int(num_classes == BACKGROUND_CLASSES)
    lowest, told = -background, num_classes - background
    if isinstance(source, PhotoRecords):
        shown = source.first_label(num_classes)
        lowest += source.layout.first_label if shown is None else shown
    elif (stored := len(source.classes)) != told:
        differ = f"{source.directory} holds {counted(stored, 'class folder')}, and the model tells {told} apart"
        fitting = f"pass --num_classes={stored + (stored == BACKGROUND_CLASSES)}"
        if stored > told:
            raise DataError(f"{differ}: remove folders that are no classes, or {fitting}.")
        advice = f" Unless that is meant, {fitting}, if the model takes it." if stored > 1 else ""  # the least is 2
        warn_once(f"{differ}: no image is of the others.{advice}")
    return range(lowest, lowest + num_classes)


def _find_first_label(source: PhotoRecords, num_classes: int) -> int | None:
    """Looks for the label 0 or that of the last class; None, with a warning unless it is ImageNet: there is neither."""
    usual = source.layout.first_label
    if num_classes == BACKGROUND_CLASSES:
        return usual
    files = source.training_files[:: -(-len(source.training_files) // _FILES_SAMPLED)]
    records, count, zeros = max(_SAMPLED_PER_CLASS * num_classes, _LEAST_SAMPLED), 0, 0
    for label, _ in _first_photos(files, source.layout, -(-records // len(files))):
        count, zeros = count + 1, zeros + (label == 0)
        if label == num_classes:
            return 1
        if zeros == 2:  # a single one may be a mistake
            return 0
    if num_classes == IMAGENET_CLASSES:
        return None
    if zeros:
        return 0
    if count:
        kind = "validation" if source.split == "validation" and source.training_files == source.files else "training"
        warn_once(
            f"Labels are taken to count from {usual}: of {count} {kind} images of {source.directory}, none has label 0 "
            f"or {num_classes}."
        )
    return None


def _first_photos(files: Sequence[Path], layout: Layout, records: int) -> Iterator[tuple[int, bytes]]:
    """Yields label and first bytes of so many photos of each file."""
    for file in files:
        for record in itertools.islice(tfrecord.walk(file), records):
            if isinstance(record, tfrecord.FramedRecord):
                with contextlib.suppress(BadPhotoError):
                    feature = read_example(record.payload, layout, _ANY_LABELS)
                    yield label_of(feature, layout), encoded_of(feature, layout)[: len(PNG_SIGNATURE)]


def find_imagenet(directory: str, split: str) -> Photos:
    """Finds the photos of a directory.

    Raises:
        DataError: the directory is missing, holds no known data set, or only a part of one.
    """
    path = existing_directory("imagenet", directory)
    if records := find_records(directory, split):
        return records
    problem = (
        f"--data_dir={directory}: no file is named like {split}-00000-of-00008 or "
        f"imagenet2012-{split}.tfrecord-00000-of-00008"
    )
    if isinstance(path, Address):
        raise DataError(
            f"{problem}. Of an address, only TFRecords are read: 'run_bench.py data convert' makes them of photos."
        )
    if folder := class_folders.find_class_folders(path, split, _ENDINGS):
        return folder
    (other,) = {*FOLDERS_OF} - {split}
    if _folder_of_shards(path, other):
        advice = f"pass --data_split={other}, or name another directory."
        if split != "train":  # an evaluation takes no --data_split
            advice = (
                "name a directory that holds validation shards, too. Shards called test are none. Without an "
                f"evaluation, --data_split={other} reads those that are there."
            )
        raise DataError(f"{problem}; only {other} shards can be read: {advice}")
    raise DataError(
        f"{problem}, and there is no folder of photos for each class; "
        f"{class_folders.what_is_there(path, split, _ENDINGS)}"
    )


def _shards_in(directory: Path, split: str) -> dict[str, re.Match[str]]:
    names = sorted(path.name for path in directory.iterdir())
    shards = {name: match for name in names if (match := _SHARD.fullmatch(name))}
    return {name: match for name, match in shards.items() if match["split"].lower() in FOLDERS_OF[split]}


def find_records(directory: str, split: str) -> PhotoRecords | None:
    """Returns the TFRecords of a directory; None without any file that is named like one.

    Raises:
        DataError: they are not one complete data set of a known layout.
    """
    path = _folder_of_shards(path_of(directory), split)
    if path is None:
        return None
    shards = _shards_in(path, split)
    sets = sorted({match["stem"] + _NUMBER.sub("...", match["ending"]) for match in shards.values()})
    if len(sets) > 1:
        named = " and ".join(sets)
        raise DataError(f"--data_dir={path} mixes shards of {len(sets)} data sets ({named}): keep one.")
    numbers = Counter(int(found[0]) for match in shards.values() if (found := _NUMBER.search(match["ending"])))
    if twice := [number for number, count in numbers.items() if count > 1]:
        raise DataError(f"--data_dir={path} holds several shards {twice[0]} ({some([*shards])}): keep one set.")
    # With a number alone, shards are numbered from 0 or 1 on, if it is no date.
    last = max(numbers, default=0)
    numbered = last + (0 in numbers) if last < _LEAST_DATE else 0
    total = int(next(iter(shards.values()))["total"] or numbered or len(shards))
    if len(shards) < total:
        warn(
            f"{path} holds {len(shards)} of {total} {split} shards, and only their photos are read. Copy the "
            "others, unless a part is wanted."
        )
    files = [path / name for name in shards]
    facts = dict(zip(files, for_each(files, _size_and_compression), strict=True))
    files = [file for file, (size, _) in facts.items() if size]
    if not files:
        raise DataError(f"{next(iter(facts))} holds no record: copy or make it again.")
    if empty := [file for file, (size, _) in facts.items() if not size]:
        warn(
            f"{path} holds {counted(len(empty), 'shard')} without records ({some([file.name for file in empty])}), as "
            "some programs write them: copy them again if they should hold photos."
        )
    sizes, compressions = zip(*(facts[file] for file in files), strict=True)
    if len(set(compressions)) > 1:
        raise DataError(f"--data_dir={path}: some shards are compressed, and others are not: keep one kind.")
    return PhotoRecords(
        directory=str(path),
        split=split,
        files=files,
        sizes=dict(zip(files, sizes, strict=True)),
        layout=layout_of(files),
        of_shards=total,
        training_files=files if split == "train" else _training_files(path) or files,
        compression=compressions[0],
        empty=empty,
    )


def _size_and_compression(file: Path) -> tuple[int, tfrecord.Compression]:
    """Returns the size in bytes, 0 if there is no record, and the compression."""
    if not file.is_file():
        raise DataError(f"{file} is a broken link or no file: link, copy or make it again.")
    compression = tfrecord.compression_of(file)
    is_empty = compression and next(tfrecord.walk(file), None) is None
    return 0 if is_empty else file.stat().st_size, compression


def _training_files(directory: Path) -> list[Path]:
    """Returns the shards of training images in a directory or, if it is of another split, in one beside it."""
    for folder in [directory, *folders_of(directory.parent, "train")]:
        if shards := _shards_in(folder, "train"):
            return [file for file in (folder / name for name in shards) if file.is_file()]
    return []


def _folder_of_shards(directory: Path, split: str) -> Path | None:
    """Returns the folder with the shards of a split: a directory, one below it, or one in the root of TFDS' data sets.

    Raises:
        DataError: there are several, or several data sets.
    """
    folders = [directory, *folders_of(directory, split)]
    if folder := only_one([folder for folder in folders if _shards_in(folder, split)], f"{split} shards"):
        return folder
    prepared = {path.parent for level in ("*", "*/*", "*/*/*") for path in directory.glob(f"{level}/dataset_info.json")}
    versions = [path for path in prepared if "incomplete" not in path.name and _shards_in(path, split)]
    if len({path.parent for path in versions}) > 1:
        named = ", ".join(map(str, sorted(versions)))
        raise DataError(f"--data_dir={directory} holds several data sets of TFDS ({named}): name one.")
    return max(versions, key=lambda path: [int(part) for part in re.findall("[0-9]+", path.name)], default=None)


def layout_of(files: Sequence[Path]) -> Layout:
    """Returns the layout of the first record that is not damaged."""
    first_defect = None
    for file, record in ((path, record) for path in files for record in tfrecord.walk(path)):
        if isinstance(record, Defect):
            first_defect = first_defect or record
            continue
        try:
            keys = features_of(record.payload)
        except BadPhotoError as error:
            reason = f"it is no tf.train.Example; {_CONVERTED}"
            raise Defect(file, record.number, record.offset, error.kind, reason).error() from error
        for layout in LAYOUTS:
            if layout.encoded in keys and layout.label in keys:
                return layout
        wanted = " nor ".join(f"'{layout.encoded}' and '{layout.label}'" for layout in LAYOUTS)
        reason = f"it has neither {wanted}, only {some(sorted(keys)) or 'nothing'}; {_CONVERTED}"
        raise Defect(file, record.number, record.offset, "keys", reason).error()
    assert first_defect, "no shard is empty"
    raise first_defect.error()
