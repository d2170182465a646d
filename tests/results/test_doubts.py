from __future__ import annotations

import pytest

from results.doubts import Conditions, doubts
from results.measurement import Measurement, derive

QUIET = Conditions(load_per_core=0.0, cpu_devices=0, cores=8)


def _doubts(seconds: list[float], conditions: Conditions = QUIET) -> str:
    measurement = Measurement(images_per_step=8, step_seconds=seconds)
    return " ".join(doubts(measurement, derive(measurement, 1), conditions))


def test_a_steady_run_on_a_quiet_machine_raises_none() -> None:
    assert _doubts([0.100, 0.101, 0.099, 0.100, 0.102, 0.100, 0.098, 0.100, 0.101, 0.100]) == ""


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        ([0.1] * 3, "Only 3 steps"),
        ([0.1, 0.2] * 6, "unsteady"),
        ([0.1] * 6 + [0.12] * 6, "20% slower"),
        ([0.12] * 6 + [0.1] * 6, "17% faster"),
    ],
)
def test_odd_steps_are_named(seconds: list[float], words: str) -> None:
    assert words in _doubts(seconds)


def test_a_loss_that_rises_is_named_unless_nothing_is_trained() -> None:
    measurement = Measurement(images_per_step=8, step_seconds=[0.1] * 8, losses=[2e9], warmup_losses=[7.0])
    inference = Conditions(load_per_core=0.0, cpu_devices=0, cores=8, training=False)
    (doubt,) = doubts(measurement, derive(measurement, 1), QUIET)
    assert "rose from 7 to 2e+09" in doubt
    assert doubts(measurement, derive(measurement, 1), inference) == []


def test_a_busy_machine_and_shared_cores_are_named() -> None:
    busy = Conditions(load_per_core=0.9, cpu_devices=4, cores=2)
    assert "load 0.9 per core" in _doubts([0.1] * 10, busy)
    assert "4 logical CPU devices share 2 cores" in _doubts([0.1] * 10, busy)


def test_steady_towers_that_complete_in_beats_are_not_called_unsteady() -> None:
    beats = {"images_per_step": 8, "step_seconds": [0.1, 0.2] * 6}
    steady = Measurement(**beats, tower_step_seconds=[[0.3] * 8, [0.3] * 8])
    assert doubts(steady, derive(steady, 2), QUIET) == []
    unsteady = Measurement(**beats, tower_step_seconds=[[0.3] * 8, [0.1, 0.3] * 4])
    assert "unsteady" in " ".join(doubts(unsteady, derive(unsteady, 2), QUIET))
