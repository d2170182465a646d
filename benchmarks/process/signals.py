"""Long work of which whatever is done counts, and that Ctrl-C and SIGTERM end in order."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from benchmarks.console import warn
from benchmarks.errors import ExitStatus, Terminated, raise_terminated


def until_stopped(work: Callable[[], ExitStatus | None], sentence: str = "") -> ExitStatus:
    """Does work that keeps what it has done, and returns its status (None: OK), or how it was stopped.

    Args:
        work: what is done.
        sentence: what the user is told if it was stopped; empty: nothing.
    """
    before = signal.signal(signal.SIGTERM, raise_terminated)
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
def signals_held_back() -> Iterator[None]:
    """Has Ctrl-C and SIGTERM wait until the end of what must be done as a whole, such as starting a process.

    Between forking and returning, Python calls hooks of its own (`os.register_at_fork`; `logging` has some), and what a
    handler raises there is printed and lost: whoever asked us to end would wait for ever.
    """
    if threading.current_thread() is not threading.main_thread():  # which alone handles signals
        yield
        return
    came: list[int] = []
    is_over = False
    handlers = {int(number): signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    held = {number: handler for number, handler in handlers.items() if callable(handler)}

    def hold(number: int, frame: FrameType | None) -> None:
        if is_over:  # and what was to put the handler back has been interrupted
            held[number](number, frame)
        else:
            came.append(number)

    try:
        for number in held:
            signal.signal(number, hold)
        yield
    finally:
        is_over = True
        for number, handler in held.items():
            signal.signal(number, handler)
        for number in came:  # the first that raises ends this
            signal.raise_signal(number)
