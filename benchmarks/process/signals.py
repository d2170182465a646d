"""What Ctrl-C, SIGTERM and SIGHUP do to work that must end in order."""

from __future__ import annotations

import contextlib
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from benchmarks.console import warn
from benchmarks.errors import ExitStatus, Terminated, stopped

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def signal_in_words(number: int, if_killed: str = "") -> str:
    """Returns a signal for sentences, such as `signal 9 (Killed)`; `if_killed` follows SIGKILL."""
    words = f"signal {number} ({signal.strsignal(number) or 'unknown'})"
    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    limits: dict[int, int] = {signal.SIGXCPU: soft, signal.SIGKILL: hard}
    seconds = limits.get(number, resource.RLIM_INFINITY)
    if seconds != resource.RLIM_INFINITY:
        words += f", as the kernel sends after the {seconds} s of CPU time that ulimit -t allows"
    return words + (if_killed if number == signal.SIGKILL else "")


def raise_terminated(signal_number: int, frame: object) -> None:
    """Handles SIGTERM and SIGHUP by an exception, so that the process ends in order."""
    raise Terminated(signal_number)


def raise_on_termination() -> None:
    """Makes SIGTERM and SIGHUP raise `Terminated` from now on, as Ctrl-C raises KeyboardInterrupt.

    SIGHUP stays ignored where it is, as `nohup` wants it.
    """
    signal.signal(signal.SIGTERM, raise_terminated)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, raise_terminated)


@contextlib.contextmanager
def _restored() -> Iterator[dict[signal.Signals, Any]]:
    """Yields the handlers of all signals, which are put back afterwards."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield before
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def raised_once() -> Iterator[None]:
    """Makes the first signal raise KeyboardInterrupt, and ignores all that follow in the block.

    So what handles the first one is not interrupted. A watchdog must bound the time that it takes.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        ignore()
        raise Terminated(number)

    with _restored() as before:
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, handle)
        yield


def ignore() -> None:
    """Ignores all signals that would end the process."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def until_stopped(work: Callable[[], ExitStatus | None], sentence: str = "") -> ExitStatus:
    """Does work that saves its results as it goes, and returns its status (None: OK), or how it was stopped.

    `sentence` is a warning for the user if it was stopped.
    """
    with _restored():
        raise_on_termination()
        try:
            return work() or ExitStatus.OK
        except KeyboardInterrupt as error:
            status = stopped(error).exit_status
    if sentence:
        warn(sentence)
    return status


@contextlib.contextmanager
def signals_ignored() -> Iterator[None]:
    """Ignores Ctrl-C, SIGTERM and SIGHUP while what must always be done is done."""
    with _restored():
        ignore()
        yield


@contextlib.contextmanager
def signals_held_back() -> Iterator[None]:
    """Delays Ctrl-C, SIGTERM and SIGHUP until the end of what must not be interrupted, such as starting a process.

    Between fork and return, Python calls hooks of its own (`os.register_at_fork`; `logging` has some). An exception
    that a signal handler raises in a hook is printed and lost, and then this process would not end.
    """
    if threading.current_thread() is not threading.main_thread():  # which alone handles signals
        yield
        return
    received: list[int] = []
    is_over = False
    handlers = {int(number): signal.getsignal(number) for number in SIGNALS}
    held = {number: handler for number, handler in handlers.items() if callable(handler)}

    def hold(number: int, frame: FrameType | None) -> None:
        if is_over:  # a signal has interrupted the loop that puts the handlers back
            held[number](number, frame)
        else:
            received.append(number)

    try:
        for number in held:
            signal.signal(number, hold)
        yield
    finally:
        is_over = True
        for number, handler in held.items():
            signal.signal(number, handler)
        for number in received:  # the first that raises ends this
            signal.raise_signal(number)
