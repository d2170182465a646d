"""The learning rate by epochs, from flags; and numbers of flags that are no schedule."""

from __future__ import annotations

import math

import pytest

from benchmarks.config.config import Config
from benchmarks.errors import UsageError
from tests.support import settings


def resolve(*words: str) -> Config:
    return settings.resolve("--device=cpu", "--model=resnet50", *words)


@pytest.mark.parametrize(
    ("words", "rates"),
    [
        (
            ["--piecewise_learning_rate_schedule=0.3;10;0.2;25;0.1"],
            {0: 0.3, 9.99: 0.3, 10: 0.2, 24.99: 0.2, 25: 0.1, 1000: 0.1},
        ),
        (
            ["--piecewise_learning_rate_schedule=0.3;10;0.2", "--num_learning_rate_warmup_epochs=5"],
            {0: 0.0, 1: 0.06, 5: 0.3, 10: 0.2},
        ),
        (
            ["--init_learning_rate=1", "--num_epochs_per_decay=2", "--learning_rate_decay_factor=0.5"],
            {0: 1.0, 1.99: 1.0, 2: 0.5, 3.9: 0.5, 4: 0.25},
        ),
        (
            [
                *("--init_learning_rate=1", "--num_epochs_per_decay=2", "--learning_rate_decay_factor=0.5"),
                "--minimum_learning_rate=0.3",
            ],
            {0: 1.0, 2: 0.5, 4: 0.3, 100: 0.3},
        ),
        (
            [
                *("--init_learning_rate=1", "--cosine_decay_epochs=10", "--num_learning_rate_warmup_epochs=2"),
                "--minimum_learning_rate=0.2",
            ],
            {0: 0.0, 1: 0.5, 2: 1.0, 4: 0.2 + 0.4 * (1 + math.cos(math.pi / 4)), 6: 0.6, 10: 0.2, 11: 0.2},
        ),
        *(
            (
                ["--resnet_base_lr=0.1", "--batch_size=128", *devices, "--variable_update=collective_all_reduce"],
                {0: 0.0, 2.5: 0.1, 5: 0.2, 30: 0.02, 60: 0.002, 80: 0.0002, 90: 0.00002},
            )
            for devices in (["--num_gpus=4"], ["--num_gpus=2", "--local_cluster=worker:2"])
        ),
    ],
)
def test_rate_follows_the_flags(words: list[str], rates: dict[float, float]) -> None:
    schedule = resolve(*words).training.schedule
    assert schedule
    assert [schedule.rate(epochs) for epochs in rates] == pytest.approx(list(rates.values()))


def test_steps_that_make_up_an_epoch_reach_its_boundary() -> None:
    """0.1 * 3 is above 0.3 and 0.7 / 0.1 below 7 in floating point."""
    decay = ("--num_epochs_per_decay=0.1", "--learning_rate_decay_factor=0.5", "--init_learning_rate=1")
    schedule = resolve(*decay).training.schedule
    assert schedule
    assert [schedule.rate(step * 0.1) for step in range(10)] == [0.5**step for step in range(10)]


@pytest.mark.parametrize("words", [[], ["--init_learning_rate=0.5"]])
def test_a_constant_rate_is_no_schedule(words: list[str]) -> None:
    chosen = resolve(*words, "--num_epochs_per_decay=0", "--learning_rate_decay_factor=0")
    assert chosen.training.schedule is None


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--cosine_decay_epochs=3", "--minimum_learning_rate=5"], "is above the learning rate"),
        (["--cosine_decay_epochs=3", "--num_learning_rate_warmup_epochs=3"], "must be above"),
        (["--piecewise_learning_rate_schedule=0.1;3"], "write LR0;E1;LR1"),
        (["--piecewise_learning_rate_schedule=0.1"], "in quotes, .*: a shell ends a command at ';'"),
        (["--piecewise_learning_rate_schedule=0.1;3;x"], "write LR0;E1;LR1"),
        (["--piecewise_learning_rate_schedule=0.1;3;0.01;2;0.1"], "write LR0;E1;LR1"),
        (["--piecewise_learning_rate_schedule=0.1;3;nan"], "write LR0;E1;LR1"),
        (["--piecewise_learning_rate_schedule=0;3;1"], "the first rate must be above 0"),
    ],
)
def test_numbers_that_are_no_schedule_are_refused(words: list[str], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        resolve(*words)


@pytest.mark.parametrize(
    ("optimizer", "model", "rate"),
    [
        ("sgd", "mlp", "0.1"),
        ("adam", "mlp", "0.01"),
        ("adam", "resnet50", "0.0003"),
        ("momentum", "alexnet", "0.0002"),
        ("lars", "mlp", "1.0"),
    ],
)
def test_default_rates_have_the_digits_of_the_model(optimizer: str, model: str, rate: str) -> None:
    assert str(resolve(f"--optimizer={optimizer}", f"--model={model}").training.learning_rate) == rate


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--num_epochs=5", "--num_learning_rate_warmup_epochs=5"], "The learning rate never reaches 0.1: its warm-up"),
        (["--num_epochs=90", "--cosine_decay_epochs=80"], "The learning rate is 0 from epoch 80 to --num_epochs=90"),
        (["--num_epochs=90", "--cosine_decay_epochs=80", "--minimum_learning_rate=0.001"], None),
        (["--num_epochs=30", "--cosine_decay_epochs=80"], None),
    ],
)
def test_epochs_that_learn_next_to_nothing_are_a_notice(words: list[str], sentence: str | None) -> None:
    said = settings.resolve("--init_learning_rate=0.1", *words).notices
    assert [notice[: len(sentence or "")] for notice in said if "rate" in notice] == ([sentence] if sentence else [])
