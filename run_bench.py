#!/usr/bin/env python3
"""Benchmark CNN training on TensorFlow: `python run_bench.py --help`.

Older Pythons than the suite needs must be able to read this file, up to the sentence that says so.
"""

import contextlib
import faulthandler
import gc
import importlib.util
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

OLDEST_PYTHON = (3, 11)
PACKAGES = ("benchmarks", "models", "results", "variable_mgr")
HOME = Path(__file__).resolve().parent


def main() -> int:
    """Runs the command line and returns its exit status."""
    gc.set_threshold(100000)  # imports make millions of objects that stay; 700 would be a fifth of their time
    on_interrupt = signal.getsignal(signal.SIGINT)
    if on_interrupt is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while modules are imported needs no traceback
    try:
        run_command_line = command_line()
    finally:
        signal.signal(signal.SIGINT, on_interrupt)
    return run_command_line(sys.argv[1:]) if run_command_line else 2


def command_line() -> "Callable[[Sequence[str]], int] | None":
    """Returns the function that runs a command line; None after saying what it lacks."""
    open_missing_streams()
    problem = old_python() or shadowed_package()
    if problem:
        print("run_bench: " + problem, file=sys.stderr)
        return None
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if a parent ignores it, all processes seem to end with 0
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # a sweep has a run that takes too long write its stacks
    from benchmarks.process.requirements import missing

    try:
        import benchmarks.machine.contention  # noqa: F401 - it looks at what others use from here to the run
        from benchmarks.cli.main import main as run_command_line
    except Exception as error:  # Python's own status would be 1: something is slower
        what_to_do = missing(error) if isinstance(error, ModuleNotFoundError) else None
        if what_to_do is None:
            traceback.print_exc()
            what_to_do = f"a package cannot be imported ({error}). Install it again, as with `make install`."
        print("run_bench: " + what_to_do, file=sys.stderr)
        return None
    return run_command_line


def open_missing_streams() -> None:
    """Opens stdin, stdout and stderr that are closed on the null device: else the next file takes their number."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))


def old_python() -> str:
    """Returns a sentence if this Python is too old, else nothing."""
    if sys.version_info >= OLDEST_PYTHON:
        return ""
    needed, this = (".".join(map(str, version)) for version in (OLDEST_PYTHON, sys.version_info[:2]))
    return "Python {} or newer is needed, and {} is {}. Run `make install PYTHON=python{}`, then {}.".format(
        needed, sys.executable, this, needed, "`.venv/bin/python run_bench.py ...`"
    )


def shadowed_package() -> str:
    """Returns a sentence if one of the generic names of packages is missing or imports another one, else nothing."""
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        found = Path(spec.origin).resolve() if spec and spec.origin else None
        if found != HOME / name / "__init__.py":
            if not (HOME / name).is_dir():
                return f"{HOME / name} is missing: run_bench.py needs its packages beside it. Run that of a checkout."
            return (
                f"'import {name}' takes {found or 'nothing'} instead of {HOME / name}. Run it as "
                f"'python {HOME / 'run_bench.py'}', without -P, PYTHONSAFEPATH or the other package on PYTHONPATH."
            )
    return ""


def run_and_leave() -> None:
    """Runs the command line and ends the process. What a user's model has left running does not hold it and ends."""
    status = main()
    outside_code = sys.modules.get("models.outside_code")
    if outside_code and outside_code.has_run:
        for process in outside_code.end_left_behind():
            print("run_bench: the model's code had left a process running: " + process, file=sys.stderr)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # it is closed
                stream.flush()
        os._exit(status)
    gc.freeze()  # Python's last search for cycles would take as long as 20 small steps
    sys.exit(status)


if __name__ == "__main__":
    run_and_leave()
