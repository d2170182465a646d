"""A/B comparisons whose runs are started at once: builds that interleave their steps, or do not know how."""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from msgspec.structs import replace

from benchmarks.cli import main
from benchmarks.errors import ExitStatus, OverdueError
from benchmarks.machine import provenance
from benchmarks.measure import interleaved_steps
from benchmarks.process import silence, subprocesses
from benchmarks.sweep import grid, isolated_run
from results.gate import noise
from results.loading import load
from results.record import Record, Status
from results.store import Store
from tests.support.commands import ROOT
from tests.support.fake_runs import Failure, FakeRun, FakeRuns
from tests.support.records import fake_run

STEPS = 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Build:
    """What a side's runs do.

    Attributes:
        rate: images per second.
        interleaves: whether it knows how.
        refuses: whether it refuses its flags.
        breaks: whether a run fails, given its number, from 1, and whether it was to interleave.
        stuck: whether its runs take no time slice; they are killed when the other side gives up.
    """

    rate: float = 100.0
    interleaves: bool = True
    refuses: bool = False
    breaks: Callable[[int, bool], bool] = lambda number, in_turn: False
    stuck: Callable[[int], bool] = lambda number: False


class Builds:
    """Runs the builds that a test compares, and notes each step: `b` is one of the base, `c` of the candidate."""

    def __init__(self) -> None:
        self.named: dict[str, Build] = {}
        self.taken = ""
        self.given_up = threading.Event()
        self._numbers: Counter[str] = Counter()

    def __call__(self, run: FakeRun) -> Record | Failure:
        name = Path(run.flags["output_dir"]).name
        build = self.named.get(name, Build())
        if build.refuses:
            return Failure(returncode=2, stderr="run_bench: There is no flag --new.")
        self._numbers[name] += 1
        if build.breaks(self._numbers[name], run.turns is not None):
            return Failure(returncode=1, stderr="it broke here")
        own = run.turns if build.interleaves else None
        if own and build.stuck(self._numbers[name]):
            self.given_up.wait(60.0)
            self.given_up.clear()
            return Failure(returncode=-9, timed_out=True)
        if own:
            try:
                own.begin(STEPS, 0.1)
            except OverdueError as error:
                self.given_up.set()
                return replace(fake_run(step_seconds=1.0), status=Status.TIMEOUT, reason=str(error))
        for _ in range(STEPS):
            self.taken += name[0]
            if own:
                own.after_step()
        if own:
            own.finish()
        made = fake_run(step_seconds=32 / build.rate)
        environment = interleaved_steps.environment(own.steps_per_slice if own else None)
        return replace(made, environment={**made.environment, **environment})

    @property
    def pairs(self) -> list[str]:
        """Returns the steps of each pair of runs, in order."""
        return [self.taken[begin : begin + 2 * STEPS] for begin in range(0, len(self.taken), 2 * STEPS)]


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> Builds:
    """Builds, in place of processes."""
    made = Builds()
    monkeypatch.setattr(subprocesses, "supervise", FakeRuns(made))
    return made


Ab = Callable[..., tuple[int, str]]


@pytest.fixture
def ab(tmp_path: Path, builds: Builds, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ab:
    """Compares a build with one that does what a `Build` says; returns the status, and all that was printed."""
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)

    def run(*words: str, **does: Any) -> tuple[int, str]:
        builds.named["candidate"] = Build(**does)
        sides = [f"--{side}_command={sys.executable}" for side in ("base", "candidate")]
        places = [f"--output_dir={tmp_path / 'out'}", f"--baselines_dir={tmp_path / 'baselines'}"]
        status = main.dispatch(["ab", "--device=cpu", "--model=mlp", *places, *sides, *words])
        shown = capsys.readouterr()
        return status, shown.out + shown.err

    return run


def rounds(tmp_path: Path) -> list[int]:
    return [len(load(tmp_path / "out" / side / "results.jsonl").records) for side in ("base", "candidate")]


def test_steps_are_interleaved_and_the_first_side_alternates(ab: Ab, builds: Builds, tmp_path: Path) -> None:
    status, said = ab()
    assert status == ExitStatus.OK and "unchanged" in said and "whole runs" not in said
    warmup, *pairs = builds.pairs
    assert [warmup, *pairs[:3]] == ["bbcc" * 10, "bbcc" * 10, "ccbb" * 10, "bbcc" * 10]
    assert rounds(tmp_path) == [len(pairs)] * 2


def test_a_drop_is_found_in_interleaved_steps(ab: Ab) -> None:
    status, said = ab(rate=90)
    assert status == ExitStatus.REGRESSED and "10.0 % slower" in said


@pytest.mark.parametrize(("words", "noted"), [(["--nosteps_in_turn"], False), ([], True)])
def test_whole_runs_follow_each_other_if_steps_are_not_interleaved(
    ab: Ab, builds: Builds, tmp_path: Path, words: list[str], noted: bool
) -> None:
    status, said = ab(*words, interleaves=not noted)
    assert status == ExitStatus.OK
    _, *pairs = builds.pairs
    assert pairs[:3] == ["b" * 20 + "c" * 20, "c" * 20 + "b" * 20, "b" * 20 + "c" * 20]
    assert rounds(tmp_path) == [len(pairs)] * 2, "the warm-up has shown that a side does not interleave"
    notes = [line for line in said.splitlines() if "whole runs were compared" in line and "run_bench:" not in line]
    assert bool(notes) == noted and all("a side does not know how to interleave steps" in note for note in notes)


def test_no_steps_are_interleaved_without_a_warm_up_round(ab: Ab, builds: Builds) -> None:
    ab("--nowarmup_round")
    assert builds.pairs[0] == "b" * 20 + "c" * 20


def test_runs_that_fail_only_together_follow_each_other(ab: Ab, builds: Builds) -> None:
    status, said = ab(breaks=lambda number, in_turn: in_turn)
    assert status == ExitStatus.OK and "started at once, the candidate failed. crash: " in said
    assert "it broke here" in said
    assert builds.taken.startswith("b" * 40 + "c" * 40 + "b" * 20)


def test_a_pair_of_which_one_run_fails_is_repeated_with_interleaved_steps(ab: Ab, builds: Builds) -> None:
    status, said = ab(breaks=lambda number, in_turn: number == 3)
    assert status == ExitStatus.OK and "candidate failed, and was run again. crash: " in said
    assert "whole runs" not in said
    taken = builds.taken
    assert taken == "bbcc" * 20 + "b" * 20 + "ccbb" * 10 + taken[140:], "the base was alone, and both ran again"
    assert {taken[begin : begin + 4] for begin in range(140, len(taken), 4)} == {"bbcc", "ccbb"}


def test_a_candidate_that_always_fails_has_failed(ab: Ab, tmp_path: Path) -> None:
    status, said = ab(breaks=lambda number, in_turn: True)
    assert status == ExitStatus.REGRESSED and "The candidate did not run in round 1" in said
    assert rounds(tmp_path) == [1, 2]


@pytest.mark.parametrize(
    ("stuck", "status"),
    [("base", ExitStatus.UNDECIDED), ("candidate", ExitStatus.REGRESSED)],
    ids=["base", "candidate"],
)
def test_the_side_that_does_not_take_its_turn_is_named(
    ab: Ab, builds: Builds, monkeypatch: pytest.MonkeyPatch, stuck: str, status: ExitStatus
) -> None:
    monkeypatch.setattr(interleaved_steps, "_LEAST_START_SECONDS", 0.1)
    builds.named["base"] = Build(stuck=lambda number: stuck == "base" and number > 1)
    found, said = ab(stuck=lambda number: stuck == "candidate" and number > 1)
    assert found == status
    waiting = "candidate" if stuck == "base" else "base"
    assert f"a run of the {waiting} failed, and was run again. timeout: The other run of this pair has not" in said
    assert f"The {stuck} did not run in round 1: timeout: Killed because the run beside it waited in vain" in said


def test_what_a_side_refuses_is_not_tried_again(ab: Ab, tmp_path: Path) -> None:
    status, said = ab(refuses=True)
    assert status == ExitStatus.REGRESSED and "There is no flag --new" in said
    assert rounds(tmp_path) == [1, 1]


@pytest.mark.parametrize("in_turn", [True, False])
def test_noise_says_how_it_was_measured_and_counts_only_there(ab: Ab, tmp_path: Path, in_turn: bool) -> None:
    places = [f"--output_dir={tmp_path / 'calibrated'}", f"--baselines_dir={tmp_path / 'baselines'}"]
    words = ["calibrate", "--device=cpu", "--model=mlp", "--rounds=3", *places]
    assert main.dispatch([*words, *([] if in_turn else ["--nosteps_in_turn"])]) == ExitStatus.OK
    path = noise.path_of(tmp_path / "baselines", fake_run().identity.hardware_key)
    ((key, found),) = noise.load(path).items()
    assert found.is_interleaved == in_turn
    noise.save(path, {key: replace(found, noise=0.1)})
    _, said = ab(rate=90)
    assert ("the threshold is 20.0 %" in said) == in_turn
    assert ("calibrate has measured the noise of whole runs" in said) != in_turn


# A run in a process: each step is a letter in a file. STOPS stops itself, as SIGSTOP from elsewhere would.
CHILD = """
import os, signal, sys
from msgspec.structs import replace
sys.path.insert(0, ROOT)
from benchmarks.errors import OverdueError
from benchmarks.measure import interleaved_steps
from results.record import Status
from tests.support import fake_runs

interleaved_steps._LEAST_SLICE_SECONDS = 1.0
run = fake_runs.FakeRun(sys.argv)
record = fake_runs.record_of(run)
try:
    with interleaved_steps.taken(run.config.can_interleave, 60.0) as own:
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
            store=Store(directory / name),
            output_dir=str(directory / name),
            provenance=origin,
            timeout_seconds=seconds,
        )
        for name in ("x", "y")
    ]
    (cell,) = grid.cells([{"device": ["cpu"], "model": ["trivial"]}], lambda: 0)
    return isolated_run.run_together(runners, [cell] * len(runners), 0), log.read_text()


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
    assert waiting.reason == "The other run of this pair has not taken its turn for 1 s (its process may be stopped)."
    assert stopped.reason.startswith("Killed because the run beside it waited in vain for its turn")
    assert not [child for child in psutil.Process().children() if str(tmp_path) in " ".join(child.cmdline())]


@pytest.mark.fault(
    "R4", "SIGSTOP of a side's process while it starts", survives="the side is named and killed, the other goes on"
)
@pytest.mark.process
@pytest.mark.parametrize("stops", ["x", "y"])
def test_a_process_that_is_stopped_while_it_starts_is_named(
    tmp_path: Path, stops: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silence, "SILENT_SECONDS", 6.0)
    records, steps = _run_processes(tmp_path, stops=stops, at=0, seconds=300.0)  # of which none passes
    stopped, waiting = records if stops == "x" else reversed(records)
    assert (stopped.status, waiting.status) == (Status.TIMEOUT, Status.OK)
    assert stopped.reason.startswith("Killed because it neither computed nor wrote anything for 6 s while it started")
    assert set(steps) == {"x", "y"} - {stops}
