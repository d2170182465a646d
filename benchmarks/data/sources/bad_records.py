"""Records that cannot be used: found and named (`data check`, or after a failure), or skipped and counted."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.console import progress, warn
from benchmarks.data.sources import imagenet_files, photo_layouts, tfrecord
from benchmarks.data.sources.class_folders import PhotoFolder
from benchmarks.data.sources.imagenet_files import PhotoRecords, Photos
from benchmarks.data.sources.jpeg_header import BadPhotoError, check_header
from benchmarks.data.sources.safe_files import FileWork, printable, read_file
from benchmarks.data.sources.tfrecord import Defect, FramedRecord
from benchmarks.errors import DataError, headline
from variable_mgr.place import HOST

# Limit of the search for a damaged record: some 100,000 images on one core.
_SEARCH_SECONDS = 600.0
_CHUNK = 256  # photos of a folder
# After this many unusable records in a row, the data set is not damaged but of another kind.
_HOPELESS = 20_000

# Raises BadPhotoError if an encoded photo cannot be used; the second argument is whether it may be a PNG.
PhotoCheck = Callable[[bytes, bool], None]


@contextlib.contextmanager
def decoding() -> Iterator[PhotoCheck]:
    """Yields a function that decodes a photo as the pipeline does, in its own session without GPUs."""
    with tf.Graph().as_default() as graph, tf.device(HOST):
        fed = tf.compat.v1.placeholder(tf.string, [])
        image = tf.io.decode_jpeg(fed, channels=3)  # which reads PNGs, too

    def check(encoded: bytes, png_too: bool) -> None:
        check_header(encoded, png_too)
        try:
            session.run(image.op, {fed: encoded})
        except tf.errors.OpError as error:
            reason = headline(error).split("[[")[0].strip()[:120]
            raise BadPhotoError("pixels", f"its image of {len(encoded)} bytes does not decode ({reason})") from error

    with tf.compat.v1.Session(graph=graph, config=tf.compat.v1.ConfigProto(device_count={"GPU": 0})) as session:
        yield check


def defects(
    source: Photos,
    num_classes: int,
    check_photo: PhotoCheck = check_header,
    files: Sequence[Path] = (),
    work: FileWork | None = None,
    note_label: Callable[[int], None] = lambda label: None,
) -> Generator[tuple[int, list[Defect]], None, None]:
    """Checks all files of a source, or some, on all cores. With 1000 classes, a background label is a defect.

    `note_label` is called with the label of each sound record, from many threads.

    Yields:
        For each file, or chunk of files in a folder: its number of records, and their defects.
    """
    files, work = files or source.files, work or FileWork()
    items: Sequence[Any]
    check: Callable[[Any], Iterator[Defect | None]]
    if isinstance(source, PhotoFolder):
        items = [files[start : start + _CHUNK] for start in range(0, len(files), _CHUNK)]
        check = functools.partial(_photos, check_photo, work)
    else:
        items, labels = files, imagenet_files.labels_of(source, num_classes)
        check = functools.partial(_records, source, labels, check_photo, work, note_label)
    with work.on_all_cores(lambda item: _collected(check(item)), items) as checked:
        yield from checked


def _collected(checked: Iterable[Defect | None]) -> tuple[int, list[Defect]]:
    """Returns how many were checked, and the defects; raises CancelledError if the work is over before any is found."""
    results: list[Defect | None] = []
    try:
        for result in checked:
            results.append(result)
    except CancelledError:
        if not any(results):
            raise
    bad = [defect for defect in results if defect]
    return len(results) - sum(defect.kind == "shard" for defect in bad), bad


def _photos(check_photo: PhotoCheck, work: FileWork, files: Sequence[Path]) -> Iterator[Defect | None]:
    for file in files:
        work.go_on(file)
        defect = None
        try:
            check_photo(read_file(file), True)
        except OSError as error:
            defect = Defect(file, -1, 0, "file", f"it cannot be read ({error.strerror}); replace it")
        except BadPhotoError as error:
            defect = Defect(file, -1, 0, error.kind, str(error))
        yield defect


def _records(
    source: PhotoRecords,
    labels: range,
    check_photo: PhotoCheck,
    work: FileWork,
    note_label: Callable[[int], None],
    file: Path,
) -> Iterator[Defect | None]:
    work.go_on(file)
    try:
        source.require_unchanged(file)
        for record in tfrecord.walk(file):
            work.go_on(file)
            defect = record if isinstance(record, Defect) else None
            if isinstance(record, FramedRecord):
                try:
                    note_label(_checked_label(record.payload, source, labels, check_photo))
                except BadPhotoError as error:
                    defect = Defect(file, record.number, record.offset, error.kind, str(error))
            yield defect
    except DataError as error:
        yield Defect(file, 0, 0, "shard", str(error).removeprefix(f"{file} ").rstrip("."))


def _checked_label(payload: bytes, source: PhotoRecords, labels: range, check_photo: PhotoCheck) -> int:
    """Returns the label of a record; raises BadPhotoError if the record is not sound."""
    layout = source.layout
    feature = photo_layouts.read_example(payload, layout, labels)
    if not source.is_decoded:
        check_photo(photo_layouts.encoded_of(feature, layout), source.may_be_png)
    if layout.has_boxes:
        photo_layouts.check_boxes(feature)
    return photo_layouts.label_of(feature, layout)


def explain_failure(source: Photos, num_classes: int, error: Exception) -> DataError:
    """Finds the record behind an error of the pipeline; TensorFlow's message may name a file, but no record.

    The records are checked for a limited time, and the first damaged one is taken to be the cause.
    """
    warn(
        f"The input failed; looking for the damaged record in {len(source.files)} files, for at most "
        f"{_SEARCH_SECONDS:g} s ..."
    )
    work = FileWork(give_up_at=time.monotonic() + _SEARCH_SECONDS)
    files = sorted(source.files, key=lambda file: printable(file) not in str(error))
    sound, result = 0, "every record in it is sound"
    try:
        with (
            progress.counted("looking for the damaged record", len(files)),
            decoding() as check_photo,
            contextlib.closing(defects(source, num_classes, check_photo, files, work)) as checked,
        ):
            for count, bad in checked:
                if bad:
                    return min(bad, key=lambda defect: defect.kind == "boxes").error()  # which only some crops read
                in_files = count if isinstance(source, PhotoFolder) else 1  # a photo of a folder is a file
                sound += in_files
                progress.advance(in_files)
    except CancelledError:
        result = f"the first {sound} of {len(files)} files are sound"
    return DataError(
        f"Reading {source.directory} failed, though {result}; the files must not change during a run. TensorFlow "
        f"reported: {headline(error)}"
    )


class Skipping:
    """Reads records in Python, and counts the bad ones that were left out of finished batches.

    TensorFlow's own reader drops the rest of a file at the first bad checksum; this one continues with the next record.
    Every record gets a number in the order of reading. A bad record continues as an empty one, and the pipeline drops
    it where it cannot be parsed. So the numbers that are missing in the batches are those of bad records; records that
    were only read ahead do not count. Several threads call the methods.

    Attributes:
        failure: why no other record can be taken.
        read: number of records that were read in a pass, bad ones and those read ahead included.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since_last_batch = 0
        self._last_number, self._used = -1, 0
        self.read = 0
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

    def read_records(self, source: PhotoRecords, file: np.int64) -> Iterator[tuple[int, bytes]]:
        """Yields number and payload of each record of a file; the payload of a bad one is empty."""
        try:
            source.require_unchanged(source.files[int(file)])
            for record in tfrecord.walk(source.files[int(file)]):
                if isinstance(record, Defect) and record.kind == "shard":
                    raise record.error()
                yield record.number, b"" if isinstance(record, Defect) else record.payload
        except DataError as error:
            self.failure = error

    def goes_on(self, number: np.int64) -> bool:
        """Returns whether to take the record of a number; if not, `failure` is set."""
        with self._lock:
            self.read = max(self.read, int(number) + 1)
            self._since_last_batch += 1
            if self.failure is None and self._since_last_batch > _HOPELESS:
                self.failure = DataError(
                    f"--on_bad_record=skip: of {self._since_last_batch} records in a row none could be used. "
                    "'run_bench.py data check DIR --decode' with the same --data_split and --num_classes lists the "
                    "reasons."
                )
            return self.failure is None

    def note_batch(self, numbers: np.ndarray) -> np.int64:
        """Registers the records of a batch by their numbers in the order of reading; returns how many they are."""
        with self._lock:
            self._last_number = max(self._last_number, int(numbers.max()))
            self._used += len(numbers)
            self._since_last_batch = 0
        return np.int64(len(numbers))
