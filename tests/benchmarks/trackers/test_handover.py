"""Records in the real libraries, without a network; and trackers that fail, hang or are missing."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.errors import UsageError
from benchmarks.trackers import catalog, handover
from benchmarks.trackers.catalog import Targets
from results.record import Record, Status
from tests.support.records import make_record

HANGING = "import time, os\nopen(os.environ['STARTED'], 'a').write(f'{os.getpid()}\\n')\ntime.sleep(600)\n"
# Apart from the tests, since its imports warn.
READ_MLFLOW = """
import json
from mlflow import MlflowClient
client = MlflowClient("sqlite:///m.db")
runs = client.search_runs([client.get_experiment_by_name("cnn-train-bench").experiment_id])
losses = [client.get_metric_history(run.info.run_id, "loss") for run in runs]
print(json.dumps([
    {"status": run.info.status, "params": run.data.params, "metrics": run.data.metrics, "tags": run.data.tags,
     "loss": [(each.step, each.value) for each in loss]}
    for run, loss in zip(runs, losses)
]))
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, value in (("WANDB_MODE", "offline"), ("MLFLOW_DISABLE_TELEMETRY", "true"), ("DO_NOT_TRACK", "true")):
        monkeypatch.setenv(name, value)
    return tmp_path


def sent(record: Record, **targets: str) -> list[str]:
    """Sends a record, and returns what is announced."""
    announced: list[str] = []
    assert handover.send([record], Targets(**targets), [Path("out/results.jsonl")], announced.append)
    return announced


def of_session(**changes: Any) -> Record:
    made = make_record(warnings=["Slow."], **changes)
    return dataclasses.replace(made, identity=dataclasses.replace(made.identity, session_id="the_session"))


@pytest.mark.process
def test_tensorboard_shows_the_run_and_one_folder_after_it_was_sent_twice(here: Path) -> None:
    record = of_session()
    run_id = record.identity.run_id
    assert sent(record, tensorboard_dir="tb") == [f"TensorBoard, tb/{run_id}"]
    sent(record, tensorboard_dir="tb")
    assert len(list((here / "tb" / run_id).iterdir())) == 1
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(here / "tb" / run_id)).Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")][:2] == [(1, 7.0), (2, 6.5)]
    assert [event.step for event in events.Scalars("measured/step_seconds")] == [3, 4, 5, 6, 7, 8]
    assert events.Scalars("run/images_per_sec")[0].value == pytest.approx(160)
    assert b"Slow." in events.Tensors("notes")[0].tensor_proto.string_val[0]
    assert "_hparams_/session_start_info" in events.Tags()["tensors"]


@pytest.mark.process
def test_mlflow_has_the_run_once_after_it_was_sent_twice(here: Path) -> None:
    record, failed = of_session(), make_record(status=Status.CRASH, reason="It crashed.")
    for _ in range(2):
        assert handover.send([record, failed], Targets(mlflow_uri="sqlite:///m.db"), [here], lambda sentence: None)
    done = subprocess.run([sys.executable, "-c", READ_MLFLOW], check=True, capture_output=True, text=True)
    runs = json.loads(done.stdout)
    assert {run["tags"]["run_id"]: run["status"] for run in runs} == {
        record.identity.run_id: "FINISHED",
        failed.identity.run_id: "FAILED",
    }
    run = next(one for one in runs if one["status"] == "FINISHED")
    assert run["params"]["batch_per_device"] == "8" and run["metrics"]["images_per_sec"] == pytest.approx(160)
    assert (run["tags"]["session_id"], run["tags"]["mlflow.note.content"]) == ("the_session", "Slow.")
    assert run["loss"][:2] == [[1, 7.0], [2, 6.5]] and len(run["loss"]) == 8


def logged(path: Path) -> Iterator[Any]:
    """Yields the records of W&B's file, which has the frames of LevelDB's log."""
    from wandb.proto import wandb_internal_pb2

    data, at, whole = path.read_bytes(), 7, b""
    while at < len(data):
        if (left := 2**15 - at % 2**15) < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield wandb_internal_pb2.Record.FromString(whole)
            whole = b""


@pytest.mark.process
def test_wandb_has_the_run_with_its_id_group_configuration_and_steps(here: Path) -> None:
    record = of_session()
    (sentence,) = sent(record, wandb_project="demo")
    assert sentence.startswith("Weights & Biases, ") and sentence.endswith(record.identity.run_id)
    found = list(logged(next(here.glob("wandb/offline-run-*/*.wandb"))))
    (run,) = (one.run for one in found if one.WhichOneof("record_type") == "run")
    assert (run.run_id, run.project, run.run_group, run.notes) == (
        record.identity.run_id,
        "demo",
        "the_session",
        "Slow.",
    )
    assert {"ok", "trivial"} <= set(run.tags)
    assert {item.key: item.value_json for item in run.config.update}["batch_per_device"] == "8"
    steps = [
        {item.nested_key[0] if item.nested_key else item.key: json.loads(item.value_json) for item in one.history.item}
        for one in found
        if one.WhichOneof("record_type") == "history"
    ]
    assert [(step["_step"], step["loss"]) for step in steps][:2] == [(1, 7.0), (2, 6.5)] and len(steps) == 8
    summary = {item.key: item.value_json for one in found for item in one.summary.update}
    assert json.loads(summary["images_per_sec"]) == pytest.approx(160)


@pytest.mark.process
def test_a_tracker_that_hangs_is_ended_and_the_other_has_the_run(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (here / "wandb.py").write_text(HANGING)
    monkeypatch.setenv("PYTHONPATH", str(here))
    monkeypatch.setenv("STARTED", str(here / "started"))
    record, announced = make_record(), []
    targets = Targets(wandb_project="demo", tensorboard_dir="tb")
    assert not handover.send([record], targets, [Path("out/results.jsonl")], announced.append, limit_seconds=6.0)
    assert announced == [f"TensorBoard, tb/{record.identity.run_id}"]
    later = f"report out/results.jsonl --where=run_id={record.identity.run_id} --wandb_project=demo"
    assert f"it took longer than 6 s. What is stored can be sent later: {later}" in capfd.readouterr().err
    (process,) = (here / "started").read_text().split()
    assert not Path(f"/proc/{process}").exists()


@pytest.mark.process
def test_why_a_tracker_failed_is_said_without_its_secrets(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (here / "mlflow.py").write_text("raise OSError('http://me:hunter2@host: api_key=abc is \\x1b[2J wrong')")
    monkeypatch.setenv("PYTHONPATH", str(here))
    assert not handover.send([make_record()], Targets(mlflow_uri="http://me:hunter2@host"), [here], print)
    printed = capfd.readouterr()
    assert "OSError: http://***@host: api_key=***" in printed.err and "--mlflow_uri=http://***@host" in printed.err
    assert not {"hunter2", "abc", "\x1b"} & set(printed.err.split()) and "hunter2" not in printed.err + printed.out


def test_a_library_that_is_missing_is_named_with_its_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for kind in catalog.KINDS:
        with pytest.raises(
            UsageError, match=rf"--{kind.flag} needs .* pip install 'cnn-train-bench\[{kind.package}\]'"
        ):
            catalog.require(Targets(**{kind.flag: "x"}))


@pytest.mark.parametrize(
    ("flag", "value", "why"),
    [
        ("wandb_project", "", "is empty"),
        ("mlflow_uri", " ", "is empty"),
        ("tensorboard_dir", "", "is empty"),
        ("tensorboard_dir", "gs://bucket", "give a directory of this machine"),
        ("wandb_project", "team/name", "has no '/'.* WANDB_ENTITY names the team"),
    ],
)
def test_a_value_that_no_tracker_takes_is_refused(flag: str, value: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        catalog.targets_of({**dict.fromkeys(catalog.FLAGS), flag: value})


def test_a_directory_that_cannot_be_written_is_refused_and_none_is_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="/file is not a directory. Name a directory that can be"):
        catalog.require(Targets(tensorboard_dir=str(tmp_path / "file" / "tb")))
    catalog.require(Targets(tensorboard_dir=str(tmp_path / "new" / "tb")))
    assert not (tmp_path / "new").exists()
