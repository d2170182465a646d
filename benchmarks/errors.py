"""Errors and their exit statuses. Every message says what was requested, what is wrong, and what to do instead."""

from __future__ import annotations

import contextlib
import enum
import re
import signal
from collections.abc import Iterable, Iterator
from difflib import get_close_matches

from results.record import Status


class ExitStatus(enum.IntEnum):
    """The exit statuses of `run_bench.py`, each with its meaning for the documentation."""

    meaning: str

    OK = 0, "success; the measurement is valid"
    REGRESSED = 1, "`ab`, `compare`, `track check`: something is slower, or failed where it ran before"
    USAGE = 2, "the command line or the configuration is wrong"
    UNDECIDED = 3, "`ab`, `compare`, `track check` cannot decide; `doctor`: the machine is not quiet"
    RUN_FAILED = 4, "a run failed or is invalid, or a result could not be written"
    DATA = 5, "the data or a file of records cannot be used"
    CLUSTER = 6, "a task of the cluster is missing, lost, restarted or unreachable; the message names it"
    TIMEOUT = 124, "a deadline passed"
    HUNG_UP = 129, "SIGHUP: the terminal or connection was closed"
    INTERRUPTED = 130, "Ctrl-C"
    TERMINATED = 143, "SIGTERM"

    def __new__(cls, value: int, meaning: str = "") -> ExitStatus:  # noqa: D102
        status = int.__new__(cls, value)
        status._value_, status.meaning = value, meaning
        return status


class BenchError(Exception):
    """An expected failure: its message is for the user, without a traceback."""

    exit_status = ExitStatus.RUN_FAILED
    record_status = Status.CRASH


class UsageError(BenchError):
    """The command line or the configuration names what does not exist or contradicts itself."""

    exit_status = ExitStatus.USAGE


class DataError(BenchError):
    """The data cannot be used."""

    exit_status = ExitStatus.DATA
    record_status = Status.INVALID


class OutOfMemoryError(BenchError):
    """A device or the host has too little memory for the run."""

    record_status = Status.OUT_OF_MEMORY


class ClusterError(BenchError):
    """Another process of the cluster is missing, has ended, or does not fit."""

    exit_status = ExitStatus.CLUSTER


class OverdueError(BenchError):
    """Something took longer than its limit."""

    exit_status = ExitStatus.TIMEOUT
    record_status = Status.TIMEOUT


_STOPPED = {
    signal.SIGINT: ("Interrupted by Ctrl-C.", ExitStatus.INTERRUPTED),
    signal.SIGTERM: ("Ended by SIGTERM.", ExitStatus.TERMINATED),
    signal.SIGHUP: ("Ended by SIGHUP: its terminal or connection was closed.", ExitStatus.HUNG_UP),
}


class UnsavedError(BenchError):
    """The run is valid, but something that it made could not be written."""

    record_status = Status.OK


class StoppedError(BenchError):
    """Ctrl-C, SIGTERM or SIGHUP, the signal `number`, has stopped the run."""

    record_status = Status.INTERRUPTED

    def __init__(self, number: int) -> None:
        self.number = signal.Signals(number)
        sentence, self.exit_status = _STOPPED[self.number]
        super().__init__(sentence)


class InvalidRunError(BenchError):
    """The run ended, but its numbers are invalid."""

    record_status = Status.INVALID


class Terminated(KeyboardInterrupt):
    """The signal `number` has come; where only Ctrl-C is handled, Python raises KeyboardInterrupt itself."""

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__()
        self.number = number


def stopped(by: KeyboardInterrupt) -> StoppedError:
    """Returns the error of a run that a signal has stopped."""
    return StoppedError(by.number if isinstance(by, Terminated) else signal.SIGINT)


@contextlib.contextmanager
def writing(what: str, wanted: str = "file that can be written") -> Iterator[None]:
    """Raises UsageError if what is done within cannot write.

    `what` is what the user has named, such as a flag with its value, and `wanted` what to name instead.
    """
    try:
        yield
    except OSError as error:
        raise UsageError(f"{what}: {error.strerror or error}. Name a {wanted}.") from error


# Of two words, by difflib: vgg61 and vgg16 0.8, googlenet and alexnet 0.63.
_LIKENESS, _FEW_LETTERS = 0.7, 3


def did_you_mean(value: str, choices: Iterable[str]) -> str:
    """Returns ' Did you mean ...?' for the nearest choice, or the shortest that begins so; nothing if none is near."""
    word, known = value.lower().lstrip("-"), {choice.lstrip("-"): choice for choice in choices}
    begun = sorted((name for name in known if len(word) >= _FEW_LETTERS and name.startswith(word)), key=len)
    near = begun or get_close_matches(word, known, n=1, cutoff=_LIKENESS)
    return f" Did you mean '{known[near[0]]}'?" if near else ""


# As CUDA and its libraries report that a GPU's memory does not suffice; a handle and an algorithm need memory, too.
# TensorFlow calls what it could not allocate on a GPU for a copy a tensor that is not initialized.
_NO_MEMORY = re.compile(
    r"out[ _]of[ _]memory|STATUS_(ALLOC_FAILED|NOT_INITIALIZED)|No algorithm worked|Dst tensor is not initialized",
    re.IGNORECASE,
)
_RESOURCE_EXHAUSTED = 8  # TensorFlow's number of the error, as gRPC's; it also stands for:
_OF_FILES = ("No space left on device", "Disk quota exceeded", "Too many open files")
# As NCCL reports that CUDA or the system refused it something (https://github.com/NVIDIA/nccl/issues/295), and
# TensorFlow that NCCL's library is missing.
_OF_NCCL = re.compile("NCCL: (unhandled cuda error|unhandled system error|unable to load NCCL)", re.IGNORECASE)
_NCCL_DEBUG = "NCCL_DEBUG=WARN in the environment prints the cause"
_NCCL_ADVICE = {
    "unhandled cuda error": "CUDA has refused NCCL something, often memory, of which TensorFlow takes nearly all of a "
    f"GPU: try --gpu_memory_frac=0.9, or NCCL_NVLS_ENABLE=0 in the environment. {_NCCL_DEBUG}",
    "unhandled system error": "the system has refused NCCL something, in a container often shared memory: start it "
    f"with --ipc=host or --shm-size=1g. {_NCCL_DEBUG}",
    "unable to load nccl": "install its package, nvidia-nccl-cu12 (of the extra 'cuda'), or use another "
    "--all_reduce_spec",
}


def says_no_memory(text: str) -> bool:
    """Returns whether a message probably means that memory does not suffice."""
    return bool(_NO_MEMORY.search(text))


def lack_of_memory(error: BaseException) -> str:
    """Returns `Out of memory`, `Probably out of memory` where only the message suggests it, or nothing."""
    is_of_files = any(words in str(error) for words in _OF_FILES)
    is_exhausted = getattr(error, "error_code", None) == _RESOURCE_EXHAUSTED and not is_of_files
    if isinstance(error, MemoryError) or is_exhausted:
        return "Out of memory"
    return "Probably out of memory" if says_no_memory(str(error)) else ""


def nccl_advice(error: BaseException) -> str:
    """Returns what to try against an error of NCCL; nothing if it is none."""
    found = _OF_NCCL.search(str(error))
    return _NCCL_ADVICE[found[1].lower()] if found else ""


def headline(error: BaseException) -> str:
    """Returns the line of an error's message that names the problem.

    TensorFlow's messages may start with where operations were made; the error follows after the last `Node:`. If
    several operations of a step fail, the first line only counts them, and the next is of the first.
    """
    lines = str(getattr(error, "message", error)).strip().splitlines()
    lines = [line for line in lines if not line.startswith("From /job:")] or [""]  # the task of a cluster
    if lines[0].startswith("Graph execution error"):
        before = max((n for n, line in enumerate(lines) if line.startswith("Node: ")), default=0)
        lines = [line for line in lines[before + 1 :] if line.strip()] or lines
    if lines[0].endswith("root error(s) found.") and len(lines) > 1:
        return lines[1].strip().removeprefix("(0)").strip()
    return lines[0]


def explained(error: BaseException) -> BenchError | None:
    """Returns an error of a session with its cause or what to try: of memory, NCCL or XLA; None for another."""
    line = headline(error).removesuffix(".")
    if what := lack_of_memory(error):
        return OutOfMemoryError(f"{what}: {line}." if line else f"{what}.")
    advice = nccl_advice(error) or ("omit --xla" if "unsupported operations when trying to compile" in line else "")
    return BenchError(f"{line}: {advice}.") if advice else None


def failure_of(error: BaseException) -> BenchError:
    """Returns an error of a session, explained if its cause is known."""
    return explained(error) or BenchError(headline(error))
