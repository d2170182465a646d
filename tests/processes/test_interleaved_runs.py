"""Two runs that a comparison starts at once, in processes: they interleave their steps, and one may be stopped."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.machine import provenance
from benchmarks.sweep import grid, isolated_run
from results.record import Record, Status
from tests.support.commands import ROOT

# A run in a process: each step is a letter in a file. STOPS stops itself, as SIGSTOP from elsewhere would.
CHILD = """
import os, signal, sys
from msgspec.structs import replace
sys.path.insert(0, ROOT)
from benchmarks.errors import OverdueError
from benchmarks.measure import interleaved_steps
from benchmarks.process.deadlines import Deadlines
from results.record import Status
from tests.support import fake_runs

if STOPS:
    interleaved_steps._LEAST_SLICE_SECONDS = 1.0
run = fake_runs.FakeRun(sys.argv)
record = fake_runs.record_of(run)
try:
    with interleaved_steps.taken(run.config.can_interleave, Deadlines(step_timeout_seconds=1.0)) as own:
        if sys.argv[1] == STOPS and AT == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        own.begin(20, 0.001)
        for step in range(20):
            if sys.argv[1] == STOPS and step == AT:
                os.kill(os.getpid(), signal.SIGSTOP)
            with open(LOG, "a") as log:
                log.write(sys.argv[1])
            own.after_step()
        own.finish()
except OverdueError as error:
    print(error, file=sys.stderr)
    record = replace(record, status=Status.TIMEOUT, reason=str(error))
run.leave(replace(record, environment=interleaved_steps.environment(own.steps_per_slice)))
"""


def _run_processes(directory: Path, *, stops: str = "", at: int = 7, seconds: float) -> tuple[list[Record], str]:
    """Runs two processes x and y together, one of which may stop itself at a step; returns their records and steps."""
    program, log = directory / "child.py", directory / "steps.log"
    program.write_text(f"ROOT, LOG, STOPS, AT = {str(ROOT)!r}, {str(log)!r}, {stops!r}, {at}\n{CHILD}")
    origin = provenance.of_this_run([], on_gpus=False, session_id="abc")
    runners = [
        isolated_run.CellRunner(
            program=(sys.executable, str(program), name),
            output_dir=str(directory / name),
            provenance=origin,
            timeout_seconds=seconds,
        )
        for name in ("x", "y")
    ]
    (cell,) = grid.cells([{"device": ["cpu"], "model": ["trivial"]}], lambda: 0)
    return isolated_run.run_together(runners, [cell] * len(runners), "interleaved"), log.read_text()


@pytest.mark.process
def test_two_processes_interleave_their_steps(tmp_path: Path) -> None:
    records, steps = _run_processes(tmp_path, seconds=30.0)
    assert [str(record.status) for record in records] == ["ok", "ok"], [record.reason for record in records]
    assert steps == "xxyy" * 10 and all(record.is_interleaved for record in records)


@pytest.mark.fault(
    "R4", "SIGSTOP of a side's process while ab interleaves steps", survives="the side is named, and both processes end"
)
@pytest.mark.process
@pytest.mark.parametrize("stops", ["x", "y"])
def test_a_stopped_process_ends_its_pair(tmp_path: Path, stops: str) -> None:
    records, _ = _run_processes(tmp_path, stops=stops, seconds=300.0)  # of which none passes
    stopped, waiting = records if stops == "x" else reversed(records)
    assert {stopped.status, waiting.status} == {Status.TIMEOUT}
    assert (
        waiting.reason
        == "The other run of this pair has not taken its time slice for 1 s (its process may be stopped)."
    )
    assert stopped.reason.startswith("Killed because the run beside it waited in vain for its time slice")
    assert not [child for child in psutil.Process().children() if str(tmp_path) in " ".join(child.cmdline())]


@pytest.mark.fault(
    "R4", "SIGSTOP of a side's process while it starts", survives="the side is named and killed, the other goes on"
)
@pytest.mark.process
@pytest.mark.parametrize("stops", ["x", "y"])
def test_a_process_that_is_stopped_while_it_starts_is_named(
    tmp_path: Path, stops: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolated_run, "_STOPPED_SECONDS", 6.0)
    records, steps = _run_processes(tmp_path, stops=stops, at=0, seconds=300.0)  # of which none passes
    stopped, waiting = records if stops == "x" else reversed(records)
    assert (stopped.status, waiting.status) == (Status.TIMEOUT, Status.OK)
    assert stopped.reason.startswith("The run was stopped, as by SIGSTOP, and then killed.")
    assert set(steps) == {"x", "y"} - {stops}
