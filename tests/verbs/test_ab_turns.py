"""A/B comparisons whose runs are started at once: small programs that take turns, or do not know how."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import calibrate_job, command_line
from benchmarks.ab_side import Side
from benchmarks.errors import ExitStatus
from gate import noise
from results.store import load
from tests.support.commands import ROOT
from tests.support.records import fake_run

# Stands for run_bench.py: its words say which side it is, and what it cannot do. Each step is a line of the log.
FAKE = """
import json, os, sys, types, uuid
from pathlib import Path
sys.path.insert(0, ROOT)
from benchmarks import turns
words = dict(word.split("=", 1) for word in sys.argv[1:] if not word.startswith("--"))
flags = dict(word[2:].split("=", 1) for word in sys.argv[1:] if word.startswith("--"))
store = Path(flags["output_dir"]) / "results.jsonl"
if words.get("refuses"):
    print("run_bench: There is no flag --new.", file=sys.stderr); sys.exit(2)
config = types.SimpleNamespace(
    cluster=None, num_workers=1, num_ps=0, input=None, modifiers=types.SimpleNamespace(asynchronous=False),
    device="cpu", time_limit_seconds=None,
)
with open(LOG + ".runs", "a") as log: log.write(words["side"])
number = open(LOG + ".runs").read().count(words["side"])
broken = {"always": True, "in_turn": turns.are_taken(config), "3": number == 3}
if broken.get(words.get("breaks")): sys.exit("it broke here")
if words.get("knows") == "no": os.environ.pop("CNN_BENCH_TURNS", None)
def step():
    with open(LOG, "a") as log: log.write(words["side"] + " ")
steps_per_turn = None
with turns.taken(config) as own:
    if own: own.begin(20, 0.1); steps_per_turn = own.steps_per_turn
    for _ in range(20):
        step()
        if own: own.after_step()
    if own: own.finish()
record = json.loads(TEMPLATE)
record["identity"] |= {"session_id": flags["session_id"], "run_id": uuid.uuid4().hex, "config_key": "a key"}
record["environment"] |= turns.environment(steps_per_turn)
record["derived"]["images_per_sec"] = float(words["rate"])
with store.open("a") as file:
    file.write(json.dumps(record) + "\\n")
"""

Ab = Callable[..., tuple[int, str]]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The program, as a file."""
    constants = {"TEMPLATE": fake_run().to_json(), "LOG": str(tmp_path / "steps.log"), "ROOT": str(ROOT)}
    path = tmp_path / "fake.py"
    path.write_text("\n".join(f"{name} = {value!r}" for name, value in constants.items()) + FAKE)
    return path


@pytest.fixture
def ab(tmp_path: Path, program: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ab:
    """Compares two sides, which behave as the words say; returns the status, and all that was said."""
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)

    def run(base: str = "", candidate: str = "", *words: str) -> tuple[int, str]:
        sides = [
            f"--{side}_command={sys.executable} {program} side={side[0]} rate=100 {says}"
            for side, says in (("base", base), ("candidate", candidate))
        ]
        places = [f"--output_dir={tmp_path / 'out'}", f"--baselines_dir={tmp_path / 'baselines'}"]
        status = command_line.dispatch(["ab", "--device=cpu", "--model=mlp", *places, *sides, *words])
        shown = capsys.readouterr()
        return status, shown.out + shown.err

    return run


def steps(tmp_path: Path) -> list[str]:
    """Returns the steps of each pair of runs, in order."""
    taken = "".join((tmp_path / "steps.log").read_text().split())
    return [taken[begin : begin + 40] for begin in range(0, len(taken), 40)]


def steps_in_fours(taken: str) -> list[str]:
    return [taken[begin : begin + 4] for begin in range(0, len(taken), 4)]


def rounds(tmp_path: Path) -> list[int]:
    return [len(load(tmp_path / "out" / side / "results.jsonl").records) for side in ("base", "candidate")]


def test_both_sides_measure_in_turn_and_who_begins_alternates(ab: Ab, tmp_path: Path) -> None:
    status, said = ab()
    assert status == ExitStatus.OK and "unchanged" in said and "whole runs" not in said
    warmup, *pairs = steps(tmp_path)
    assert [warmup, *pairs[:3]] == ["bbcc" * 10, "bbcc" * 10, "ccbb" * 10, "bbcc" * 10]
    assert rounds(tmp_path) == [len(pairs)] * 2


def test_a_drop_is_found_in_turn(ab: Ab) -> None:
    status, said = ab("", "rate=90")
    assert status == ExitStatus.REGRESSED and "10.0 % slower" in said


@pytest.mark.parametrize(("words", "noted"), [(["--nosteps_in_turn"], False), ([], True)])
def test_without_turns_whole_runs_follow_each_other(ab: Ab, tmp_path: Path, words: list[str], noted: bool) -> None:
    status, said = ab("", "knows=no" if noted else "", *words)
    assert status == ExitStatus.OK
    _, *pairs = steps(tmp_path)
    assert pairs[:3] == ["b" * 20 + "c" * 20, "c" * 20 + "b" * 20, "b" * 20 + "c" * 20]
    assert rounds(tmp_path) == [len(pairs)] * 2, "the warm-up has told that a side takes none"
    notes = [line for line in said.splitlines() if "whole runs were compared" in line and "run_bench:" not in line]
    assert bool(notes) == noted and all("a side does not know how" in note for note in notes)


def test_without_a_round_to_try_them_out_no_turns_are_taken(ab: Ab, tmp_path: Path) -> None:
    ab("", "", "--nowarmup_round")
    assert steps(tmp_path)[0] == "b" * 20 + "c" * 20


def test_runs_that_fail_only_beside_each_other_are_run_apart(ab: Ab, tmp_path: Path) -> None:
    status, said = ab("", "breaks=in_turn")
    assert status == ExitStatus.OK and "started at once, the candidate failed. crash: " in said
    assert "it broke here" in said
    assert (tmp_path / "steps.log").read_text().replace(" ", "").startswith("b" * 40 + "c" * 40 + "b" * 20)


def test_a_pair_of_which_one_fails_now_and_then_is_run_again_in_turn(ab: Ab, tmp_path: Path) -> None:
    status, said = ab("", "breaks=3")
    assert status == ExitStatus.OK and "candidate failed, and was run again. crash: " in said
    assert "whole runs" not in said
    taken = (tmp_path / "steps.log").read_text().replace(" ", "")
    assert taken == "bbcc" * 20 + "b" * 20 + "ccbb" * 10 + taken[140:], "the base was alone, and both ran again"
    assert set(steps_in_fours(taken[140:])) == {"bbcc", "ccbb"}


def test_a_candidate_that_always_fails_has_failed(ab: Ab, tmp_path: Path) -> None:
    status, said = ab("", "breaks=always")
    assert status == ExitStatus.REGRESSED and "The candidate did not run in round 1" in said
    assert rounds(tmp_path) == [1, 2]


def test_what_a_side_refuses_is_not_tried_again(ab: Ab, tmp_path: Path) -> None:
    status, said = ab("", "refuses=yes")
    assert status == ExitStatus.REGRESSED and "There is no flag --new" in said
    assert rounds(tmp_path) == [1, 1]


@pytest.mark.parametrize("in_turn", [True, False])
def test_noise_says_how_it_was_measured_and_counts_only_there(
    ab: Ab, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_turn: bool
) -> None:
    side = Side("fake", (sys.executable, str(program), "side=b", "rate=100"))
    monkeypatch.setattr(calibrate_job.ab_side, "this_suite", lambda: side)
    places = [f"--output_dir={tmp_path / 'calibrated'}", f"--baselines_dir={tmp_path / 'baselines'}"]
    words = ["calibrate", "--device=cpu", "--model=mlp", "--rounds=3", *places]
    assert command_line.dispatch([*words, *([] if in_turn else ["--nosteps_in_turn"])]) == ExitStatus.OK
    path = noise.path_of(tmp_path / "baselines", fake_run().identity.hardware_key)
    (found,) = noise.load(path).values()
    assert found.in_turn == in_turn
    noise.keep(path, {"a key": dataclasses.replace(found, noise=0.1)})
    _, said = ab("", "rate=90")
    assert ("the threshold is 20.0 %" in said) == in_turn
    assert ("calibrate has measured the noise of whole runs" in said) != in_turn
