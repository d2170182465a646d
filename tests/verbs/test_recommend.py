"""`recommend` with made-up runs: the rates are known, so it is known what must be found."""

from __future__ import annotations

import json
import shlex
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from benchmarks.cli import main
from benchmarks.config import flag, run_flags
from benchmarks.config.config import Config
from benchmarks.errors import ExitStatus, UsageError
from benchmarks.machine import gpu_topology, hardware
from benchmarks.sweep import isolated_run
from benchmarks.sweep.grid import Cell
from benchmarks.training import computing
from benchmarks.tune import recommend_verb, search, search_stages
from results.record import Record, Status
from results.report.ranking import ranking_groups
from results.summary import summarize
from tests.support.commands import RunBench
from tests.support.nvidia import MACHINES, Machine, stand_in
from tests.support.records import fake_run
from tests.support.settings import resolve

ON_ANY_THREADS = ("--model=trivial", "--device=cpu", "--onednn=on")
ON_CPU = (*ON_ANY_THREADS, "--num_intra_threads=0", "--num_inter_threads=0")
Rate = Callable[[Config], float]
Recommend = Callable[..., dict[str, Any]]


class Runs:
    """Stands for the processes: every run reaches the rate of its configuration, or ends as that is said to."""

    def __init__(self, rate: Rate) -> None:
        self.rate = rate
        self.failures: dict[str, tuple[Status, str]] = {}
        self.stops_after: int | None = None
        self.cells: list[Cell] = []
        self.killed_after: list[float] = []
        self.now = 0.0
        self.falls: Callable[[Config], float] = lambda chosen: 0.1  # the loss, in each step
        self.takes: Callable[[Config], float] = lambda chosen: 0.0

    def run(self, runner: isolated_run.CellRunner, cell: Cell) -> Record:
        if self.stops_after is not None and len(self.cells) >= self.stops_after:
            raise KeyboardInterrupt
        self.cells.append(cell)
        self.killed_after.append(runner.timeout_seconds)
        chosen = cell.config
        assert chosen is not None
        seconds = self.takes(chosen)
        self.now += min(seconds, runner.timeout_seconds)
        if seconds > runner.timeout_seconds:
            return fake_run(status=Status.TIMEOUT, reason="Not done, and killed.")
        for word, (status, reason) in self.failures.items():
            if word in cell.arguments:
                return fake_run(status=status, reason=reason)
        made = fake_run(step_seconds=[chosen.batch_global / self.rate(chosen)] * chosen.length.num_batches)
        losses = [7.0 - self.falls(chosen) * step for step in range(chosen.length.num_batches)]
        measurement = replace(made.measurement, images_per_step=chosen.batch_global, losses=losses)
        return replace(made, measurement=measurement)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runs:
    monkeypatch.chdir(tmp_path)
    made = Runs(_rate)
    monkeypatch.setattr(isolated_run.CellRunner, "run_cell", lambda runner, cell, what: made.run(runner, cell))
    monkeypatch.setattr(computing, "has_instructions", lambda *_: False)
    return made


def _rate(chosen: Config) -> float:
    """Known rates, the best with NCHW, XLA, a batch of 128 and replicated."""
    rate = {"NHWC": 100.0, "NCHW": 120.0}[chosen.workload.data_format] * {"off": 1.0, "jit": 1.3}[chosen.computing.xla]
    rate *= {16: 0.8, 32: 1.0, 64: 1.1, 128: 1.2}.get(chosen.workload.batch_per_device, 0.5)
    rate *= {"parameter_server": 1.0, "replicated": 1.1, "collective_all_reduce": 0.9}[chosen.variables.variable_update]
    rate *= {None: 1.0, "pscpu": 1.0, "xring": 1.2}.get(chosen.variables.modifiers.all_reduce_spec, 0.7)
    return rate * (1.1 if chosen.variables.modifiers.gradient_repacking == 8 else 1.0) * chosen.devices.num_devices


def _recommend(*arguments: str) -> ExitStatus:
    return main.dispatch(["recommend", *arguments])


@pytest.fixture
def recommend(runs: Runs, capsys: pytest.CaptureFixture[str]) -> Recommend:
    """Searches settings of a small model on the CPU, and returns the answer."""

    def answer(*words: str, given: Sequence[str] = ON_CPU, status: ExitStatus = ExitStatus.OK) -> dict[str, Any]:
        assert _recommend(*given, *words, "--output_format=json") == status
        return json.loads(capsys.readouterr().out)

    return answer


def _best(answer: dict) -> Config:
    words = shlex.split(answer["command"])
    assert words[:2] == ["python", "run_bench.py"]
    return resolve(*words[2:])


def _varied(runs: Runs, name: str) -> set:
    return {word for cell in runs.cells for word in cell.arguments if word.startswith(f"--{name}=")}


def test_the_best_settings_are_found_and_can_be_pasted(recommend: Recommend) -> None:
    answer = recommend("--optimizer=adam")
    best = _best(answer)
    assert (best.workload.data_format, best.computing.xla, best.workload.batch_per_device) == ("NCHW", "jit", 128)
    assert (best.variables.variable_update, best.training.optimizer, best.computing.precision) == (
        "replicated",
        "adam",
        "fp32",
    )
    assert resolve(*flag.read_files([f"--flagfile={answer['flagfile']}"])) == best
    assert answer["best"]["images_per_sec"]["value"] == pytest.approx(1.2 * 1.3 * 1.2 * 1.1 * 100)
    assert [table["title"] for table in answer["tables"]] == [
        "layout and compilation",
        "batch size",
        "variable manager",
    ]
    for table in answer["tables"]:
        rates = [row["images_per_sec"]["value"] for row in table["rows"] if row["images_per_sec"] is not None]
        assert rates == sorted(rates, reverse=True) and len(rates) >= 2
        assert not any(row["is_close"] for row in table["rows"]), "runs without noise can be told apart"
    assert any(note.startswith("--batch_size=32, the default, trains differently") for note in answer["notes"])


def test_the_fastest_is_rejected_if_it_trains_wrong(runs: Runs, recommend: Recommend) -> None:
    runs.falls = lambda chosen: {"off": 0.1, "jit": 0.02}[chosen.computing.xla]
    answer = recommend()
    assert _best(answer).computing.xla == "off"
    reasons = [row["reason"] for row in answer["tables"][0]["rows"] if row["reason"]]
    assert len(reasons) == 2 and all(reason.startswith("rejected: in its first") for reason in reasons)


@pytest.mark.parametrize(
    ("given", "left_out"),
    [
        ("--use_nccl", "--all_reduce_spec="),
        ("--agg_small_grads_max_bytes=100", "--gradient_repacking="),
    ],
)
def test_what_another_flag_sets_is_not_varied_either(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, recommend: Recommend, given: str, left_out: str
) -> None:
    stand_in(monkeypatch, MACHINES["8 H100, NVSwitch"])
    tables = recommend("--dry_run", given=("--num_gpus=2", "--variable_update=replicated", given))["tables"]
    rows = [row for table in tables for row in table["rows"]]
    assert {row["reason"] for row in rows} == {"not run"}
    assert not [word for row in rows for word in row["arguments"] if word.startswith(left_out)]


def test_the_default_is_rejected_if_it_alone_trains_otherwise(runs: Runs, recommend: Recommend) -> None:
    def is_odd(chosen: Config) -> bool:
        return (chosen.workload.data_format, chosen.computing.xla) == ("NHWC", "off")

    runs.falls = lambda chosen: 0.02 if is_odd(chosen) else 0.1
    answer = recommend()
    assert _best(answer).computing.xla == "jit"
    (row,) = [row for row in answer["tables"][0]["rows"] if row["reason"]]
    assert "--data_format=NHWC" in row["arguments"] and row["reason"].startswith("rejected: in its first")


def test_of_two_that_train_otherwise_neither_is_chosen(runs: Runs, recommend: Recommend) -> None:
    runs.falls = lambda chosen: {"off": 0.1, "jit": 0.02}[chosen.computing.xla]
    fixed = ("--data_format=NHWC", "--batch_size=32", "--variable_update=replicated")
    answer = recommend(*fixed, status=ExitStatus.RUN_FAILED)
    assert not answer["command"]
    reasons = {" ".join(row["arguments"]): row["reason"] for row in answer["tables"][0]["rows"]}
    assert "with --xla=jit" in reasons["--xla=off"] and "with --xla=off" in reasons["--xla=jit"]


@pytest.mark.parametrize(
    ("losses", "expected", "is_wrong"),
    [
        # ResNet-50 in fp16 on an H200: right and wrong under XLA, beside TensorFlow's kernels.
        ([6.06, 5.98, 5.90, 5.82, 5.75], [6.05, 5.97, 5.90, 5.82, 5.74], False),
        ([6.06, 6.05, 6.04, 6.03, 6.01], [6.05, 5.97, 5.90, 5.82, 5.74], True),
        ([6.06, 5.0, 4.0, 3.0, 2.0], [6.05, 5.97, 5.90, 5.82, 5.74], True),
        ([6.06, 6.05, 6.04, 6.03], [6.05, 5.97, 5.90, 5.82], False),  # too few
        ([6.06, 6.10, 6.07, 6.03, 6.09], [6.05, 6.03, 6.06, 6.04, 6.05], False),  # nothing was learnt yet
        ([], [6.05, 5.97, 5.90, 5.82, 5.74], False),
    ],
)
def test_losses_that_fall_otherwise_are_of_other_gradients(
    losses: list[float], expected: list[float], is_wrong: bool
) -> None:
    assert bool(search.differ(losses, expected)) == is_wrong


@pytest.mark.parametrize(
    ("usual", "factor", "best"), [("off", 1.5, "on"), ("off", 0.5, None), ("on", 1.5, "off"), (None, 1.5, "on")]
)
def test_kernels_are_chosen_first(
    runs: Runs,
    recommend: Recommend,
    monkeypatch: pytest.MonkeyPatch,
    usual: str,
    factor: float,
    best: str | None,
) -> None:
    monkeypatch.setattr(computing, "onednn_mode", lambda environ: usual)
    other = "off" if usual == "on" else "on"
    runs.rate = lambda chosen: _rate(chosen) * (factor if chosen.devices.onednn == other else 1)
    answer = recommend(given=[flag for flag in ON_CPU if "onednn" not in flag])
    assert _best(answer).devices.onednn == best
    assert answer["tables"][0]["title"] == "kernels of the CPU" and len(answer["tables"][0]["rows"]) == (
        2 if usual else 3
    )


@pytest.mark.row("G4.4")
@pytest.mark.parametrize(
    ("cores", "devices", "given", "tried"),
    [
        (8, 4, (), {(0, 0), (4, 0), (2, 0), (1, 0), (0, 4)}),
        (2, 2, (), {(0, 0), (1, 0)}),
        (1, 1, (), {(0, 0)}),
        (8, 4, ("--num_intra_threads=3",), {(3, 0), (3, 4)}),
    ],
)
def test_threads_are_chosen_last(
    runs: Runs,
    recommend: Recommend,
    monkeypatch: pytest.MonkeyPatch,
    cores: int,
    devices: int,
    given: Sequence[str],
    tried: set[tuple[int, int]],
) -> None:
    monkeypatch.setattr(hardware, "usable_cores", lambda: cores)

    def threads(chosen: Config) -> tuple[int, int]:
        return chosen.devices.num_intra_threads, chosen.devices.num_inter_threads

    least = min(tried)
    runs.rate = lambda chosen: _rate(chosen) * (1.5 if threads(chosen) == least else 1)
    answer = recommend(*given, f"--num_gpus={devices}", given=ON_ANY_THREADS)
    assert {threads(cell.config) for cell in runs.cells} == tried
    assert threads(_best(answer)) == least
    title, rows = answer["tables"][-1]["title"], answer["tables"][-1]["rows"]
    assert title == ("threads of the CPU" if len(tried) > 1 else "variable manager")
    assert len(rows) == len(tried) or len(tried) == 1


def test_text_is_a_view_of_the_same(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    _recommend(*ON_CPU)
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert "biased" not in out, "repeats after the selection are not biased by it"
    assert lines[0] == "Layout and compilation, on 1 device:"
    assert lines[2].split()[:5] == [">", "156", "156", "to", "156"]
    assert "--data_format=NCHW --xla=jit" in lines[2]
    (command,) = (line for line in lines if line.startswith("python run_bench.py"))
    assert "--model=trivial" in command and "--batch_size=128" in command
    assert any(line.startswith("Best: 206 images/s on 1 device (206 to 206), found in ") for line in lines)
    assert "> taken" in lines, "nothing is within its noise, and the mark is explained even so"


def test_runs_end_before_they_are_killed_when_time_is_up(runs: Runs) -> None:
    _recommend(*ON_CPU, "--budget_seconds=100")
    for cell, killed_after in zip(runs.cells, runs.killed_after, strict=True):
        (limit,) = (float(word.split("=")[1]) for word in cell.arguments if word.startswith("--time_limit_seconds="))
        assert 1 <= limit == pytest.approx(killed_after - 3, abs=0.1)
        assert killed_after <= 100 and cell.config.length.time_limit_seconds == pytest.approx(limit, abs=0.1)


def test_what_is_given_is_not_varied(recommend: Recommend) -> None:
    given = ("--batch_size=64", "--xla=off", "--data_format=NHWC", "--variable_update=replicated")
    answer = recommend(*given, "--precision=fp32")
    assert set(given) <= set(shlex.split(answer["command"]))
    assert [table["rows"][0]["arguments"] for table in answer["tables"]] == [[]], "one candidate, which is measured"
    assert len(answer["tables"][0]["rows"]) == 1
    assert not [note for note in answer["notes"] if "Other processes" not in note], "nothing was chosen for the user"


def test_precisions_with_instructions_are_tried_unless_one_is_given(
    runs: Runs, recommend: Recommend, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.rate = lambda chosen: _rate(chosen) * (3 if chosen.computing.precision == "bf16" else 1)
    recommend()
    assert _varied(runs, "precision") == set()
    monkeypatch.setattr(computing, "has_instructions", lambda precision, *_: precision in ("bf16", "tf32"))
    answer = recommend("--precision=float32")
    assert _varied(runs, "precision") == {"--precision=fp32"}, "what is given is not varied"
    assert not any("precision" in note for note in answer["notes"])
    answer = recommend()
    assert _best(answer).computing.precision == "bf16" and "--precision=bf16" in answer["command"]
    (note,) = (note for note in answer["notes"] if "--precision=fp32, the default" in note)
    assert "--batch_size=32 " in note and "--check_precision" in note
    runs.rate = _rate
    answer = recommend()
    assert "--precision=fp32" in answer["command"], "it is the same on another machine"
    assert not any("precision" in note for note in answer["notes"])


@pytest.mark.parametrize(
    ("machine", "given", "tried"),
    [
        ("8 H100, NVSwitch", ("--num_gpus=8",), ["tf32", "bf16", "fp16"]),
        ("8 H100, NVSwitch", ("--precision=fp32",), []),
        ("8 H100, NVSwitch", ("--use_fp16",), []),
        ("8 T4, PCIe", (), ["fp32", "fp16"]),
        ("A100 and T4", (), ["tf32", "bf16", "fp16"]),
        ("A100 and T4", ("--num_gpus=2",), ["fp32", "fp16"]),
    ],
)
def test_a_dry_run_lists_candidates_with_the_tensor_cores_of_the_gpus(
    runs: Runs,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    recommend: Recommend,
    machine: str,
    given: Sequence[str],
    tried: Sequence[str],
) -> None:
    stand_in(monkeypatch, MACHINES[machine])
    tables = recommend("--dry_run", given=given)["tables"]
    assert {row["reason"] for table in tables for row in table["rows"]} == {"not run"} and not runs.cells
    first = tables[0]
    words = [word for row in first["rows"] for word in row["arguments"] if word.startswith("--precision=")]
    assert list(dict.fromkeys(words)) == [f"--precision={name}" for name in tried]
    _recommend(*given, "--dry_run")
    shown = capsys.readouterr()
    assert shown.out.splitlines()[:2] == [
        "Layout, precision and compilation, on 1 device",
        f"  {' '.join(first['rows'][0]['arguments'])}",
    ]
    assert "It ends after " in shown.err


def test_several_devices_choose_how_gradients_travel(recommend: Recommend) -> None:
    answer = recommend("--num_gpus=2")
    best = _best(answer)
    assert (best.devices.num_devices, best.variables.variable_update, best.variables.modifiers.all_reduce_spec) == (
        2,
        "replicated",
        "xring",
    )
    assert best.variables.modifiers.gradient_repacking == 8
    assert (best.workload.data_format, best.computing.xla, best.workload.batch_per_device) == ("NCHW", "jit", 128)
    assert [table["devices"] for table in answer["tables"]] == [1, 1, 2, 2]
    managers = answer["tables"][2]["rows"]
    (nccl,) = (row for row in managers if "--all_reduce_spec=nccl" in row["arguments"])
    assert nccl["images_per_sec"] is None and "cannot run: nccl moves data between NVIDIA GPUs" in nccl["reason"]
    assert len([row for row in managers if row["images_per_sec"]]) >= 8


def test_what_reduces_nothing_is_not_repacked(runs: Runs) -> None:
    runs.rate = lambda chosen: 200.0 if chosen.variables.variable_update == "parameter_server" else 100.0
    _recommend(*ON_CPU, "--num_gpus=2", "--xla=off", "--batch_size=8")
    assert _varied(runs, "gradient_repacking") == set()


def test_other_managers_are_taken_as_they_are(runs: Runs, recommend: Recommend) -> None:
    runs.rate = lambda chosen: 100.0 + chosen.workload.batch_per_device
    answer = recommend("--num_gpus=2", "--variable_update=local_sgd")
    assert _varied(runs, "variable_update") == {"--variable_update=local_sgd"}
    assert answer["tables"][-1]["devices"] == 2, "and measured on all devices in the end"


def test_what_fails_is_a_row_with_its_reason(runs: Runs, recommend: Recommend) -> None:
    runs.failures["--batch_size=128"] = (Status.OUT_OF_MEMORY, "Out of memory: it asked\nfor much")
    answer = recommend()
    assert _best(answer).workload.batch_per_device == 64
    (row,) = (row for row in answer["tables"][1]["rows"] if row["arguments"] == ["--batch_size=128"])
    assert row["reason"] == "oom: Out of memory: it asked for much" and row["images_per_sec"] is None


def test_if_nothing_can_be_measured_there_is_no_command(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    runs.failures["--model=trivial"] = (Status.CRASH, "no such thing")
    assert _recommend(*ON_CPU) == ExitStatus.RUN_FAILED
    out = capsys.readouterr().out
    assert "There is no answer: the tables" in out and "python run_bench.py" not in out


def test_candidates_within_the_noise_are_marked(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    count = iter(range(10**6))
    runs.rate = lambda chosen: 100.0 * (1 + 0.01 * (next(count) * 7 % 5))
    _recommend(*ON_CPU, "--batch_size=8", "--xla=off")
    out = capsys.readouterr().out
    marks = {words[-1]: words[0] for line in out.splitlines() if (words := line.split()) and "--" in words[-1]}
    assert marks["--variable_update=replicated"] == marks["--data_format=NCHW"] == "~"
    assert "> taken; ~ within its noise" in out


@pytest.fixture
def clock(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "time", types.SimpleNamespace(monotonic=lambda: runs.now))


def _slow_steps(chosen: Config) -> float:
    """Takes four seconds a step and device, as devices that share cores do, until the time limit."""
    steps = chosen.length.num_batches + chosen.length.num_warmup_batches + 1
    return min(20 + 4.0 * chosen.devices.num_devices * steps, chosen.length.time_limit_seconds)


@pytest.mark.usefixtures("clock")
def test_each_stage_has_a_share_of_the_time(runs: Runs, recommend: Recommend) -> None:
    runs.takes = _slow_steps
    answer = recommend(given=("--model=resnet50", "--device=cpu", "--num_gpus=2", "--budget_seconds=1200"))
    assert all(any(row["runs"] for row in table["rows"]) for table in answer["tables"])
    assert answer["devices"] == 2 and runs.now <= 1201
    assert min(cell.config.length.num_batches for cell in runs.cells if cell.config) >= 8, "fewer have no interval"


@pytest.mark.usefixtures("clock")
def test_an_answer_names_the_devices_on_which_it_was_measured(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    runs.takes = lambda chosen: 8.0 if chosen.devices.num_devices == 1 else 10_000.0
    assert _recommend(*ON_CPU, "--num_gpus=2", "--budget_seconds=100") == ExitStatus.OK
    out = capsys.readouterr().out
    (command,) = (line for line in out.splitlines() if line.startswith("python run_bench.py"))
    assert _best({"command": command}).devices.num_devices == 2
    assert "images/s on 1 device" in out and "not run to its end: stopped after " in out


@pytest.mark.usefixtures("clock")
def test_settings_that_hang_on_all_devices_or_in_a_later_run_are_no_answer(
    runs: Runs, capsys: pytest.CaptureFixture[str], recommend: Recommend
) -> None:
    runs.takes = lambda chosen: 1.0 if chosen.devices.num_devices == 1 else 10_000.0
    assert _recommend(*ON_CPU, "--num_gpus=2", "--budget_seconds=3000") == ExitStatus.RUN_FAILED
    assert "There is no answer" in capsys.readouterr().out

    def hangs_later(chosen: Config) -> float:
        is_fastest = (chosen.workload.data_format, chosen.computing.xla) == ("NCHW", "jit")
        earlier = [cell.config for cell in runs.cells[:-1]]
        return 10_000.0 if is_fastest and any(one and one.computing.xla == "jit" for one in earlier[2:]) else 1.0

    runs.takes, runs.cells = hangs_later, []
    answer = recommend("--budget_seconds=3000")
    first = answer["tables"][0]["rows"]
    (hanging,) = (row for row in first if {"--data_format=NCHW", "--xla=jit"} <= {*row["arguments"]})
    assert hanging["reason"].startswith("timeout: ") and not hanging["is_taken"]
    assert max(row["runs"] for row in first) >= 3, "the others go on"


@pytest.mark.usefixtures("clock")
def test_what_is_left_out_for_want_of_time_is_told(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    runs.takes = lambda chosen: 10.0
    runs.rate = lambda chosen: 100.0
    assert _recommend(*ON_CPU, "--budget_seconds=60") == ExitStatus.OK
    out = capsys.readouterr().out
    assert "of 4 not run:" in out and "There was no time to repeat what is within the noise (" in out
    assert _recommend(*ON_CPU, "--budget_seconds=2000") == ExitStatus.OK
    out = capsys.readouterr().out
    assert "not run" not in out and "no time to repeat" not in out


def test_the_default_time_follows_from_the_candidates(runs: Runs) -> None:
    def plan(*words: str) -> search.RecommendPlan:
        values = flag.parse([*ON_CPU, *words], recommend_verb.RECOMMEND_FLAGS).values
        return recommend_verb.plan_search(values, lambda: 0)

    def limit(*words: str) -> float:
        return plan(*words).budget_seconds

    estimated = search.runs_of(plan().stages) * search.estimate_run_seconds(plan().usual)
    assert 1.5 * estimated <= limit() < 1.5 * estimated + 60
    assert 60 <= limit("--batch_size=8") < limit() < limit("--num_gpus=2") == limit("--num_gpus=3")
    assert limit("--budget_seconds=7") == 7


def test_the_managers_that_are_searched_train_the_same(runs: Runs) -> None:
    (stage,) = (
        each for each in search_stages.stages({}, resolve(*ON_CPU, "--num_gpus=2")) if each.title == "variable manager"
    )
    searched = search_stages.cells(stage, {"model": "trivial", "device": "cpu", "num_gpus": "2"}, {}, lambda: 0)
    configs = [cell.config.to_dict() for _, cell in searched if cell.config]
    rows = summarize([fake_run(**{**chosen, "output_dir": "out"}) for chosen in configs])
    assert len(rows) > 5 and len(ranking_groups(rows)) == 1


@pytest.mark.usefixtures("clock")
def test_a_run_may_take_five_times_its_estimate(runs: Runs) -> None:
    words = ("--model=resnet50", *ON_CPU[1:])
    _recommend(*words, "--budget_seconds=900")
    estimated = search.estimate_run_seconds(resolve(*words))
    assert estimated > 13, "which is more than the share of each candidate"
    assert runs.killed_after[0] == pytest.approx(5 * estimated)


@pytest.mark.usefixtures("clock")
def test_one_that_takes_for_ever_is_ended_long_before_the_time_is_up(runs: Runs, recommend: Recommend) -> None:
    runs.takes = lambda chosen: 900.0 if chosen.computing.xla == "jit" else 10.0
    answer = recommend("--data_format=NHWC")
    (row,) = (row for row in answer["tables"][0]["rows"] if "--xla=jit" in row["arguments"])
    assert row["reason"].startswith("not run to its end: stopped after ")
    assert _best(answer).workload.batch_per_device == 128, "there was time for the other stages"


def test_auto_is_dropped_only_where_it_asks_to_vary(runs: Runs) -> None:
    def plan(*words: str, gpus: int) -> search.RecommendPlan:
        values = flag.parse(["--model=trivial", *words], recommend_verb.RECOMMEND_FLAGS).values
        return recommend_verb.plan_search(values, lambda: gpus)

    found = plan("--device=auto", "--num_gpus=2", "--data_format=auto", "--batch_size=auto", gpus=0)
    assert (found.usual.devices.device, found.usual.devices.num_devices) == ("cpu", 2)
    assert found.fixed == {"model": "trivial", "device": "auto", "num_gpus": "2"}
    split = plan("--device=gpu", "--num_gpus=2", "--virtual_gpus=auto", gpus=1)
    assert split.usual.devices.virtual_gpus == 2


def test_an_interruption_prints_the_best_so_far(
    runs: Runs, capsys: pytest.CaptureFixture[str], recommend: Recommend
) -> None:
    runs.stops_after = 3
    runs.rate = lambda chosen: _rate(chosen) * (2 if chosen.computing.xla == "jit" else 1)
    answer = recommend(status=ExitStatus.INTERRUPTED)
    assert not answer["is_complete"] and answer["best"]["images_per_sec"]["value"] == pytest.approx(260)
    assert {row["reason"] for row in answer["tables"][0]["rows"]} >= {"", "not run"}
    runs.cells.clear()
    assert _recommend(*ON_CPU) == ExitStatus.INTERRUPTED
    out = capsys.readouterr().out
    assert "Interrupted; the best so far:" in out and "no time" not in out
    assert "its rate and interval are biased upwards by the selection" in out
    runs.stops_after = 0
    assert _recommend(*ON_CPU) == ExitStatus.INTERRUPTED
    assert "Interrupted: there is no answer yet." in capsys.readouterr().out


def test_candidates_are_no_task_of_a_cluster(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = {"worker": ["a:1", "b:1"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": tasks, "task": {"type": "worker", "index": 0}}))
    with pytest.raises(UsageError, match="unset it"):
        _recommend(*ON_CPU, "--variable_update=collective_all_reduce")
    assert not runs.cells


@pytest.mark.seldom
@pytest.mark.process
def test_real_processes(run_bench: RunBench, run_process: RunBench, tmp_path: Path) -> None:
    fixed = (
        "--device=cpu",
        "--num_intra_threads=0",
        "--num_inter_threads=0",
        "--model=mlp",
        "--precision=fp32",
        "--data_format=NHWC",
        "--xla=off",
        "--onednn=on",
    )
    limit = "--budget_seconds=120"
    arguments = ("recommend", *fixed, limit, "--output_format=json", "--variable_update=replicated")
    done = run_bench(*arguments).succeeded()
    answer = json.loads(done.stdout)
    table, _ = answer["tables"]
    assert {word for row in table["rows"] for word in row["arguments"]} == {
        f"--batch_size={n}" for n in (50, 100, 200, 400)
    }
    assert answer["best"]["images_per_sec"]["value"] > 0 and (tmp_path / "out" / "recommend" / "results.jsonl").exists()
    run_process(*shlex.split(answer["command"])[2:], "--num_batches=2").succeeded()


@pytest.mark.parametrize(
    ("words", "layouts", "products"),
    [
        (("--model=resnet50",), 4, 4),
        (("--model=vgg16",), 4, 2),
        (("--model=resnet50", "--forward_only"), 4, 2),
        (("--model=resnet50", "--data_format=NCHW"), 2, 1),
        (("--model=resnet50", "--data_format=NHWC", "--xla=off"), 1, 4),
        (("--model=resnet50", "--filter_gradients_as_matmul=true"), 2, 2),
    ],
)
def test_only_what_can_run_is_varied(words: tuple[str, ...], layouts: int, products: int) -> None:
    """Convolutions are products only with NHWC, and only in models that have them."""
    fixed = dict(word.removeprefix("--").partition("=")[::2] for word in words)
    found = search_stages.stages(fixed, resolve("--device=cpu", *words))
    first, second = (stage.choices for stage in found if stage.title.startswith(("layout", "convolutions")))
    assert (len(first), len(second)) == (layouts, products)
    for choice in [*first, *second]:
        given = [f"--{name}={value}" for name, value in {**fixed, **choice}.items() if value]
        resolve("--device=cpu", *words, *given)


@pytest.mark.row("G4.3")
def test_what_the_topology_suggests_is_printed_beside_it(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = gpu_topology.read_gpu_links({}, Machine(3, nvlinks={0: [2], 2: [0]}), Path("/nowhere"))
    monkeypatch.setattr(gpu_topology, "read_gpu_links", lambda: found)
    words = ("--model=trivial", "--num_gpus=2", "--gpus=0,2", "--batch_size=8", "--data_format=NHWC")
    values = run_flags.unset(flag.parse(words, recommend_verb.RECOMMEND_FLAGS).values)
    recommend_verb.run_recommend(recommend_verb.plan_search(values, lambda: 3), [], lambda: 3)
    line = "By topology (a rule of thumb, not measured): --num_gpus=2 --variable_update=replicated"
    assert line in capsys.readouterr().out


def test_what_is_packed_by_default_is_compared_with_other_ways_to_pack() -> None:
    """Under NCCL the default is none of the values of --gradient_repacking."""
    found = search_stages.stages({}, resolve("--device=gpu", "--num_gpus=2", gpus=2))
    (packings,) = (stage for stage in found if stage.title == "gradient repacking")
    nccl = {"variable_update": "replicated", "all_reduce_spec": "nccl"}
    cells = search_stages.cells(packings, {"device": "gpu", "num_gpus": "2"}, nccl, lambda: 2)
    modifiers = [cell.config.variables.modifiers for _, cell in cells]
    assert [(one.gradient_repacking, bool(one.agg_small_grads_max_bytes)) for one in modifiers] == [
        (0, True),
        (0, False),
        (2, False),
        (8, False),
    ]
