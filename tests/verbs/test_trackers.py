"""The flags of trackers, as users of `run`, `report`, `rerun`, `sweep` and `ab` meet them."""

from __future__ import annotations

import importlib.util
import os
import signal
from pathlib import Path

import pytest
from msgspec.structs import replace

from benchmarks.config import flag
from benchmarks.config.run_flags import RUN_FLAGS
from benchmarks.errors import OutOfMemoryError
from benchmarks.process.subprocesses import ExitInfo
from benchmarks.run import cluster_launch
from benchmarks.sweep import grid
from benchmarks.sweep.isolated_run import CellRunner
from benchmarks.trackers import handover
from benchmarks.tune import batch_size
from results.record import Record, Status
from results.store import Store
from tests.support.commands import Records, RunBench
from tests.support.records import fake_run
from tests.support.rotation import rotating
from tests.support.settings import resolve

SMALL = ("--model=trivial", "--device=cpu", "--batch_size=2", "--num_batches=2", "--num_warmup_batches=0")
SENT = ("--tensorboard_dir=tb", "--wandb_project=demo", "--mlflow_uri=http://me:hunter2@host")
# Libraries that note which process imports them, and send nothing.
NOTING = (
    "import os\nopen(os.environ['STARTED'], 'a').write(f'{os.getpid()} {os.getppid()}\\n')\nraise OSError('down')\n"
)


def test_no_flag_of_a_tracker_changes_the_configuration_key() -> None:
    plain, sending = (resolve(*SMALL, *flags) for flags in ((), SENT))
    assert sending.output.trackers["wandb_project"] == "demo" and plain.key_fields() == sending.key_fields()
    assert "trackers" in sending.fields_not_in_key()


@pytest.mark.process
def test_a_run_is_sent_from_other_processes_whose_failure_leaves_its_status(
    run_bench: RunBench, records: Records, tmp_path: Path
) -> None:
    for name in ("wandb", "mlflow"):
        (tmp_path / f"{name}.py").write_text(NOTING)
    started = tmp_path / "started"
    done = run_bench(*SMALL, *SENT, PYTHONPATH=str(tmp_path), STARTED=str(started)).succeeded()
    (record,) = records()
    run_id = record["identity"]["run_id"]
    assert f"sent to:        TensorBoard, tb/{run_id}" in done.stdout and (tmp_path / "tb" / run_id).is_dir()
    assert "Weights & Biases: the run was not sent: OSError: down" in done.stderr
    assert f"report out/results.jsonl --where=run_id={run_id} --wandb_project=demo" in done.stderr
    processes = [line.split() for line in started.read_text().splitlines()]
    assert len(processes) == 2 and {parent for _, parent in processes} == {str(os.getpid())}
    assert "hunter2" not in str(record) + done.stderr + done.stdout
    assert record["config"]["trackers"]["mlflow_uri"] == "http://***@host"


@pytest.mark.process
@rotating("number", [signal.SIGINT, signal.SIGTERM], first=1)
def test_a_signal_while_a_record_is_sent_leaves_the_status_of_the_run(
    run_process: RunBench, tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "wandb.py").write_text(f"import os, time\nos.kill(os.getppid(), {int(number)})\ntime.sleep(600)\n")
    done = run_process(*SMALL, "--wandb_project=demo", PYTHONPATH=str(tmp_path))
    assert done.status == 0 and "Interrupted while its result was sent to trackers. What is stored" in done.stderr
    assert "--wandb_project=demo" in done.stderr


@pytest.mark.parametrize("verb", [("run",), ("sweep",), ("report", "out/results.jsonl")])
def test_a_missing_library_is_refused_before_anything_runs(
    run_bench: RunBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: tuple[str, ...]
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None if name == "wandb" else found(name, *_))
    if verb[0] == "report":
        Store(tmp_path / "out").append(fake_run())
    flags = () if verb[0] == "report" else SMALL
    done = run_bench(*verb, *flags, "--wandb_project=demo")
    assert done.status == 2 and "-m pip install wandb" in done.stderr
    assert verb[0] == "report" or not (tmp_path / "out").exists()


def test_the_trials_of_a_batch_are_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent_to = []

    def tried(runner: CellRunner, cell: grid.Cell, what: str) -> Record:
        assert cell.config is not None
        sent_to.append(cell.config.output.trackers)
        return fake_run(status=Status.OUT_OF_MEMORY)

    monkeypatch.setattr(CellRunner, "run_cell", tried)
    flags = (*SMALL, *SENT, "--batch_size=auto", f"--output_dir={tmp_path}")
    with pytest.raises(OutOfMemoryError):
        batch_size.resolve_batch_size(flag.parse(flags, RUN_FLAGS).values, [], lambda: 0)
    assert len(sent_to) > 1 and not any(sent_to)


def test_a_sweep_sends_each_run_and_takes_a_comma_as_part_of_the_name() -> None:
    values = grid.of_flags({"model": "trivial,mlp", "mlflow_uri": "http://a,b"})
    assert [cell.config.output.trackers["mlflow_uri"] for cell in grid.cells([values], lambda: 0)] == ["http://a,b"] * 2


@pytest.mark.process
def test_report_sends_stored_records_and_fails_if_that_fails(run_bench: RunBench, tmp_path: Path) -> None:
    (tmp_path / "wandb.py").write_text("raise OSError('down')")
    Store(tmp_path / "out").append(fake_run(model="vgg16"), fake_run(), fake_run())
    done = run_bench("report", "--where=model=resnet50", "--tensorboard_dir=tb")
    assert done.status == 0 and "TensorBoard, 2 runs in tb" in done.stdout
    assert len(list((tmp_path / "tb").iterdir())) == 2
    failed = run_bench("report", "--wandb_project=demo", PYTHONPATH=str(tmp_path))
    assert failed.status == 4 and "Weights & Biases: 3 of 3 runs were not sent: OSError: down" in failed.stderr


@pytest.mark.process
@pytest.mark.parametrize("form", ["json", "csv"])
def test_an_export_to_stdout_has_no_line_of_a_tracker(run_bench: RunBench, tmp_path: Path, form: str) -> None:
    Store(tmp_path / "out").append(fake_run())
    plain = run_bench("report", f"--output_format={form}").stdout
    done = run_bench("report", f"--output_format={form}", "--tensorboard_dir=tb")
    assert done.status == 0 and done.stdout == plain and "TensorBoard, tb/" in done.stderr


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_cluster_prints_json_alone_to_stdout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    flags = [*SMALL, "--tensorboard_dir=tb", f"--output_dir={tmp_path}", f"--output_format={form}"]
    chosen, record = resolve(*flags), fake_run()
    record = replace(record, identity=replace(record.identity, command=flags))

    def ran(*_: object, **__: object) -> list[ExitInfo]:
        Store(tmp_path).append(record)
        return [ExitInfo(returncode=0, timed_out=False, out_of_memory=False, seconds=1.0)]

    monkeypatch.setattr(cluster_launch.subprocesses, "supervise", ran)
    monkeypatch.setattr(cluster_launch, "raise_on_termination", lambda: None)
    monkeypatch.setattr(handover, "send_of_run", lambda record, targets, stored, announce, limit: announce("TB, tb"))
    assert cluster_launch._run_and_send(chosen.output, flags) == 0
    assert ("TB, tb" in capsys.readouterr().out) == (form == "text")
