"""Records in the real libraries, without a network; and trackers that fail, hang or are missing."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import struct
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from benchmarks.errors import UsageError
from benchmarks.trackers import handover, tracker_list
from benchmarks.trackers.tracked_run import tracked
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
    assert handover.send([record], targets, [Path("out/results.jsonl")], announced.append)
    return announced


def of_session(**changes: Any) -> Record:
    made = make_record(warnings=["Slow."], **changes)
    return replace(made, identity=replace(made.identity, session_id="the_session"))


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


@pytest.mark.slow
@pytest.mark.process
def test_mlflow_has_the_run_once_after_it_was_sent_twice(here: Path) -> None:
    record, failed = of_session(), make_record(status=Status.CRASH, reason="It crashed.")
    for _ in range(2):
        assert handover.send([record, failed], {"mlflow_uri": "sqlite:///m.db"}, [here], lambda sentence: None)
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


class Client:
    """MLflow's, with a run that was sent in part, whose server rejects all metrics if it is broken."""

    tracking_uri = "sqlite:///m.db"

    def __init__(self, *, is_broken: bool) -> None:
        self.calls: list[str] = []
        self.stage = "active"
        self._is_broken = is_broken

    def get_experiment(self, number: str) -> types.SimpleNamespace:
        return types.SimpleNamespace(name=f"experiment {number}")

    def get_experiment_by_name(self, name: str) -> types.SimpleNamespace:
        self.experiment = name
        return types.SimpleNamespace(experiment_id="1", lifecycle_stage=self.stage)

    def search_runs(self, *_: object) -> list[types.SimpleNamespace]:
        return [types.SimpleNamespace(info=types.SimpleNamespace(run_id="old", status="RUNNING"))]

    def create_run(self, *_: object, **__: object) -> types.SimpleNamespace:
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id="new"))

    def log_batch(self, number: str, **of: object) -> None:
        if self._is_broken and "metrics" in of:
            raise OSError("full")

    def set_terminated(self, number: str, *_: object) -> None:
        self.calls.append(f"end {number}")

    def delete_run(self, number: str) -> None:
        self.calls.append(f"delete {number}")


@pytest.mark.parametrize(("is_broken", "calls"), [(False, ["end new", "delete old"]), (True, ["delete new"])])
def test_mlflow_loses_no_run_before_the_new_one_is_complete(
    is_broken: bool, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(is_broken=is_broken)
    library, entities, variables = map(types.ModuleType, ("mlflow", "mlflow.entities", "mlflow.environment_variables"))
    library.MlflowClient = lambda target: client
    entities.Metric = entities.Param = entities.RunTag = lambda *values: values
    variables.MLFLOW_EXPERIMENT_NAME = types.SimpleNamespace(get=lambda: None)
    variables.MLFLOW_EXPERIMENT_ID = types.SimpleNamespace(get=lambda: "7" if is_broken else None)
    for module in (library, entities, variables):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.delitem(sys.modules, "benchmarks.trackers.to_mlflow", raising=False)
    to_mlflow = importlib.import_module("benchmarks.trackers.to_mlflow")
    monkeypatch.delitem(sys.modules, "benchmarks.trackers.to_mlflow")
    with pytest.raises(OSError, match="full") if is_broken else contextlib.nullcontext():
        to_mlflow.send(tracked(of_session()), "x")
    assert client.calls == calls
    assert client.experiment == ("experiment 7" if is_broken else "cnn-train-bench")
    client.stage = "deleted"
    with pytest.raises(ValueError, match="mlflow experiments restore -x 1, or name another"):
        to_mlflow.send(tracked(of_session()), "x")


def test_tensorboard_leaves_files_of_others_and_no_part_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.trackers import to_tensorboard

    run = dataclasses.replace(tracked(of_session()), run_id="train")
    (tmp_path / "train").mkdir()
    others = tmp_path / "train" / "events.out.tfevents.1700000000.host.1.v2"
    others.touch()
    to_tensorboard.send(dataclasses.replace(run, began=1.0), str(tmp_path))
    to_tensorboard.send(run, str(tmp_path))
    own = tmp_path / "train" / f"events.out.tfevents.{round(run.began):010d}.train"
    assert {*(tmp_path / "train").iterdir()} == {others, own}
    content, seen = own.read_bytes(), []

    def failing(run: object) -> Iterator[Any]:
        yield to_tensorboard.Event(wall_time=1.0)
        seen.extend(path.name for path in (tmp_path / "train").iterdir() if path not in (others, own))
        raise OSError("full")

    monkeypatch.setattr(to_tensorboard, "_events", failing)
    with pytest.raises(OSError, match="full"):
        to_tensorboard.send(run, str(tmp_path))
    assert {*(tmp_path / "train").iterdir()} == {others, own} and own.read_bytes() == content
    assert len(seen) == 1 and "tfevents" not in seen[0]


@pytest.mark.process
def test_a_record_that_cannot_be_sent_does_not_stop_the_others(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    good, made = make_record(), make_record()
    nameless = replace(made, identity=replace(made.identity, run_id=""))
    (here / "tb").mkdir()
    (here / "tb" / "events.out.tfevents.1.host").touch()
    assert not handover.send([nameless, good], {"tensorboard_dir": "tb"}, [here], print)
    assert "1 of 2 runs were not sent: ValueError: the record has no run_id" in capfd.readouterr().err
    assert {path.name for path in (here / "tb").iterdir()} == {"events.out.tfevents.1.host", good.identity.run_id}


@pytest.mark.process
def test_records_that_were_sent_in_time_are_counted(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    good, slow = make_record(), make_record()
    script = "import benchmarks.trackers.to_tensorboard as it, time\nsend = it.send\nit.send = lambda run, target: "
    script += f"time.sleep(600) if run.run_id == '{slow.identity.run_id}' else send(run, target)\n"
    (here / "sitecustomize.py").write_text(script)
    monkeypatch.setenv("PYTHONPATH", str(here))
    monkeypatch.setattr(handover, "_MORE_SECONDS", 1.0)
    assert not handover.send([good, slow], {"tensorboard_dir": "tb"}, [here], print, limit_seconds=9.0)
    assert "1 of 2 runs were not sent: it took longer than 10 s" in capfd.readouterr().err


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
    model = 200 * "m"
    record = of_session(config={"model": model, "num_devices": 2, "batch_per_device": 8})
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
    assert run.display_name == f"{model} {record.identity.run_id}"[-128:], "as long as the server takes"
    assert {"ok", model[:64]} <= set(run.tags)
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
def test_wandb_that_is_switched_off_is_not_said_to_have_the_run(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert not handover.send([make_record()], {"wandb_project": "demo"}, [here], print)
    assert "the run was not sent: ValueError: WANDB_MODE" in capfd.readouterr().err


@pytest.mark.process
def test_a_tracker_that_hangs_is_ended_and_the_other_has_the_run(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (here / "wandb.py").write_text(HANGING)
    monkeypatch.setenv("PYTHONPATH", str(here))
    monkeypatch.setenv("STARTED", str(here / "started"))
    record, announced = make_record(), []
    targets = {"wandb_project": "demo", "tensorboard_dir": "tb"}
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
    assert not handover.send([make_record()], {"mlflow_uri": "http://me:hunter2@host"}, [here], print)
    printed = capfd.readouterr()
    assert "OSError: http://***@host: api_key=***" in printed.err and "--mlflow_uri=http://***@host" in printed.err
    assert not {"hunter2", "abc", "\x1b"} & set(printed.err.split()) and "hunter2" not in printed.err + printed.out


@pytest.mark.parametrize(
    ("flag", "value", "why"),
    [
        ("tensorboard_dir", "gs://bucket", "give a directory of this machine"),
        ("wandb_project", "team/name", "has no '/'.* WANDB_ENTITY names the team"),
        ("mlflow_uri", "localhost:5000", "needs its scheme, as in http://localhost:5000"),
    ],
)
def test_a_value_that_no_tracker_takes_is_refused(flag: str, value: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        tracker_list.targets_of({**dict.fromkeys(tracker_list.FLAGS), flag: value})


def test_a_directory_that_cannot_be_written_is_refused_and_none_is_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="/file: Not a directory. Name a directory that can be written"):
        tracker_list.require({"tensorboard_dir": str(tmp_path / "file" / "tb")})
    tracker_list.require({"tensorboard_dir": str(tmp_path / "new" / "tb")})
    assert not (tmp_path / "new").exists()
