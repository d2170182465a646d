"""Finds photos before conversion: in a folder of class folders, in ImageNet's tar archives, or in TFRecords."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import re
import tarfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.data.sources import class_folders, imagenet_files, photo_layouts, tfrecord
from benchmarks.data.sources.class_folders import some
from benchmarks.data.sources.data_sets import reading
from benchmarks.data.sources.imagenet_files import PhotoRecords
from benchmarks.data.sources.photo_layouts import BOX_CORNERS, INCEPTION, Layout
from benchmarks.data.sources.safe_files import MOST_PHOTO_BYTES, UNREADABLE, files_in, read_file
from benchmarks.data.sources.tfrecord import Defect, FramedRecord
from benchmarks.data.writing.photo_records import Original
from benchmarks.errors import DataError
from models.model_spec import IMAGENET_CLASSES
from results.loading import open_file

# What photos come in; Pillow would start programs for some others.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF")
# Archives of whole splits, such as ILSVRC2012_img_train.tar and val.tar, not of a class such as test_tube.tar.
_OF_SPLIT = re.compile(
    r"(?:ilsvrc.{0,40}_)?(train|val|test)(?:ing|id|idation)?(?:[-_]?(?:images?|t\d))*+(?:[-_]?v\d.{0,40})?\.tar"
)
_PART = re.compile(r"\.(?:part)?\d{1,9}\Z")
# Files of labels or facts beside a photo of the same name, in a WebDataset.
_LABELS = {"cls", "cls2", "class", "count", "id", "index", "inx", "json", "txt"}
_UNPACK = "Unpack it, and name the folder that has one folder for each class."


@dataclasses.dataclass(frozen=True)
class Photo:
    """Where a photo is: in a file of its own, or in a `member` (offset and length, bytes) of an archive.

    The label counts from 1; the class has the name of its folder or archive.
    """

    file: Path
    member: tuple[int, int] | None
    name: str
    label: int
    class_name: str

    def __str__(self) -> str:
        """Returns class and name, for a sentence."""
        return f"{repr(self.class_name)[1:-1]}/{repr(self.name)[1:-1]}"

    def load(self) -> Original:
        """Returns the photo.

        Raises:
            OSError: it cannot be read, or has more bytes than a photo has.
        """
        return Original(read_file(self.file, part=self.member), self.label, self.class_name, self.name)


@dataclasses.dataclass(frozen=True)
class Listing:
    """The photos of a source, and the names of its classes in the order of their labels."""

    photos: Sequence[Photo]
    classes: Sequence[str]
    description: str

    def identify(self) -> str:
        """Returns a checksum of names, places and labels of the photos."""
        return class_folders.digest(
            [f"{photo.class_name}/{photo.name} {photo.member} {photo.label}" for photo in self.photos]
        )

    def describe(self) -> str:
        """Returns a description of one line."""
        return self.description


@dataclasses.dataclass(frozen=True)
class RecordedPhoto:
    """A photo in a record of a file, which may be damaged, or of a class that is not one of `labels`."""

    file: Path
    layout: Layout
    labels: range
    record: FramedRecord | Defect

    def __str__(self) -> str:
        """Returns file and record, for a sentence."""
        return f"{self.file.name}, record {self.record.number}"

    def load(self) -> Original:
        """Returns the photo.

        Raises:
            ValueError: the record is damaged, or of no class.
        """
        if isinstance(self.record, Defect):
            raise ValueError(self.record.reason)
        layout = self.layout
        feature = photo_layouts.read_example(self.record.payload, layout, self.labels)

        def text(key: str) -> str:
            values: Sequence[bytes] = feature[key].bytes_list.value if key in feature else ()
            return values[0].decode(errors="surrogateescape") if values else ""  # as names of files may be

        corners = [feature[key].float_list.value if key in feature else () for key in BOX_CORNERS]
        return Original(
            encoded=photo_layouts.encoded_of(feature, layout),
            label=photo_layouts.label_of(feature, layout) - self.labels.start + INCEPTION.first_label,
            class_name=text("image/class/synset"),
            name=text("image/filename") or text("file_name"),
            text=text("image/class/text"),
            boxes=[(ymin, xmin, ymax, xmax) for ymin, xmin, ymax, xmax in zip(*corners, strict=True)],
        )


@reading()
def find_originals(source: Path, split: str) -> Listing | PhotoRecords:
    """Finds the photos to convert; `split` chooses the part of a source that holds several splits.

    The source is a folder of class folders, a folder of one tar archive per class, ImageNet's archive of such archives,
    or a folder of TFRecords.

    Raises:
        DataError: the source holds none of these, or TFRecords of pixels.
    """
    if not source.is_dir():
        if _holds_records(source):
            raise DataError(f"{source} is a file of TFRecords: name its folder, {source.absolute().parent}.")
        if source.exists():
            return _in_archive_of_archives(source, split)
        raise DataError(
            f"{source} does not exist: name a folder of class folders or of TFRecords, or ImageNet's tar archives."
        )
    if records := imagenet_files.find_records(str(source), split):
        if records.is_decoded:
            raise DataError(f"{source} holds pixels, not JPEGs: convert the photos that they were made of.")
        return records
    return _in_folder(source, split)


def _holds_records(file: Path) -> bool:
    with contextlib.suppress(DataError):
        return isinstance(next(tfrecord.walk(file), None), FramedRecord)
    return False


def _in_folder(source: Path, split: str) -> Listing:
    if folder := class_folders.find_class_folders(source, split, _endings()):
        photos = [
            Photo(file, None, file.name, label + 1, folder.classes[label])
            for file, label in zip(folder.files, folder.labels, strict=True)
        ]
        return Listing(photos, folder.classes, folder.describe())
    archives = _archives_of(source, split)
    if not archives:
        raise DataError(
            f"{source} holds no folders of photos for each class, no tar archives and no TFRecords of {split} images; "
            f"{class_folders.what_is_there(source, split, _endings())}"
        )
    if len(archives) == 1:
        return _in_archive_of_archives(archives[0], split)
    members: list[Photo] = []
    for label, file in enumerate(archives, start=1):
        with _opened(file, "uncompressed tar archive") as archive:
            members += _members(archive, file, 0, label, file.stem)
    return _listing(members, [file.stem for file in archives], source, split)


def _listing(photos: Sequence[Photo], classes: Sequence[str], source: Path, split: str) -> Listing:
    """Returns the photos of archives of classes.

    Raises:
        DataError: two are of one class; or they are of another split than that which decides the classes, and may lack
            some.
    """
    parts = Counter(_PART.sub("", name) for name in classes)
    if twice := sorted(name for name, count in parts.items() if count > 1):
        raise DataError(f"{source} holds several archives of the class {some(twice)}: keep one of each.")
    if split != "train" and len(classes) != IMAGENET_CLASSES:
        raise DataError(
            f"{source} holds archives of {len(classes)} classes. Labels are positions among the classes of the "
            "training images, of which a validation set may lack some: unpack both into folders, train and val, with a "
            "folder for each class."
        )
    return Listing(photos, classes, f"{len(photos)} photos of {len(classes)} classes ({some(classes)}) in {source}")


@functools.cache
def _endings() -> tuple[str, ...]:
    from PIL import Image

    return tuple(ending for ending, name in Image.registered_extensions().items() if name in FORMATS)


def _archives_of(source: Path, split: str) -> list[Path]:
    archives = [file for file in sorted(source.iterdir()) if file.name.lower().endswith(".tar") and file.name[0] != "."]
    named = {file: _OF_SPLIT.fullmatch(file.name.lower()) for file in archives}
    of_split = [file for file, match in named.items() if match and split.startswith(match[1])]
    return of_split or [file for file, match in named.items() if not match]


class _Archive(io.BufferedReader):
    """An archive whose headers must not decide how much memory is taken."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or not 0 <= size <= MOST_PHOTO_BYTES:
            raise tarfile.ReadError(f"it has a header of {size} bytes")
        return super().read(size)


@contextlib.contextmanager
def _opened(file: Path, what: str) -> Iterator[tarfile.TarFile]:
    """Opens an archive; of one that is damaged or compressed, says that it is no `what`."""
    try:
        with _Archive(open_file(file).detach()) as opened, tarfile.open(fileobj=opened, mode="r:") as archive:
            yield archive
    except UNREADABLE as error:
        raise DataError(
            f"{file} is no {what} ({error}): unpack it, copy it again, or write its photos as files, in a folder for "
            "each class."
        ) from error


def _members(archive: tarfile.TarFile, file: Path, offset: int, label: int, class_name: str) -> Iterator[Photo]:
    """Yields the photos of a class's archive, which starts at a byte of the file and is not compressed."""
    before, folders = ("", ""), dict[str, None]()
    for member in files_in(archive):
        stem, _, ending = member.name.rpartition(".")
        if stem == before[0] and not _LABELS.isdisjoint((ending, before[1])):
            raise DataError(
                f"{file} holds {Path(member.name).name}, so it is a shard of a WebDataset, whose labels are in such "
                "files: unpack it, and move each photo into the folder of its class."
            )
        before = stem, ending
        if member.name.lower().endswith(_endings()):
            folders[str(Path(member.name).parent)] = None
        if len(folders) > 1:
            raise DataError(f"{file} holds photos in several folders ({some([*folders])}), not of one class. {_UNPACK}")
        place = (offset + member.offset_data, member.size)
        yield Photo(file, place, Path(member.name).name, label, class_name)


def _in_archive_of_archives(file: Path, split: str) -> Listing:
    """Lists the photos of an archive that holds an archive for each class, without unpacking it."""
    photos: list[Photo] = []
    with _opened(file, "tar archive of tar archives, one per class") as outer:
        members = sorted(files_in(outer), key=lambda member: member.name)
        if photo := next((member.name for member in members if member.name.lower().endswith(_endings())), None):
            in_folders = len(Path(photo).parts) > 1
            raise DataError(
                f"{file} holds photos, such as {photo}, and not one archive per class. "
                f"{_UNPACK if in_folders else class_folders.labels_needed(split)}"
            )
        for label, member in enumerate(members, start=1):
            with tarfile.open(fileobj=outer.extractfile(member), mode="r:") as inner:
                photos += _members(inner, file, member.offset_data, label, Path(member.name).stem)
    return _listing(photos, [Path(member.name).stem for member in members], file, split)
