"""The verb `scaling`: which numbers it runs, what it says of them, and what it leaves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from PIL import Image

from benchmarks.errors import ExitStatus
from benchmarks.machine import hardware
from benchmarks.process import subprocesses
from results.loading import load
from results.record import Record
from tests.support.commands import Finished, RunBench
from tests.support.fake_runs import Failure, FakeRun, FakeRuns, record_of

Scaling = Callable[..., Finished]
WORKERS = ("--local_cluster=worker:4", "--variable_update=collective_all_reduce")


class Runs:
    """Runs of which each further worker or device makes a step a tenth longer; some numbers end otherwise."""

    def __init__(self) -> None:
        self.ends: dict[int, Failure] = {}
        self.started: list[FakeRun] = []

    def __call__(self, run: FakeRun) -> Record | Failure:
        self.started.append(run)
        number = run.config.processes.num_workers * run.config.devices.num_devices
        if number in self.ends:
            return self.ends[number]
        repeat = sum(one.config.processes.num_workers == run.config.processes.num_workers for one in self.started)
        made = record_of(run, step_seconds=0.1 * (1 + 0.1 * (number - 1)) * (1 + 0.005 * (repeat % 3)))
        return replace(made, environment={"cpu_cores_usable": 16})


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Runs, in place of processes."""
    made = Runs()
    monkeypatch.setattr(subprocesses, "supervise", FakeRuns(made))
    return made


@pytest.fixture
def scaling(run_bench: RunBench, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> Scaling:
    """Scales a small model on the CPU, which has 16 cores."""
    monkeypatch.setattr(hardware, "usable_cores", lambda: 16)
    return lambda *arguments: run_bench("scaling", "--device=cpu", "--model=trivial", "--batch_size=8", *arguments)


def _records(tmp_path: Path) -> list[Record]:
    return load(tmp_path / "out" / "results.jsonl").records


def _cells(shown: str, first: str) -> list[str]:
    """Returns the cells of the line of a table that starts so."""
    (line,) = (line for line in shown.splitlines() if line.startswith(f"{first}  "))
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_workers_are_doubled_measured_three_times_fitted_and_drawn(scaling: Scaling, tmp_path: Path) -> None:
    done = scaling(*WORKERS).succeeded()
    order = [record.config["num_workers"] for record in _records(tmp_path)]
    assert order == [1, 2, 4, 4, 2, 1, 1, 2, 4], "three rounds, there and back"
    # Steps of 0.1 s * (1 + 0.1 (n - 1)) * 1.005 on average: the rate is 8 n over that.
    one, four = _cells(done.stdout, "1"), _cells(done.stdout, "4")
    assert one[:2] == ["1", "79.6"]
    assert four[1] == "244.9" and four[4:6] == ["3.08", "76.9"]
    predicted = _cells(done.stdout, "16 (predicted)")
    assert float(predicted[1]) == pytest.approx(16 * 79.602 / 2.5, rel=5e-3) and predicted[5] == "40"
    assert "sigma = 10.0 % (" in done.stdout and " and kappa = 0 % (0 to " in done.stdout
    assert "Measured: 1, 2, 4 workers; 4 are 3.08 (" in done.stdout
    assert "Predicted: with 8 workers" in done.stdout and "an efficiency of 58.8 % (" in done.stdout
    assert "weak scaling" in done.stdout
    assert "9 records: out/results.jsonl" in done.stdout
    with Image.open(tmp_path / "out" / "scaling.png") as image:
        assert min(image.size) > 300
    svg = (tmp_path / "out" / "scaling.svg").read_text()
    assert "efficiency %" in svg and "workers" in svg


def test_each_worker_gets_one_thread_unless_threads_are_given(scaling: Scaling, runs: Runs) -> None:
    done = scaling(*WORKERS, "--repeats=1")
    assert "Each task has one thread" in done.stderr
    assert {run.flags["num_intra_threads"] for run in runs.started} == {"1"}
    runs.started.clear()
    done = scaling(*WORKERS, "--repeats=1", "--num_inter_threads=2", "--num_intra_threads=3")
    assert "one thread" not in done.stderr
    assert {run.flags["num_intra_threads"] for run in runs.started} == {"3"}


@pytest.mark.parametrize(
    ("words", "gpus", "why"),
    [
        ((), 0, "Logical CPU devices of one process share its cores"),
        ((*WORKERS, "--num_inter_threads=2"), 0, "These processes have more threads than the host has cores"),
        (("--num_gpus=2,4", "--virtual_gpus=auto"), 1, "Virtual GPUs share one GPU"),
    ],
)
def test_what_shares_hardware_is_refused_before_anything_runs(
    run_bench: RunBench, runs: Runs, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], gpus: int, why: str
) -> None:
    monkeypatch.setattr(hardware, "count_gpus", lambda: gpus)
    monkeypatch.setattr(hardware, "usable_cores", lambda: 2)
    done = run_bench("scaling", "--model=trivial", *words)
    assert done.status == ExitStatus.USAGE and not runs.started
    assert why in done.stderr and "nothing could be predicted" in done.stderr


def test_a_list_chooses_the_numbers_and_each_manager_has_a_curve(scaling: Scaling) -> None:
    done = scaling(
        "--local_cluster=worker:1;worker:3;worker:6", "--variable_update=collective_all_reduce,distributed_all_reduce"
    ).succeeded()
    assert done.stdout.count("sigma = 10.0 %") == 2
    assert "batch 8 per device, collective_all_reduce\n" in done.stdout
    assert "batch 8 per device, distributed_all_reduce" in done.stdout
    assert done.stdout.count("24 (predicted)") == 2


def test_parameter_servers_stay_as_many(scaling: Scaling, runs: Runs) -> None:
    done = scaling("--local_cluster=ps:2,worker:3", "--variable_update=parameter_server", "--repeats=1")
    assert [run.flags["local_cluster"] for run in runs.started] == [f"ps:2,worker:{n}" for n in (1, 2, 3)]
    assert "parameter_server, 2 parameter servers\n" in done.stdout
    assert "Nothing was repeated: equal runs are assumed to differ by 10%." in done.stdout


def test_with_a_failed_number_the_others_are_fitted_and_the_status_says_so(scaling: Scaling, runs: Runs) -> None:
    runs.ends[2] = Failure(returncode=3, stderr="no luck")
    done = scaling(*WORKERS)
    assert done.status == ExitStatus.RUN_FAILED
    assert "sigma = 10.0 % (" in done.stdout and "Two numbers show only sigma" in done.stdout
    assert "no luck" in done.stdout
    runs.ends[4] = Failure(returncode=3)
    done = scaling(*WORKERS, "--repeats=1", "--output_dir=other")
    assert done.status == ExitStatus.RUN_FAILED
    assert "Nothing is predicted. Only 1 number of workers has a valid rate." in done.stdout
    runs.ends[1] = Failure(returncode=3)
    done = scaling(*WORKERS, "--repeats=1", "--output_dir=none")
    assert done.status == ExitStatus.RUN_FAILED and "scaling.svg" not in done.stdout


ONE_HOST, ON_HOSTS = "--variable_update=replicated", "--hosts=a,b,c --ssh --variable_update"


@pytest.mark.parametrize(
    ("gpus", "flags", "cells"),
    [
        (8, ONE_HOST, ["--num_gpus=1", "--num_gpus=2", "--num_gpus=4", "--num_gpus=8"]),
        (8, f"{ONE_HOST} --num_gpus=6", ["--num_gpus=1", "--num_gpus=2", "--num_gpus=4", "--num_gpus=6"]),
        (8, f"{ONE_HOST} --num_gpus=2,8", ["--num_gpus=2", "--num_gpus=8"]),
        (8, f"{ONE_HOST} --gpus=0,2,3,5", ["--num_gpus=1", "--num_gpus=2", "--num_gpus=4"]),
        (0, f"{ON_HOSTS}=distributed_replicated --num_gpus=8", ["--hosts=a", "--hosts=a,b", "--hosts=a,b,c"]),
        (0, f"{ON_HOSTS}=parameter_server", ["--hosts=a", "--hosts=a,b", "--hosts=a,b,c"]),
    ],
)
def test_gpus_are_doubled_up_to_all_and_hosts_taken_in_their_order_whatever_this_host_has(
    run_bench: RunBench, monkeypatch: pytest.MonkeyPatch, gpus: int, flags: str, cells: list[str]
) -> None:
    monkeypatch.setattr(hardware, "count_gpus", lambda: gpus)
    done = run_bench("scaling", "--model=trivial", "--dry_run", *flags.split()).succeeded()
    assert [line.split()[1] for line in done.stdout.splitlines() if "about" in line and " --" in line] == cells
    assert "x 3 repeats" in done.stdout and not done.stderr


@pytest.mark.parametrize(
    ("gpus", "flags", "said"),
    [
        (1, (), "are compared. Use several GPUs"),
        (2, ("--num_gpus=1,4",), "are compared. --num_gpus=4 asks for 4 GPUs"),
        (0, ("--device=cpu", "--num_gpus=1"), "several hosts (--hosts=host_0,host_1 --ssh)"),
        (0, ("--device=cpu", "--num_gpus=x"), "--num_gpus=x: give the largest number of devices"),
    ],
)
def test_one_number_of_devices_is_a_mistake(
    run_bench: RunBench, monkeypatch: pytest.MonkeyPatch, gpus: int, flags: tuple[str, ...], said: str
) -> None:
    monkeypatch.setattr(hardware, "count_gpus", lambda: gpus)
    done = run_bench("scaling", "--model=trivial", *flags)
    assert done.status == ExitStatus.USAGE
    assert said in done.stderr


def test_a_plot_that_cannot_be_written_costs_no_result(scaling: Scaling, tmp_path: Path) -> None:
    (tmp_path / "out" / "scaling.svg").mkdir(parents=True)
    done = scaling(*WORKERS)
    assert "scaling.svg could not be written" in done.stderr
    assert "sigma = 10.0 %" in done.stdout and len(_records(tmp_path)) == 9
