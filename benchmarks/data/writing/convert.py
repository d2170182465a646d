"""Converts photos in a folder of class folders, in ImageNet's tar archives, or in TFRecords, to TFRecords.

The new records hold JPEGs, in the Inception layout, or pixels. Photos of folders and archives are shuffled once, so
that every shard holds all classes; TFRecords keep their shards and their order. Each shard appears only when it is
complete. Finished shards are kept, so that an interrupted conversion can continue.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import json
import os
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.console import progress
from benchmarks.data.sources import class_folders, imagenet_files, jpeg_header, tfrecord
from benchmarks.data.sources.class_folders import FOLDERS_OF
from benchmarks.data.sources.imagenet_files import PhotoRecords
from benchmarks.data.sources.jpeg_header import BadPhotoError, JpegHeader
from benchmarks.data.sources.photo_layouts import DECODED, INCEPTION
from benchmarks.data.sources.safe_files import MOST_PHOTO_BYTES, FileWork, written_whole
from benchmarks.data.writing import originals, photo_records
from benchmarks.data.writing.originals import Listing, Photo, RecordedPhoto
from benchmarks.data.writing.photo_records import Original, Split, photo_example
from benchmarks.errors import DataError, UsageError
from benchmarks.outside_text import parse_json
from models.model_spec import IMAGENET_CLASSES
from results import store
from results.loading import read_small

if TYPE_CHECKING:
    from PIL import Image

_JPEG_QUALITY = 95  # of photos that are encoded again
_LONGEST_JPEG = 65500  # a limit of libjpeg


@dataclasses.dataclass
class Conversion:
    """The result: photos written, encoded again, and left out, each with the reason."""

    written: int = 0
    encoded_anew: int = 0
    left_out: list[str] = dataclasses.field(default_factory=list)


def divided(source: Listing | PhotoRecords, split: str, images_per_shard: int) -> Split:
    """Returns the split to write; TFRecords keep their shards."""
    if not isinstance(source, PhotoRecords):
        return photo_records.split(split, len(source.photos), images_per_shard)
    return Split(name=split, images=source.count, shards=len(source.files))


def convert(
    source: Listing | PhotoRecords,
    directory: Path,
    *,
    split: Split,
    shorter_side: int | None,
    decoded: bool = False,
    seed: int,
    num_classes: int = IMAGENET_CLASSES,
    work: FileWork | None = None,
) -> Conversion:
    """Writes shards on all cores, in an order that the seed determines, or that of the TFRecords.

    Photos whose shorter side is above `shorter_side` pixels are made smaller; None keeps their size. With `decoded`,
    they are stored as pixels. The labels of TFRecords must be of `num_classes`.

    Raises:
        UsageError: the directory holds the shards of another conversion.
        DataError: no photo of a shard can be used.
    """
    directory.mkdir(parents=True, exist_ok=True)
    work = work or FileWork()
    plan = {
        "photos": source.identify(),
        "count": split.images,
        "shards": split.shards,
        "shorter_side": shorter_side,
        "decoded": decoded,
        "seed": seed,
        "classes": class_folders.digest(source.classes) if isinstance(source, Listing) else None,
    }
    _check_plan(directory, split, plan)
    paths, total = split.paths(directory), Conversion()
    shares = list(_shares(source, split, seed, num_classes))
    finished = [_finished(*each) for each in zip(paths, shares, strict=True)]
    write = functools.partial(_write_shard, shorter_side, decoded, work)
    missing = finished.count(None) * split.images // split.shards  # finished shards take no time
    with (
        progress.counted(f"Converting the photos to {directory}", missing),
        work.on_all_cores(write, zip(paths, shares, finished, strict=True)) as parts,
    ):
        for path, part in zip(paths, parts, strict=True):
            if not part.written:
                advice = "" if isinstance(source, PhotoRecords) else ": pass a larger --images_per_shard"
                first = f"The first one: {part.left_out[0]}."
                raise DataError(f"{path} would be empty, since no photo of it can be used{advice}. {first}")
            total.written += part.written
            total.encoded_anew += part.encoded_anew
            total.left_out += part.left_out
            photo_records.say_written(path, part.written)
    return total


def _shares(
    source: Listing | PhotoRecords, split: Split, seed: int, num_classes: int
) -> Iterator[Iterable[Photo] | Iterable[RecordedPhoto]]:
    """Yields the photos of each shard; those of a record are read when they are drawn."""
    if isinstance(source, PhotoRecords):
        labels = imagenet_files.labels_of(source, num_classes)
        for file in source.files:
            yield map(functools.partial(RecordedPhoto, file, source.layout, labels), tfrecord.walk(file))
        return
    order = np.random.default_rng(seed).permutation(len(source.photos))
    for numbers in np.array_split(order, split.shards):
        yield [source.photos[int(number)] for number in numbers]


def _check_plan(directory: Path, split: Split, plan: dict[str, object]) -> None:
    """Refuses to mix the shards of two conversions. What is left of one without any finished shard does not matter."""
    (other,) = {*FOLDERS_OF} - {split.name}
    is_alone = not dataclasses.replace(split, name=other).shards_in(directory)
    beside = {} if is_alone else _read_json(_plan_of(directory, other)) or {}
    if plan["classes"] and beside.get("classes") not in (None, plan["classes"]):
        raise UsageError(
            f"{directory} holds {other} shards whose labels are of other classes: convert both splits from one "
            "folder with train and val, or name another directory."
        )
    file = _plan_of(directory, split.name)
    if not split.shards_in(directory):
        store.replace(file, json.dumps(plan))
    elif _read_json(file) != plan:
        raise UsageError(
            f"{directory} holds other {split.name} shards, or part of a conversion of other photos or with other "
            "flags: continue that one with its own photos and flags, or name another directory."
        )


def _plan_of(directory: Path, split: str) -> Path:
    return directory / f".{split}-conversion.json"


def _read_json(file: Path) -> Any:
    try:
        return parse_json(read_small(file))
    except (FileNotFoundError, ValueError):
        return None


def _write_shard(
    shorter_side: int | None,
    decoded: bool,
    work: FileWork,
    share: tuple[Path, Iterable[Photo] | Iterable[RecordedPhoto], Conversion | None],
) -> Conversion:
    """Writes a shard and, beside it, the result, unless its result is known."""
    path, photos, known = share
    if known:
        return known
    result = Conversion()
    with written_whole(path) as file:
        for photo in photos:
            work.go_on(photo.file)
            progress.advance()
            try:
                original = photo.load()
                payload, encoded_anew = _converted(original, shorter_side, decoded)
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or error
                result.left_out.append(f"{photo}: {reason}")
                continue
            tfrecord.write(file, payload)
            result.written += 1
            result.encoded_anew += encoded_anew
        store.replace(_notes_of(path), json.dumps(dataclasses.asdict(result)))
    return result


def _finished(path: Path, photos: Iterable[Photo] | Iterable[RecordedPhoto]) -> Conversion | None:
    """Returns the result of a shard that is whole, and of which no photo has changed since."""
    notes = _notes_of(path)
    known = _read_json(notes) if path.exists() else None
    if not known:
        return None
    # A conversion that was killed may have left the notes of a shard that did not get its name.
    written_at = min(notes.stat().st_mtime, path.stat().st_mtime)
    files = {photo.file for photo in photos} if isinstance(photos, list) else ()
    is_old = all(os.path.exists(file) and file.stat().st_ctime <= written_at for file in files)
    return Conversion(**known) if is_old else None


def _notes_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.json")


def _converted(original: Original, shorter_side: int | None, decoded: bool) -> tuple[bytes, bool]:
    """Returns the new record of a photo, and whether it holds a JPEG that was encoded again."""
    header = _header_of(original.encoded)
    if decoded:
        image = _as_rgb(original.encoded, shorter_side)
        stored, size, layout = image.tobytes(), (image.height, image.width), DECODED
    else:
        stored, layout = _as_rgb_jpeg(original.encoded, header, shorter_side), INCEPTION
        size = jpeg_header.read_jpeg_header(stored)[:2]
    payload = photo_example(dataclasses.replace(original, encoded=stored), size, layout)
    if len(payload) > MOST_PHOTO_BYTES:
        advice = "pass a smaller --resize" if shorter_side else "pass --resize"
        raise ValueError(f"its record has {len(payload)} bytes, above the limit of {MOST_PHOTO_BYTES}: {advice}")
    return payload, not decoded and stored is not original.encoded


def _header_of(encoded: bytes) -> JpegHeader | None:
    """Returns the header of a JPEG, and rejects one that is cut off; None for another format."""
    try:
        return jpeg_header.read_jpeg_header(encoded)
    except BadPhotoError as error:
        if error.kind not in ("png", "not_jpeg"):
            raise
    return None


def _as_rgb_jpeg(encoded: bytes, header: JpegHeader | None, shorter_side: int | None) -> bytes:
    """Returns a JPEG of RGB or grey that is not too large as it is; encodes any other photo again."""
    if header and header.components in (1, 3):
        if shorter_side is None or min(header.height, header.width) <= shorter_side:
            return encoded
    image, buffer = _as_rgb(encoded, shorter_side), io.BytesIO()
    if max(image.size) > _LONGEST_JPEG:
        advice = "pass --decoded" if shorter_side else "pass --resize or --decoded"
        raise ValueError(f"a side is above {_LONGEST_JPEG} pixels, the most of a JPEG: {advice}")
    image.save(buffer, format="JPEG", quality=_JPEG_QUALITY)
    return buffer.getvalue()


def _as_rgb(encoded: bytes, shorter_side: int | None) -> Image.Image:
    """Decodes a photo, and makes it smaller if its shorter side is above `shorter_side`."""
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None  # Pillow's own limit differs
    warnings.filterwarnings("ignore", module="PIL")  # such as on transparency, which is dropped, and on EXIF data
    try:
        image: Image.Image = Image.open(io.BytesIO(encoded), formats=originals.FORMATS)
        jpeg_header.check_size(image.height, image.width)
        if image.mode == "F" or (image.mode, image.format) == ("I", "TIFF"):  # of PNG, the latter has 16 bits
            raise BadPhotoError("unusual", "its pixels are no integers of 8 or 16 bits, so white is not known")
        if image.mode.startswith("I"):  # 16 bits, which Pillow would clip
            scaled = np.asarray(image).astype(np.float64) / 257
            image = Image.fromarray(scaled.clip(0, 255).round().astype(np.uint8))
        image = image.convert("RGB")
    except BadPhotoError:
        raise
    except Exception as error:  # a decoder may fail in any way
        raise ValueError(f"its {len(encoded)} bytes cannot be decoded ({type(error).__name__})") from error
    return photo_records.smaller(image, shorter_side)
