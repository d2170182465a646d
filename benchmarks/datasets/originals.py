"""Finds photos before conversion: in a folder of class folders, in ImageNet's tar archives, or in TFRecords."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import io
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.errors import DataError
from benchmarks.input import imagenet
from benchmarks.input.files import MOST_PHOTO_BYTES, open_file, read_file, whole_member
from benchmarks.input.imagenet import BOX, INCEPTION, Layout, PhotoRecords
from benchmarks.input.tfrecord import Defect, FramedRecord

_TAR_ENDINGS = (".tar", ".tar.gz", ".tgz")
# What a damaged archive raises.
_UNREADABLE = (OSError, ValueError, OverflowError, MemoryError, tarfile.TarError)


@dataclasses.dataclass(frozen=True)
class Original:
    """A photo before conversion, in any format, and what is known of it, as of `photo_example`."""

    encoded: bytes
    label: int
    class_name: str
    name: str
    text: str = ""
    boxes: Sequence[tuple[float, float, float, float]] = ()


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
        return f"{ascii(self.class_name)[1:-1]}/{ascii(self.name)[1:-1]}"

    def load(self) -> Original:
        """Returns the photo.

        Raises:
            OSError: it cannot be read, or has more bytes than a photo has.
        """
        return Original(self._read(), self.label, self.class_name, self.name)

    def _read(self) -> bytes:
        if self.member is None:
            return read_file(self.file)
        offset, size = self.member
        if size > MOST_PHOTO_BYTES:
            raise OSError(errno.EFBIG, f"it has {size} bytes, and the limit is {MOST_PHOTO_BYTES}")
        with open_file(self.file) as archive:
            archive.seek(offset)
            return archive.read(size)


@dataclasses.dataclass(frozen=True)
class RecordedPhoto:
    """A photo in a record of a file, which may be damaged."""

    file: Path
    layout: Layout
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
        payload, layout = self.record.payload, self.layout
        if problem := imagenet.problem_of_example(payload, layout, layout.first_label):
            raise ValueError(problem[1])
        feature = imagenet.features_of(payload)

        def text(key: str) -> str:
            values: Sequence[bytes] = feature[key].bytes_list.value if key in feature else ()
            return values[0].decode() if values else ""

        keys = [BOX + corner for corner in ("ymin", "xmin", "ymax", "xmax")]
        corners = [feature[key].float_list.value if key in feature else () for key in keys]
        return Original(
            encoded=imagenet.encoded_of(payload, layout),
            label=feature[layout.label].int64_list.value[0] - layout.first_label + INCEPTION.first_label,
            class_name=text("image/class/synset"),
            name=text("image/filename") or text("file_name"),
            text=text("image/class/text"),
            boxes=[(ymin, xmin, ymax, xmax) for ymin, xmin, ymax, xmax in zip(*corners, strict=True)],
        )


def find(source: Path, split: str) -> list[Photo] | PhotoRecords:
    """Finds the photos to convert; `split` chooses the part of a source that holds several splits.

    The source is a folder of class folders, a folder of one tar archive per class, ImageNet's archive of such archives,
    or a folder of TFRecords.

    Raises:
        DataError: the source holds none of these, or TFRecords of pixels.
    """
    if not source.is_dir():
        if source.exists():
            return _in_archive_of_archives(source)
        raise DataError(
            f"{source} does not exist: name a folder of class folders or of TFRecords, or ImageNet's tar archives."
        )
    if records := imagenet.find_records(str(source), split):
        if imagenet.is_decoded(records):
            raise DataError(f"{source} holds pixels, not JPEGs: convert the photos that they were made of.")
        return records
    return _in_folder(source, split)


def _in_folder(source: Path, split: str) -> list[Photo]:
    archives = sorted(file for file in source.iterdir() if file.name.endswith(_TAR_ENDINGS))
    if len(archives) == 1:
        return _in_archive_of_archives(archives[0])
    if archives:
        found: list[Photo] = []
        for label, file in enumerate(archives, start=1):
            try:
                with _opened(file) as archive:
                    found += _members(archive, file, 0, label, file.name.split(".")[0])
            except _UNREADABLE as error:
                raise DataError(
                    f"{file} is no uncompressed tar archive ({error}): unpack it first, or copy it again."
                ) from error
        return found
    below = next((source / name for name in imagenet.FOLDERS_OF[split] if (source / name).is_dir()), source)
    folder = imagenet.photos_in_folders(below, split)
    if folder is None:
        raise DataError(
            f"{below} holds neither folders of photos nor tar archives nor TFRecords: there is nothing to convert."
        )
    return [
        Photo(file, None, file.name, label + 1, folder.classes[label])
        for file, label in zip(folder.files, folder.labels, strict=True)
    ]


class _Archive(io.BufferedReader):
    """An archive whose headers must not decide how much memory is taken."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Reads at most as many bytes as a photo may have."""
        if size is None or not 0 <= size <= MOST_PHOTO_BYTES:
            raise tarfile.ReadError(f"it has a header of {size} bytes")
        return super().read(size)


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[tarfile.TarFile]:
    with _Archive(open_file(file).detach()) as opened, tarfile.open(fileobj=opened, mode="r:") as archive:
        yield archive


def _members(archive: tarfile.TarFile, file: Path, offset: int, label: int, class_name: str) -> Iterator[Photo]:
    """Yields the photos of a class's archive, which starts at a byte of the file and is not compressed."""
    for member in map(whole_member, archive):
        if member.isfile():
            place = (offset + member.offset_data, member.size)
            yield Photo(file, place, Path(member.name).name, label, class_name)


def _in_archive_of_archives(file: Path) -> list[Photo]:
    """Lists the photos of an archive that holds an archive for each class, without unpacking it."""
    found: list[Photo] = []
    try:
        with _opened(file) as outer:
            files = [member for member in map(whole_member, outer) if member.isfile()]
            members = sorted(files, key=lambda member: member.name)
            for label, member in enumerate(members, start=1):
                with tarfile.open(fileobj=outer.extractfile(member), mode="r:") as inner:
                    found += _members(inner, file, member.offset_data, label, Path(member.name).stem)
    except _UNREADABLE as error:
        raise DataError(f"{file} is no tar archive of tar archives, one per class ({error}).") from error
    return found
