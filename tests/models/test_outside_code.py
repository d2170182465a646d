"""Code that is not ours: how it ends stays an error, and what it changes of the process does not last."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.process.signals import Terminated
from models import outside_code
from models.outside_code import UnusableModelError, contained


class Odd(BaseException):
    """An exception that is no Exception."""


def fail(error: BaseException) -> Callable[[], None]:
    def call() -> None:
        raise error

    return call


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (lambda: sys.exit(0), r"its code would end the process: sys.exit\(0\)"),
        (lambda: sys.exit("why"), r"its code would end the process: sys.exit\('why'\)"),
        (lambda: os._exit(0), "its code would end the process, by os._exit, os.abort or os.exec"),
        (lambda: os.abort(), "its code would end the process, by os._exit, os.abort or os.exec"),
        (lambda: os.execlp("true", "true"), "its code would end the process, by os._exit, os.abort or os.exec"),
        (fail(Odd("why")), "its code would end the process: Odd: why"),
        (lambda: os.fork(), r"its code would divide the process in two, by os.fork\(\): use subprocess"),
    ],
)
def test_what_would_end_or_divide_the_process_is_an_error(code: Callable[[], object], words: str) -> None:
    with pytest.raises(UnusableModelError, match=words), contained():
        code()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Terminated(signal.SIGTERM), ValueError("bad")])
def test_an_interruption_and_an_error_stay_what_they_are(error: BaseException) -> None:
    with pytest.raises(type(error)), contained():
        raise error


def test_what_all_code_of_a_process_shares_is_restored(tmp_path: Path) -> None:
    def shared() -> tuple[object, ...]:
        handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
        return os.getcwd(), dict(os.environ), [*sys.argv], *handlers, os._exit, os.fork, os.forkpty

    before = shared()
    with contained():
        os.chdir(tmp_path)
        os.environ.pop("PATH")
        os.environ["ADDED"] = "1"
        sys.argv.clear()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
    assert shared() == before


@pytest.mark.parametrize("instead", [None, object()])
def test_what_stands_for_stdout_afterwards_is_restored(instead: object) -> None:
    before = sys.stdout, os.fstat(1)
    with contained():
        sys.stdout = instead  # type: ignore[assignment]
    assert (sys.stdout, os.fstat(1)) == before


def test_in_another_thread_an_interruption_is_the_codes_own() -> None:
    errors: list[str] = []

    def call() -> None:
        try:
            with contained():
                raise KeyboardInterrupt
        except UnusableModelError as error:
            errors.append(str(error))

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert errors == ["its code would end the process: KeyboardInterrupt: ."]


def test_only_what_such_code_has_started_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what the shell had started that became this process, as the entrypoint of a container does."""
    monkeypatch.setattr(outside_code, "has_run", False)
    monkeypatch.setattr(outside_code, "_earlier", set())
    with subprocess.Popen(["sleep", "60"]) as earlier:
        with contained():
            started = subprocess.Popen(["sleep", "60"])
        assert outside_code.end_left_behind() == [f"sleep ({started.pid})"]
        assert started.wait() == -signal.SIGKILL and earlier.poll() is None
        earlier.kill()
