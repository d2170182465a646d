"""How a run ends that does not end after its last step: by a limit, for want of memory, or by a fault."""

from __future__ import annotations

import contextlib
import json
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from benchmarks.cli import main
from benchmarks.errors import OverdueError
from benchmarks.machine import hardware
from benchmarks.machine.provenance import Provenance
from benchmarks.measure.display import Display
from benchmarks.process import sentinel
from benchmarks.run import loop, run_record, runner, train
from results.loading import load
from tests.support import settings
from tests.support.commands import Records, RunBench

SHORT = ("--device=cpu", "--model=trivial", "--batch_size=2", "--num_batches=6")


def test_a_time_limit_still_gives_a_result(run_bench: RunBench, records: Records) -> None:
    run_bench(*SHORT, "--num_batches=1000000", "--time_limit_seconds=1").succeeded()
    (record,) = records()
    assert record["status"] == "ok"
    assert 1 <= len(record["measurement"]["step_seconds"]) < 1_000_000


@pytest.mark.fault(
    "R11",
    "results.jsonl cannot be written at the end of a run",
    survives="status 4, and the record as one line on stderr",
)
def test_a_record_that_cannot_be_stored_is_printed(
    run_bench: RunBench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    execute = train.run_loop

    def replace_the_directory(*arguments: Any) -> None:
        execute(*arguments)
        shutil.rmtree(tmp_path / "out")
        (tmp_path / "out").write_text("in the way")

    monkeypatch.setattr(train, "run_loop", replace_the_directory)
    done = run_bench(*SHORT)
    assert done.status == 4
    assert "The record could not be stored" in done.stderr and "Traceback" not in done.stderr
    assert "total images/sec" in done.stdout
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("{")]
    assert json.loads(line)["status"] == "ok"


def test_the_record_of_a_killed_run_that_cannot_be_stored_is_printed(
    run_bench: RunBench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    acts = []

    def unless_dismissed(act: Callable[[sentinel.Death], object], *, wanted: bool) -> Any:
        acts.append(act)
        return contextlib.nullcontext(lambda: None)

    monkeypatch.setattr(sentinel, "unless_dismissed", unless_dismissed)
    assert run_bench(*SHORT).status == 0
    shutil.rmtree(tmp_path / "out")
    (tmp_path / "out").write_text("in the way")
    monkeypatch.chdir(tmp_path)
    acts[0](sentinel.Death(9, 2**30, 2**31, False))
    said = capfd.readouterr().err
    (line,) = [line for line in said.splitlines() if line.startswith("{")]
    assert json.loads(line)["status"] == "crash" and "Traceback" not in said


@pytest.mark.parametrize("device", ["cpu", "gpu"])
@pytest.mark.parametrize(
    ("number", "advice", "on_cpu"),
    [(signal.SIGABRT, "Xid", False), (signal.SIGBUS, "--ipc=host", False), (signal.SIGILL, "PyPI needs AVX", True)],
)
def test_a_run_that_a_signal_ends_names_the_usual_cause(
    tmp_path: Path, device: str, number: signal.Signals, advice: str, on_cpu: bool
) -> None:
    config = settings.resolve(f"--device={device}", "--num_gpus=1", f"--output_dir={tmp_path}", gpus=1)
    provenance = Provenance([], hardware.Inventory(), None)
    run_record.save_of_killed(config, provenance, sentinel.Death(number, 2**30, 2**31, False))
    (record,) = load(tmp_path / "results.jsonl").records
    assert record.status == "crash" and f"ended by signal {number.value} (" in record.reason
    assert (advice in record.reason) == (on_cpu or device == "gpu")


def test_a_directory_that_does_not_open_is_not_left_to_the_sentinel() -> None:
    """It would wait for the directory, too, and with it who reads our output."""
    dismissed: list[bool] = []
    unused: Any = SimpleNamespace(processes=SimpleNamespace(cluster=None))
    run = runner._Run(unused, unused, unused, unused, dismiss=lambda: dismissed.append(True))
    run.save(OverdueError("Opening --output_dir=out took longer than 120 s."))
    assert dismissed == [True]


def test_a_record_is_saved_before_anything_of_it_is_printed(
    run_bench: RunBench, records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("the output is broken")

    monkeypatch.setattr(Display, "finish", fail)
    assert run_bench(*SHORT).status == 4
    assert [record["status"] for record in records()] == ["ok"]


def test_what_other_runs_have_left_costs_no_record(
    run_bench: RunBench, records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "synthetic_ratio", lambda *_: 1 / 0)
    done = run_bench(*SHORT)
    assert done.status == 0 and "ZeroDivisionError" in done.stderr
    assert [record["status"] for record in records()] == ["ok"]


@pytest.fixture
def four_more_gib() -> Iterator[None]:
    """Lets this process map 4 GiB more than now."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + 4 * 2**30, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.fault(
    "R3",
    "a batch for which the address space is too small",
    survives="status 4, and a row oom that names request and device",
)
@pytest.mark.usefixtures("four_more_gib")
def test_a_batch_that_does_not_fit_is_a_record(run_bench: RunBench, records: Records) -> None:
    """TensorFlow's own allocator fails: 100,000 images of 227 x 227 pixels take 62 GB."""
    done = run_bench(*SHORT, "--batch_size=100000")
    assert done.status == 4
    (record,) = records()
    assert record["status"] == "oom" and record["measurement"]["step_seconds"] == []
    reason = record["reason"]
    assert reason.startswith("Out of memory: ") and "shape[100000,227,227,3]" in reason and "device:CPU:0" in reason
    assert reason.endswith(
        ". Try half the batch, --batch_size=50000, or --batch_size=auto, which finds the largest that fits."
    )
    assert f"run_bench: {reason}\n" in done.stderr and "Traceback" not in done.stderr
    assert "Out of memory" not in done.stdout


def test_python_that_is_out_of_memory_is_a_record(
    run_bench: RunBench, records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "measure", lambda *_: bytearray(2**60))
    done = run_bench(*SHORT)
    assert done.status == 4
    (record,) = records()
    asked = (
        "The host is out of memory: trivial with 2 images per device on 1 CPU device. Try half the batch, "
        "--batch_size=1, or --batch_size=auto, which finds the largest that fits."
    )
    assert (record["status"], record["reason"]) == ("oom", asked)
    assert "Traceback" not in done.stderr


def test_a_fault_of_the_suite_is_a_record_with_its_traceback_on_stderr(
    run_bench: RunBench, records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(*_: object) -> None:
        raise ZeroDivisionError("no steps")

    monkeypatch.setattr(loop, "measure", measure)
    done = run_bench(*SHORT)
    assert done.status == 4
    (record,) = records()
    assert (record["status"], record["reason"]) == ("crash", "ZeroDivisionError: no steps")
    assert record["derived"]["images_per_sec"] is None
    assert "Traceback (most recent call last)" in done.stderr and "in measure\n" in done.stderr
    assert "run_bench: ZeroDivisionError: no steps\n" in done.stderr
    assert "Traceback" not in done.stdout


def test_a_fault_outside_a_run_is_no_regression(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "dispatch", lambda arguments: 1 / 0)
    assert main.main(["--help"]) == 4
    assert "ZeroDivisionError" in capsys.readouterr().err
