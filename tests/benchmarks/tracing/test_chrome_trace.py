"""The file of a trace, and the clock that the events of several workers have in common."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from benchmarks.cluster.member import Alone
from benchmarks.tracing import chrome_trace

ROWS = [
    ["/device:CPU:0", "compute", "MatMul", "tower_0/fc", 1000, 50],
    ["/device:CPU:0", "compute", "Add", "tower_0/add", 1020, 10],  # at the same time
    ["/device:CPU:0", "compute", "Relu", "tower_0/relu", 1050, 5],
    ["/device:CPU:0", "exchange", "transfer or wait", "tower_1/fc", 1010, 30],
    ["/device:CPU:1", "input", "IteratorGetNext", "input/get", 1100, 0],
]


def check(trace: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the complete events, after what the format requires of all events."""
    events = trace["traceEvents"]
    for event in events:
        assert event["ph"] in ("X", "M")
        assert isinstance(event["name"], str) and isinstance(event["pid"], int) and isinstance(event["tid"], int)
        if event["ph"] == "X":
            assert event["ts"] >= 0 and event["dur"] >= 0 and event["cat"] in ("compute", "exchange", "input")
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert len(named) == sum(e["name"] == "thread_name" for e in events)
    complete = [event for event in events if event["ph"] == "X"]
    assert {(event["pid"], event["tid"]) for event in complete} == named
    for lane in named:
        ends = [(e["ts"], e["ts"] + e["dur"]) for e in complete if (e["pid"], e["tid"]) == lane]
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(sorted(ends))), "no overlaps in a lane"
    return complete


def names(trace: Mapping[str, Any], what: str) -> list[str]:
    return [event["args"]["name"] for event in trace["traceEvents"] if event["name"] == what]


def test_a_device_has_lanes_for_each_kind_of_work() -> None:
    trace = chrome_trace.trace({"": ROWS})
    events = {event["name"]: event for event in check(trace)}
    assert names(trace, "process_name") == ["/device:CPU:0", "/device:CPU:1"]
    assert names(trace, "thread_name") == ["compute", "compute 2", "exchange", "input"]
    assert events["MatMul"]["ts"] == 0 and events["MatMul"]["dur"] == 50
    assert events["Relu"]["tid"] == events["MatMul"]["tid"] != events["Add"]["tid"], "the first lane that is free"
    assert events["Add"]["args"] == {"name": "tower_0/add"}


class TwoHosts(Alone):
    """A second worker, whose clock is some µs ahead, and which leaves one meeting late."""

    def __init__(self, ahead: int, host: str) -> None:
        self._ahead, self._host = ahead, host

    def meet(self, what: str, message: Any = None, *, patient: bool = False) -> Mapping[str, Any]:
        if what != "traced":
            return {}
        _, own_host, clocks, rows = message
        late = [clock + self._ahead + 90_000 * (number == 2) for number, clock in enumerate(clocks)]
        moved = [[*what, begin + self._ahead, duration] for *what, begin, duration in rows]
        return {"worker 0": message, "worker 1": [False, self._host or own_host, late, moved]}


def test_workers_of_other_hosts_get_the_leaders_clock() -> None:
    found = chrome_trace.gather(ROWS, TwoHosts(5_000_000, "other"))
    assert found["worker 0"] == found["worker 1"] == ROWS
    trace = chrome_trace.trace(found)
    check(trace)
    assert names(trace, "process_name")[-1] == "worker 1: /device:CPU:1"


def test_workers_of_one_host_share_its_clock() -> None:
    found = chrome_trace.gather(ROWS, TwoHosts(7, ""))
    assert [row[4] for row in found["worker 1"]] == [row[4] + 7 for row in ROWS], "a difference is real"
