"""Recipes reach the accuracy that their files state, whichever manager has the variables."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.support.commands import Records, RunBench
from tests.support.rotation import rotating
from variable_mgr.catalog import IN_ONE_PROCESS

pytestmark = [pytest.mark.slow, pytest.mark.process]
MANAGERS = sorted(IN_ONE_PROCESS, key="replicated".__ne__)
# Weights that are one step old need smaller steps, and more of them.
STAGED = (
    *("--variable_update=parameter_server", "--staged_vars", "--optimizer=adam", "--init_learning_rate=0.001"),
    *("--batch_size=10", "--num_epochs=10", "--cosine_decay_epochs=10"),
)


def _accuracy(records: Records) -> float:
    record = records()[-1]
    assert record["status"] == "ok"
    return float(record["measurement"]["evaluations"][-1]["top_1_accuracy"])


@pytest.mark.row("U1.6")
@rotating("flags", [*([f"--variable_update={name}"] for name in MANAGERS), STAGED], first=1, ids=lambda flags: flags[0])
def test_digits_are_learned_under_every_manager(run_bench: RunBench, records: Records, flags: Sequence[str]) -> None:
    assert run_bench("data", "make_digits", "digits").status == 0
    run_bench("--preset=digits", "--data_dir=digits", "--device=cpu", "--num_gpus=2", *flags).succeeded()
    # One point, rounded up to whole images: four of 364.
    assert _accuracy(records) == pytest.approx(0.9835, abs=0.011)


@pytest.mark.rotates
@pytest.mark.parametrize("manager", ["replicated", "parameter_server"])
def test_resnet20_learns_generated_images(run_bench: RunBench, records: Records, manager: str) -> None:
    run_bench("data", "make_cifar10", "small", "--train_images=1000", "--validation_images=200").succeeded()
    flags = ("--device=cpu", "--num_gpus=2", f"--variable_update={manager}", "--batch_size=10")
    run_bench("--preset=cifar10-resnet20", "--data_dir=small", *flags).succeeded()
    assert _accuracy(records) >= 0.95
