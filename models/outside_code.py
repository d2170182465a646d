"""Contains code that is not ours, such as a user's model: how it ends, and what of the process it changes."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any, NoReturn

has_run = False  # in this process
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class OutsideCodeError(ValueError):
    """The code did what it may not do here; the message is a sentence without its subject."""


@contextlib.contextmanager
def contained() -> Iterator[None]:
    """Turns what would end the process, or divide it, into an error; restores what all code of a process shares.

    That is the working directory, the mask of new files, and what signals do. An interruption stays one.

    Raises:
        OutsideCodeError: the code called `sys.exit`, `os._exit` or `os.fork`, or raised another BaseException.
    """
    global has_run
    has_run = True
    directory, mask = os.getcwd(), os.umask(0o077)
    os.umask(mask)
    in_main_thread = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in _SIGNALS} if in_main_thread else {}
    replaced = {name: _refuse_to_exit for name in ("_exit", "abort", "execv", "execve")}
    replaced |= {"fork": _refuse_to_fork, "forkpty": _refuse_to_fork}
    originals = {name: getattr(os, name) for name in replaced}
    try:
        for name, instead in replaced.items():
            setattr(os, name, instead)
        yield
    except Exception:
        raise
    except BaseException as error:
        # Only the main thread is interrupted, or asked to end by a signal.
        if in_main_thread and (
            isinstance(error, KeyboardInterrupt) or type(error).__module__.startswith("benchmarks.")
        ):
            raise
        what = f"sys.exit({error.code!r})" if isinstance(error, SystemExit) else f"{type(error).__name__}: {error}"
        raise OutsideCodeError(f"its code would end the process: {what}.") from error
    finally:
        for name, original in originals.items():
            setattr(os, name, original)
        os.chdir(directory)
        os.umask(mask)
        for number, handler in handlers.items():
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)


def _refuse_to_exit(*arguments: Any) -> NoReturn:
    raise OutsideCodeError("its code would end the process, by os._exit, os.abort or os.exec.")


def _refuse_to_fork() -> NoReturn:
    raise OutsideCodeError("its code would divide the process in two, by os.fork(): use subprocess.")
