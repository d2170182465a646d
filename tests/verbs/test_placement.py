"""`explain --placement`, and what traced steps add to the record of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from benchmarks.tracing import traced_steps
from tests.support.commands import Records, RunBench

SMALL = ("--device=cpu", "--model=mlp", "--batch_size=2", "--num_gpus=2")
MLP_BYTES = 4 * (784 * 100 + 100 + 100 * 10 + 10)


@pytest.mark.row("S0.3", "S3.1")
@pytest.mark.parametrize(
    ("flags", "copies", "sums", "sent"),
    [
        (["--variable_update=replicated", "--all_reduce_spec=xring"], 2, 2, 16),
        (["--variable_update=parameter_server", "--local_parameter_device=gpu"], 1, 1, 8),
    ],
)
def test_variables_sums_and_transfers_by_formula_and_measured(
    run_bench: RunBench, flags: list[str], copies: int, sums: int, sent: int
) -> None:
    done = run_bench("explain", "--placement", *SMALL, *flags, "--output_format=json").succeeded()
    found = json.loads(done.stdout)
    variables = {name: len(group["devices"]) for group in found["variable_groups"] for name, _, _ in group["variables"]}
    assert variables == dict.fromkeys(("hidden/kernel", "hidden/bias", "logits/kernel", "logits/bias"), copies)
    summed = {name: len(group["operations"]) for group in found["aggregations"] for name in group["gradients"]}
    assert summed == dict.fromkeys(variables, sums)
    by_formula = found["sent_per_step"]["by_kind"]
    assert found["measured_per_step"]["by_kind"] == by_formula == {"device to device": [sent, 2 * MLP_BYTES]}


def test_the_host_is_the_first_tower_on_cpus(run_bench: RunBench) -> None:
    done = run_bench("explain", "parameter_server", "--placement", *SMALL, "--local_parameter_device=cpu").succeeded()
    lines = [line.split() for line in done.stdout.splitlines()]
    # Both towers fetch 4 variables by formula; one of them has them on its own device.
    assert ["host", "to", "device", "8", "636", "kB", "4", "318", "kB"] in lines, "318,040 bytes of weights"
    assert ["hidden/kernel", "weight", "784", "x", "100", "314", "kB", "1", "CPU:0"] in lines
    assert ["hidden/kernel", "AddN", "CPU:0"] in lines
    assert "docs/howto/placement.md" in done.stdout


def test_a_single_tower_is_traced_for_this_verb_alone(run_bench: RunBench, records: Records) -> None:
    done = run_bench("explain", "--placement", *SMALL[:-1], "--output_format=json")
    assert json.loads(done.stdout)["measured_per_step"]["by_kind"] == {}
    assert run_bench(*SMALL[:-1], "--num_batches=2").status == 0
    (record,) = records()
    assert "measured_per_step" not in record["placement"]
    assert record["measurement"]["tower_compute_seconds"] == []


def test_the_record_of_a_run_has_transfers_and_a_time_of_each_tower(run_bench: RunBench, records: Records) -> None:
    run_bench(*SMALL, "--variable_update=replicated", "--all_reduce_spec=psgpu", "--num_batches=3").succeeded()
    (record,) = records()
    towers = record["measurement"]["tower_compute_seconds"]
    assert len(towers) == 2 and 0 < len(towers[0]) == len(towers[1]) <= traced_steps.MOST_STEPS
    assert min(map(min, towers)) > 0
    assert len(record["measurement"]["step_seconds"]) == 3, "traced steps are not measured"
    assert record["placement"]["measured_per_step"]["by_kind"] == {"device to device": [8, 2 * MLP_BYTES]}


@pytest.mark.row("S3.2")
def test_the_tower_that_is_late_is_named(run_bench: RunBench, records: Records) -> None:
    flags = (*SMALL, "--num_gpus=3", "--variable_update=replicated", "--num_batches=3")
    done = run_bench(*flags, CNN_BENCH_SLOW_TOWER_FOR_TESTS="1:0.03").succeeded()
    (record,) = records()
    assert record["derived"]["slowest_tower"] == 1
    assert record["derived"]["slowest_tower_ratio"] > 1.5
    assert "slowest:        tower 1 needs " in done.stdout
    assert "Tower 1 takes " in done.stderr and "delayed on purpose" in done.stderr
    assert record["environment"]["slowed_down_by"] == "1:0.03"


def test_a_run_that_cannot_be_traced_is_valid(
    run_bench: RunBench, records: Records, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def cannot(*_: Any, **__: Any) -> None:
        raise tf.errors.InternalError(None, None, "CUPTI is in use")

    monkeypatch.setattr(traced_steps.stepper, "traced", cannot)
    trace_file = tmp_path / "trace.json"
    done = run_bench(
        *SMALL, "--variable_update=replicated", "--num_batches=3", f"--trace_file={trace_file}"
    ).succeeded()
    assert "A step could not be traced, so" in done.stderr and "CUPTI is in use" in done.stderr
    (record,) = records()
    assert record["measurement"]["tower_compute_seconds"] == []
    assert "measured_per_step" not in record["placement"] and not trace_file.exists()


def test_a_trace_without_kernels_is_explained_once(
    run_bench: RunBench, records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traced_steps.step_trace, "lacks_kernels", lambda metadata: True)
    done = run_bench(*SMALL, "--variable_update=replicated", "--num_batches=3").succeeded()
    assert done.stderr.count("NVreg_RestrictProfilingToAdminUsers=0") == 1
    assert records()[0]["measurement"]["tower_compute_seconds"] == []


def test_an_interleaved_run_takes_no_traced_steps(
    run_bench: RunBench, records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = traced_steps.trace

    def as_if_interleaved(run: Any) -> None:
        run.log.steps_per_slice = 1
        trace(run)

    monkeypatch.setattr(traced_steps, "trace", as_if_interleaved)
    assert run_bench(*SMALL, "--variable_update=replicated", "--num_batches=3").status == 0
    (record,) = records()
    assert "measured_per_step" not in record["placement"]
    assert record["measurement"]["tower_compute_seconds"] == []
