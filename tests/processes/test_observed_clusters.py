"""Summaries, profiles and traces of workers that train together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.benchmarks.tracing.test_chrome_trace import check, names
from tests.support.clusters import SMALL, local
from tests.support.commands import Records, RunBench


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("manager", "tasks"), [("distributed_replicated", "ps:1,worker:2"), ("collective_all_reduce", "worker:2")]
)
def test_all_workers_are_in_the_trace_and_take_asides_together(
    run_process: RunBench,
    records: Records,
    tmp_path: Path,
    manager: str,
    tasks: str,
) -> None:
    flags = ("--summary_verbosity=2", "--save_summaries_steps=4", "--train_dir=t", "--profile_steps=6:6")
    run = run_process(*SMALL, *local(tasks), f"--variable_update={manager}", *flags, "--trace_file=trace.json")
    assert run.status == 0, run.stderr
    (record,) = records()
    seen = record["measurement"]
    assert seen["unmeasured_steps"] == [4, 6, 7, 8, 12, 16]
    assert len(seen["unmeasured_losses"]) == 6 and len(seen["step_seconds"]) == 8
    assert seen["replica_drift"] in (0, None)
    assert len(list((tmp_path / "t").glob("events.*"))) == 1
    for directory in ("t", "t/worker_1"):
        assert len(list((tmp_path / directory).glob("plugins/profile/*/*.xplane.pb"))) == 1
        assert "MatMul" in (tmp_path / directory / "operations.csv").read_text()
    trace = json.loads((tmp_path / "trace.json").read_text())
    events = check(trace)
    processes = names(trace, "process_name")
    for worker in (0, 1):
        number = 1 + next(n for n, name in enumerate(processes) if f"worker {worker}: /job:worker/" in name)
        # oneDNN has kernels of other names.
        assert any("MatMul" in event["name"] for event in events if event["pid"] == number), processes
    assert any(event["cat"] == "exchange" for event in events)
    assert ("ps:" in tasks) == any("/job:ps/" in name for name in processes)
    begins = [min(e["ts"] for e in events if e["pid"] == 1 + n) for n in range(len(processes))]
    assert max(begins) < max(event["ts"] + event["dur"] for event in events), "the same step on one clock"
