"""The step-time breakdown of `doctor`: of runs whose rates are decided here, and once of real ones."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import signal
import tempfile
import types
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from benchmarks.cli import main
from benchmarks.config import flag, run_flags
from benchmarks.config.config import Config
from benchmarks.devices.roofline import Peak, Roofline
from benchmarks.doctor import breakdown_run, doctor_verb, machine_checks
from benchmarks.doctor.breakdown import Part
from benchmarks.doctor.machine_checks import UNSEEN, Observation
from benchmarks.errors import BenchError, DataError, ExitStatus
from benchmarks.microbench import device_peak
from benchmarks.process import apart, subprocesses, tensorflow_setup
from benchmarks.training import computing
from results.loading import load
from results.record import Record
from tests.support import nvidia
from tests.support.commands import RunBench
from tests.support.fake_runs import Failure, FakeRun, FakeRuns, interrupt
from tests.support.records import fake_run

PARTS = [str(part) for part in Part]


@dataclasses.dataclass(frozen=True)
class BrokenDown:
    """How a breakdown ended, what it returned and printed, and the words of each process that it started."""

    status: int
    found: dict[str, Any]
    roofline: dict[str, Any] | None
    out: str
    commands: list[list[str]]

    @property
    def runs(self) -> list[dict[str, str]]:
        return [dict(w[2:].split("=", 1) for w in words) for words in self.commands if words[0] != "data"]

    @property
    def stages(self) -> dict[str, dict[str, Any]]:
        return {stage["part"]: stage for stage in self.found["parts"]}


def resolved(tmp_path: Path, *arguments: str, gpus: int = 0) -> tuple[Config, breakdown_run.BreakdownPlan | None]:
    """Returns what `doctor` examines with these flags, on a machine with so many GPUs."""
    words = [*arguments, *([] if "--nobreakdown" in arguments else [f"--output_dir={tmp_path / 'out'}"])]
    values = run_flags.unset(flag.parse(words, doctor_verb.DOCTOR_FLAGS).values)
    return doctor_verb.doctor_options(values, lambda: gpus)


ROOFLINE = Roofline(
    flops_per_image=1e9, bytes_per_image=1e6, peak=Peak(flops_per_sec=2e11, bytes_per_sec=1e12), images_per_sec=100.0
)


def planned(tmp_path: Path, *arguments: str, gpus: int = 0) -> breakdown_run.BreakdownPlan:
    _, plan = resolved(tmp_path, *arguments, gpus=gpus)
    assert plan is not None
    return plan


class Runs:
    """Runs of stages.

    Args:
        told: by stage, the rate that its runs reach, or how they end; of the first and the second, if it is a list.
            `data` says how the command ends that makes data, `startup` what a run needs before its first step, and
            `slow` which stage has few and long steps, unless it has much time.
    """

    def __init__(self, told: Mapping[str, Any]) -> None:
        self._told = told
        self._numbers: Counter[str] = Counter()

    def __call__(self, run: FakeRun) -> Record | Failure:
        if run.words[2] == "data":
            (Path(run.words[4]) / "made").write_text("images")
            return self._told.get("data", Failure())
        flags = run.flags
        stage = _stage(flags)
        ends = self._told.get(stage, 100.0)
        end = ends[self._numbers[stage]] if isinstance(ends, list) else ends
        self._numbers[stage] += 1
        if isinstance(end, Failure):
            return end
        if isinstance(end, signal.Signals):
            interrupt(end)
        few = stage == self._told.get("slow") and int(flags["time_limit_seconds"]) < 112
        images = round((9.0 if few else 0.1) * end)
        made = fake_run(step_seconds=[images / end] * (4 if few else 20))  # of about 9 s or 0.1 s
        low, high = (None, None) if few else (0.999 * end, 1.001 * end)
        derived = replace(made.derived, images_per_sec=end, images_per_sec_low=low, images_per_sec_high=high)
        measurement = replace(
            made.measurement,
            images_per_step=images,
            startup_seconds=self._told.get("startup", 3.0),
        )
        return replace(made, measurement=measurement, derived=derived)


def _stage(flags: Mapping[str, str]) -> str:
    """Returns the name of the stage that runs these flags."""
    if flags["model"] == "mlp" and flags["batch_size"] == "1":
        return "fixed cost"
    if "data_dir" in flags:
        return "real input"
    if "data_name" in flags:
        return "host copy"
    if flags["num_gpus"] == "1":
        return "compute"
    return "more devices" if flags["variable_update"] == "independent" else "exchange"


CRASH = Failure(returncode=-signal.SIGABRT)
REFUSAL = Failure(returncode=2, stderr="run_bench: This cannot be.")
BreakDown = Callable[..., BrokenDown]


@pytest.fixture
def break_down(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> BreakDown:
    """Runs a breakdown; for 9 s by default, because from 10 s on stages are run again."""

    def run(
        *arguments: str,
        told: Mapping[str, Any] | None = None,
        clock: Iterator[float] | None = None,
        roofline: tuple[Roofline | None, str] = (None, "there is none"),
        disturbing: Sequence[str] = (),
    ) -> BrokenDown:
        runs = FakeRuns(Runs(told or {}))
        monkeypatch.setattr(subprocesses, "supervise", runs)
        short = () if any("budget" in word for word in arguments) else ("--budget_seconds=9",)
        plan = planned(tmp_path, "--device=cpu", "--model=resnet20", *arguments, *short)
        ticks = clock or itertools.repeat(0.0)
        monkeypatch.setattr(breakdown_run, "time", types.SimpleNamespace(monotonic=lambda: next(ticks)))
        monkeypatch.setattr(device_peak, "roofline_apart", lambda *_: roofline)
        found, status = breakdown_run.measure_breakdown(plan, ["doctor"], disturbing)
        commands = [list(each.words[2:]) for each in runs.started]
        return BrokenDown(status, found["breakdown"], found["roofline"], capsys.readouterr().out, commands)

    return run


@pytest.mark.row("G4.1")
def test_each_stage_does_what_the_one_before_does_and_more(break_down: BreakDown) -> None:
    done = break_down("--variable_update=replicated", "--num_intra_threads=1", "--precision=bf16", "--batch_size=7")
    assert done.status == ExitStatus.OK
    fixed, compute, devices, exchange, host_copy, real = done.runs
    assert {(run["device"], run["num_intra_threads"]) for run in done.runs} == {("cpu", "1")}
    assert (fixed["model"], fixed["batch_size"], fixed["num_gpus"]) == ("mlp", "1", "1")
    for run in done.runs[1:]:
        assert (run["model"], run["batch_size"], run["precision"]) == ("resnet20", "7", "bf16")
    assert (compute["num_gpus"], compute["variable_update"]) == ("1", "independent")
    assert devices == {**compute, "num_gpus": "2", "time_limit_seconds": devices["time_limit_seconds"]}
    assert {name for name in exchange if exchange[name] != devices[name]} - {"time_limit_seconds"} == {
        "variable_update"
    }
    assert exchange["variable_update"] == "replicated"
    own = {"data_name": "synthetic_host", "time_limit_seconds": host_copy["time_limit_seconds"]}
    assert host_copy == {**exchange, **own}
    own = {"data_dir": real["data_dir"], "time_limit_seconds": real["time_limit_seconds"]}
    assert real == {**exchange, **own}


def test_rows_come_with_the_sentences_below(break_down: BreakDown) -> None:
    told = {"fixed cost": 1e6, "exchange": 50.0, "host copy": 50.0, "real input": 40.0}
    done = break_down("--variable_update=parameter_server", "--budget_seconds=180", told=told)
    lines = done.out.splitlines()
    assert lines[1].startswith("Where does the time go? resnet20, fp32, parameter_server, 2 logical CPU devices")
    assert [line[:12].strip() for line in lines[4:10]] == PARTS
    assert "A step of 64 images takes 1600 ms. Of this:" in lines
    assert "   40%  compute" in lines and "   40%  exchange" in lines and "   20%  real input" in lines
    assert "    0%  more devices: no measurable cost; noise could hide 0%" in lines
    assert any(line.startswith("Exchange (40%): without it, at most 67% more images/s.") for line in lines)
    assert done.stages["exchange"]["added_seconds"]["value"] == pytest.approx(0.64)
    assert done.stages["exchange"]["share"] == pytest.approx(0.4)


def test_the_roofline_stands_below_and_its_share_is_used(break_down: BreakDown) -> None:
    told = {"fixed cost": 1e6, "compute": 100.0, "more devices": 100.0, "exchange": 100.0, "real input": 100.0}
    done = break_down(told=told, roofline=(ROOFLINE, "This peak may be too low."))
    lines = done.out.splitlines()
    assert lines[lines.index(ROOFLINE.sentences()[-1]) + 1] == "This peak may be too low."
    assert lines[lines.index("The stage compute, on one device, and its roofline:") + 1 :][:3] == ROOFLINE.sentences()
    assert "Compute (100%): it reaches 50% of the device's roofline; at its bound, at most 100% more" in done.out
    assert done.roofline is not None and done.roofline["share_of_bound"] == 0.5
    json.dumps(done.roofline, allow_nan=False)
    exceeded = break_down(roofline=(dataclasses.replace(ROOFLINE, images_per_sec=300.0), ""))
    assert "of the device's roofline" not in exceeded.out, "it bounds nothing"


def test_without_a_roofline_the_reason_is_said(break_down: BreakDown) -> None:
    done = break_down()
    assert "No roofline: there is none" in done.out and done.roofline is None
    assert done.status == ExitStatus.OK
    assert "roofline:" not in break_down(told={"compute": CRASH}).out.lower()


def test_without_a_result_of_its_process_there_is_a_reason_and_no_roofline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise BenchError("its process ended by signal 6 (Aborted)")

    monkeypatch.setattr(apart, "call", die)
    workload = planned(tmp_path, "--device=cpu").setting.workload
    found = device_peak.roofline_apart(workload, "cpu", "fp32", 1.0)
    assert found == (None, "its process ended by signal 6 (Aborted)")


@pytest.mark.parametrize(
    ("stage", "end", "reason"),
    [
        ("fixed cost", CRASH, "crash: Ended by signal 6"),
        ("exchange", CRASH, "crash: Ended by signal 6"),
        # No flag of `doctor` sets this limit.
        ("compute", Failure(returncode=-signal.SIGKILL, timed_out=True), "timeout: Killed after 309 s without fini"),
    ],
    ids=["first", "later", "hangs"],
)
def test_a_stage_that_fails_does_not_end_the_breakdown(
    break_down: BreakDown, stage: str, end: Failure, reason: str
) -> None:
    done = break_down(told={stage: end})
    assert done.status == ExitStatus.RUN_FAILED
    assert done.stages[stage]["failed"] and reason in done.stages[stage]["reason"]
    above = done.found["parts"][PARTS.index(stage) + 1]
    assert above["seconds"]["value"] > 0 and above["added_seconds"] is None


def test_what_cannot_be_run_is_a_row_with_the_reason_and_no_failure(break_down: BreakDown) -> None:
    done = break_down(told={"host copy": REFUSAL, "real input": REFUSAL})
    assert done.status == ExitStatus.OK
    left_out = {name: value for name, value in done.stages["host copy"].items() if value is not None}
    assert left_out == {"part": "host copy", "failed": False, "reason": "This cannot be."}
    assert done.found["parts"][3]["share"] is not None, "the step goes as far as the stages do"


@pytest.mark.parametrize(
    ("words", "reasons", "managers"),
    [
        (
            ["--num_gpus=1", "--variable_update=parameter_server"],
            dict.fromkeys(("more devices", "exchange"), "there is one device"),
            ["independent", *["parameter_server"] * 3],
        ),
        (
            ["--variable_update=independent"],
            {"exchange": "independent exchanges nothing"},
            ["independent"] * 5,
        ),
    ],
    ids=["one device", "independent"],
)
def test_where_nothing_is_exchanged_there_is_no_such_stage(
    break_down: BreakDown, words: list[str], reasons: dict[str, str], managers: list[str]
) -> None:
    done = break_down(*words)
    assert {part: stage["reason"] for part, stage in done.stages.items() if stage["reason"]} == reasons
    assert [run["variable_update"] for run in done.runs] == managers
    assert done.status == ExitStatus.OK


@pytest.mark.parametrize(
    ("model", "words"),
    [("resnet20", []), ("mlp", []), ("trivial", ["--train_images=256"])],
    ids=lambda model: str(model),
)
def test_data_are_made_for_the_model_and_gone_in_the_end(break_down: BreakDown, model: str, words: list[str]) -> None:
    made_by = {"resnet20": "make_cifar10", "mlp": "make_mnist", "trivial": "make_imagenet"}
    done = break_down(f"--model={model}")
    ((_, command, directory, *more),) = [words for words in done.commands if words[0] == "data"]
    assert (command, more) == (made_by[model], words)
    assert done.runs[-1]["data_dir"] == directory and not Path(directory).exists()


def test_the_users_data_are_used_if_there_are_any(break_down: BreakDown, tmp_path: Path) -> None:
    (tmp_path / "images").touch()
    done = break_down(f"--data_dir={tmp_path}", told={"real input": 10.0})
    assert done.runs[-1]["data_dir"] == str(tmp_path)
    assert not any(words[0] == "data" for words in done.commands)
    assert f"--data_dir={tmp_path}' measures which stage" in done.out
    assert "data_dir" not in done.runs[-2]


def test_an_empty_directory_is_reported_before_the_first_stage(break_down: BreakDown, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty is empty: name the directory with the data set"):
        break_down(f"--data_dir={tmp_path / 'empty'}")


def test_the_duration_counts_what_each_stage_needs_and_the_peak(break_down: BreakDown) -> None:
    assert "images each; about 75 s, since each of 6 stages needs 10 s." in break_down("--budget_seconds=40").out
    assert "images each; about 55 s, since each of 4 stages" in break_down("--budget_seconds=9", "--num_gpus=1").out
    assert "images each; about 4 min." in break_down("--budget_seconds=180").out


def test_data_that_cannot_be_made_are_a_failed_stage(break_down: BreakDown) -> None:
    done = break_down(told={"data": Failure(returncode=2, stdout="no space left\n")})
    assert done.stages["real input"]["reason"] == "images could not be made: no space left"
    assert done.status == ExitStatus.RUN_FAILED and len(done.runs) == 5


def _limits(done: BrokenDown) -> list[int]:
    return [int(run["time_limit_seconds"]) for run in done.runs]


@pytest.mark.parametrize(("budget", "runs", "limit"), [(600, 11, 50), (6, 6, 10)])
def test_each_stage_gets_a_share_of_the_time_for_two_runs(
    break_down: BreakDown, budget: int, runs: int, limit: int
) -> None:
    assert _limits(break_down(f"--budget_seconds={budget}")) == [limit] * runs


@pytest.mark.parametrize(("startup", "verdict"), [(3.0, "costs"), (1e-3, "too few steps")])
def test_a_stage_with_too_few_steps_is_run_again_for_as_long_as_it_needs(
    break_down: BreakDown, tmp_path: Path, startup: float, verdict: str
) -> None:
    done = break_down("--budget_seconds=60", told={"slow": "compute", "startup": startup})
    needed = round(1.5 * (startup + 1.0 + 0.2 + 0.15 + 8 * 9.0))
    assert _limits(done) == [10, 10, *[needed] * 5]
    assert done.stages["compute"]["verdict"] == verdict and ("  too few steps" in done.out) == (verdict != "costs")
    assert len(list((tmp_path / "out" / "logs").iterdir())) == 7


def test_stages_of_the_model_are_run_again_if_time_is_left(break_down: BreakDown) -> None:
    told = {"exchange": [50.0, 95.0], "host copy": 50.0, "real input": 50.0}
    done = break_down("--variable_update=replicated", "--budget_seconds=180", told=told)
    assert len(done.runs) == 11 and done.runs[6:] == done.runs[1:6], "all but the fixed cost"
    exchange = done.stages["exchange"]
    assert exchange["images_per_sec"]["value"] == pytest.approx(math.sqrt(50 * 95)), "both runs count"
    assert exchange["processes"] == 2 and done.stages["fixed cost"]["processes"] == 1
    assert exchange["verdict"] == "no measurable cost"
    rows = done.out.split("5 stages ran twice; with both runs of each:\n")[1].split("\n\n")[0]
    assert [line[:12].strip() for line in rows.splitlines()] == PARTS
    assert "Nothing was repeated" not in done.out


@pytest.mark.parametrize(
    ("times", "runs", "sentence"),
    [
        ([130.0, 150.0, 171.0], 8, "2 stages ran twice; with both runs of each:"),
        ([171.0], 6, "Nothing was repeated, so equal processes are assumed to differ by 10%"),
    ],
)
def test_stages_are_run_again_as_far_as_time_is_left(
    break_down: BreakDown, times: list[float], runs: int, sentence: str
) -> None:
    done = break_down("--variable_update=replicated", "--budget_seconds=180", clock=iter([0.0, *times]))
    assert len(done.runs) == runs and sentence in done.out


def test_a_second_run_that_fails_leaves_the_first(break_down: BreakDown) -> None:
    told = {"exchange": [50.0, CRASH], "host copy": 50.0, "real input": 50.0}
    done = break_down("--variable_update=replicated", "--budget_seconds=180", told=told)
    assert len(done.runs) == 11 and done.status == ExitStatus.OK
    assert done.stages["exchange"]["images_per_sec"]["value"] == pytest.approx(50.0)
    assert done.stages["exchange"]["verdict"] == "costs"


@pytest.mark.parametrize(
    ("number", "status", "at"), [(signal.SIGINT, 130, 3), (signal.SIGTERM, 143, 3), (signal.SIGTERM, 143, 6)]
)
def test_what_is_known_is_said_when_it_is_stopped(
    break_down: BreakDown, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: signal.Signals, status: int, at: int
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    done = break_down(told={PARTS[at - 1]: number})
    assert done.status == status
    assert [stage["part"] for stage in done.found["parts"]] == PARTS[: at - 1]
    assert "A step of 64 images takes" in done.out
    assert len(load(tmp_path / "out" / "results.jsonl").records) == at - 1
    assert not list(tmp_path.glob("run_bench_doctor_*"))


@pytest.mark.parametrize(
    ("arguments", "gpus", "device", "count", "at_once"),
    [
        ([], 0, "cpu", 2, 1),
        (["--num_gpus=3", "--device=cpu"], 8, "cpu", 3, 1),
        ([], 8, "gpu", 8, 8),
        (["--gpus=0,2"], 8, "gpu", 2, 2),
        ([], 1, "gpu", 1, 1),
        (["--virtual_gpus=2"], 1, "gpu", 2, 1),
        (["--virtual_gpus=2"], 3, "gpu", 6, 3),
    ],
)
def test_devices(tmp_path: Path, arguments: Sequence[str], gpus: int, device: str, count: int, at_once: int) -> None:
    plan = planned(tmp_path, *arguments, gpus=gpus)
    devices = plan.setting.devices
    assert (devices.device, devices.num_devices, plan.setting.at_once) == (device, count, at_once)
    assert devices.virtual_gpus == (count / at_once if device == "gpu" else 1)
    assert "gpus" not in plan.common, "what is visible is decided by the environment of this process"


@pytest.mark.parametrize("has_bf16", [True, False])
def test_advice_knows_the_cpu_and_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_bf16: bool) -> None:
    monkeypatch.setattr(computing, "has_instructions", lambda precision: has_bf16 and precision == "bf16")
    settings = [planned(tmp_path, "--device=cpu", f"--model={model}").setting for model in ("resnet50", "vgg16")]
    assert [setting.as_matmul for setting in settings] == [
        ("conv1x1_as_matmul", "filter_gradients_as_matmul"),
        ("filter_gradients_as_matmul",),
    ]
    assert {setting.in_16_bits for setting in settings} == {"bf16" if has_bf16 else None}
    monkeypatch.setattr(computing, "onednn_mode", lambda environ: "off")
    settings = [planned(tmp_path, "--device=cpu", *more).setting for more in ((), ("--onednn=off",))]
    assert [setting.lacks_onednn for setting in settings] == [True, False], "the user's word is not argued with"


@pytest.mark.parametrize(
    ("card", "precision", "takes_xla"),
    [
        (nvidia.Card("NVIDIA H100 80GB HBM3", 80, (9, 0)), "bf16", True),
        (nvidia.Card("Tesla T4", 15, (7, 5)), "fp16", True),
        (nvidia.Card("NVIDIA B200", 180, (10, 0)), "bf16", False),  # for which XLA writes no code
    ],
)
def test_advice_knows_the_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, card: nvidia.Card, precision: str, takes_xla: bool
) -> None:
    nvidia.stand_in(monkeypatch, nvidia.Machine([card] * 8))
    setting = planned(tmp_path, gpus=8).setting
    assert (setting.in_16_bits, setting.takes_xla) == (precision, takes_xla)


def test_a_cluster_and_a_mere_look_have_no_breakdown(tmp_path: Path) -> None:
    assert resolved(tmp_path, "--nobreakdown")[1] is None
    chosen, plan = resolved(tmp_path, "--local_cluster=ps:1,worker:2")
    assert plan is None and chosen.processes.cluster is not None
    assert chosen.output.output_dir == str(tmp_path / "out"), "it gets the logs of its tasks"


def examine(
    monkeypatch: pytest.MonkeyPatch,
    seen: Sequence[Observation],
    break_down: Callable[..., tuple[dict[str, Any], ExitStatus]] | None = None,
) -> ExitStatus:
    """Runs the verb; `break_down` stands for the breakdown, which there is none of without it."""
    monkeypatch.setattr(machine_checks, "look", lambda: seen)
    monkeypatch.setattr(tensorflow_setup, "prepare", lambda runtime: None)
    monkeypatch.setattr(breakdown_run, "measure_breakdown", break_down)
    words = ["--device=cpu", "--output_format=json", *([] if break_down else ["--nobreakdown"])]
    return main.dispatch(["doctor", *words])


GOVERNOR = Observation("frequency governor", "powersave", True, "Set another.")
SEEN = [Observation("load", "0.10 on average"), Observation("turbo", UNSEEN)]


def test_doctor_says_what_disturbs_and_what_to_do() -> None:
    quiet = ["what       seen", "load   ok  0.10 on average", "turbo  ?   cannot be seen here", ""]
    assert machine_checks.report(SEEN) == [*quiet, "This machine is quiet."]
    assert machine_checks.report([*SEEN, GOVERNOR])[3:] == [
        "frequency governor  disturbs  powersave",
        "",
        "frequency governor: Set another.",
        "",
        "This machine is not quiet: frequency governor.",
    ]


def test_doctor_as_json(
    capsys: pytest.CaptureFixture[str], break_down: BreakDown, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert break_down("--output_format=json").out == ""
    parts: dict[str, Any] = {"breakdown": {"parts": []}}
    assert examine(monkeypatch, [], lambda *_: (parts, ExitStatus.OK)) == 0
    assert json.loads(capsys.readouterr().out) == {"is_quiet": True, "observations": [], **parts}
    assert examine(monkeypatch, [GOVERNOR]) == 3
    assert json.loads(capsys.readouterr().out) == {
        "is_quiet": False,
        "observations": [dataclasses.asdict(GOVERNOR)],
    }


def test_the_exit_status_of_the_verb_is_its_verdict(
    run_bench: RunBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_checks, "_SECONDS", 0.2)
    done = run_bench("doctor", "--device=cpu", "--nobreakdown")
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert [line.split()[-1] for line in lines[:1]] == ["seen"]
    assert any(line.startswith("CPU used by others") and " cores" in line for line in lines)
    assert done.status == (0 if lines[-1] == "This machine is quiet." else 3)
    assert lines[-1].startswith("This machine is ")
    assert list(tmp_path.iterdir()) == []


LOUD = Observation("load", "9", True, "End it.")


@pytest.mark.parametrize(
    ("seen", "ended", "status"),
    [([], 0, 0), ([LOUD], 0, 3), ([], 4, 4), ([LOUD], 4, 4), ([LOUD], 130, 130)],
)
def test_a_failure_weighs_more_than_noise(
    seen: list[Observation], ended: int, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert examine(monkeypatch, seen, lambda *_: ({}, ExitStatus(ended))) == status


def test_the_breakdown_is_told_what_disturbs(break_down: BreakDown, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []

    def listen(plan: object, command: object, names: Sequence[str]) -> tuple[dict[str, Any], ExitStatus]:
        heard.extend(names)
        return {}, ExitStatus.OK

    with monkeypatch.context() as patch:
        examine(patch, [Observation("turbo", "off"), LOUD], listen)
    assert heard == ["load"]
    told = {"exchange": 50.0, "host copy": 50.0, "real input": 50.0}
    loud, quiet = (break_down("--variable_update=replicated", told=told, disturbing=names) for names in (heard, ()))
    assert loud.found["sentences"][0].startswith("This machine is not quiet (load), so")
    assert loud.found["sentences"][1:] == quiet.found["sentences"]


@pytest.mark.row("G4.1")
@pytest.mark.seldom
def test_in_earnest(run_bench: RunBench, tmp_path: Path) -> None:
    small = ("--device=cpu", "--model=mlp", "--batch_size=8", "--budget_seconds=120")
    done = run_bench("doctor", *small, "--output_format=json", XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert done.status in (0, 3), done.stderr
    found = json.loads(done.stdout)
    assert set(found) == {"is_quiet", "observations", "breakdown", "roofline"}
    assert found["roofline"]["images_per_sec"] == found["breakdown"]["parts"][1]["images_per_sec"]["value"]
    assert [stage["part"] for stage in found["breakdown"]["parts"]] == PARTS
    assert all(stage["seconds"]["value"] > 0 for stage in found["breakdown"]["parts"])
    records = load(tmp_path / "out" / "doctor" / "results.jsonl").records
    names = ("batch_per_device", "num_devices", "variable_update", "data_name")
    ran = list(dict.fromkeys(tuple(record.config[name] for name in names) for record in records))  # some ran again
    exchanged = "parameter_server"
    assert ran == [
        (1, 1, "independent", "synthetic"),
        (8, 1, "independent", "synthetic"),
        (8, 2, "independent", "synthetic"),
        (8, 2, exchanged, "synthetic"),
        (8, 2, exchanged, "synthetic_host"),
        (8, 2, exchanged, "mnist"),
    ]
