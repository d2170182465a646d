"""Hands stored records to processes that send them to trackers, one for each tracker. Imports none of their libraries.

A tracker's server may be down, slow or hang, so each process has a deadline, and its failure is a warning.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from benchmarks.console import progress, warn
from benchmarks.errors import Terminated
from benchmarks.process import signals, subprocesses
from benchmarks.process.subprocesses import RUN_BENCH, Command, Ended
from benchmarks.trackers.catalog import Kind, Targets
from results.masking import without_secrets
from results.record import Record
from results.text import counted, one_line

# Limits of the time in which no record is sent, after a run that ended by itself and after one that was stopped.
SEND_SECONDS = 120.0
STOPPED_SECONDS = 10.0
# Set for a run whose parent sends its record.
_SENT_BY_PARENT = "CNN_BENCH_SENT_BY_PARENT"
_TAIL_BYTES = 2**16


@dataclasses.dataclass(frozen=True)
class _Job:
    """A tracker, where it sends, and the files of its process."""

    kind: Kind
    target: str
    records: IO[bytes]
    sent: IO[bytes]
    errors: IO[bytes]

    def command(self) -> Command:
        path = [str(RUN_BENCH.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        return Command(
            # Without the working directory, where files may have the names of the libraries.
            words=[sys.executable, "-P", "-m", "benchmarks.trackers.send"],
            stdout=self.sent,
            stderr=self.errors,
            stdin=self.records.fileno(),
            first_to_be_killed=True,
            variables={**dict(self.kind.variables), **os.environ, "PYTHONPATH": os.pathsep.join(path)},
        )

    def where(self) -> dict[str, str]:
        """Returns where each record that was sent can be seen, by its run id."""
        self.sent.seek(0)
        lines = [json.loads(line) for line in self.sent if line.endswith(b"\n")]  # it may have been killed in a line
        return {line["run_id"]: line["where"] for line in lines}

    def why_failed(self, ended: Ended, limit_seconds: float) -> str:
        if ended.timed_out or ended.returncode == -signal.SIGALRM:
            return f"it took longer than {limit_seconds:g} s"
        self.errors.seek(max(0, self.errors.seek(0, os.SEEK_END) - _TAIL_BYTES))
        lines = [line for line in self.errors.read().decode(errors="replace").splitlines() if line.strip()]
        return one_line(without_secrets(lines[-1:] or [f"its process ended with status {ended.returncode}"])[0])


def sent_by_parent() -> Mapping[str, str]:
    """Returns the variables of a child whose record this process sends."""
    return {_SENT_BY_PARENT: "1"}


def send_of_run(
    record: Record, targets: Targets, stored_in: Sequence[Path], announce: Callable[[str], None], limit_seconds: float
) -> None:
    """Sends the record of this run, unless its parent does. A signal ends only that: the record is stored."""
    if _SENT_BY_PARENT in os.environ:
        return
    try:
        with signals.raised_once():
            send([record], targets, stored_in, announce, limit_seconds)
    except (KeyboardInterrupt, Terminated):
        warn(f"Interrupted while its result was sent to trackers. {_later(targets.named, [record], stored_in)}")


def send(
    records: Sequence[Record],
    targets: Targets,
    stored_in: Sequence[Path],
    announce: Callable[[str], None],
    limit_seconds: float = SEND_SECONDS,
) -> bool:
    """Sends records to all targets at once. What fails is a warning.

    Args:
        records: stored ones.
        targets: where they are sent.
        stored_in: the files that have them, for the warnings.
        announce: gets a sentence for each tracker that has them.
        limit_seconds: of the time in which a tracker gets no record.

    Returns:
        Whether all were sent.
    """
    named = targets.named
    if not named:
        return True
    titles = ", ".join(kind.title for kind in named)
    failed: dict[Kind, str] = {}
    progress.begin(f"sending {counted(len(records), 'record')} to {titles}")
    try:
        with contextlib.ExitStack() as stack:
            jobs = [_job(kind, target, records, limit_seconds, stack) for kind, target in named.items()]
            # They end by themselves when they make no progress.
            most_seconds = limit_seconds * len(records)
            everything = subprocesses.run(*(job.command() for job in jobs), timeout_seconds=most_seconds)
            progress.end()
            for job, ended in zip(jobs, everything, strict=True):
                found = job.where()
                if missing := len(records) - len(found):
                    failed[job.kind] = f"{_of(missing, len(records))}: {job.why_failed(ended, limit_seconds)}"
                else:
                    where = next(iter(found.values())) if len(records) == 1 else f"{len(records)} runs in {job.target}"
                    announce(f"{job.kind.title}, {where}")
    except OSError as error:
        failed = dict.fromkeys(named, f"{_of(len(records), len(records))}: {error.strerror or error}")
    finally:
        progress.end()
    for kind, why in failed.items():
        warn(f"{kind.title}: {why}. {_later({kind: named[kind]}, records, stored_in)}")
    return not failed


def _job(kind: Kind, target: str, records: Sequence[Record], limit_seconds: float, stack: contextlib.ExitStack) -> _Job:
    files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
    job = {"sender": kind.sender, "target": target, "limit_seconds": limit_seconds}
    files[0].writelines(f"{line}\n".encode() for line in (json.dumps(job), *(r.to_json() for r in records)))
    files[0].seek(0)
    return _Job(kind, target, *files)


def _of(missing: int, total: int) -> str:
    return "the run was not sent" if total == 1 else f"{missing} of {total} runs were not sent"


def _later(named: Mapping[Kind, str], records: Sequence[Record], stored_in: Sequence[Path]) -> str:
    """Returns how stored records are sent again."""
    which = [f"--where=run_id={records[0].identity.run_id}"] if len(records) == 1 else []
    flags = [f"--{kind.flag}={target}" for kind, target in named.items()]
    words = without_secrets([*map(str, stored_in), *which, *flags])
    return f"What is stored can be sent later: report {shlex.join(words)}"
