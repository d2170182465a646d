"""Reads files that may hold anything, and writes files that are always whole. Needs no TensorFlow."""

from __future__ import annotations

import contextlib
import errno
import io
import math
import os
import pickle
import re
import socket
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from benchmarks.data.sources.storage import Address
from benchmarks.errors import UsageError
from benchmarks.machine import hardware
from benchmarks.process.watchdog import Watchdog
from results import loading, store

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# Of one photo, or one record: a length that a file states must not decide how much memory is taken. Photos of ImageNet
# have 110 KB on average, and those of a camera with 100 million pixels some 50 MB.
MOST_PHOTO_BYTES = 64 * 2**20
# The same for a file of MNIST (47 MB) or CIFAR-10 (31 MB; its archive unpacked 184 MB), after decompression.
MOST_SMALL_IMAGES_BYTES = 512 * 2**20
# What a damaged archive raises.
UNREADABLE = (OSError, ValueError, OverflowError, MemoryError, tarfile.TarError)
# How long the work on files may make no progress: a server of files that has gone is waited for without end.
_SILENT_SECONDS = 600.0
# A storage needs some 50 ms for an answer, and gives many at a time.
_QUESTIONS_AT_A_TIME = 32


def open_file(path: Path) -> BinaryIO:
    """Opens a file to read; one of this host must be a regular one, as `results.loading.open_file` says.

    Raises:
        OSError: it cannot be opened.
    """
    return cast(BinaryIO, path.open("rb")) if isinstance(path, Address) else loading.open_file(path)


def for_each(paths: Sequence[Path], work: Callable[[Path], _Result]) -> list[_Result]:
    """Returns the results for paths in their order, of many at a time.

    A thread gets several paths at once: to hand over one takes 50 us, more than most questions to this host's disk.
    """
    size = len(paths) // (4 * _QUESTIONS_AT_A_TIME) + 1
    parts = [paths[start : start + size] for start in range(0, len(paths), size)]
    with ThreadPoolExecutor(_QUESTIONS_AT_A_TIME) as pool:
        return [result for results in pool.map(lambda part: [*map(work, part)], parts) for result in results]


def read_file(path: Path, most_bytes: int = MOST_PHOTO_BYTES, part: tuple[int, int] | None = None) -> bytes:
    """Returns the content of a regular file, or a part of it: offset and length in bytes.

    Raises:
        OSError: it cannot be opened, is no regular file, or is larger.
    """
    with open_file(path) as file:
        offset, size = part or (0, file.seek(0, os.SEEK_END))
        if size > most_bytes:
            raise OSError(errno.EFBIG, f"it has {size} bytes, and the limit is {most_bytes}", str(path))
        file.seek(offset)
        return file.read(size)


def printable(path: Path) -> str:
    """Returns a path as text; TensorFlow cannot report an error in whose message a byte is not UTF-8."""
    return os.fsencode(str(path)).decode(errors="backslashreplace")


def files_in(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yields the files of an archive, each of which lies in it as one piece; hidden ones are left out.

    Raises:
        tarfile.ReadError: one is sparse or a link, or its size is negative, by which `tarfile` would go back; or a
            header is damaged, at which `tarfile` ends as if no file followed.
    """
    for member in archive:
        is_regular = member.isfile() and not member.issparse()
        if member.size < 0 or not (is_regular or member.isdir()):
            what = "damaged" if member.size < 0 else "a link, a sparse file or a device"
            raise tarfile.ReadError(f"{ascii(member.name)} is {what} in it")
        if is_regular and not Path(member.name).name.startswith("."):
            yield member
    assert archive.fileobj is not None, "it is open"
    archive.fileobj.seek(archive.offset)
    if archive.fileobj.read(tarfile.BLOCKSIZE).strip(b"\0"):
        raise tarfile.ReadError(f"its header at byte {archive.offset} is damaged")


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """Opens a file to write, which appears under its name when it is complete and on disk."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.unlink(missing_ok=True)  # in a directory from elsewhere it may be a link to another file
        with partial.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def only_writer(directory: Path, what: str) -> Iterator[None]:
    """Makes a directory, and keeps other processes that write the same in it out.

    Raises:
        UsageError: another one is writing there.
        OSError: the directory cannot be made or locked.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f".{what}.lock"
    if path.is_symlink() or (path.exists() and not path.is_file()):  # which the directory may have from elsewhere
        raise OSError(errno.EINVAL, f"{path.name} in it is not a regular file", str(path))
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(store.locked(path, within_seconds=0))
        except TimeoutError:
            holder = re.match(rb"process \d+ on [\w.-]+", read_file(path))
            known = f" ({holder[0].decode()})" if holder else ""
            raise UsageError(
                f"Another process{known} is writing {what} to {directory}: wait until it has ended, or name another "
                "directory."
            ) from None
        stack.callback(path.unlink, missing_ok=True)
        file.truncate(0)  # a process that was killed has left its name
        file.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
        file.flush()
        yield


def load_arrays(data: bytes) -> Any:
    """Unpickles NumPy arrays and plain containers, and calls nothing else.

    Raises:
        Exception: a pickle can fail in any way.
    """
    return _OnlyArrays(io.BytesIO(data), encoding="bytes").load()


class _OnlyArrays(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if re.fullmatch(r"numpy(\._?core\.multiarray)?", module) and name in ("_reconstruct", "ndarray", "dtype"):
            return super().find_class(module, name)
        if (module, name) == ("_codecs", "encode"):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


class FileWork:
    """Work on files by threads: they report their progress, and end when all are to end.

    Args:
        watchdog: expects progress on any file.
        give_up_at: when to end, by time.monotonic().
    """

    def __init__(self, watchdog: Watchdog | None = None, give_up_at: float = math.inf) -> None:
        self._watchdog, self._give_up_at = watchdog, give_up_at
        self._is_over = False

    @contextlib.contextmanager
    def on_all_cores(self, work: Callable[[_Item], _Result], items: Iterable[_Item]) -> Iterator[Iterator[_Result]]:
        """Yields the results in order. When the block is left, the threads end at their next report."""
        try:
            with ThreadPoolExecutor(hardware.usable_cores()) as pool:
                try:
                    yield pool.map(work, items)
                finally:
                    self._is_over = True
                    pool.shutdown(wait=False, cancel_futures=True)
        finally:
            if self._watchdog:
                self._watchdog.expect_nothing()

    def go_on(self, file: Path) -> None:
        """Reports that this thread begins with a file, or makes progress.

        Raises:
            CancelledError: the work is to end.
        """
        if self._is_over or time.monotonic() >= self._give_up_at:
            raise CancelledError(f"{file} is left unfinished")
        if self._watchdog:
            self._watchdog.expect(f"The work on {file} (the last file with progress)", _SILENT_SECONDS)
