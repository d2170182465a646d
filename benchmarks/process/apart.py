"""Calls a function in a process of its own, whose TensorFlow has another environment than this one's."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import tempfile
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

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
) -> T:
    """Returns what a function returns. It, its arguments, its result and its errors must be picklable.

    The process has another `runtime`, but inherits the variables that this one has set. It is killed after
    `limit_seconds`.

    Raises:
        BenchError: it took too long, or the process ended without a result; other errors are those of the function.
    """
    with tempfile.TemporaryFile() as job, tempfile.TemporaryFile() as outcome:
        pickle.dump(runtime, job)
        pickle.dump((function, arguments), job)
        job.seek(0)
        command = subprocesses.Command(
            words=[sys.executable, "-P", "-m", __name__],
            stdin=job.fileno(),
            stdout=outcome,
            stderr=None,
            variables={"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        (ended,) = subprocesses.supervise(command, timeout_seconds=limit_seconds)
        if ended.timed_out:
            raise BenchError(f"it took longer than {limit_seconds:g} s")
        if ended.returncode:
            raise BenchError(f"its process {ended.in_words()}")
        outcome.seek(0)
        result, error = pickle.load(outcome)
    if error is not None:
        raise error
    return result


def main() -> None:
    """Reads the call from stdin, makes it, and writes its result and its error to stdout."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends at once, without a traceback
    result, error = None, None
    with os.fdopen(os.dup(1), "wb") as outcome:
        os.dup2(2, 1)  # where libraries print
        tensorflow_setup.prepare(pickle.load(sys.stdin.buffer))
        function, arguments = pickle.load(sys.stdin.buffer)  # which may import TensorFlow
        try:
            result = function(*arguments)
        except Exception as raised:
            error = raised
        pickle.dump((result, error), outcome)


if __name__ == "__main__":
    main()
