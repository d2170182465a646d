"""`--verify_first`: what a run does with what `verify` finds. A script stands in for `verify`."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.config import config, run_flags
from benchmarks.errors import BenchError, ExitStatus, InvalidRunError, UsageError
from benchmarks.measure.run_log import RunLog
from benchmarks.process import subprocesses
from benchmarks.verify import first
from tests.support.commands import Finished

VERIFY = """
    import json, sys
    with open({words!r}, "w") as file:
        json.dump(sys.argv[1:], file)
    print({report!r})
    print("run_bench: the last line", file=sys.stderr)
    sys.exit({status})
"""
ROW = {"may_be": 1e-6, "against": "sgd", "what": "replicated", "reason": ""}
OK, FAIL, IMPOSSIBLE = (
    {**ROW, "result": "ok", "error": 3e-8},
    {**ROW, "result": "FAIL", "error": 0.5},
    {**ROW, "result": "-", "error": None},
)


def _given(**values: Any) -> dict[str, Any]:
    return run_flags.unset({"device": "cpu", "num_gpus": 2, "variable_update": "replicated", **values})


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes `verify` print these rows; returns the file with the words that it is called with."""

    def make(*rows: dict[str, Any], status: int = 0) -> Path:
        words, program = tmp_path / "words.json", tmp_path / "verify.py"
        report = json.dumps({"what": "replicated on 2 devices", "rows": rows})
        program.write_text(textwrap.dedent(VERIFY).format(words=str(words), report=report, status=status))
        monkeypatch.setattr(subprocesses, "RUN_BENCH", program)
        return words

    return make


def _verified(**values: Any) -> RunLog:
    log, given = RunLog(images_per_step=1, towers=1), _given(**values)
    first.verify(config.resolve(given, lambda: 4, {}), given, log)
    return log


def test_the_result_is_noted(stand_in: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    words = stand_in(OK, {**OK, "error": 1e-7}, IMPOSSIBLE)
    verified = _verified(all_reduce_spec="xring", step_timeout_seconds=7.0).verified
    assert (verified["comparisons"], verified["failed"], verified["largest_error"]) == (2, 0, 1e-7)
    assert capsys.readouterr().out == ("Verified:   2 comparisons of replicated on 2 devices, largest error 1.0e-07\n")
    called = json.loads(words.read_text())
    assert called[0] == "verify"
    assert set(called[1:]) == {
        "--device=cpu",
        "--num_gpus=2",
        "--variable_update=replicated",
        "--all_reduce_spec=xring",
        "--step_timeout_seconds=7.0",
        "--output_format=json",
    }
    assert verified["command"] == called[:-1]


def test_a_cluster_is_verified_as_one_on_this_host(stand_in: Callable[..., Path]) -> None:
    words = stand_in(OK)
    hosts = {"ps_hosts": "h0:1,h1:1", "worker_hosts": "h0:2,h1:2,h2:2", "job_name": "worker", "task_index": 0}
    _verified(device="gpu", variable_update="in_graph_parameter_server", output_dir="here", **hosts)
    called = json.loads(words.read_text())
    assert {"--local_cluster=ps:2,worker:3", "--device=cpu", "--num_gpus=2", "--output_dir=here"} < set(called)
    assert not [word for word in called if "hosts" in word or "task" in word]


def test_the_micro_batches_of_a_pipeline_are_not_those_of_its_verification(stand_in: Callable[..., Path]) -> None:
    words = stand_in(OK)
    _verified(variable_update=None, pipeline_stages=2, micro_batches=5, batch_size=5)
    called = json.loads(words.read_text())
    assert "--pipeline_stages=2" in called and not [word for word in called if "micro_batches" in word]


def test_the_other_tasks_do_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "verify.py"
    program.write_text("import time; time.sleep(60)")
    monkeypatch.setattr(subprocesses, "RUN_BENCH", program)
    cluster = {"worker_hosts": "h0:1,h1:1", "job_name": "worker", "task_index": 0}
    with pytest.raises(BenchError, match=r"longer than 0.8 s.*--start_timeout_seconds"):
        _verified(variable_update="collective_all_reduce", start_timeout_seconds=1.0, **cluster)


def test_nccl_in_a_cluster_is_refused_before_anybody_waits() -> None:
    cluster = {"worker_hosts": "h0:1,h1:1", "job_name": "worker", "task_index": 0, "all_reduce_spec": "nccl/xring"}
    given = _given(device="gpu", variable_update="distributed_all_reduce", verify_first=True, **cluster)
    with pytest.raises(UsageError, match="--verify_first verifies a cluster on logical CPU devices"):
        config.resolve(given, lambda: 4, {})


def test_a_failed_comparison_ends_the_run(stand_in: Callable[..., Path]) -> None:
    stand_in(OK, FAIL, status=ExitStatus.RUN_FAILED)
    with pytest.raises(
        InvalidRunError, match="1 of 2 comparisons of .* nothing was measured.* the error is 5.0e-01 and may be 1e-06"
    ):
        _verified()


@pytest.mark.parametrize(("rows", "status"), [([], ExitStatus.USAGE), ([IMPOSSIBLE], 0), ([OK], ExitStatus.CLUSTER)])
def test_a_run_is_not_measured_if_nothing_was_compared(
    stand_in: Callable[..., Path], rows: list[dict[str, Any]], status: int
) -> None:
    stand_in(*rows, status=status)
    with pytest.raises(BenchError, match=r"nothing was compared .*the last line.*`run_bench.py verify --") as error:
        _verified()
    assert error.value.exit_status == (status or ExitStatus.RUN_FAILED)


def test_the_record_of_a_run_that_was_not_measured_has_the_rows(
    stand_in: Callable[..., Path], run_bench: Callable[..., Finished], records: Callable[[], list[dict[str, Any]]]
) -> None:
    stand_in(FAIL, status=ExitStatus.RUN_FAILED)
    done = run_bench("--device=cpu", "--model=trivial", "--num_batches=1", "--verify_first")
    assert done.status == ExitStatus.RUN_FAILED
    assert "nothing was measured" in done.stderr and "images/sec" not in done.stdout
    (record,) = records()
    assert record["status"] == "invalid" and record["measurement"]["step_seconds"] == []
    assert record["environment"]["verified_first"]["rows"] == [FAIL]


@pytest.mark.rotates
@pytest.mark.process
def test_a_run_that_is_verified_is_measured(
    run_process: Callable[..., Finished], records: Callable[[], list[dict[str, Any]]]
) -> None:
    flags = ("--device=cpu", "--num_gpus=2", "--model=trivial", "--batch_size=2", "--num_batches=2")
    done = run_process(*flags, "--variable_update=replicated", "--verify_first")
    assert done.status == 0, done.stderr
    assert "Verified:   4 comparisons of replicated" in done.stdout
    (record,) = records()
    assert record["environment"]["verified_first"]["largest_error"] < 1e-6
    assert sum(record["measurement"]["startup_phases_seconds"].values()) > 0


@pytest.mark.rotates
@pytest.mark.process
def test_the_leader_verifies_a_cluster(
    run_process: Callable[..., Finished], records: Callable[[], list[dict[str, Any]]]
) -> None:
    flags = ("--device=cpu", "--model=trivial", "--batch_size=2", "--num_batches=2", "--local_cluster=ps:1,worker:2")
    done = run_process(*flags, "--variable_update=in_graph_parameter_server", "--verify_first")
    assert done.status == 0, done.stderr
    (record,) = records()
    assert record["environment"]["verified_first"]["comparisons"] == 4
    assert record["config"]["num_workers"] == 2


@pytest.mark.parametrize("flags", [("--forward_only",), ("--variable_update=keras_fit",)])
def test_what_has_nothing_to_verify_is_refused(run_bench: Callable[..., Finished], flags: tuple[str, ...]) -> None:
    done = run_bench("--device=cpu", "--verify_first", *flags)
    assert done.status == ExitStatus.USAGE and "--verify_first" in done.stderr
