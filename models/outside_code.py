"""Contains code that is not ours, such as a user's model: how it ends, and what of the process it changes."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

has_run = False  # in this process
_earlier: set[int] = set()  # numbers of processes that ran before such code did
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_STREAMS = {1: "stdout", 2: "stderr"}


class UnusableModelError(ValueError):
    """A model, or the code that builds it, does not fit here; the message is a sentence for the user."""


@contextlib.contextmanager
def exits_refused() -> Iterator[None]:
    """Raises UnusableModelError where code of any thread would end this process without an error, as a step may do."""
    from unittest import mock  # it imports asyncio, for which no other command should wait

    refusing: dict[str, Any] = {name: _refusing(getattr(os, name)) for name in _EXITS}
    with mock.patch.multiple(os, **refusing):
        yield


@contextlib.contextmanager
def contained() -> Iterator[None]:
    """Turns what would end the process, or divide it, into an error; restores what all code of a process shares.

    What is printed to stdout goes to stderr. An interruption stays one.

    Raises:
        UnusableModelError: the code called `sys.exit`, `os._exit` or `os.fork`, or raised another BaseException.
    """
    global has_run
    if not has_run:
        has_run = True
        _earlier.update(_children())
    from unittest import mock  # it imports asyncio, for which no other command should wait

    in_main_thread = threading.current_thread() is threading.main_thread()
    mask = os.umask(0o077)
    os.umask(mask)
    try:
        with (
            exits_refused(),
            mock.patch.multiple(os, fork=_refuse_to_fork, forkpty=_refuse_to_fork),
            mock.patch.dict(os.environ),
            mock.patch.object(sys, "argv", [*sys.argv]),
            contextlib.chdir("."),
            _restored_streams(),
            _restored_handlers(in_main_thread),
        ):
            yield
    except Exception:
        raise
    except BaseException as error:
        # Only the main thread is interrupted, or asked to end by a signal.
        if in_main_thread and isinstance(error, KeyboardInterrupt):
            raise
        if isinstance(error, SystemExit):
            raise UnusableModelError(
                f"its code would end the process: sys.exit({error.code!r}). If it reads arguments of the command line, "
                "do that only behind if __name__ == '__main__'."
            ) from error
        raise UnusableModelError(f"its code would end the process: {type(error).__name__}: {error}.") from error
    finally:
        os.umask(mask)


def end_left_behind() -> list[str]:
    """Kills, at the very end, what such code has started and that still runs; returns the names and numbers."""
    running = {number: name for number, name in _children().items() if number not in _earlier}
    for number in running:
        with contextlib.suppress(OSError):  # it has ended just now
            os.kill(number, signal.SIGKILL)
    return [f"{name} ({number})" for number, name in running.items()]


def _refusing(end: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
    """Returns what stands in for a function that ends a process: a child, such as one of multiprocessing, may end."""
    process = os.getpid()

    def refuse(*arguments: Any) -> NoReturn:
        if os.getpid() != process:
            end(*arguments)
        raise UnusableModelError("its code would end the process, by os._exit, os.abort or os.exec.")

    return refuse


def _refuse_to_fork() -> NoReturn:
    raise UnusableModelError("its code would divide the process in two, by os.fork(): use subprocess.")


_EXITS = ("_exit", "abort", "execv", "execve")


@contextlib.contextmanager
def _restored_streams() -> Iterator[None]:
    """Sends stdout, which is the result's, to stderr; the code may replace, redirect and close both."""
    streams = {name: getattr(sys, name) for name in _STREAMS.values()}
    streams["stdout"].flush()
    originals = {number: os.dup(number) for number in _STREAMS}
    os.dup2(2, 1)
    sys.stdout = streams["stderr"]
    try:
        yield
    finally:
        for number, name in _STREAMS.items():
            ours: Any = streams[name]
            for stream in (getattr(sys, name, ours), ours):
                with contextlib.suppress(Exception):  # it is closed, or anything
                    stream.flush()
            os.dup2(originals[number], number)
            os.close(originals[number])
            is_closed = streams[name].closed
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False) if is_closed else streams[name])


@contextlib.contextmanager
def _restored_handlers(in_main_thread: bool) -> Iterator[None]:
    """Restores what signals do, which only the main thread can change."""
    handlers = {number: signal.getsignal(number) for number in _SIGNALS} if in_main_thread else {}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)


def _children() -> dict[int, str]:
    """Returns the processes that this one has started and that run, by number, with their names."""
    children = {}
    for thread in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended
            for number in map(int, thread.read_text().split()):
                with contextlib.suppress(OSError):  # the process has ended
                    name, _, rest = Path(f"/proc/{number}/stat").read_text(errors="replace").rpartition(")")
                    if rest.split()[0] not in "ZX":  # ended, and only not awaited yet
                        children[number] = name.partition("(")[2]
    return children
