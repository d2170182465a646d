"""Hands stored records to processes that send them to trackers, one after the other. Imports none of their libraries.

A tracker's server may be down, slow or hang, so each process has a time limit, and its failure is a warning.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.console import progress, warn
from benchmarks.errors import headline
from benchmarks.process import signals, subprocesses
from benchmarks.process.subprocesses import RUN_BENCH
from benchmarks.trackers.tracker_list import Targets, Tracker, named
from results.masking import without_secrets
from results.record import Record
from results.text import counted, one_line

# Limits of the time that a tracker gets, after a run that ended by itself and after one that was stopped.
SEND_SECONDS = 120.0
STOPPED_SECONDS = 10.0
# For each record beside the first.
_MORE_SECONDS = 5.0
# Variables of a child whose record this process sends.
SENT_BY_PARENT = {"CNN_BENCH_SENT_BY_PARENT": "1"}


def send_of_run(
    record: Record, targets: Targets, stored_in: Sequence[Path], announce: Callable[[str], None], limit_seconds: float
) -> None:
    """Sends the record of this run, unless its parent does. A signal ends only that: the record is stored."""
    if SENT_BY_PARENT.keys() & os.environ.keys():
        return
    try:
        with signals.raised_once():
            send([record], targets, stored_in, announce, limit_seconds)
    except KeyboardInterrupt:
        warn(f"Interrupted while its result was sent to trackers. {_later(named(targets), [record], stored_in)}")


def send(
    records: Sequence[Record],
    targets: Targets,
    stored_in: Sequence[Path],
    announce: Callable[[str], None],
    limit_seconds: float = SEND_SECONDS,
) -> bool:
    """Sends records to all targets. What fails is a warning.

    Args:
        records: stored ones.
        targets: where they are sent.
        stored_in: the files that have them, for the warnings.
        announce: gets a sentence for each tracker that has them.
        limit_seconds: of the time that each tracker gets for one record; each further record adds 5 s.

    Returns:
        Whether all were sent.
    """
    limit_seconds += _MORE_SECONDS * (len(records) - 1)
    all_sent = True
    for tracker, target in named(targets).items():
        progress.begin(f"sending {counted(len(records), 'record')} to {tracker.title}")
        try:
            places, why = _sent(records, tracker, target, limit_seconds)
        except OSError as error:
            places, why = [], error.strerror or str(error)
        finally:
            progress.end()
        if len(places) == len(records):
            where = places[0] if len(records) == 1 else f"{len(records)} runs in {target}"
            announce(f"{tracker.title}, {where}")
        else:
            all_sent = False
            missing = "the run was not sent"
            if len(records) > 1:
                missing = f"{len(records) - len(places)} of {len(records)} runs were not sent"
            warn(f"{tracker.title}: {missing}: {why}. {_later({tracker: target}, records, stored_in)}")
    return all_sent


def _sent(records: Sequence[Record], tracker: Tracker, target: str, limit_seconds: float) -> tuple[list[str], str]:
    """Returns where each record that was sent can be seen, and why the others were not sent.

    Raises:
        OSError: no process can be started.
    """
    path = os.pathsep.join([str(RUN_BENCH.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    with contextlib.ExitStack() as stack:
        job, places, messages = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
        lines = [json.dumps({"package": tracker.package, "target": target})]
        lines += [record.cleaned().to_json() for record in records]
        job.write("\n".join(lines).encode())
        job.seek(0)
        command = subprocesses.Command(
            # Without the working directory, where files may have the names of the libraries.
            words=[sys.executable, "-P", "-m", __name__],
            stdin=job.fileno(),
            stdout=places,
            stderr=messages,
            first_to_be_killed=True,
            variables={**{name: os.environ.get(name, value) for name, value in tracker.variables}, "PYTHONPATH": path},
        )
        (ended,) = subprocesses.supervise(command, timeout_seconds=limit_seconds)
        why = f"it took longer than {limit_seconds:g} s"
        if not ended.timed_out:
            printed = [line for line in subprocesses.tail(messages).splitlines() if line.strip()]
            why = (printed or [f"its process {ended.in_words()}"])[-1]
        places.seek(0)
        return places.read().decode(errors="replace").splitlines(), one_line(without_secrets([why])[0]).rstrip(".")


def main() -> str | None:
    """Sends records to one tracker, in the process that `send` starts, and returns why the first one failed.

    The first line of stdin is a JSON object with the tracker's `package` and its `target`; each other line is a record.
    Each record that was sent is a line of stdout: where it can be seen. None: all were sent.
    """
    from benchmarks.trackers.tracked_run import tracked  # here, since it imports pandas

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends at once, without a traceback
    failed = []
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as places:
        os.dup2(2, 1)  # where libraries print
        try:
            job = json.loads(sys.stdin.buffer.readline())
            tracker = importlib.import_module(f"benchmarks.trackers.to_{job['package']}")
        except Exception as error:  # of any library
            return _in_words(error)
        for line in sys.stdin.buffer:
            try:
                print(one_line(tracker.send(tracked(Record.from_json(line)), job["target"])), file=places, flush=True)
            except Exception as error:  # the others can be sent
                failed.append(_in_words(error))
    return failed[0] if failed else None


def _in_words(error: Exception) -> str:
    return one_line(f"{type(error).__name__}: {headline(error)}")


def _later(targets: Mapping[Tracker, str], records: Sequence[Record], stored_in: Sequence[Path]) -> str:
    which = [f"--where=run_id={records[0].identity.run_id}"] if len(records) == 1 else []
    flags = [f"--{tracker.flag}={target}" for tracker, target in targets.items()]
    words = without_secrets([*map(str, stored_in), *which, *flags])
    return f"What is stored can be sent later: report {shlex.join(words)}"


if __name__ == "__main__":
    sys.exit(main())
