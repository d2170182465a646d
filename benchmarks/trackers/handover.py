"""Hands stored records to processes that send them to trackers, one after the other. Imports none of their libraries.

A tracker's server may be down, slow or hang, so each process has a time limit, and its failure is a warning.
"""

from __future__ import annotations

import functools
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.console import progress, warn
from benchmarks.errors import Terminated
from benchmarks.process import signals
from benchmarks.process.subprocesses import RUN_BENCH, give_way
from benchmarks.trackers.tracker_list import Kind, Targets
from results.masking import without_secrets
from results.record import Record
from results.text import counted, one_line

# Limits of the time that a tracker gets, after a run that ended by itself and after one that was stopped.
SEND_SECONDS = 120.0
STOPPED_SECONDS = 10.0
# For each record beside the first.
_MORE_SECONDS = 5.0
_TAIL_BYTES = 65536  # of its messages, whose last line says why it failed
# Set for a run whose parent sends its record.
_SENT_BY_PARENT = "CNN_BENCH_SENT_BY_PARENT"


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
    for kind, target in targets.named.items():
        progress.begin(f"sending {counted(len(records), 'record')} to {kind.title}")
        try:
            places, why = _sent(records, kind, target, limit_seconds)
        except OSError as error:
            places, why = [], error.strerror or str(error)
        finally:
            progress.end()
        if len(places) == len(records):
            where = places[0] if len(records) == 1 else f"{len(records)} runs in {target}"
            announce(f"{kind.title}, {where}")
        else:
            all_sent = False
            missing = _of(len(records) - len(places), len(records))
            warn(f"{kind.title}: {missing}: {why}. {_later({kind: target}, records, stored_in)}")
    return all_sent


def _sent(records: Sequence[Record], kind: Kind, target: str, limit_seconds: float) -> tuple[list[str], str]:
    """Returns where each record that was sent can be seen, and why the others were not sent.

    Raises:
        OSError: no process can be started.
    """
    job = json.dumps({"package": kind.package, "target": target})
    path = os.pathsep.join([str(RUN_BENCH.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryFile() as places, tempfile.TemporaryFile() as messages:
        process = subprocess.Popen(
            # Without the working directory, where files may have the names of the libraries.
            [sys.executable, "-P", "-m", "benchmarks.trackers.send"],
            stdin=subprocess.PIPE,
            stdout=places,
            stderr=messages,
            env={**dict(kind.variables), **os.environ, "PYTHONPATH": path},
            start_new_session=True,
            preexec_fn=functools.partial(give_way, os.getpid()),
        )
        text = "\n".join([job, *(record.cleaned().to_json() for record in records)])
        try:
            process.communicate(text.encode(), timeout=limit_seconds)
            why = f"its process ended with status {process.returncode}"
            messages.seek(0, os.SEEK_END)
            messages.seek(max(0, messages.tell() - _TAIL_BYTES))
            lines = [line for line in messages.read().decode(errors="replace").splitlines() if line.strip()]
            why = (lines or [why])[-1]
        except subprocess.TimeoutExpired:
            why = f"it took longer than {limit_seconds:g} s"
        finally:
            if process.poll() is None:  # with what the library has started
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        places.seek(0)
        return places.read().decode(errors="replace").splitlines(), one_line(without_secrets([why])[0])


def _of(missing: int, total: int) -> str:
    return "the run was not sent" if total == 1 else f"{missing} of {total} runs were not sent"


def _later(named: Mapping[Kind, str], records: Sequence[Record], stored_in: Sequence[Path]) -> str:
    """Returns how stored records are sent again."""
    which = [f"--where=run_id={records[0].identity.run_id}"] if len(records) == 1 else []
    flags = [f"--{kind.flag}={target}" for kind, target in named.items()]
    words = without_secrets([*map(str, stored_in), *which, *flags])
    return f"What is stored can be sent later: report {shlex.join(words)}"
