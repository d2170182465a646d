"""What faults are injected with: a scratch directory, processes started in it, and checks of what they leave."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import fcntl
import functools
import io
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil

from results import loading, store
from tests.faults.needs import memory_root
from tests.support.commands import RUN_BENCH, USER_ENVIRONMENT

# A run of a few seconds.
TINY = ("--device=cpu", "--model=trivial", "--batch_size=2")
# A run that only ends if something ends it, and shows every step.
ENDLESS = (*TINY, "--num_batches=100000000", "--display_every=1")
# A run that lasts long enough to inject something into it.
LONG = (*TINY, "--num_batches=400", "--display_every=1")
# What such runs print when they measure.
MEASURES = "3\timages/sec"
# Processes are recognised by this variable, which they inherit, whatever their parent, group and session are.
_MARK = "FAULT_SCRATCH"
_TRACEBACK = "Traceback (most recent call last)"
# A process that was told to end, or whose parent is gone, has ended after this.
_LINGER_SECONDS = 15.0


class Failed(Exception):  # noqa: N818 - an outcome
    """The promise did not hold; the message is what was seen."""


class Skipped(Exception):  # noqa: N818 - an outcome
    """The fault cannot be injected here; the message is why."""


def want(held: object, seen: str) -> None:
    """Fails with what was seen unless it held."""
    if not held:
        raise Failed(seen)


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a process ended; the status is as a shell sees it, 143 for SIGTERM."""

    status: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def text(self) -> str:
        """Returns all that it has printed."""
        return self.stdout + self.stderr

    @property
    def tail(self) -> str:
        """Returns the last words of it."""
        return self.text.strip()[-300:].replace("\n", " / ")


class Started:
    """A process of a scratch directory, with files that hold what it prints."""

    def __init__(self, process: subprocess.Popen[bytes], stdout: Path, stderr: Path) -> None:
        self.process = process
        self.stdout, self.stderr = stdout, stderr
        self._begin = time.monotonic()

    def text(self) -> str:
        """Returns what it has printed until now."""
        return "".join(path.read_text(errors="replace") for path in (self.stdout, self.stderr))

    def wait_for(self, text: str, seconds: float = 180.0) -> None:
        """Waits until it has printed something."""
        self.wait_until(lambda: text in self.text(), f"printed {text!r}", seconds)

    def wait_until(self, happened: Callable[[], object], what: str, seconds: float = 180.0) -> None:
        """Waits until something has happened; fails if the process ends before."""
        until = time.monotonic() + seconds
        while not happened():
            if self.process.poll() is not None:
                raise Failed(f"ended with {self._status} before it {what}: {self._tail}")
            want(time.monotonic() < until, f"had not {what} after {seconds:g} s: {self._tail}")
            time.sleep(0.05)

    def send(self, number: signal.Signals, *, group: bool = False) -> None:
        """Sends a signal to the process, or to its group as a terminal does; one that has ended gets none."""
        with contextlib.suppress(ProcessLookupError):
            if self.process.poll() is None:
                (os.killpg if group else os.kill)(self.process.pid, number)

    def ended_within(self, seconds: float) -> bool:
        """Waits for its end for some time, and returns whether it came."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        return self.process.returncode is not None

    def end(self, seconds: float = 180.0) -> Ended:
        """Waits for its end; fails if it does not come."""
        want(self.ended_within(seconds), f"still ran {seconds:g} s later: {self._tail}")
        texts = (path.read_text(errors="replace") for path in (self.stdout, self.stderr))
        return Ended(self._status, *texts, time.monotonic() - self._begin)

    @property
    def _status(self) -> int:
        status = self.process.returncode
        return status if status >= 0 else 128 - status

    @property
    def _tail(self) -> str:
        return self.text().strip()[-300:].replace("\n", " / ")


class Scratch:
    """A directory of one fault, the processes started in it, and what must hold of both at the end.

    Attributes:
        directory: everything of this fault.
        out: the results directory, unless a command names another.
        tmp: the directory for temporary files, TMPDIR, of all processes.
        moments: how many moments of a run a sweep over moments tries.
    """

    def __init__(self, moments: int = 5) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="fault-"))
        self.out, self.tmp = self.directory / "out", self.directory / "tmp"
        self.tmp.mkdir()
        self.moments = moments
        self._stack = contextlib.ExitStack()
        self._numbers = itertools.count(1)
        self._outputs: list[Path] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._leaves_tmp = False

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for process in self._processes:
            process.wait()
        self._stack.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def start(
        self,
        *words: str | bytes | Path,
        under: Sequence[str | Path] = (),
        program: Sequence[str | Path] = RUN_BENCH,
        stdout: int | None = None,
        stderr: int | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> Started:
        """Starts run_bench.py, in a session of its own.

        Args:
            words: its words.
            under: words of a program that starts it, such as a shell that sets a limit.
            program: what is started instead of run_bench.py.
            stdout: a file descriptor; None for a file in the scratch directory.
            stderr: likewise.
            variables: of the environment, beside the user's.
        """
        number = next(self._numbers)
        paths = [self.directory / f"{number}.{name}" for name in ("stdout", "stderr")]
        self._outputs += paths
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(path.open("wb")) for path in paths]
            process = subprocess.Popen(
                [*under, *program, *words],
                cwd=self.directory,
                env={**USER_ENVIRONMENT, **self.variables, **(variables or {})},
                stdin=subprocess.DEVNULL,
                stdout=files[0] if stdout is None else stdout,
                stderr=files[1] if stderr is None else stderr,
                start_new_session=True,
            )
        self._processes.append(process)
        return Started(process, *paths)

    def bench(self, *words: str | bytes | Path, seconds: float = 180.0, **how: Any) -> Ended:
        """Runs run_bench.py to its end, see `start`; fails if it takes longer than `seconds`."""
        return self.start(*words, **how).end(seconds)

    @property
    def variables(self) -> dict[str, str]:
        """Returns the variables that every process gets."""
        cache = self.directory / "cache"
        return {_MARK: str(self.directory), "TMPDIR": str(self.tmp), "XDG_CACHE_HOME": str(cache)}

    def processes(self, *patterns: str) -> list[psutil.Process]:
        """Returns the living processes of this scratch directory whose command lines contain all patterns.

        Every word of a command line is followed by a blank.
        """
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                marked = process.environ().get(_MARK) == str(self.directory)
                line = " ".join([*process.cmdline(), ""])
                if marked and process.status() != psutil.STATUS_ZOMBIE and all(each in line for each in patterns):
                    found.append(process)
        return found

    def kill(self) -> None:
        """Kills all processes of this scratch directory."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()

    def records(self, directory: Path | None = None) -> list[dict[str, Any]]:
        """Returns the records of a results directory; fails if a line is not JSON."""
        path = (directory or self.out) / store.JSONL_NAME
        records = []
        for number, line in enumerate(path.read_bytes().splitlines() if path.exists() else [], start=1):
            try:
                records.append(msgspec.json.decode(line))
            except msgspec.DecodeError as error:
                raise Failed(f"line {number} of {path.name} is not JSON ({error}): {line[:60]!r}") from None
        return records

    def expect(
        self,
        ended: Ended,
        *statuses: int,
        records: Sequence[str] | None = None,
        says: Sequence[str] = (),
        never: Sequence[str] = (),
    ) -> None:
        """Fails unless a command ended as wanted.

        Args:
            ended: how it did.
            statuses: one of these.
            records: the statuses of all records in `out`, in any order.
            says: what its output contains, in any case of letters.
            never: what it does not contain.
        """
        want(ended.status in statuses, f"status {ended.status} (not {_or(statuses)}): {ended.tail}")
        for text in says:
            want(text.lower() in ended.text.lower(), f"no word of '{text}': {ended.tail}")
        for text in never:
            want(text.lower() not in ended.text.lower(), f"it printed '{text}': {ended.tail}")
        if records is not None:
            found = [record["status"] for record in self.records()]
            want(sorted(found) == sorted(records), f"records {found} (not {list(records)}): {ended.tail}")

    def may_leave_temporary_files(self) -> None:
        """Excuses what a process that was killed with SIGKILL leaves in TMPDIR."""
        self._leaves_tmp = True

    def check(self) -> None:
        """Fails unless nothing is left but whole results, and no command ended with a traceback."""
        until = time.monotonic() + _LINGER_SECONDS
        while (left := self.processes()) and time.monotonic() < until:
            time.sleep(0.1)
        names = [" ".join(_words(process))[:120] for process in left]
        want(not left, f"{len(left)} processes left: {names[:3]}")
        for path in self._outputs:
            text = path.read_text(errors="replace")
            _, found, traceback = text.partition(_TRACEBACK)
            want(not found, f"a traceback: {traceback.strip().splitlines()[-5:]}")
        if not self._leaves_tmp:
            left_over = sorted(path.name for path in self.tmp.iterdir())
            want(not left_over, f"left in TMPDIR: {left_over[:5]}")
        partial = [path.name for path in self.directory.rglob("*.partial")]
        want(not partial, f"left behind: {partial[:5]}")
        for path in self.directory.rglob(store.JSONL_NAME):
            hidden = [other.name for other in path.parent.iterdir() if other.name.startswith(".")]
            want(not hidden, f"left behind: {hidden[:5]}")
            self.check_results(path.parent)

    def check_results(self, directory: Path) -> None:
        """Fails unless every line of the JSONL is JSON and the CSV has the same records."""
        self.records(directory)
        table = directory / "results.csv"
        if not table.is_file():
            return
        try:
            text = table.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise Failed(f"results.csv is not UTF-8: {error}") from None
        records = loading.load(directory / store.JSONL_NAME).records
        rows = list(csv.DictReader(io.StringIO(text)))
        found, wanted = [row["run_id"] for row in rows], [record.identity.run_id for record in records]
        want(found == wanted, f"results.csv has {len(found)} rows for {len(wanted)} records: {found} {wanted}")
        want(text == store.as_csv(records), "results.csv differs from results.jsonl")

    @contextlib.contextmanager
    def _mounted(self, kib: int) -> Iterator[Path]:
        directory = self.directory / "disk"
        directory.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "fault", str(directory)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise Skipped(f"no file system can be mounted: {done.stderr.strip()}")
        try:
            yield directory
        finally:
            subprocess.run(["umount", "--lazy", str(directory)], check=True)

    def small_disk(self, kib: int) -> Path:
        """Mounts a file system of that size until the end of the fault; needs root."""
        return self._stack.enter_context(self._mounted(kib))

    @contextlib.contextmanager
    def _limited(self, limit_bytes: int) -> Iterator[Path]:
        group = memory_root() / f"fault-{os.getpid()}-{self.directory.name}"
        group.mkdir()
        try:
            old = (group / "memory.limit_in_bytes").exists()
            (group / ("memory.limit_in_bytes" if old else "memory.max")).write_text(str(limit_bytes))
            yield group
        finally:
            self.kill()
            until = time.monotonic() + _LINGER_SECONDS
            while group.exists() and time.monotonic() < until:  # it can be removed when its processes are gone
                time.sleep(0.1)
                with contextlib.suppress(OSError):
                    group.rmdir()

    def memory_limit(self, limit_bytes: int) -> Sequence[str]:
        """Returns words that start a program in a control group that may use so much memory."""
        group = self._stack.enter_context(self._limited(limit_bytes))
        return ("sh", "-c", f'echo $$ >{group}/cgroup.procs; exec "$@"', "sh")

    def hold_lock(self, path: Path) -> Started:
        """Starts a process that holds a lock on a file until it is killed."""
        path.parent.mkdir(parents=True, exist_ok=True)
        script = "import fcntl, sys, time; f = open(sys.argv[1], 'a'); fcntl.flock(f, 2); print('held'); "
        script += "sys.stdout.flush(); time.sleep(3600)"
        holder = self.start(path, program=(sys.executable, "-c", script))
        holder.wait_for("held")
        return holder


def busy(processes: Sequence[psutil.Process], cpu_seconds: float) -> bool:
    """Returns whether one of these processes has used so much CPU time; the import of TensorFlow takes about 5 s."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if sum(process.cpu_times()[:2]) > cpu_seconds:
                return True
    return False


def in_shell(script: str) -> Sequence[str]:
    """Returns words that start a program after lines of shell, such as `ulimit -v 1000000`."""
    return ("sh", "-c", f'{script}; exec "$@"', "sh")


def fill(directory: Path) -> None:
    """Fills the file system of a directory to the last byte."""
    with contextlib.suppress(OSError), (directory / "filler").open("ab", buffering=0) as file:
        for size in (2**16, 1):
            with contextlib.suppress(OSError):
                while file.write(b"\0" * size):
                    pass


def small_pipe() -> tuple[int, int]:
    """Returns the ends of a pipe that a few lines fill."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    return reader, writer


def read_until(reader: int, text: bytes) -> None:
    """Reads from a pipe until it has brought something."""
    read = b""
    while text not in read:
        more = os.read(reader, 256)
        want(more, f"the output ended without {text!r}: {read[-300:]!r}")
        read += more


@functools.cache
def a_record() -> dict[str, Any]:
    """Returns the record of a real, short run of this suite."""
    with Scratch() as scratch:
        scratch.expect(scratch.bench("run", *TINY, "--num_batches=5"), 0, records=["ok"])
        return scratch.records()[0]


def write_records(directory: Path, *records: Mapping[str, Any]) -> Path:
    """Writes records, as a results directory from elsewhere, without its CSV; returns the JSONL."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / store.JSONL_NAME
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def _or(statuses: Sequence[int]) -> str:
    return " or ".join(map(str, statuses))


def _words(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return ["ended meanwhile"]
