"""Walks a data set record by record, and says what is wrong, and where."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import tensorflow as tf

from benchmarks.console import warn
from benchmarks.errors import DataError, headline
from benchmarks.input import imagenet, tfrecord
from benchmarks.input.imagenet import PhotoFolder, PhotoRecords, Photos
from benchmarks.input.tfrecord import Defect
from benchmarks.system import hardware
from benchmarks.topology.devices import HOST

# How long to look for a damaged record: some 100,000 images on one core.
_SEARCH_SECONDS = 600.0
_CHUNK = 256

# From a JPEG to the kind of defect and the reason, or None.
JpegProblem = Callable[[bytes], tuple[str, str] | None]


def header_problem(encoded: bytes) -> tuple[str, str] | None:
    """Looks at a JPEG's header and end, which takes microseconds."""
    try:
        read(encoded)
    except BadJpegError as error:
        return error.kind, f"{error}; replace it"
    return None


class Decoding:
    """Decodes JPEGs as the pipeline does, in a session of its own that leaves GPUs alone."""

    def __enter__(self) -> JpegProblem:
        with tf.Graph().as_default() as graph, tf.device(HOST):
            self._encoded = tf.compat.v1.placeholder(tf.string, [])
            part = tf.io.decode_and_crop_jpeg(self._encoded, [0, 0, 1, 1], channels=3)
            whole = tf.io.decode_jpeg(self._encoded, channels=3)
        self._decoded = [part.op, whole.op]
        config = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
        self._session = tf.compat.v1.Session(graph=graph, config=config)
        return self._problem_of

    def __exit__(self, *_: object) -> None:
        self._session.close()

    def _problem_of(self, encoded: bytes) -> tuple[str, str] | None:
        problem = header_problem(encoded)
        if problem:
            return problem
        try:
            self._session.run(self._decoded, {self._encoded: encoded})
        except tf.errors.OpError as error:
            reason = headline(error).split("[[")[0].strip()[:120]
            return "pixels", f"its image of {len(encoded)} bytes does not decode as JPEG ({reason}); replace it"
        return None


def defects(
    source: Photos, num_classes: int, problem_of_jpeg: JpegProblem, files: Sequence[Path] | None = None
) -> Iterator[tuple[Path, int, list[Defect]]]:
    """Walks photos, on all cores.

    Args:
        source: the photos.
        num_classes: with 1000, background is a defect.
        problem_of_jpeg: looks at an image.
        files: only these of its files.

    Yields:
        For each file, or chunk of files in a folder: the (first) file, how many records it holds, and what is wrong.
    """
    with ThreadPoolExecutor(hardware.usable_cores()) as pool:
        if isinstance(source, PhotoFolder):
            wanted = files or source.files
            chunks = [wanted[start : start + _CHUNK] for start in range(0, len(wanted), _CHUNK)]
            yield from pool.map(lambda chunk: _of_photos(chunk, problem_of_jpeg), chunks)
        else:
            lowest = imagenet.lowest_label(source.first_label, num_classes)
            yield from pool.map(lambda file: _of_shard(file, source, lowest, problem_of_jpeg), files or source.files)


def _of_photos(files: Sequence[Path], problem_of_jpeg: JpegProblem) -> tuple[Path, int, list[Defect]]:
    found = []
    for file in files:
        try:
            problem = problem_of_jpeg(file.read_bytes())
        except OSError as error:
            problem = "file", f"it cannot be read ({error.strerror}); copy it again"
        if problem:
            found.append(Defect(file, 0, 0, *problem))
    return files[0], len(files), found


def _of_shard(
    file: Path, source: PhotoRecords, lowest: int, problem_of_jpeg: JpegProblem
) -> tuple[Path, int, list[Defect]]:
    found, seen = [], 0
    try:
        for record in tfrecord.walk(file):
            seen += 1
            if isinstance(record, Defect):
                found.append(record)
                continue
            problem = imagenet.problem_of_example(record.payload, source.layout, lowest)
            if problem is None:
                problem = problem_of_jpeg(imagenet.encoded_of(record.payload, source.layout))
            if problem:
                found.append(Defect(file, record.number, record.offset, *problem))
    except DataError as error:
        found.append(Defect(file, 0, 0, "file", str(error).rstrip(".")))
    return file, seen, found


def explain_failure(source: Photos, num_classes: int, error: Exception, sizes: Sequence[int]) -> DataError:
    """Finds the record behind an error of the pipeline, since TensorFlow's own message names no file.

    Walks the records, for a limited time; the first that is damaged is taken to be the one.

    Args:
        source: what was read.
        num_classes: of the run.
        error: what the pipeline said.
        sizes: of the source's files in bytes, before the run; see `sizes_of`.
    """
    changed = [
        f"{file} {'has gone' if now < 0 else f'changed from {before} to {now} bytes'}"
        for file, before, now in zip(source.files, sizes, sizes_of(source), strict=True)
        if before != now
    ]
    if changed:
        return DataError(
            f"{changed[0]} while it was read{f', and {len(changed) - 1} more' if len(changed) > 1 else ''}: keep the "
            f"data set as it is during a run. TensorFlow said: {headline(error)}"
        )
    warn(f"The input failed; looking for the damaged record in {len(source.files)} files ...")
    give_up_at = time.monotonic() + _SEARCH_SECONDS
    sound = 0
    with Decoding() as problem_of_jpeg:
        at_a_time = _CHUNK if isinstance(source, PhotoFolder) else hardware.usable_cores()
        for start in range(0, len(source.files), at_a_time):
            if time.monotonic() > give_up_at:
                return _unexplained(source, f"the first {sound} of {len(source.files)} files are sound", error)
            some = source.files[start : start + at_a_time]
            for _, _, found in defects(source, num_classes, problem_of_jpeg, some):
                if found:
                    return found[0].error()
                sound += 1
    return _unexplained(source, "every record in it is sound", error)


def sizes_of(source: Photos) -> list[int]:
    """Returns the sizes of its files in bytes, -1 for those that are not there; none of a folder's many photos."""
    if isinstance(source, PhotoFolder):
        return [0] * len(source.files)
    return [file.stat().st_size if file.is_file() else -1 for file in source.files]


def _unexplained(source: Photos, found: str, error: Exception) -> DataError:
    return DataError(f"Reading {source.directory} failed, though {found}: {headline(error)}")


_START, _END = b"\xff\xd8", b"\xff\xd9"
_PNG = b"\x89PNG\r\n\x1a\n"
# Start of frame, baseline to arithmetic; 0xC4, 0xC8 and 0xCC are other things.
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
_WITHOUT_LENGTH = {0x01, *range(0xD0, 0xD8)}
_SCAN = 0xDA


@dataclasses.dataclass(frozen=True)
class JpegHeader:
    """Height and width in pixels, and components: 1 for grey, 3 for colour, 4 for CMYK."""

    height: int
    width: int
    components: int


class BadJpegError(ValueError):
    """The bytes are no whole JPEG. `kind` is one word, for a table."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


def read(data: bytes) -> JpegHeader:
    """Reads the size of a JPEG, and checks that it has an end.

    Raises:
        BadJpegError: it is something else, or cut off.
    """
    if not data:
        raise BadJpegError("zero_length", "its image is empty (0 bytes)")
    if data.startswith(_PNG):
        raise BadJpegError("png", f"its image of {len(data)} bytes is a PNG")
    if not data.startswith(_START):
        raise BadJpegError("not_jpeg", f"its image of {len(data)} bytes is no JPEG (it begins with {data[:4].hex()})")
    header = None
    for code, position in _segments(data):
        if code in _FRAMES and position + 10 <= len(data):
            height = int.from_bytes(data[position + 5 : position + 7], "big")
            width = int.from_bytes(data[position + 7 : position + 9], "big")
            header = JpegHeader(height, width, data[position + 9])
    if header is None:
        raise BadJpegError("not_jpeg", "its JPEG has a scan before any frame")
    # Not the very end: cameras append things. Within a scan, these bytes cannot stand for anything else.
    if data.rfind(_END) < position:
        raise BadJpegError("truncated", f"its JPEG of {len(data)} bytes is cut off: it has no end marker")
    if not header.height or not header.width:
        raise BadJpegError("size", f"its JPEG is of {header.width}x{header.height} pixels")
    return header


def _segments(data: bytes) -> Iterator[tuple[int, int]]:
    """Yields code and position of each marker, up to the first scan."""
    position, code = len(_START), 0
    while code != _SCAN:
        if position + 4 > len(data):
            raise BadJpegError("truncated", f"its JPEG of {len(data)} bytes is cut off within the header")
        if data[position] != 0xFF:
            raise BadJpegError("not_jpeg", f"its JPEG has no marker at byte {position}")
        code = data[position + 1]
        if code == 0xFF:  # padding
            position += 1
            continue
        yield code, position
        position += 2 + (0 if code in _WITHOUT_LENGTH else int.from_bytes(data[position + 2 : position + 4], "big"))
