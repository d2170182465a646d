"""The total loss that lines report: the record's loss, and weight decay's penalty of the weights before the step."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.cluster.member import Alone
from benchmarks.config.config import Config
from benchmarks.graph import run_graph
from benchmarks.measure.display import Display
from benchmarks.measure.run_log import RunLog
from benchmarks.run import train
from benchmarks.run.run_record import empty_log
from models import building, specs
from tests.support import settings

RUN = ("--device=cpu", "--model=mlp", "--batch_size=2", "--num_batches=3", "--num_warmup_batches=1")
DECAY = 0.5


def resolve(*words: str) -> Config:
    return settings.resolve(*RUN, *words)


def printed(chosen: Config, capsys: pytest.CaptureFixture[str]) -> tuple[list[str], list[float], RunLog]:
    """Takes a run, and returns its heading, the losses of its lines, and its log."""
    log = empty_log(chosen)
    display = Display(2, display_every=1, loss_type=chosen.output.loss_type_to_report)
    train.run_loop(chosen, log, display, Alone())
    out = capsys.readouterr().out
    heading = re.search("^Step\t.*", out, re.MULTILINE)
    assert heading
    return heading[0].split("\t"), [float(text) for text in re.findall(r"jitter = .*\)\t(\S+)", out)], log


def initial_penalty(chosen: Config) -> float:
    """Returns weight_decay / 2 times the squares of the kernels before the first step, by NumPy."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as started:
        spec = specs.find_model(chosen.workload.model)
        model = building.build(
            spec, data_format="NHWC", num_classes=chosen.workload.num_classes, seed=chosen.training.seed
        )
        kernels = started.run([variable.initial_value() for variable in model.variables if variable.decayed])
    assert kernels
    return DECAY / 2 * sum(float(np.sum(np.square(kernel, dtype=np.float64))) for kernel in kernels)


@pytest.mark.parametrize(
    "manager",
    [
        ("--variable_update=parameter_server", "--num_gpus=2"),
        ("--variable_update=replicated", "--num_gpus=2"),
        ("--variable_update=independent",),
        ("--staged_vars",),
    ],
    ids=" ".join,
)
def test_the_lines_have_the_loss_and_the_penalty(manager: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    chosen = resolve(*manager, f"--weight_decay={DECAY}", "--init_learning_rate=1e-9")
    heading, losses, log = printed(chosen, capsys)
    assert heading[2] == "total_loss"
    penalty = initial_penalty(chosen)  # which so small a learning rate does not change
    assert penalty > 1
    assert losses == pytest.approx([loss + penalty for loss in log.measured.losses], abs=2e-3)


def test_it_is_that_of_the_weights_before_the_step(capsys: pytest.CaptureFixture[str]) -> None:
    rate = 0.1  # so decay multiplies a kernel by at most 1 - rate * DECAY per step, and the penalty by its square
    _, losses, log = printed(resolve(f"--weight_decay={DECAY}", f"--init_learning_rate={rate}"), capsys)
    penalties = np.subtract(losses, log.measured.losses)
    assert penalties[1] / penalties[0] == pytest.approx((1 - rate * DECAY) ** 2, rel=0.02)


@pytest.mark.parametrize("words", [("--loss_type_to_report=base_loss",), ("--weight_decay=0",)], ids=" ".join)
def test_without_a_penalty_the_lines_have_the_loss_of_the_record(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    heading, losses, log = printed(resolve(*words), capsys)
    assert heading[2] == ("total_loss" if "decay" in words[0] else "base_loss")
    assert losses == pytest.approx(log.measured.losses, abs=6e-4)


def test_what_no_step_needs_is_built_when_it_is_called() -> None:
    chosen = resolve(f"--weight_decay={DECAY}", "--num_gpus=2", "--variable_update=replicated")
    with tf.Graph().as_default() as built_in:
        built = run_graph.build(chosen, run_graph.plan_devices(chosen))

        def types() -> set[str]:
            return {operation.type for operation in built_in.get_operations()} & {"L2Loss", "IsFinite", "Abs"}

        assert not types()
        assert built.penalty() is not None and built.drift() is not None and built.finite().dtype == tf.bool
        assert types() == {"L2Loss", "IsFinite", "Abs"}


@pytest.mark.parametrize(
    ("words", "because"),
    [
        (("--forward_only",), "--forward_only minimises nothing"),
        (("--variable_update=keras_fit",), "a reference loop reports its own loss"),
        (("--nocross_replica_sync", "--num_gpus=2"), "asynchronous towers never pause"),
        (
            ("--local_cluster=worker:2", "--variable_update=collective_all_reduce"),
            "workers would wait for each other's penalty",
        ),
        (("--variable_update=independent", "--num_gpus=2"), "under independent every tower has its own weights"),
        (("--variable_update=local_sgd", "--num_gpus=2"), "under local_sgd every tower has its own weights"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_some_runs_report_the_base_loss(words: tuple[str, ...], because: str) -> None:
    words = (*words, "--model=resnet50") if "keras_fit" in words[0] else words
    assert resolve(*words).output.loss_type_to_report == "base_loss"
    asked = resolve(*words, "--loss_type_to_report=total_loss")
    assert asked.output.loss_type_to_report == "base_loss"
    assert f"--loss_type_to_report=total_loss: {because}, so lines have base_loss." in asked.notices


def test_a_client_of_all_workers_reports_the_total_loss() -> None:
    chosen = resolve("--local_cluster=worker:2", "--variable_update=distributed_all_reduce")
    assert chosen.output.loss_type_to_report == "total_loss"
