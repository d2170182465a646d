"""Files of other storages, at addresses such as gs://bucket/x, by TensorFlow's file systems. Imports it late."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path, PosixPath
from typing import IO, Any

from benchmarks.errors import DataError, UsageError, headline

_SCHEME = re.compile("([A-Za-z][A-Za-z0-9+.-]+)://")
_ERRNO = {"NotFoundError": errno.ENOENT, "PermissionDeniedError": errno.EACCES, "UnauthenticatedError": errno.EACCES}


class StorageError(OSError, DataError):
    """An error of a storage, or no answer from it, in place of a file. Unhandled, it ends a run as a `DataError`."""

    def __str__(self) -> str:
        """Returns a sentence."""
        return f"{self.filename}: {self.strerror}."


class Address(PosixPath):
    """A path of another storage. It is never taken for one of this host: what has no method here is refused.

    Methods raise StorageError instead of other OSErrors, and UsageError if TensorFlow has no such file system.
    """

    def __str__(self) -> str:
        """Returns it with the two slashes, of which pathlib keeps one."""
        scheme, _, rest = super().__str__().partition("/")
        return f"{scheme}//{rest}"

    def __fspath__(self) -> str:
        """Refuses to be opened as a file of this host."""
        raise UsageError(
            f"{self}: only TFRecords and checkpoints can be at an address. Copy the files, or mount the storage and "
            "name the directory."
        )

    @property
    def parent(self) -> Address:
        """The directory that it is in; of a bucket or host, itself."""
        parent = super().parent
        return parent if len(parent.parts) > 1 else self

    def absolute(self) -> Address:
        """Returns itself."""
        return self

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Returns its kind, size and time of modification; pathlib's `exists`, `is_dir` and `is_file` ask for it."""
        with _storage(self) as gfile:
            status = gfile.stat(str(self))
        kind = stat.S_IFDIR if status.is_directory else stat.S_IFREG
        return os.stat_result((kind, *[0] * 5, status.length, *[0] * 3), {"st_mtime": status.mtime_nsec / 1e9})

    def iterdir(self) -> Iterator[Address]:  # type: ignore[override]  # that is a Generator in some versions
        """Yields what is in it."""
        with _storage(self) as gfile:
            names = gfile.listdir(str(self))
        return (self / name.rstrip("/") for name in names)

    def glob(self, pattern: str) -> Iterator[Address]:  # type: ignore[override]
        """Yields what is in it with names like a pattern, which may have slashes."""
        with _storage(self) as gfile:
            paths = gfile.glob(str(self / pattern))
        return map(Address, paths)

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """Makes it and what is above it, where a storage has directories."""
        with _storage(self) as gfile:
            gfile.makedirs(str(self))

    def unlink(self, missing_ok: bool = False) -> None:
        """Removes it."""
        if not missing_ok or self.exists():
            with _storage(self) as gfile:
                gfile.remove(str(self))

    def open(self, mode: str = "r", buffering: int = -1, *text: Any, **of_text: Any) -> IO[Any]:  # type: ignore[override]
        """Opens it to read (`r`) or to write anew (`w`); as pathlib."""
        raw = _Opened(self, mode[0])
        file = io.BufferedReader(raw) if mode[0] == "r" else io.BufferedWriter(raw)
        return file if "b" in mode else io.TextIOWrapper(file, *text, **of_text)


class _Opened(io.RawIOBase):
    """An open file, as `io` wants it."""

    _file: Any = None

    def __init__(self, address: Address, mode: str) -> None:
        self._address, self._mode, self._position = address, mode, 0
        with _storage(address) as gfile:
            self._file = gfile.GFile(str(address), f"{mode}b")
            if mode == "w":
                self._file.write(b"")  # only this opens it

    def readable(self) -> bool:
        return self._mode == "r"

    def writable(self) -> bool:
        return self._mode == "w"

    def seekable(self) -> bool:
        return self._mode == "r"

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence != os.SEEK_SET:
            offset += self._position if whence == os.SEEK_CUR else self._address.stat().st_size
        self._position = offset
        return offset

    def readinto(self, buffer: Any) -> int:
        with _storage(self._address):
            self._file.seek(self._position)
            data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def write(self, data: Any) -> int:
        with _storage(self._address):
            self._file.write(bytes(data))
        return len(data)

    def close(self) -> None:
        if not self.closed and self._file is not None:  # Python closes also what could not be opened
            with _storage(self._address):
                self._file.close()
        super().close()


def is_address(text: str) -> bool:
    """Returns whether a path that a user gave is of another storage."""
    return bool(_SCHEME.match(text))


def path_of(path: str | Path) -> Path:
    """Returns a path of this host, or an `Address`."""
    return Address(path) if is_address(str(path)) else Path(path)


@contextlib.contextmanager
def _storage(address: Address) -> Iterator[Any]:
    """Yields what works on the files of an address, and turns errors of TensorFlow into those that it has."""
    import tensorflow as tf

    try:
        yield tf.io.gfile
    except tf.errors.UnimplementedError as error:  # such as for a scheme that TensorFlow has no file system for
        reason = headline(error).rstrip(".")
        raise UsageError(f"{address}: {reason}. Copy the data, or mount the storage and name the directory.") from error
    except tf.errors.OpError as error:
        number = _ERRNO.get(type(error).__name__, errno.EIO)
        raise StorageError(number, headline(error).rstrip(".") or os.strerror(number), str(address)) from error
