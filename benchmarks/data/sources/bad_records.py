"""Checks a data set record by record and names each defect."""

from __future__ import annotations

import contextlib
import functools
import struct
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from benchmarks.console import warn
from benchmarks.data.sources import imagenet_files, tfrecord
from benchmarks.data.sources.class_folders import PhotoFolder
from benchmarks.data.sources.imagenet_files import PhotoRecords, Photos
from benchmarks.data.sources.local_files import MOST_PIXELS, PNG_SIGNATURE, FileWork, printable, read_file
from benchmarks.data.sources.storage import for_each
from benchmarks.data.sources.tfrecord import Defect
from benchmarks.devices.device_plan import HOST
from benchmarks.errors import DataError, headline
from benchmarks.machine import hardware

# Limit of the search for a damaged record: some 100,000 images on one core.
SEARCH_SECONDS = 600.0
_REPORT_SECONDS = 30.0
_CHUNK = 256

_START, _END = b"\xff\xd8", b"\xff\xd9"
_PNG_END = b"IEND\xaeB`\x82"  # an empty chunk and its checksum
_LEAST_PNG_BYTES = 24  # up to its width and height
# Markers of frames, baseline to arithmetic; 0xC4, 0xC8 and 0xCC have other meanings.
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
_WITHOUT_LENGTH = {0x01, *range(0xD0, 0xD8)}
_SCAN, _PADDING = 0xDA, 0xFF


class PhotoProblem(Protocol):
    """Finds what is wrong with an encoded photo: the kind of defect and the reason, or None."""

    def __call__(self, encoded: bytes, *, png_too: bool = False) -> tuple[str, str] | None:
        """With `png_too`, a PNG is not wrong for being one."""


class JpegHeader(NamedTuple):
    """Height and width in pixels, and components: 1 for grey, 3 for colour, 4 for CMYK."""

    height: int
    width: int
    components: int


class BadJpegError(ValueError):
    """The bytes are no complete JPEG of a usual size. `kind` is one word, for a table; `advice` is what to do."""

    def __init__(self, kind: str, reason: str, advice: str = "replace it") -> None:
        super().__init__(reason)
        self.kind, self.advice = kind, advice


def read_jpeg_header(data: bytes) -> JpegHeader:
    """Reads the size of a JPEG, and checks that it has an end marker.

    Raises:
        BadJpegError: the bytes are another format, or cut off, or too large when decoded.
    """
    if not data:
        raise BadJpegError("zero_length", "its image is empty (0 bytes)")
    if data.startswith(PNG_SIGNATURE):
        raise BadJpegError("png", f"its image of {len(data)} bytes is a PNG")
    if not data.startswith(_START):
        raise BadJpegError("not_jpeg", f"its image of {len(data)} bytes is no JPEG (it begins with {data[:4].hex()})")
    header, position, code = None, len(_START), 0
    while code != _SCAN:
        if position + 4 > len(data):
            raise BadJpegError("truncated", f"its JPEG of {len(data)} bytes is cut off within the header")
        marker, code, length = struct.unpack_from(">BBH", data, position)
        if marker != 0xFF:
            raise BadJpegError("not_jpeg", f"its JPEG has no marker at byte {position}")
        if code in _FRAMES and position + 10 <= len(data):
            header = JpegHeader(*struct.unpack_from(">HHB", data, position + 5))
        if code != _SCAN:
            position += 1 if code == _PADDING else 2 if code in _WITHOUT_LENGTH else 2 + length
    if header is None:
        raise BadJpegError("not_jpeg", "its JPEG has a scan before any frame")
    # Searched, since cameras append data after the end marker. Within a scan, these bytes have no other meaning.
    if data.rfind(_END) < position:
        raise BadJpegError("truncated", f"its JPEG of {len(data)} bytes is cut off: it has no end marker")
    check_size(header.height, header.width)
    return header


def _check_png_header(data: bytes) -> None:
    if len(data) < _LEAST_PNG_BYTES or _PNG_END not in data:  # programs append data to a PNG, too
        raise BadJpegError("truncated", f"its PNG of {len(data)} bytes is cut off: it has no end marker")
    width, height = struct.unpack_from(">II", data, 16)
    check_size(height, width)


def check_size(height: int, width: int) -> None:
    """Checks the size of an image in pixels.

    Raises:
        BadJpegError: it has no pixels, or too many to be decoded.
    """
    size = f"its image is of {width}x{height} pixels"
    if not height or not width:
        raise BadJpegError("size", size)
    if height * width > MOST_PIXELS:
        raise BadJpegError("size", f"{size}, above the limit of {MOST_PIXELS / 1e6:.0f} million", "make it smaller")


def header_problem(encoded: bytes, *, png_too: bool = False) -> tuple[str, str] | None:
    """Checks the header and end marker of a photo, in microseconds."""
    try:
        if png_too and encoded.startswith(PNG_SIGNATURE):
            _check_png_header(encoded)
        else:
            read_jpeg_header(encoded)
    except BadJpegError as error:
        return error.kind, f"{error}; {error.advice}"
    return None


@contextlib.contextmanager
def decoding() -> Iterator[PhotoProblem]:
    """Yields a function that decodes a photo as the pipeline does, in its own session without GPUs."""
    with tf.Graph().as_default() as graph, tf.device(HOST):
        fed = tf.compat.v1.placeholder(tf.string, [])
        part = tf.io.decode_and_crop_jpeg(fed, [0, 0, 1, 1], channels=3)
        whole = tf.io.decode_jpeg(fed, channels=3)
        png = tf.io.decode_png(fed, channels=3)
    session = tf.compat.v1.Session(graph=graph, config=tf.compat.v1.ConfigProto(device_count={"GPU": 0}))

    def problem_of(encoded: bytes, *, png_too: bool = False) -> tuple[str, str] | None:
        problem = header_problem(encoded, png_too=png_too)
        if problem is None:
            is_png = encoded.startswith(PNG_SIGNATURE)
            try:
                session.run([png.op] if is_png else [part.op, whole.op], {fed: encoded})
            except tf.errors.OpError as error:
                reason = headline(error).split("[[")[0].strip()[:120]
                form = "PNG" if is_png else "JPEG"
                return "pixels", f"its image of {len(encoded)} bytes does not decode as {form} ({reason}); replace it"
        return problem

    with contextlib.closing(session):
        yield problem_of


def defects(
    source: Photos,
    num_classes: int,
    problem_of_photo: PhotoProblem,
    files: Sequence[Path] | None = None,
    work: FileWork | None = None,
) -> Generator[tuple[Path, int, list[Defect]], None, None]:
    """Checks all files of a source, or some, on all cores. With 1000 classes, a background label is a defect.

    Yields:
        For each file, or chunk of files in a folder: the (first) file, its number of records, and their defects.
    """
    wanted, work = files or source.files, work or FileWork()
    if isinstance(source, PhotoFolder):
        chunks = [wanted[start : start + _CHUNK] for start in range(0, len(wanted), _CHUNK)]
        results = work.on_all_cores(functools.partial(_check_photos, problem_of_photo, work), chunks)
    else:
        labels = imagenet_files.labels_of(source, num_classes)
        results = work.on_all_cores(functools.partial(_check_shard, source, labels, problem_of_photo, work), wanted)
    with results as each:
        yield from each


def _check_photos(
    problem_of_photo: PhotoProblem, work: FileWork, files: Sequence[Path]
) -> tuple[Path, int, list[Defect]]:
    found = []
    for file in files:
        if not work.goes_on(file):
            break
        try:
            problem = problem_of_photo(read_file(file), png_too=True)
        except OSError as error:
            problem = "file", f"it cannot be read ({error.strerror}); replace it"
        if problem:
            found.append(Defect(file, 0, 0, *problem))
    return files[0], len(files), found


def _check_shard(
    source: PhotoRecords, labels: range, problem_of_photo: PhotoProblem, work: FileWork, file: Path
) -> tuple[Path, int, list[Defect]]:
    found, records, following = [], 0, tfrecord.walk(file)
    try:
        while work.goes_on(file) and (record := next(following, None)):
            records += 1
            if isinstance(record, Defect):
                found.append(record)
                continue
            problem = imagenet_files.problem_of_example(record.payload, source.layout, labels)
            if not problem and not imagenet_files.is_decoded(source):
                problem = problem_of_photo(imagenet_files.encoded_of(record.payload, source.layout))
            if problem:
                found.append(Defect(file, record.number, record.offset, *problem))
    except DataError as error:
        found.append(Defect(file, 0, 0, "file", str(error).rstrip(".")))
    return file, records, found


def explain_failure(
    source: Photos,
    num_classes: int,
    error: Exception,
    sizes: Sequence[int],
    search_seconds: float = SEARCH_SECONDS,
) -> DataError:
    """Finds the record behind an error of the pipeline; TensorFlow's message may name a file, but no record.

    Checks the records for a limited time; the first damaged record is taken to be the cause. If a file's size differs
    from `sizes`, which `sizes_of` returned before the run, the changed file is the cause.
    """
    changed = [
        f"{file} {'was removed' if now < 0 else f'changed from {before} to {now} bytes'}"
        for file, before, now in zip(source.files, sizes, sizes_of(source), strict=True)
        if before != now
    ]
    if changed:
        return DataError(
            f"{changed[0]} during the run{f', and {len(changed) - 1} more' if len(changed) > 1 else ''}: do not change "
            f"the data set during a run. TensorFlow reported: {headline(error)}"
        )
    warn(
        f"The input failed; looking for the damaged record in {len(source.files)} files, for at most "
        f"{search_seconds:g} s ..."
    )
    began = reported = time.monotonic()
    work = FileWork(give_up_at=began + search_seconds)
    result = "every record in it is sound"
    files = sorted(source.files, key=lambda file: printable(file) not in str(error))
    at_a_time = _CHUNK if isinstance(source, PhotoFolder) else hardware.usable_cores()
    with decoding() as problem_of_photo:
        for start in range(0, len(files), at_a_time):
            some = files[start : start + at_a_time]
            with contextlib.closing(defects(source, num_classes, problem_of_photo, some, work)) as each:
                for _, _, found in each:
                    if found:
                        return found[0].error()
            if work.is_late():
                result = f"the first {start} of {len(files)} files are sound"
                break
            if time.monotonic() > reported + _REPORT_SECONDS:
                reported = time.monotonic()
                warn(f"{start + at_a_time} of {len(files)} files are sound, after {reported - began:.0f} s ...")
    return DataError(f"Reading {source.directory} failed, though {result}: {headline(error)}")


def sizes_of(source: Photos) -> list[int]:
    """Returns the sizes of a source's files in bytes, -1 for a missing file; 0 for every photo of a folder."""
    if isinstance(source, PhotoFolder):
        return [0] * len(source.files)
    return for_each(source.files, lambda file: file.stat().st_size if file.is_file() else -1)


# After this many unusable records in a row, the data set is not damaged but of another kind.
_HOPELESS = 20_000


class Skipping:
    """Reads records in Python, and counts the bad ones that were left out of finished batches.

    Every record gets a number in the order of reading. A bad record continues as an empty one, and the pipeline drops
    it where it cannot be parsed. So the numbers that are missing in the batches are those of bad records; records that
    were only read ahead do not count. Several threads call the methods.
    """

    def __init__(self, files: Sequence[Path] = ()) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._since_last_batch = 0
        self._last_number, self._used = -1, 0
        self.failure: DataError | None = None

    def close(self) -> int:
        """Returns the number of records left out of the batches so far.

        Raises:
            DataError: a file could not be read, so the run trained on another data set.
        """
        if self.failure:
            raise self.failure
        with self._lock:
            return self._last_number + 1 - self._used

    def read(self, file: np.int64) -> Iterator[tuple[int, bytes]]:
        """Yields number and payload of each record of a file; the payload of a bad one is empty."""
        try:
            for found in tfrecord.walk(self._files[int(file)]):
                yield found.number, b"" if isinstance(found, Defect) else found.payload
        except DataError as error:
            self.failure = error

    def goes_on(self) -> bool:
        """Returns whether to take another record; if not, `failure` is set."""
        with self._lock:
            self._since_last_batch += 1
            if self.failure is None and self._since_last_batch > _HOPELESS:
                self.failure = DataError(
                    f"--on_bad_record=skip: of {self._since_last_batch} records in a row none could be used. "
                    "'run_bench.py data check DIR' lists the reasons."
                )
            return self.failure is None

    def note_batch(self, numbers: np.ndarray) -> np.int64:
        """Registers the records of a batch by their numbers in the order of reading; returns how many they are."""
        with self._lock:
            self._last_number = max(self._last_number, int(numbers.max()))
            self._used += len(numbers)
            self._since_last_batch = 0
        return np.int64(len(numbers))
