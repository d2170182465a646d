"""Cache files: concurrent writers, a lock that another process holds, damage."""

from __future__ import annotations

import fcntl
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks.machine.cache import CacheFile

FILE = CacheFile("some.json", "measured things")


@pytest.fixture(autouse=True)
def directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "cnn_bench").mkdir()
    return tmp_path / "cnn_bench"


def test_writers_at_the_same_time_lose_no_entry() -> None:
    def write(name: str) -> None:
        for number in range(5):
            FILE.put(f"{name}{number}", {"value": number})

    with ThreadPoolExecutor() as threads:
        list(threads.map(write, "abcd"))
    assert all(FILE.saved(f"{name}{number}", dict)["value"] == number for name in "abcd" for number in range(5))


def test_an_entry_may_be_removed() -> None:
    FILE.put("key", {"value": 1})
    FILE.put("key", None)
    assert FILE.saved("key", dict) is None


@pytest.mark.fault(
    "R4", "another process never frees the lock of the cache", survives="the run goes on, and a warning names the lock"
)
def test_a_lock_that_is_never_released_costs_the_entry_and_not_the_run(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("results.store.LOCK_DEADLINE_SECONDS", 0.5)
    with (directory / "some.lock").open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        FILE.put("key", {"value": 1})
    (given_up,) = capsys.readouterr().err.splitlines()
    assert "Measured things cannot be saved" in given_up and f"the lock on {directory / 'some.lock'} for" in given_up
    assert FILE.saved("key", dict) is None


@pytest.mark.parametrize("damage", ["{", '{"format_version": 99}', "[" * 100_000], ids=["torn", "foreign", "deep"])
def test_damage_is_reported_once_and_mended_by_the_next_entry(
    directory: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    (directory / "some.json").write_text(damage, encoding="utf-8")
    assert FILE.saved("key", dict) is None and FILE.saved("other", dict) is None
    FILE.put("key", {"value": 1})
    (sentence,) = capsys.readouterr().err.splitlines()
    assert "cannot be read" in sentence and str(directory / "some.json") in sentence
    assert FILE.saved("key", dict)["value"] == 1


def test_a_user_without_a_home_gets_no_folder_in_the_working_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    assert FILE.path().is_absolute()
