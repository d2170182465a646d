"""The suite as a library; `subprocesses.supervise` is replaced. Real processes: `tests/processes/test_library.py`."""

from __future__ import annotations

import dataclasses
import json
import operator
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import benchmarks
from benchmarks import Config, Record, Status, UsageError, train
from benchmarks.config import config, flag, run_flags
from benchmarks.process import subprocesses
from benchmarks.sweep import grid
from results.loading import load
from tests.support.commands import ROOT
from tests.support.fake_runs import Failure, FakeRun, FakeRuns, record_of

FLAGS: dict[str, Any] = {"model": "mlp", "device": "cpu", "num_gpus": 2, "variable_update": "replicated"}


@pytest.fixture
def behave(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., FakeRuns]:
    """Has runs end as a function decides, in an empty directory, in place of processes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TF_CONFIG", raising=False)

    def put(end: Callable[[FakeRun], Record | Failure]) -> FakeRuns:
        runs = FakeRuns(end)
        monkeypatch.setattr(subprocesses, "supervise", runs)
        return runs

    return put


def test_flags_mean_what_they_mean_on_the_command_line() -> None:
    made = Config.from_flags(**FLAGS, compact_gradient_transfer=True, learning_rate=0.5, num_batches=None)
    words = [*run_flags.words(FLAGS), "--compact_gradient_transfer", "--init_learning_rate=0.5"]
    assert made == config.resolve(flag.parse(words, run_flags.RUN_FLAGS).values, lambda: 0)
    assert "command" not in made.to_dict() and "command" not in made.fields_not_in_key()
    page = (ROOT / "docs" / "howto" / "use-as-a-library.md").read_text(encoding="utf-8")
    assert operator.attrgetter(*re.findall(r"`config\.([a-z_.]+)", page))(made)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"model": "vgg61"}, "Did you mean 'vgg16'?"),
        ({"num_gpus": 2.5}, "'2.5' is not a whole number"),
        ({"model": ["trivial", "mlp"]}, "model=['trivial', 'mlp']: give one value"),
        ({"data_dir": b"data"}, "data_dir=b'data': give one value"),
        ({"print_config": True}, "config.to_dict()"),
    ],
)
def test_wrong_flags_are_refused_in_a_sentence(flags: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as raised:
        Config.from_flags(**{"device": "cpu", **flags})
    assert words in str(raised.value) and "\n" not in str(raised.value)


def test_a_run_returns_the_record_that_it_saved(behave: Callable[..., FakeRuns], tmp_path: Path) -> None:
    runs = behave(record_of)
    record = train(Config.from_flags(**FLAGS, num_batches=7))
    (started,) = runs.started
    own = {"output_format": "json", "session_id": started.flags["session_id"]}
    assert started.config.to_dict() == {**Config.from_flags(**FLAGS, num_batches=7).to_dict(), **own}
    assert record.status is Status.OK and record.derived.images_per_sec == pytest.approx(2000)
    assert load(tmp_path / "out" / "results.jsonl").records == [record]


def test_output_goes_where_the_flags_say(behave: Callable[..., FakeRuns], tmp_path: Path) -> None:
    runs = behave(record_of)
    for _ in range(2):
        train(Config.from_flags(**FLAGS, output_dir="here", session_id="mine", output_format="text"))
    stored = load(tmp_path / "here" / "results.jsonl").records
    assert [record.identity.session_id for record in stored] == ["mine", "mine"]
    assert len({*(tmp_path / "here" / "logs").iterdir()}) == 2, "each run has a log of its own"
    for name in ("--output_dir=", "--session_id=", "--output_format="):
        assert len([word for word in runs.started[0].words if word.startswith(name)]) == 1
    assert not (tmp_path / "out").exists()


def test_a_failed_run_returns_a_record_with_the_reason_and_prints_it(
    behave: Callable[..., FakeRuns], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    behave(lambda started: Failure(returncode=1, stderr="Boom."))
    record = train(Config.from_flags(**FLAGS))
    assert (record.status, record.derived.images_per_sec) == (Status.CRASH, None) and "Boom." in record.reason
    printed, said = capsys.readouterr()
    assert printed == "" and said.startswith("run_bench: mlp, replicated")
    assert said.endswith(f": crash: {record.reason}\n")
    assert load(tmp_path / "out" / "results.jsonl").records == [record]


def test_notices_and_warnings_are_printed_once(
    behave: Callable[..., FakeRuns], capsys: pytest.CaptureFixture[str]
) -> None:
    made = Config.from_flags(**FLAGS, momentum=0.5)
    (notice,) = made.notices
    behave(lambda started: replace(record_of(started), warnings=[notice, "Steps are unsteady."]))
    train(made)
    assert capsys.readouterr().err.splitlines() == [f"run_bench: {notice}", "run_bench: Steps are unsteady."]


def test_runs_of_several_threads_follow_each_other(behave: Callable[..., FakeRuns]) -> None:
    """They have one session and one store, and each returns its own record."""
    running = threading.Lock()

    def end(started: FakeRun) -> Record:
        assert running.acquire(blocking=False), "another run has not ended"
        time.sleep(0.05)
        running.release()
        return record_of(started)

    behave(end)
    with ThreadPoolExecutor(3) as threads:
        made = [Config.from_flags(**FLAGS, session_id="mine", batch_size=batch) for batch in (1, 2, 3)]
        records = list(threads.map(train, made))
    assert [record.config["batch_per_device"] for record in records] == [1, 2, 3]


def test_a_run_returns_its_own_record_beside_another_process(behave: Callable[..., FakeRuns]) -> None:
    """The other process has the same session and output directory."""

    def end(started: FakeRun) -> Failure:
        own, other = record_of(started), record_of(started)
        own = replace(own, identity=replace(own.identity, session_id="mine"))
        started.leave(own)
        started.leave(other)
        return Failure(stdout=own.to_json())

    behave(end)
    returned = train(Config.from_flags(**FLAGS, session_id="mine"))
    own, _other = load(Path("out/results.jsonl")).records
    assert returned.identity.run_id == own.identity.run_id


def test_a_configuration_that_was_changed_is_refused(behave: Callable[..., FakeRuns]) -> None:
    runs = behave(record_of)
    with pytest.raises(UsageError, match="unchanged"):
        train(dataclasses.replace(Config.from_flags(**FLAGS), notices=("changed",)))
    assert runs.started == []


def test_a_run_cannot_be_a_task_that_others_start(
    behave: Callable[..., FakeRuns], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = behave(record_of)
    cluster = {"cluster": {"worker": ["localhost:1", "localhost:2"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    with pytest.raises(UsageError, match="unset TF_CONFIG"):
        train(Config.from_flags(model="mlp", device="cpu", variable_update="collective_all_reduce"))
    monkeypatch.delenv("TF_CONFIG")
    train(
        Config.from_flags(model="mlp", device="cpu", variable_update="collective_all_reduce", local_cluster="worker:2")
    )
    assert [started.flags["local_cluster"] for started in runs.started] == ["worker:2"]


def test_hosts_of_ranks_of_mpi_are_not_started_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    for name, number in (("RANK", "0"), ("SIZE", "2"), ("LOCAL_RANK", "0"), ("LOCAL_SIZE", "1")):
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", number)
    flags = {"model": "mlp", "device": "cpu", "variable_update": "collective_all_reduce"}
    flags |= {"cluster": "mpi", "hosts": "host_0,host_1"}
    with pytest.raises(UsageError, match="one task of a cluster that others start"):
        train(Config.from_flags(**flags))
    with pytest.raises(UsageError, match="one task of a cluster that others start, by --cluster"):
        grid.runnable([{name: [value] for name, value in flags.items()}], lambda: 0)


def test_the_package_names_what_it_exports() -> None:
    assert {*benchmarks.__all__} <= {*dir(benchmarks)}
    assert all(getattr(benchmarks, name).__name__ == name for name in benchmarks.__all__)
    with pytest.raises(AttributeError, match="'benchmarks' has no attribute 'runs'"):
        benchmarks.runs  # noqa: B018
