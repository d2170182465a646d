"""The command line as a user meets it, in this process."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchmarks.measure.run_log import RunLog
from benchmarks.run import run_verb
from results.loading import load
from tests.support.commands import Records, RunBench
from tests.support.images import measure_by_count
from tests.support.rotation import rotating

TrainHere = Callable[..., RunLog]
SHORT = ("--device=cpu", "--model=trivial", "--batch_size=2", "--num_batches=6")


@pytest.mark.row("S3.9")
def test_a_run_prints_the_peers_lines_and_leaves_a_record_and_a_row(run_bench: RunBench, tmp_path: Path) -> None:
    done = run_bench(*SHORT, "--num_gpus=2", "--variable_update=replicated", "--display_every=3").succeeded()
    lines = done.stdout.splitlines()
    assert [line.split("\t")[0] for line in lines if "images/sec:" in line and "\t" in line] == ["1", "3", "6"]
    assert any(line.startswith("total images/sec: ") for line in lines)
    assert "2 logical CPU devices" in done.stdout
    (record,) = load(tmp_path / "out" / "results.jsonl").records
    assert record.status == "ok"
    assert record.config["num_devices"] == 2
    assert len(record.measurement.step_seconds) == 6
    assert record.measurement.images_per_step == 4
    assert record.measurement.replica_drift == 0.0
    assert record.measurement.losses[-1] < record.measurement.warmup_losses[0]
    assert record.environment["tensorflow_version"]
    assert record.placement["variables"] == 12, "six variables, two copies"
    assert record.identity.command == [*SHORT, "--num_gpus=2", "--variable_update=replicated", "--display_every=3"]
    with (tmp_path / "out" / "results.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert float(row["images_per_sec"]) == pytest.approx(record.derived.images_per_sec)
    assert f"total images/sec: {record.derived.images_per_sec:.2f}" in lines


@pytest.mark.row("S3.3")
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_towers_that_go_their_own_way(run_bench: RunBench, records: Records, optimizer: str) -> None:
    done = run_bench(*SHORT, "--num_gpus=2", "--cross_replica_sync=false", f"--optimizer={optimizer}").succeeded()
    (record,) = records()
    measurement = record["measurement"]
    steps = len(measurement["step_seconds"])
    assert sum(map(len, measurement["tower_step_seconds"])) == sum(measurement["staleness_counts"]) == 2 * steps
    images = measurement["images_per_step"] * steps
    assert record["derived"]["images_per_sec"] == pytest.approx(images / sum(measurement["step_seconds"]))
    assert record["derived"]["staleness_mean"] >= 0
    assert "updates behind" in done.stdout


EVERY_WAY = [
    ["--variable_update=staged"],
    ["--variable_update=staged", "--nopipelined_input"],
    ["--variable_update=parameter_server", "--nocross_replica_sync"],
    ["--variable_update=replicated", "--variable_consistency=relaxed"],
    ["--variable_update=local_sgd"],
    ["--variable_update=collective_all_reduce"],
    ["--forward_only"],
    ["--pipeline_stages=2"],
]


@pytest.mark.row("S3.6")
@rotating("given", EVERY_WAY, first=2, ids=" ".join)
def test_real_data_go_with_everything(
    train_here: TrainHere, fake_imagenet: Path, monkeypatch: pytest.MonkeyPatch, given: list[str]
) -> None:
    measure_by_count(monkeypatch)
    log = train_here(*SHORT, "--num_gpus=2", f"--data_dir={fake_imagenet}", *given)
    assert np.isfinite(log.measured.losses).all() and log.measured.losses
    staged = log.placement["staged_bytes_per_device"]
    assert bool(staged) == ("--nopipelined_input" not in given or "--variable_update=staged" in given)


@pytest.mark.parametrize("manager", ["replicated", "parameter_server"])
def test_all_weights_may_be_divided(train_here: TrainHere, manager: str) -> None:
    log = train_here(*SHORT, "--fc_model_parallel", "--optimizer=adam", f"--variable_update={manager}")
    assert np.isfinite(log.measured.losses).all() and log.measured.losses


@pytest.mark.row("G1.4")
@pytest.mark.slow
def test_input_is_pipelined_unless_told_otherwise(
    train_here: TrainHere, fake_imagenet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure_by_count(monkeypatch)
    real = (*SHORT, "--num_gpus=2", f"--data_dir={fake_imagenet}")
    staged, direct = train_here(*real), train_here(*real, "--nopipelined_input")
    assert set(staged.placement["staged_bytes_per_device"]) == {"/device:CPU:0", "/device:CPU:1"}
    assert direct.placement["staged_bytes_per_device"] == {}
    assert staged.measured.losses == pytest.approx(direct.measured.losses, rel=1e-5)


def test_json_is_all_there_is_on_stdout(run_bench: RunBench) -> None:
    done = run_bench(*SHORT, "--output_format=json", "--forward_only").succeeded()
    record = json.loads(done.stdout)
    assert record["config"]["forward_only"] is True and "gradients" not in record["placement"]["manager"]
    losses = record["measurement"]["losses"]
    assert max(losses) == min(losses), "nothing is learnt"


@pytest.mark.row("U1.1")
@pytest.mark.parametrize(
    ("words", "missing"),
    [
        (("--num_gpus=8", "--variable_update=replicated"), ["this machine has 0 NVIDIA GPUs"]),
        (("--data_dir=/nowhere",), ["--data_dir=/nowhere does not exist"]),
        (
            ("--num_gpus=8", "--data_dir=/nowhere"),
            ["this machine has 0 NVIDIA GPUs", "--data_dir=/nowhere does not exist"],
        ),
    ],
)
def test_print_config_needs_no_devices_and_no_data(
    run_bench: RunBench, words: tuple[str, ...], missing: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_verb, "count_gpus", lambda: 0)
    done = run_bench("--print_config", *words).succeeded()
    chosen = json.loads(done.stdout)
    assert (chosen["num_devices"], chosen["device"]) == ((8, "gpu") if "--num_gpus=8" in words else (1, "cpu"))
    assert "A run here would fail: " in done.stderr and all(reason in done.stderr for reason in missing)


@pytest.mark.fault("R10", "a learning rate with which the loss becomes NaN", survives="status 4, and a record invalid")
@pytest.mark.parametrize(
    ("flags", "is_measured"),
    [
        (("--init_learning_rate=1e20", "--weight_decay=1e20"), False),
        (("--init_learning_rate=1e6", "--num_warmup_batches=0", "--num_batches=50"), True),
    ],
    ids=["warming up", "measuring"],
)
def test_a_loss_that_is_not_finite_is_invalid_and_has_no_rate(
    run_bench: RunBench, records: Records, flags: tuple[str, ...], is_measured: bool
) -> None:
    done = run_bench(*SHORT, *flags)
    assert done.status == 4 and "The loss became" in done.stderr
    assert "total images/sec" not in done.stdout
    (record,) = records()
    assert bool(record["measurement"]["step_seconds"]) == is_measured
    assert (record["status"], record["derived"]["images_per_sec"]) == ("invalid", None)
