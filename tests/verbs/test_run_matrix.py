"""The main job in full: models of every kind and every manager on real input, and the commands of the 2017 guide."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.cli.main import dispatch
from benchmarks.cluster.member import Alone
from benchmarks.config.config import Config
from benchmarks.measure.display import Display
from benchmarks.measure.run_log import RunLog
from benchmarks.measure.timing import Phase
from benchmarks.run import train
from benchmarks.training.computing import Computing
from models import specs
from tests.support import models
from tests.support.clusters import local
from tests.support.commands import Records, RunBench
from tests.support.rotation import rotating
from tests.support.settings import resolve
from variable_mgr.catalog import IN_ONE_PROCESS

TrainHere = Callable[..., RunLog]
ON_CPU = ("--device=cpu", "--num_gpus=2", "--num_batches=2", "--num_warmup_batches=1")


@pytest.mark.slow
@rotating(
    ("model", "manager"),
    [(spec.name, name) for spec, name in zip(models.representatives(), itertools.cycle(IN_ONE_PROCESS))],
    first=2,
)
def test_every_kind_of_model_and_every_manager_train(
    run_bench: RunBench, fake_imagenet: Path, tmp_path: Path, records: Records, model: str, manager: str
) -> None:
    done = run_bench(*ON_CPU, *_real_data(model, fake_imagenet, tmp_path), f"--variable_update={manager}").succeeded()
    assert "total images/sec: " in done.stdout
    (record,) = records()
    assert record["status"] == "ok"
    assert record["derived"]["images_per_sec"] > 0


def _real_data(model: str, imagenet: Path, directory: Path) -> tuple[str, ...]:
    name = specs.find_model(model).data_name
    if name != "imagenet":
        imagenet = directory / name
        assert dispatch(["data", f"make_{name}", str(imagenet)]) == 0
    return f"--model={model}", f"--data_dir={imagenet}", "--batch_size=2"


@pytest.mark.row("G3.7", "G3.8")
@pytest.mark.seldom
@pytest.mark.parametrize(
    "command",
    [
        "--local_parameter_device=cpu --batch_size=32 --model=vgg16 --data_dir=DATA "
        "--variable_update=parameter_server --nodistortions",
        "--local_parameter_device=gpu --batch_size=64 --model=vgg16 --data_dir=DATA "
        "--variable_update=replicated --use_nccl=True",
        "--local_parameter_device=gpu --batch_size=64 --model=vgg16 --data_dir=DATA --variable_update=parameter_server",
        "--local_parameter_device=gpu --batch_size=64 --model=resnet50 --data_dir=DATA "
        "--variable_update=replicated --use_nccl=False",
    ],
)
def test_the_commands_of_the_2017_guide_run(run_bench: RunBench, fake_imagenet: Path, command: str) -> None:
    """Verbatim but for the size of the batch, which only takes time here, and for what is appended."""
    words = ["--num_gpus=8", *command.replace("DATA", str(fake_imagenet)).split()]
    done = run_bench(*words, *ON_CPU, "--batch_size=2").succeeded()
    assert ("NCCL" in done.stderr) == ("--use_nccl=True" in words)


SMALL = ("--device=cpu", "--model=resnet20", "--batch_size=4", "--num_batches=3", "--num_warmup_batches=2")


@pytest.mark.row("G2.2")
@pytest.mark.slow
def test_batch_normalisation_in_separate_operations_changes_no_loss(train_here: TrainHere) -> None:
    fused, separate = (train_here(*SMALL, f"--fused_bn={on}").measured.losses for on in ("true", "false"))
    assert separate == pytest.approx(fused, rel=1e-3)


def test_the_check_is_of_xla_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """If XLA computes wrong gradients, it does so in every precision."""
    checked: list[Computing] = []

    def losses(chosen: Config, count: int) -> list[float]:
        checked.append(chosen.computing)
        return [float(step) for step in range(count)]

    monkeypatch.setattr(train, "_losses", losses)
    first, warmup, measured = (Phase(losses=[7.0] * steps) for steps in (1, 2, 3))
    log = RunLog(images_per_step=4, towers=1, first=first, warmup=warmup, measured=measured)
    train._train_in_fp32(resolve(*SMALL, "--xla", "--nofused_bn", "--check_precision"), log, Display(), Alone())
    assert log.numbers.fp32_losses == [3.0, 4.0, 5.0]
    (computing,) = checked
    assert (computing.precision, computing.xla, computing.fused_bn) == ("fp32", "off", True)


@pytest.mark.slow
def test_the_precision_is_checked_against_a_run_in_fp32(run_bench: RunBench, records: Records) -> None:
    for more in (("--precision=bf16", "--check_precision"), ("--precision=fp32",)):
        run_bench(*SMALL, *more).succeeded()
    checked, plain = records()
    assert checked["measurement"]["fp32_losses"] == pytest.approx(plain["measurement"]["losses"], rel=1e-3)
    losses = checked["measurement"]["losses"]
    assert losses != pytest.approx(plain["measurement"]["losses"], rel=1e-6), "bfloat16 rounds"
    assert losses == pytest.approx(plain["measurement"]["losses"], rel=0.05), "and learns the same"
    difference = sum(losses) / 3 - sum(checked["measurement"]["fp32_losses"]) / 3
    assert checked["derived"]["loss_difference_to_fp32"] == pytest.approx(difference)


@pytest.mark.slow
@rotating(
    "flags",
    [
        ("--variable_update=replicated",),
        ("--variable_update=parameter_server", "--staged_vars"),
        ("--variable_update=replicated", "--forward_only"),
    ],
    first=1,
)
def test_xla_changes_no_loss(train_here: TrainHere, flags: tuple[str, ...]) -> None:
    compiled, plain = (train_here(*SMALL, "--num_gpus=2", *flags, xla).measured.losses for xla in ("--xla", "--noxla"))
    assert compiled == pytest.approx(plain, rel=1e-3)


@pytest.mark.seldom
@pytest.mark.process
def test_xla_changes_no_loss_of_workers(run_process: RunBench, records: Records) -> None:
    for xla in ("--xla", "--noxla"):
        run_process(*SMALL, *local("ps:1,worker:2"), xla).succeeded()
    compiled, plain = (record["measurement"]["losses"] for record in records())
    assert compiled == pytest.approx(plain, rel=1e-3)


@pytest.mark.slow
def test_a_model_with_dropout_is_compiled(run_bench: RunBench, records: Records) -> None:
    run_bench(*SMALL, "--model=alexnet", "--xla").succeeded()
    (record,) = records()
    assert record["placement"]["flops_per_image"] > 2e9 * record["model"]["gflop_per_image"]
    assert record["derived"]["compile_seconds"] > 0
