"""Files that may hold anything, files that are written whole, and the threads that work on them."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.data.sources import safe_files
from benchmarks.data.sources.safe_files import FileWork
from benchmarks.errors import UsageError
from tests.support.watchdogs import NotedWatchdog


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_only_regular_files_are_opened(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "photo.jpg")
    with pytest.raises(OSError, match=r"not a regular file|Is a directory"):
        safe_files.read_file(tmp_path / "photo.jpg")


def test_a_file_is_read_up_to_the_limit(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345678")
    (tmp_path / "link").symlink_to("file")
    assert safe_files.read_file(tmp_path / "link", 8) == b"12345678"
    with pytest.raises(OSError, match="it has 8 bytes, and the limit is 7"):
        safe_files.read_file(tmp_path / "file", 7)


@pytest.mark.parametrize("count", [0, 1, 127, 128, 300])
def test_many_paths_have_their_results_in_order(count: int) -> None:
    assert safe_files.for_each([Path(str(n)) for n in range(count)], lambda path: int(path.name)) == list(range(count))


def test_a_file_that_is_not_finished_does_not_appear(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), safe_files.written_whole(tmp_path / "file") as file:
        file.write(b"new")
        raise KeyboardInterrupt
    assert (tmp_path / "file").read_bytes() == b"old" and os.listdir(tmp_path) == ["file"]


def test_a_file_is_on_disk_before_it_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []
    for name in ("fsync", "replace"):
        usual = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, n=name, u=usual: (happened.append(n), u(*a)))
    with safe_files.written_whole(tmp_path / "file") as file:
        file.write(b"new")
    assert happened == ["fsync", "replace"]


def test_the_second_writer_is_refused_and_the_third_is_not(tmp_path: Path) -> None:
    with safe_files.only_writer(tmp_path / "new", "train"):
        with safe_files.only_writer(tmp_path / "new", "validation"):
            pass
        with (
            pytest.raises(
                UsageError, match="Another process \\(process [0-9]+ on .*\\) is writing train to .*new: wait"
            ),
            safe_files.only_writer(tmp_path / "new", "train"),
        ):
            pass
    with safe_files.only_writer(tmp_path / "new", "train"):
        pass


@pytest.mark.fault(
    "R17",
    "a directory of checkpoints or images from elsewhere, in which a lock or a part of a file is a link to another",
    survives="the other file stays as it is",
)
def test_a_link_in_a_directory_from_elsewhere_is_not_written_through(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("precious")
    for name in (".train.lock", ".file.partial"):
        (tmp_path / name).symlink_to(other)
    with pytest.raises(OSError, match="not a regular file"), safe_files.only_writer(tmp_path, "train"):
        pass
    with safe_files.written_whole(tmp_path / "file") as file:
        file.write(b"new")
    assert other.read_text() == "precious" and (tmp_path / "file").read_bytes() == b"new"


def test_threads_end_when_their_results_are_no_longer_wanted() -> None:
    work, begun, ended = FileWork(), threading.Event(), []

    def endless(number: int) -> None:
        for turn in itertools.count():
            begun.set()
            try:
                work.go_on(Path(f"{number}"))
            except safe_files.CancelledError:
                ended.append((number, turn))
                raise
            time.sleep(0.001)

    with pytest.raises(KeyboardInterrupt), work.on_all_cores(endless, range(1000)):
        begun.wait(60)
        raise KeyboardInterrupt
    assert len(ended) < 1000, "what had not begun is not begun any more"


def test_work_ends_when_its_time_is_over() -> None:
    with pytest.raises(safe_files.CancelledError):
        FileWork(give_up_at=time.monotonic()).go_on(Path("a"))
    FileWork(give_up_at=time.monotonic() + 600).go_on(Path("a"))


@pytest.mark.parametrize("error", [None, OSError("disk on fire")])
def test_progress_is_expected_until_the_work_ends(error: OSError | None) -> None:
    watchdog = NotedWatchdog()
    work = FileWork(watchdog)

    def begin(file: Path) -> None:
        work.go_on(file)
        if error:
            raise error

    with contextlib.suppress(OSError), work.on_all_cores(begin, [Path("photos/1.jpg")]) as results:
        list(results)
    assert watchdog.expected == [("The work on photos/1.jpg (the last file with progress)", 600), ("", 0)]
