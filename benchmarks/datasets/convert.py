"""Photos in a folder of class folders, or in ImageNet's tar archives, to TFRecords in the Inception layout.

Photos are shuffled once, so that every shard holds all classes. Each shard appears only when it is whole; those that
are there are left alone, so that an interrupted conversion goes on where it was.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import tarfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.datasets.fake_imagenet import InceptionRecord, Split
from benchmarks.errors import DataError, UsageError
from benchmarks.input import checks, imagenet, tfrecord
from benchmarks.input.checks import BadJpegError
from benchmarks.system import hardware

_TAR_ENDINGS = (".tar", ".tar.gz", ".tgz")
_JPEG_QUALITY = 95  # of photos that must be encoded anew


@dataclasses.dataclass(frozen=True)
class Photo:
    """A photo before conversion.

    Attributes:
        file: the photo, or the archive that holds it.
        member: where in the archive it starts and how long it is, bytes; None for a file of its own.
        name: of the photo.
        label: from 1.
        class_name: the folder's or archive's name.
    """

    file: Path
    member: tuple[int, int] | None
    name: str
    label: int
    class_name: str

    def read(self) -> bytes:
        """Returns its bytes."""
        if self.member is None:
            return self.file.read_bytes()
        with self.file.open("rb") as archive:
            archive.seek(self.member[0])
            return archive.read(self.member[1])


def list_photos(source: Path, split: str) -> list[Photo]:
    """Lists what is to be converted.

    Args:
        source: a folder of class folders, a folder of one tar archive per class, or ImageNet's archive of
            such archives.
        split: of a folder that holds several, the one that is wanted.

    Raises:
        DataError: nothing of the kind is there.
    """
    if source.is_file():
        return _in_archive_of_archives(source)
    if not source.is_dir():
        raise DataError(f"{source} does not exist: name a folder of class folders, or ImageNet's tar archives.")
    archives = sorted(file for file in source.iterdir() if file.name.endswith(_TAR_ENDINGS))
    if archives:
        if len(archives) == 1:
            return _in_archive_of_archives(archives[0])
        classes = [(file, file.name.split(".")[0]) for file in archives]
        return [photo for label, one in enumerate(classes, start=1) for photo in _in_archive(*one, label)]
    below = next((source / name for name in imagenet.FOLDERS_OF[split] if (source / name).is_dir()), source)
    folder = imagenet.photos_in_folders(below, split)
    if folder is None:
        raise DataError(f"{below} holds neither folders of photos nor tar archives: there is nothing to convert.")
    return [
        Photo(file, None, file.name, label + 1, folder.classes[label])
        for file, label in zip(folder.files, folder.labels, strict=True)
    ]


def _in_archive(file: Path, class_name: str, label: int) -> Iterator[Photo]:
    """Yields the photos of a class's archive, which must not be compressed, since they are read where they lie."""
    try:
        with tarfile.open(file, "r:") as archive:
            for member in archive:
                if member.isfile():
                    yield Photo(file, (member.offset_data, member.size), Path(member.name).name, label, class_name)
    except (OSError, tarfile.TarError) as error:
        raise DataError(f"{file} is no plain tar archive ({error}): unpack it first, or copy it again.") from error


def _in_archive_of_archives(file: Path) -> list[Photo]:
    """Lists the photos of an archive that holds an archive for each class, without unpacking anything."""
    found = []
    try:
        with tarfile.open(file, "r:") as outer:
            members = sorted((m for m in outer if m.isfile()), key=lambda member: member.name)
            for label, member in enumerate(members, start=1):
                opened = outer.extractfile(member)
                assert opened is not None, "regular files can be opened"
                class_name = Path(member.name).stem
                with tarfile.open(fileobj=opened, mode="r:") as inner:
                    found += [
                        Photo(file, (member.offset_data + m.offset_data, m.size), Path(m.name).name, label, class_name)
                        for m in inner
                        if m.isfile()
                    ]
    except (OSError, tarfile.TarError) as error:
        raise DataError(f"{file} is no tar archive of tar archives, one per class ({error}).") from error
    return found


@dataclasses.dataclass
class Outcome:
    """What came of a conversion: photos written, encoded anew, and left out, each with the reason."""

    written: int = 0
    encoded_anew: int = 0
    left_out: list[str] = dataclasses.field(default_factory=list)

    def add(self, other: Outcome) -> None:
        """Adds what came of another part."""
        self.written += other.written
        self.encoded_anew += other.encoded_anew
        self.left_out += other.left_out


def convert(
    found: Sequence[Photo],
    directory: Path,
    *,
    split: Split,
    shorter_side: int | None,
    seed: int,
    on_shard: Callable[[Path, int], None],
) -> Outcome:
    """Writes shards on all cores.

    Args:
        found: the photos.
        directory: is made if needed.
        split: name, number of photos and of shards.
        shorter_side: larger photos are made smaller to this many pixels; None leaves them.
        seed: of the order.
        on_shard: told of each file and how many photos it holds, once it is there.

    Raises:
        UsageError: the directory holds the shards of another conversion.
        DataError: no photo of a shard can be used.
    """
    directory.mkdir(parents=True, exist_ok=True)
    names = [f"{photo.class_name}/{photo.name} {photo.member} {photo.label}" for photo in found]
    plan = {"photos": imagenet.digest(names), "count": len(found), "shorter_side": shorter_side, "seed": seed}
    _check_plan(directory, split, {**plan, "shards": split.shards})
    order = np.random.default_rng(seed).permutation(len(found))
    shares = np.array_split(order, split.shards)

    whole = Outcome()
    with ThreadPoolExecutor(hardware.usable_cores()) as pool:
        for path, outcome in pool.map(
            lambda path, numbers: _write_shard(path, [found[int(number)] for number in numbers], shorter_side),
            split.paths(directory),
            shares,
        ):
            if not outcome.written:
                raise DataError(
                    f"{path} would be empty, since no photo of it can be used: give more --images_per_shard."
                )
            whole.add(outcome)
            on_shard(path, outcome.written)
    return whole


def _write_shard(path: Path, photos_of_shard: Sequence[Photo], shorter_side: int | None) -> tuple[Path, Outcome]:
    """Writes a shard and notes on what came of it beside it, unless both are there."""
    notes = path.with_name(f".{path.name}.json")
    if path.exists() and notes.exists():
        return path, Outcome(**json.loads(notes.read_text(encoding="utf-8")))
    outcome = Outcome()
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        for photo in photos_of_shard:
            payload = _payload(photo, shorter_side, outcome)
            if payload is not None:
                tfrecord.write(file, payload)
                outcome.written += 1
    _write_whole(notes, json.dumps(dataclasses.asdict(outcome)))
    os.replace(partial, path)
    return path, outcome


def _write_whole(path: Path, text: str) -> None:
    """Writes a file that appears only when it is whole."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def _check_plan(directory: Path, split: Split, plan: dict[str, object]) -> None:
    """Refuses to mix shards of two conversions."""
    file = directory / f".{split.name}-conversion.json"
    if not file.exists():
        if any(directory.glob(f"{split.name}-?????-of-?????")):
            raise UsageError(f"{directory} already holds {split.name} shards: name another directory.")
        _write_whole(file, json.dumps(plan))
    elif json.loads(file.read_text(encoding="utf-8")) != plan:
        raise UsageError(
            f"{directory} holds part of another conversion, of other photos or with other flags: go on with that as it "
            "was begun, or name another directory."
        )


def _payload(photo: Photo, shorter_side: int | None, outcome: Outcome) -> bytes | None:
    """Returns a record; None if the photo cannot be used, and then the outcome says why."""
    try:
        encoded = photo.read()
        anew = _as_rgb_jpeg(encoded, shorter_side)
        header = checks.read(anew)
        record = InceptionRecord(
            encoded=anew,
            height=header.height,
            width=header.width,
            label=photo.label,
            synset=photo.class_name,
            name=photo.name,
        ).serialize()
    except (OSError, ValueError) as error:  # a name that is not UTF-8 is a ValueError, too
        outcome.left_out.append(f"{ascii(photo.class_name)[1:-1]}/{ascii(photo.name)[1:-1]}: {error}")
        return None
    outcome.encoded_anew += anew is not encoded
    return record


def _as_rgb_jpeg(encoded: bytes, shorter_side: int | None) -> bytes:
    """Returns a photo as it is, if it is a JPEG of RGB or grey and not too large; else encoded anew.

    Raises:
        ValueError: it cannot be decoded.
    """
    try:
        header = checks.read(encoded)
        small_enough = shorter_side is None or min(header.height, header.width) <= shorter_side
        if header.components in (1, 3) and small_enough:
            return encoded
    except BadJpegError as error:
        if error.kind not in ("png", "not_jpeg"):
            raise
    from PIL import Image

    try:
        image = _as_rgb(Image.open(io.BytesIO(encoded)))
    except Exception as error:  # a decoder may fail in any way, also since the picture is suspiciously large
        raise ValueError(f"its {len(encoded)} bytes cannot be decoded ({type(error).__name__})") from error
    if shorter_side is not None and min(image.size) > shorter_side:
        scale = shorter_side / min(image.size)
        image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    image.save(buffer, format="JPEG", quality=_JPEG_QUALITY)
    return buffer.getvalue()


def _as_rgb(image: Any) -> Any:
    """Returns a picture in RGB; one of 16 bits is scaled, which Pillow would clip."""
    if image.mode.startswith("I"):
        from PIL import Image

        image = Image.fromarray((np.asarray(image).astype(np.float64) / 257).round().astype(np.uint8))
    return image.convert("RGB")
