"""Calls a function in a process of its own, whose TensorFlow has another environment than this one's."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, TypeVar, TypeVarTuple

from benchmarks.errors import BenchError
from benchmarks.process import subprocesses, tensorflow_setup
from benchmarks.process.tensorflow_setup import Runtime

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


def call(
    runtime: Runtime,
    limit_seconds: float | None,
    function: Callable[[*Arguments], T],
    *arguments: *Arguments,
    output: IO[bytes] | None = None,
    directory: Path | None = None,
    python_path: str | None = None,
) -> T:
    """Returns what a function returns. It, its arguments, its result and its errors must be picklable.

    The process has another `runtime`, but inherits the variables that this one has set; `python_path` replaces its
    PYTHONPATH. It starts in a `directory`, and prints to the file `output`, instead of those of this process. It is
    killed after `limit_seconds`, and before any other if the host's memory does not suffice. Threads that the function
    leaves do not delay its result.

    Raises:
        BenchError: it took too long, or the process ended without a result; other errors are those of the function.
    """
    searched = os.environ.get("PYTHONPATH", "") if python_path is None else python_path
    with tempfile.TemporaryFile() as job, tempfile.TemporaryFile() as outcome:
        pickle.dump(runtime, job)
        pickle.dump((function, arguments), job)
        job.seek(0)
        command = subprocesses.Command(
            # Without the working directory, where files may have the names of libraries.
            words=[sys.executable, "-P", "-m", __name__],
            stdin=job.fileno(),
            stdout=outcome,
            stderr=output,
            first_to_be_killed=True,
            variables={"PYTHONPATH": os.pathsep.join(filter(None, [str(subprocesses.RUN_BENCH.parent), searched]))},
            directory=directory,
        )
        (ended,) = subprocesses.supervise(command, timeout_seconds=limit_seconds)
        if ended.timed_out:
            raise BenchError(f"it took longer than {limit_seconds:g} s")
        if ended.returncode or not os.fstat(outcome.fileno()).st_size:
            raise BenchError(f"its process {ended.in_words()}")
        outcome.seek(0)
        result, error = pickle.load(outcome)
    if error is not None:
        raise error
    return result


def main() -> None:
    """Reads the call from stdin, makes it, writes its result and its error to stdout, and ends at once."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends at once, without a traceback
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # it takes too long
    result, error = None, None
    outcome = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # where libraries print
    tensorflow_setup.prepare(pickle.load(sys.stdin.buffer))
    function, arguments = pickle.load(sys.stdin.buffer)  # which may import TensorFlow
    try:
        result = function(*arguments)
    except Exception as raised:
        error = raised
    with outcome:
        pickle.dump((result, error), outcome)
    with contextlib.suppress(OSError, ValueError):  # the function may have closed it
        sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
