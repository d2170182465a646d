"""A directory in which processes are started and faults are injected, and what must hold of it after every fault."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from results import loading, store
from tests.support.commands import RUN_BENCH, USER_ENVIRONMENT, Finished

# A run of a few seconds.
TINY = ("--device=cpu", "--model=trivial", "--batch_size=2")
# A run that only ends if something ends it, and shows every step.
ENDLESS = (*TINY, "--num_batches=100000000", "--display_every=1")
# What such runs print when they measure.
MEASURES = "3\timages/sec"
# Processes are recognised by this variable, which they inherit, whatever their parent, group and session are.
_MARK = "FAULT_SCRATCH"
# A process that was told to end, or whose parent is gone, has ended after this.
_LINGER_SECONDS = 15.0


class Started:
    """A process of a scratch directory, with files that hold what it prints."""

    def __init__(self, process: subprocess.Popen[bytes], stdout: Path, stderr: Path) -> None:
        self.process = process
        self._files = (stdout, stderr)

    def text(self) -> str:
        return "".join(path.read_text(errors="replace") for path in self._files)

    def wait_until(self, happened: Callable[[], object], seconds: float = 180.0) -> None:
        """Waits until something has happened; fails if the process ends before."""
        until = time.monotonic() + seconds
        while not happened():
            assert self.process.poll() is None, f"ended with {self.process.returncode} before: {self.text()[-300:]}"
            assert time.monotonic() < until, f"nothing after {seconds:g} s: {self.text()[-300:]}"
            time.sleep(0.05)

    def wait_for(self, text: str) -> None:
        """Waits until it has printed something."""
        self.wait_until(lambda: text in self.text())

    def send(self, number: signal.Signals, *, group: bool = False) -> None:
        """Sends a signal to the process, or to its group as a terminal does; one that has ended gets none."""
        with contextlib.suppress(ProcessLookupError):
            if self.process.poll() is None:
                (os.killpg if group else os.kill)(self.process.pid, number)

    def handles(self, number: signal.Signals) -> bool:
        """Returns whether the process handles a signal; run_bench.py handles SIGUSR1 once it has begun."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        caught = re.search(r"^SigCgt:\s*(\w+)$", status, re.MULTILINE)
        return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)

    def ended_within(self, seconds: float) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        return self.process.returncode is not None

    def end(self, seconds: float = 180.0) -> Finished:
        """Waits for its end, and returns it with a status as a shell sees it, such as 143 for SIGTERM."""
        assert self.ended_within(seconds), f"still ran {seconds:g} s later: {self.text()[-300:]}"
        status = self.process.returncode
        return Finished(
            status if status >= 0 else 128 - status, *(path.read_text(errors="replace") for path in self._files)
        )


class Scratch:
    """The directory, the processes started in it, and what must hold of both at the end.

    Attributes:
        out: the results directory, unless a command names another.
    """

    def __init__(self, directory: Path) -> None:
        self.directory, self.out, self._tmp = directory, directory / "out", directory / "tmp"
        self._tmp.mkdir(parents=True)
        self._numbers = itertools.count(1)
        self._outputs: list[Path] = []
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, failure: object, *_: object) -> None:
        try:
            if failure is None:
                self.check()
        finally:
            self.kill()
            for process in self._processes:
                process.wait()

    def start(
        self,
        *words: str | bytes | Path,
        under: Sequence[str] = (),
        stdout: int | None = None,
        stderr: int | None = None,
        **variables: str,
    ) -> Started:
        """Starts run_bench.py, in a session of its own.

        Args:
            words: its words.
            under: words of a program that starts it, such as a shell that sets a limit.
            stdout: a file descriptor; None for a file in the scratch directory.
            stderr: the same.
            variables: of the environment, beside the user's.
        """
        number = next(self._numbers)
        paths = [self.directory / f"{number}.{name}" for name in ("stdout", "stderr")]
        self._outputs += paths
        with paths[0].open("wb") as output, paths[1].open("wb") as errors:
            process = subprocess.Popen(
                [*under, *RUN_BENCH, *words],
                cwd=self.directory,
                env={**USER_ENVIRONMENT, _MARK: str(self.directory), "TMPDIR": str(self._tmp), **variables},
                stdin=subprocess.DEVNULL,
                stdout=output if stdout is None else stdout,
                stderr=errors if stderr is None else stderr,
                start_new_session=True,
            )
        self._processes.append(process)
        return Started(process, *paths)

    def bench(self, *words: str | bytes | Path, **how: Any) -> Finished:
        """Runs run_bench.py to its end, see `start`."""
        return self.start(*words, **how).end()

    def processes(self, *patterns: str) -> list[psutil.Process]:
        """Returns the living processes of this directory whose words, each followed by a blank, have all patterns."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                is_ours = process.environ().get(_MARK) == str(self.directory)
                line = " ".join([*process.cmdline(), ""])
                if is_ours and process.status() != psutil.STATUS_ZOMBIE and all(each in line for each in patterns):
                    found.append(process)
        return found

    def kill(self) -> None:
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()

    def records(self, directory: Path | None = None) -> list[dict[str, Any]]:
        """Returns the records of a results directory; fails if a line is not JSON."""
        path = (directory or self.out) / store.JSONL_NAME
        return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []

    def expect(
        self, ended: Finished, *statuses: int, records: Sequence[str] | None = None, says: Sequence[str] = ()
    ) -> None:
        """Fails unless a command ended with one of these statuses and printed this, in any case of letters.

        `records` are the statuses of all records in `out`, in any order.
        """
        text = ended.stdout + ended.stderr
        assert ended.status in statuses, text[-1000:]
        for word in says:
            assert word.lower() in text.lower(), text[-1000:]
        if records is not None:
            assert sorted(record["status"] for record in self.records()) == sorted(records), text[-1000:]

    def check(self) -> None:
        """Fails unless nothing is left but whole results, and no command ended with a traceback."""
        until = time.monotonic() + _LINGER_SECONDS
        while (left := self.processes()) and time.monotonic() < until:
            time.sleep(0.1)
        assert not left
        for path in self._outputs:
            assert "Traceback (most recent call last)" not in path.read_text(errors="replace")
        assert not list(self._tmp.iterdir())
        assert not list(self.directory.rglob("*.partial"))
        for path in self.directory.rglob(store.JSONL_NAME):
            assert not [other.name for other in path.parent.iterdir() if other.name.startswith(".")]
            self._check_results(path.parent)

    def _check_results(self, directory: Path) -> None:
        """Fails unless every line of the JSONL is JSON and the CSV has the same records."""
        self.records(directory)
        if (table := directory / "results.csv").is_file():
            records = loading.load(directory / store.JSONL_NAME).records
            rows = list(csv.DictReader(io.StringIO(table.read_text(encoding="utf-8"))))
            assert [row["run_id"] for row in rows] == [record.identity.run_id for record in records]
            assert table.read_text(encoding="utf-8") == store.as_csv(records)


def in_shell(script: str) -> Sequence[str]:
    """Returns words that start a program after lines of shell, such as `ulimit -v 1000000`."""
    return ("sh", "-c", f'{script}; exec "$@"', "sh")
