"""Evaluation in runs: during training, alone of a checkpoint, and where it is refused."""

from __future__ import annotations

import csv
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchmarks.errors import ExitStatus
from benchmarks.measure.run_log import RunLog
from benchmarks.process.watchdog import Watchdog
from tests.support.commands import Records, RunBench
from tests.support.rotation import rotating

IMAGES = 37


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random digits with random labels, so that accuracies are neither 0 nor 1."""
    directory, random = tmp_path_factory.mktemp("digits"), np.random.default_rng(4)
    for stem, count in (("train", 64), ("t10k", IMAGES)):
        images, labels = random.integers(0, 256, (count, 28, 28)), random.integers(0, 10, count)
        head = struct.pack(">4I", 0x803, count, 28, 28), struct.pack(">2I", 0x801, count)
        (directory / f"{stem}-images-idx3-ubyte").write_bytes(head[0] + images.astype(np.uint8).tobytes())
        (directory / f"{stem}-labels-idx1-ubyte").write_bytes(head[1] + labels.astype(np.uint8).tobytes())
    return directory


def flags(digits: Path, *more: str) -> list[str]:
    return ["--device=cpu", "--model=mlp", f"--data_dir={digits}", "--batch_size=8", "--num_warmup_batches=1", *more]


@pytest.mark.slow
@rotating(
    "manager",
    [
        ["--variable_update=parameter_server"],
        ["--variable_update=parameter_server", "--staged_vars"],
        ["--variable_update=replicated"],
        ["--variable_update=replicated", "--variable_consistency=relaxed"],
        ["--variable_update=local_sgd"],
        ["--variable_update=independent"],
        ["--pipeline_stages=2"],
    ],
    first=1,
    ids=" ".join,
)
def test_one_device_finds_in_the_checkpoint_what_was_found_during_training(
    manager: list[str], digits: Path, tmp_path: Path, train_here: Callable[..., RunLog]
) -> None:
    given = flags(digits, f"--train_dir={tmp_path}")
    trained = train_here(*given, *manager, "--num_gpus=2", "--num_batches=4", "--eval_during_training_every_n_steps=9")
    alone = train_here(*given, "--eval", "--eval_batch_size=10")
    (during,), (after,) = trained.numbers.evaluations, alone.numbers.evaluations
    assert during.keys() == after.keys()
    same = ("step", "epochs", "images", "top_1_accuracy", "top_5_accuracy")
    assert [after[name] for name in same] == [during[name] for name in same]
    assert after["loss"] == pytest.approx(during["loss"], rel=1e-5)
    whole_rounds = "--variable_update=local_sgd" in manager  # of 4 steps, warm-up and measured ones
    assert (after["step"], after["images"]) == (8 if whole_rounds else 5, IMAGES)
    assert len(alone.measured.step_seconds) == 2  # the first opens the files, and the last is not full


@pytest.mark.slow
def test_an_evaluation_changes_neither_the_training_nor_what_is_measured(
    digits: Path, train_here: Callable[..., RunLog]
) -> None:
    given = flags(digits, "--num_gpus=2", "--num_batches=6")
    plain, evaluated = train_here(*given), train_here(*given, "--eval_during_training_at_specified_steps=1,3,4")
    assert evaluated.measured.losses == plain.measured.losses
    assert len(evaluated.measured.step_seconds) == 6
    assert [one["step"] for one in evaluated.numbers.evaluations] == [1, 3, 4, 7]


def test_training_ends_when_an_evaluation_reaches_the_aim(
    digits: Path, run_bench: RunBench, records: Records, tmp_path: Path
) -> None:
    given = flags(digits, "--num_batches=100", "--eval_during_training_every_n_epochs=0.5")
    finished = run_bench(*given, "--stop_at_top_1_accuracy=0.001").succeeded()
    (record,) = records()
    *earlier, found = record["measurement"]["evaluations"]
    assert not any(one["top_1_accuracy"] for one in earlier)
    assert (found["step"], found["epochs"]) == (4 * len(earlier) + 4, 0.5 * len(earlier) + 0.5)
    assert len(record["measurement"]["step_seconds"]) == found["step"] - 1 < 100
    top_1, top_5 = found["top_1_accuracy"], found["top_5_accuracy"]
    assert f"\nAccuracy @ 1 = {top_1:.4f} Accuracy @ 5 = {top_5:.4f} [{IMAGES} examples]\n" in finished.stdout
    assert record["measurement"]["seconds_to_accuracy"] > found["seconds"] > 0
    with (tmp_path / "out" / "results.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert [float(row[f"eval_top_{k}_accuracy"]) for k in (1, 5)] == [top_1, top_5]
    assert float(row["seconds_to_accuracy"]) == record["measurement"]["seconds_to_accuracy"]


def test_an_evaluation_whose_numbers_overflow_is_invalid(digits: Path, run_bench: RunBench, records: Records) -> None:
    given = flags(digits, "--train_dir=weights")
    trained = run_bench(*given, "--num_batches=1", "--init_learning_rate=1e13")  # its weights and losses are finite
    assert trained.status == ExitStatus.OK, trained.stderr
    evaluated = run_bench(*given, "--eval")
    assert evaluated.status == ExitStatus.RUN_FAILED
    _, alone = records()
    assert (alone["status"], alone["derived"]["images_per_sec"]) == ("invalid", None)
    assert "accuracies mean nothing" in alone["reason"] and alone["measurement"]["evaluations"][0]["loss"] is None


def test_an_aim_that_is_not_reached_is_a_warning_and_a_checkpoint_is_evaluated_apart(
    digits: Path, run_bench: RunBench, records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = flags(digits, "--train_dir=weights")
    steps = "--eval_during_training_every_n_steps=100"
    assert run_bench(*given, "--num_batches=2", steps, "--stop_at_top_1_accuracy=1").status == ExitStatus.OK
    with_limits: list[str] = []
    monkeypatch.setattr(Watchdog, "expect", lambda self, what, seconds: with_limits.append(what))
    evaluated = run_bench(*given, "--eval", "--optimizer=sgd", "--num_batches=5").succeeded()
    assert {"Opening the devices and checkpoints", "Building the graph", "A step (evaluation)"} < {*with_limits}
    trained, alone = records()
    assert any("No evaluation reached --stop_at_top_1_accuracy=1" in warning for warning in trained["warnings"])
    assert alone["measurement"]["evaluations"][0]["images"] == IMAGES
    assert len(alone["measurement"]["step_seconds"]) == IMAGES // 8 - 1, "full batches, and not the first"
    during, after = (one["measurement"]["evaluations"][-1] for one in (trained, alone))
    assert (after["step"], after["epochs"]) == (during["step"], during["epochs"])
    assert alone["config"]["eval_only"] and alone["identity"]["config_key"] != trained["identity"]["config_key"]
    assert "--num_batches=5 has no effect" in evaluated.stderr
    assert f"[{IMAGES} examples]" in evaluated.stdout


@pytest.mark.rotates
@pytest.mark.process
@pytest.mark.parametrize("manager", ["distributed_replicated", "collective_all_reduce"])
def test_workers_wait_for_an_evaluation_and_train_as_without(
    manager: str, digits: Path, run_process: RunBench, records: Records
) -> None:
    tasks = "ps:1,worker:2" if manager == "distributed_replicated" else "worker:2"
    given = flags(digits, f"--variable_update={manager}", f"--local_cluster={tasks}", "--num_batches=6")
    for more in ([], ["--eval_during_training_every_n_steps=2"]):
        run_process(*given, *more).succeeded()
    plain, evaluated = (record["measurement"] for record in records())
    assert evaluated["losses"] == plain["losses"]
    assert [one["step"] for one in evaluated["evaluations"]] == [2, 4, 6, 7]
