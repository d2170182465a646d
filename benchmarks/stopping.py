"""Long work of which whatever is done counts, and that Ctrl-C and SIGTERM end in order."""

from __future__ import annotations

import signal
from collections.abc import Callable

from benchmarks.display import warn
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
