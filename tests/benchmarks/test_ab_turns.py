"""A/B comparisons whose runs are started at once: small programs that take turns, or do not know how."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import command_line, flags
from benchmarks.ab_turns import TurnTakers
from benchmarks.config import resolve
from benchmarks.errors import ExitStatus
from benchmarks.grid import Cell
from results.store import load
from tests.conftest import ROOT
from tests.results.conftest import fake_run

# Stands for run_bench.py: its words say which side it is, and what it cannot do. Each step is a line of the log.
FAKE = """
import json, os, sys, uuid
from pathlib import Path
sys.path.insert(0, ROOT)
from benchmarks import turns
words = dict(word.split("=", 1) for word in sys.argv[1:] if not word.startswith("--"))
flags = dict(word[2:].split("=", 1) for word in sys.argv[1:] if word.startswith("--"))
store = Path(flags["output_dir"]) / "results.jsonl"
if words.get("refuses"):
    print("run_bench: There is no flag --new.", file=sys.stderr); sys.exit(2)
if words.get("breaks") and (words["breaks"] == "always" or turns.are_asked_for()): sys.exit("it broke here")
if words.get("knows") == "no": os.environ.pop("CNN_BENCH_TURNS", None)
def step():
    with open(LOG, "a") as log: log.write(words["side"] + " ")
steps_per_turn = None
with turns.taken() as own:
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
def ab(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ab:
    """Compares two sides, which behave as the words say; returns the status, and all that was said."""
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    constants = {"TEMPLATE": fake_run().to_json(), "LOG": str(tmp_path / "steps.log"), "ROOT": str(ROOT)}
    program = tmp_path / "fake.py"
    program.write_text("\n".join(f"{name} = {value!r}" for name, value in constants.items()) + FAKE)

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


def test_a_pair_without_turns_does_not_count(ab: Ab, tmp_path: Path) -> None:
    _, said = ab("", "knows=no", "--nowarmup_round")
    assert "whole runs were compared" in said
    first, *pairs = steps(tmp_path)
    assert sorted(first) == ["b"] * 20 + ["c"] * 20 and pairs[0] == "b" * 20 + "c" * 20
    assert rounds(tmp_path) == [1 + len(pairs)] * 2


def test_runs_that_fail_only_beside_each_other_are_run_apart(ab: Ab, tmp_path: Path) -> None:
    status, said = ab("", "breaks=in_turn", "--nowarmup_round")
    assert status == ExitStatus.OK and "started at once, the candidate failed. crash: " in said
    assert "it broke here" in said
    alone, *pairs = steps(tmp_path)
    assert (alone + "".join(pairs)).startswith("b" * 40 + "c" * 20 + "c" * 20 + "b" * 20)


def test_a_candidate_that_always_fails_has_failed(ab: Ab, tmp_path: Path) -> None:
    status, said = ab("", "breaks=always", "--nowarmup_round")
    assert status == ExitStatus.REGRESSED and "The candidate did not run in round 1" in said
    assert rounds(tmp_path) == [2, 2], "in turn, once more apart, and then it was left"


def test_what_a_side_refuses_is_not_tried_again(ab: Ab, tmp_path: Path) -> None:
    status, said = ab("", "refuses=yes", "--nowarmup_round")
    assert status == ExitStatus.REGRESSED and "There is no flag --new" in said
    assert rounds(tmp_path) == [1, 1]


def cell_of(*words: str) -> Cell:
    words = ("--model=trivial", *words)
    return Cell(words, resolve(flags.parse(list(words), flags.RUN_FLAGS).values, lambda: 1))


@pytest.mark.parametrize(
    ("words", "in_turn"),
    [
        ("", True),
        ("--num_gpus=2 --variable_update=replicated", True),
        ("--data_name=synthetic_host", False),
        ("--num_gpus=2 --cross_replica_sync=false", False),
        ("--time_limit_seconds=60", False),
        ("--local_cluster=ps:1,worker:2 --variable_update=distributed_replicated", False),
    ],
)
def test_turns_are_taken_where_a_waiting_run_is_still(words: str, in_turn: bool) -> None:
    cell = cell_of("--device=cpu", *words.split())
    assert TurnTakers(wanted=True).include(cell) == in_turn
    assert not TurnTakers(wanted=False).include(cell)


def test_runs_on_gpus_and_of_data_take_no_turns(fake_imagenet: Path) -> None:
    for words in (["--device=gpu"], ["--device=cpu", f"--data_dir={fake_imagenet}"]):
        assert not TurnTakers(wanted=True).include(cell_of(*words))
    assert not TurnTakers(wanted=True).include(Cell(("--new",), None, "no such flag"))
