"""What Ctrl-C and SIGTERM do to work that must end in order."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from benchmarks.console import warn
from benchmarks.errors import ExitStatus, Terminated

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def raise_terminated(signal_number: int, frame: object) -> None:
    """Handles SIGTERM by an exception, so that the process ends in order."""
    raise Terminated


def raise_on_sigterm() -> None:
    """Makes SIGTERM raise `Terminated` from now on, as Ctrl-C raises KeyboardInterrupt."""
    signal.signal(signal.SIGTERM, raise_terminated)


def until_stopped(work: Callable[[], ExitStatus | None], sentence: str = "") -> ExitStatus:
    """Does work that saves its results as it goes, and returns its status (None: OK), or how it was stopped.

    Args:
        work: what is done.
        sentence: a warning for the user if it was stopped; empty for none.
    """
    before = signal.getsignal(signal.SIGTERM)
    raise_on_sigterm()
    try:
        return work() or ExitStatus.OK
    except KeyboardInterrupt:
        status = ExitStatus.INTERRUPTED
    except Terminated:
        status = ExitStatus.TERMINATED
    finally:
        signal.signal(signal.SIGTERM, before)
    if sentence:
        warn(sentence)
    return status


@contextlib.contextmanager
def signals_ignored() -> Iterator[None]:
    """Ignores Ctrl-C and SIGTERM while what must always be done is done."""
    before = [signal.signal(number, signal.SIG_IGN) for number in _SIGNALS]
    try:
        yield
    finally:
        for number, handler in zip(_SIGNALS, before, strict=True):
            signal.signal(number, handler)


@contextlib.contextmanager
def signals_held_back() -> Iterator[None]:
    """Delays Ctrl-C and SIGTERM until the end of what must not be interrupted, such as starting a process.

    Between fork and return, Python calls hooks of its own (`os.register_at_fork`; `logging` has some). An exception
    that a signal handler raises in a hook is printed and lost, and then this process would not end.
    """
    if threading.current_thread() is not threading.main_thread():  # which alone handles signals
        yield
        return
    received: list[int] = []
    is_over = False
    handlers = {int(number): signal.getsignal(number) for number in _SIGNALS}
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
