"""Calls a function in a process of its own, whose TensorFlow has another environment than this one's."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import signal
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from typing import ParamSpec, TypeVar

from benchmarks.errors import BenchError
from benchmarks.process import subprocesses, tensorflow_setup
from benchmarks.process.tensorflow_setup import Runtime

P = ParamSpec("P")
T = TypeVar("T")


def call(
    runtime: Runtime, limit_seconds: float | None, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
) -> T:
    """Returns what a function returns. It, its arguments and its result must be picklable.

    Args:
        runtime: what the process asks of TensorFlow; variables that this process has set are inherited.
        limit_seconds: after this time the process is killed; None: never.
        function: may import TensorFlow.
        args: of the function.
        kwargs: of the function.

    Raises:
        BenchError: it took too long, or the process ended without a result; other errors are those of the function.
    """
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, spawn, _prepare, (runtime, os.getpid())) as executor:
        called = executor.submit(function, *args, **kwargs)
        try:
            return called.result(limit_seconds)
        except TimeoutError as error:
            raise BenchError(f"it took longer than {limit_seconds:g} s") from error
        except BrokenProcessPool as error:
            raise BenchError("its process ended without a result") from error
        finally:
            for process in multiprocessing.active_children():
                process.kill()


def _prepare(runtime: Runtime, parent: int) -> None:
    subprocesses.die_with_parent(parent)  # or it would wait for work, and hold GPU memory, if the parent is killed
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    tensorflow_setup.prepare(runtime)
