"""How many steps a run takes: the warm-up and the measured ones, of earlier runs' epochs what is left."""

from __future__ import annotations

import pytest

from benchmarks.config.workload import Length
from benchmarks.errors import UsageError
from benchmarks.graph.epochs import Epochs, Plan, plan

BATCHES = Length(num_batches=20, num_warmup_batches=5)
ONE_EPOCH = Length(num_batches=None, num_epochs=1.0, num_warmup_batches=5)  # 25 steps


def epochs(steps_before: int = 0, images_before: int = 0) -> Epochs:
    return Epochs(100, 4, steps_before, images_before)


@pytest.mark.parametrize(
    ("length", "before", "continued", "planned"),
    [
        (BATCHES, epochs(), {}, Plan(5, 20)),
        (Length(num_batches=20, num_warmup_batches=0), epochs(), {}, Plan(1, 20)),  # the first step never counts
        (ONE_EPOCH, epochs(), {}, Plan(5, 25)),
        (ONE_EPOCH, epochs(), {"steps_per_round": 10}, Plan(5, 30)),
        (ONE_EPOCH, epochs(), {"saved_in": "ck"}, Plan(5, 20)),  # the epoch has the warm-up, too
        (ONE_EPOCH, epochs(), {"saved_in": "ck", "steps_per_round": 5}, Plan(5, 20)),
        (ONE_EPOCH, epochs(1, 4), {"saved_in": "ck", "steps_per_round": 5}, Plan(5, 20)),  # whole rounds
        (ONE_EPOCH, epochs(20, 80), {"saved_in": "ck", "steps_per_round": 5}, Plan(4, 1)),  # no whole round is left
        (ONE_EPOCH, epochs(10, 80), {"saved_in": "ck"}, Plan(4, 1)),  # with batches of 8 images
        (BATCHES, epochs(10, 40), {"saved_in": "ck", "ends_at_step": 25}, Plan(5, 10)),
        (BATCHES, epochs(10, 40), {"saved_in": "ck", "ends_at_step": 10}, Plan(1, 1)),
    ],
)
def test_the_steps_of_a_run(length: Length, before: Epochs, continued: dict[str, int | str], planned: Plan) -> None:
    assert plan(length, before, **{"steps_per_round": 1, **continued}) == planned  # type: ignore[arg-type]


def test_a_training_of_as_many_epochs_is_not_continued() -> None:
    with pytest.raises(UsageError, match="ck has a training of 25 steps, which are as many epochs"):
        plan(ONE_EPOCH, epochs(25, 100), steps_per_round=1, saved_in="ck")


def test_epochs_continue_those_of_runs_with_other_batches() -> None:
    assert [epochs(10, 80).after(steps) for steps in (10, 11, 15)] == [0.8, 0.84, 1.0]
