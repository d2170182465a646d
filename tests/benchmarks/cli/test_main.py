"""What becomes of errors that no verb expects."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from benchmarks.cli import main
from benchmarks.errors import ExitStatus
from results.store import Store
from tests.support.records import fake_run


@pytest.mark.parametrize(
    ("number", "path", "words"),
    [
        (errno.EACCES, "/home/other/models", "/home/other/models: Permission denied. Choose another path"),
        (errno.EACCES, sys.executable, f"{sys.executable} cannot be started: Permission denied. Install it again"),
        (errno.ENOENT, "/proc/meminfo", "[Errno 2] No such file or directory: '/proc/meminfo': a run reads clocks"),
        (errno.ENOTCONN, "/proc/meminfo", "[Errno 107] "),  # without the lxcfs that a container had
        (errno.EACCES, "/proc/stat", "[Errno 13] Permission denied: '/proc/stat': a run reads"),  # of Android
        (errno.ENOENT, None, "The working directory: No such file or directory. "),
    ],
)
def test_a_path_that_may_not_be_read_is_named_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], number: int, path: str | None, words: str
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr(main, "dispatch", refuse)
    assert main.main(["run"]) == ExitStatus.USAGE
    said = capfd.readouterr().err
    assert said.startswith(f"run_bench: {words}") and "Traceback" not in said


@pytest.mark.parametrize(
    "words", [("--local_cluster=worker:2", "--variable_update=collective_all_reduce", "--device=cpu"), ("rerun", "RUN")]
)
def test_a_python_that_cannot_be_started_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    run = fake_run()
    Store(tmp_path / "out").append(replace(run, identity=replace(run.identity, command=["--model=trivial"])))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", "/no/python")
    assert main.main([run.identity.run_id if word == "RUN" else word for word in words]) == ExitStatus.USAGE
    assert "run_bench: /no/python cannot be started: No such file or directory. Install" in capfd.readouterr().err


@pytest.mark.parametrize("error", [ValueError("'sweep' is not in list"), FileNotFoundError("libcupti.so")])
def test_a_traceback_ends_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(main, "dispatch", fail)
    assert main.main(["run"]) == ExitStatus.RUN_FAILED
    said = capfd.readouterr().err
    assert said.startswith("Traceback") and said.endswith(f"\nrun_bench: {type(error).__name__}: {error}\n")


def test_a_backend_that_matplotlib_does_not_know_is_named(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import matplotlib

    monkeypatch.setenv("MPLBACKEND", "no_such")
    # What the import of matplotlib does with the variable.
    monkeypatch.setattr(main, "dispatch", lambda _: matplotlib.rcParams.update(backend=os.environ["MPLBACKEND"]))
    assert main.main(["report"]) == ExitStatus.USAGE
    assert capfd.readouterr().err.startswith("run_bench: MPLBACKEND=no_such is no backend of matplotlib: unset it")
