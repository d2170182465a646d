"""Special files where a small file of the user, or of this suite, is expected."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.config import flag, outside_models
from benchmarks.data.writing import convert
from benchmarks.errors import UsageError
from benchmarks.machine.cache import CacheFile
from benchmarks.predict import hosts
from benchmarks.sweep import grid
from results.gate import noise


def read_cache(path: Path) -> None:
    (path.parent / "cnn_bench").symlink_to(path.parent)
    assert CacheFile(path.name, "measured peaks").saved("key", dict) is None


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["fifo", "device"])
@pytest.mark.parametrize(
    ("read", "error"),
    [
        (lambda path: flag.read_files([f"--flagfile={path}"]), UsageError),
        (grid.of_suite, UsageError),
        (hosts.load, UsageError),
        (noise.load, noise.NoiseFileError),
        (convert._read_json, OSError),
        (read_cache, None),
        (lambda path: outside_models.digest_of(str(path)), None),
    ],
    ids=["flagfile", "suite", "hardware", "noise", "conversion", "cache", "source"],
)
def test_a_special_file_is_refused_and_not_waited_for(
    read: Callable[[Path], Any],
    error: type[Exception] | None,
    make: Callable[[Path], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "file"
    make(path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if error is None:
        read(path)
        return
    with pytest.raises(error, match="not a regular file"):
        read(path)
