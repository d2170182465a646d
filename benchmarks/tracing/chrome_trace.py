"""Writes the events of a step as a file that chrome://tracing and Perfetto open. Imports no TensorFlow.

The Trace Event Format, by Google: complete events (`X`) of threads in processes, which metadata events (`M`) name;
times are in µs. Here a process is a device, and a thread is one lane of a kind of work.
"""

from __future__ import annotations

import gzip
import json
import socket
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.cluster.member import Team

# The lanes of a device: those of a kind begin at this number, for operations that run at the same time.
_LANES = {"compute": 0, "exchange": 1000, "input": 2000}
_ROUNDS = 5

# Device, kind, type, name, begin in µs since 1970, duration in µs.
Row = Sequence[Any]


def gather(rows: Sequence[Row], team: Team) -> dict[str, list[Row]]:
    """Returns the events of all workers by the name of their task, by the leader's clock; every worker calls this.

    Workers on the leader's host share its clock. Of another host, the offset is estimated: after each of some meetings,
    all workers read their clocks, and they leave a meeting within a few ms of each other. That shows which steps
    overlap, but not how long a single transfer between hosts takes.
    """
    clocks = []
    for number in range(_ROUNDS):
        team.meet(f"read their clocks ({number})", patient=True)
        clocks.append(time.time_ns() // 1000)
    everyone = team.meet("traced", [team.is_leader, socket.gethostname(), clocks, list(rows)], patient=True)
    host, of_leader = next((host, clocks) for leads, host, clocks, _ in everyone.values() if leads)
    found: dict[str, list[Row]] = {}
    for task, (_, its_host, its_clocks, its_rows) in everyone.items():
        ahead = [its - leader for its, leader in zip(its_clocks, of_leader, strict=True)]
        late = 0 if its_host == host else round(statistics.median(ahead))
        found[task] = [[*what, begin - late, duration] for *what, begin, duration in its_rows]
    return found


def trace(rows_of: Mapping[str, Iterable[Row]]) -> dict[str, Any]:
    """Returns a trace of events by task; the name of a single process may be empty."""
    begins = [begin for rows in rows_of.values() for *_, begin, _ in rows]
    zero = min(begins, default=0)
    written: list[dict[str, Any]] = []
    process = 0
    for task, rows in rows_of.items():
        by_device: dict[str, list[Row]] = {}
        for row in rows:
            by_device.setdefault(row[0], []).append(row)
        for device in sorted(by_device):
            process += 1
            written += [
                _names("process_name", process, 0, name=f"{task}: {device}" if task else device),
                _names("process_sort_index", process, 0, sort_index=process),
                *_lanes(by_device[device], process, zero),
            ]
    return {"displayTimeUnit": "ms", "traceEvents": written}


def write(path: Path, contents: Mapping[str, Any]) -> None:
    """Writes a trace as JSON, compressed if the name ends in `.gz`."""
    text = json.dumps(contents, separators=(",", ":")).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


def _lanes(rows: Sequence[Row], process: int, zero: int) -> list[dict[str, Any]]:
    """Returns the events of a device, each in the first lane of its kind that is free, and the lanes' names."""
    written, numbers = [], {}
    for kind, first in _LANES.items():
        ends: list[int] = []  # of the last event of each lane
        for _, of_kind, type_, name, begin, duration in sorted(rows, key=lambda row: (row[4], -row[5])):
            if of_kind != kind:
                continue
            number = next((number for number, end in enumerate(ends) if end <= begin), len(ends))
            ends[number : number + 1] = [begin + duration]
            lane = first + number
            numbers[lane] = f"{kind} {lane - first + 1}" if lane > first else kind
            written.append(
                {
                    "name": type_,
                    "cat": kind,
                    "ph": "X",
                    "ts": begin - zero,
                    "dur": duration,
                    "pid": process,
                    "tid": lane,
                    "args": {"name": name},
                }
            )
    named = [_names("thread_name", process, lane, name=name) for lane, name in numbers.items()]
    in_order = [_names("thread_sort_index", process, lane, sort_index=lane) for lane in numbers]
    return [*named, *in_order, *written]


def _names(what: str, process: int, lane: int, **args: object) -> dict[str, Any]:
    return {"name": what, "ph": "M", "ts": 0, "pid": process, "tid": lane, "args": args}
