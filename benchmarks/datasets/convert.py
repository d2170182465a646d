"""Converts photos in a folder of class folders, or in ImageNet's tar archives, to TFRecords in the Inception layout.

Photos are shuffled once, so that every shard holds all classes. Each shard appears only when it is complete. Finished
shards are kept, so that an interrupted conversion can continue.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import io
import json
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.console import progress
from benchmarks.datasets.fake_imagenet import Split, inception_example
from benchmarks.errors import DataError, UsageError
from benchmarks.input import checks, imagenet, tfrecord
from benchmarks.input.checks import BadJpegError
from benchmarks.input.files import (
    MOST_PHOTO_BYTES,
    FileWork,
    open_file,
    read_file,
    whole_member,
    written_whole,
)
from results import store

_TAR_ENDINGS = (".tar", ".tar.gz", ".tgz")
_JPEG_QUALITY = 95  # of photos that are encoded again
# What photos come in; Pillow would start programs for some others.
_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF")
# What a damaged archive raises.
_UNREADABLE = (OSError, ValueError, OverflowError, MemoryError, tarfile.TarError)


@dataclasses.dataclass(frozen=True)
class Photo:
    """A photo before conversion: a file of its own, or a `member` (offset and length, bytes) of an archive.

    The label counts from 1; the class has the name of its folder or archive.
    """

    file: Path
    member: tuple[int, int] | None
    name: str
    label: int
    class_name: str

    def read(self) -> bytes:
        """Returns the photo's bytes.

        Raises:
            OSError: they cannot be read, or are more than a photo has.
        """
        if self.member is None:
            return read_file(self.file)
        offset, size = self.member
        if size > MOST_PHOTO_BYTES:
            raise OSError(errno.EFBIG, f"it has {size} bytes, and the limit is {MOST_PHOTO_BYTES}")
        with open_file(self.file) as archive:
            archive.seek(offset)
            return archive.read(size)


@dataclasses.dataclass
class Conversion:
    """The result: photos written, encoded again, and left out, each with the reason."""

    written: int = 0
    encoded_anew: int = 0
    left_out: list[str] = dataclasses.field(default_factory=list)


def list_photos(source: Path, split: str) -> list[Photo]:
    """Lists the photos to convert; `split` chooses the folder in a source that holds several splits.

    The source is a folder of class folders, a folder of one tar archive per class, or ImageNet's archive of such
    archives.

    Raises:
        DataError: the source holds none of these.
    """
    if not source.is_dir():
        if source.exists():
            return _in_archive_of_archives(source)
        raise DataError(f"{source} does not exist: name a folder of class folders, or ImageNet's tar archives.")
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
        raise DataError(f"{below} holds neither folders of photos nor tar archives: there is nothing to convert.")
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


def convert(
    found: Sequence[Photo],
    directory: Path,
    *,
    split: Split,
    shorter_side: int | None,
    seed: int,
    on_shard: Callable[[Path, int], None],
    work: FileWork | None = None,
) -> Conversion:
    """Writes shards on all cores, in an order that the seed determines.

    Photos whose shorter side is above `shorter_side` pixels are made smaller; None keeps their size. `on_shard` is
    called with each finished file and its number of photos.

    Raises:
        UsageError: the directory holds the shards of another conversion.
        DataError: no photo of a shard can be used.
    """
    directory.mkdir(parents=True, exist_ok=True)
    work = work or FileWork()
    names = [f"{photo.class_name}/{photo.name} {photo.member} {photo.label}" for photo in found]
    plan = {"photos": imagenet.digest(names), "count": len(found), "shorter_side": shorter_side, "seed": seed}
    _check_plan(directory, split, {**plan, "shards": split.shards})
    order = np.random.default_rng(seed).permutation(len(found))
    shares = [[found[int(number)] for number in numbers] for numbers in np.array_split(order, split.shards)]
    paths, total = split.paths(directory), Conversion()
    write = functools.partial(_write_shard, shorter_side, work)
    # Without those of finished shards, which take no time.
    missing = sum(len(share) for path, share in zip(paths, shares, strict=True) if not path.exists())
    with (
        progress.counted(f"Converting the photos to {directory}", missing),
        work.on_all_cores(write, zip(paths, shares, strict=True)) as parts,
    ):
        for path, part in zip(paths, parts, strict=True):
            if not part.written:
                raise DataError(
                    f"{path} would be empty, since no photo of it can be used: pass a larger --images_per_shard. The "
                    f"first one: {part.left_out[0]}."
                )
            total.written += part.written
            total.encoded_anew += part.encoded_anew
            total.left_out += part.left_out
            on_shard(path, part.written)
    return total


def _check_plan(directory: Path, split: Split, plan: dict[str, object]) -> None:
    """Refuses to mix the shards of two conversions."""
    file = directory / f".{split.name}-conversion.json"
    if not file.exists():
        if split.shards_in(directory):
            raise UsageError(f"{directory} already holds {split.name} shards: name another directory.")
        store.replace(file, json.dumps(plan))
    elif _read_json(file) != plan:
        raise UsageError(
            f"{directory} holds part of another conversion, of other photos or with other flags: continue that one "
            "with its own photos and flags, or name another directory."
        )


def _read_json(file: Path) -> Any:
    """Returns what an earlier conversion wrote; None if it is missing or damaged."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None


def _write_shard(shorter_side: int | None, work: FileWork, share: tuple[Path, Sequence[Photo]]) -> Conversion:
    """Writes a shard and, beside it, the result, unless both exist."""
    path, photos = share
    notes = path.with_name(f".{path.name}.json")
    if path.exists() and (known := _read_json(notes)):
        return Conversion(**known)
    result = Conversion()
    with written_whole(path) as file:
        for photo in photos:
            work.go_on(photo.file)
            progress.advance()
            try:
                original = photo.read()
                encoded = _as_rgb_jpeg(original, shorter_side)
                size = checks.read_jpeg_header(encoded)[:2]
                payload = inception_example(encoded, size, photo.label, photo.class_name, photo.name)
            except (OSError, ValueError) as error:  # a name that is not UTF-8 is a ValueError, too
                reason = getattr(error, "strerror", None) or error
                result.left_out.append(f"{ascii(photo.class_name)[1:-1]}/{ascii(photo.name)[1:-1]}: {reason}")
                continue
            tfrecord.write(file, payload)
            result.written += 1
            result.encoded_anew += encoded is not original
        store.replace(notes, json.dumps(dataclasses.asdict(result)))
    return result


def _as_rgb_jpeg(encoded: bytes, shorter_side: int | None) -> bytes:
    """Returns a JPEG of RGB or grey that is not too large as it is; encodes any other photo again."""
    try:
        header = checks.read_jpeg_header(encoded)
        small_enough = shorter_side is None or min(header.height, header.width) <= shorter_side
        if header.components in (1, 3) and small_enough:
            return encoded
    except BadJpegError as error:
        if error.kind not in ("png", "not_jpeg"):
            raise
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None  # Pillow's own limit differs, and warns
    try:
        image: Image.Image = Image.open(io.BytesIO(encoded), formats=_FORMATS)
        checks.check_size(image.height, image.width)
        if image.mode.startswith("I"):  # 16 bits, which Pillow would clip
            image = Image.fromarray((np.asarray(image).astype(np.float64) / 257).round().astype(np.uint8))
        image = image.convert("RGB")
    except BadJpegError:
        raise
    except Exception as error:  # a decoder may fail in any way
        raise ValueError(f"its {len(encoded)} bytes cannot be decoded ({type(error).__name__})") from error
    if shorter_side is not None and min(image.size) > shorter_side:
        scale = shorter_side / min(image.size)
        image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    image.save(buffer, format="JPEG", quality=_JPEG_QUALITY)
    return buffer.getvalue()
