from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from results.measurement import POWER_LIMIT, Measurement, derive
from results.quality import quality_warnings


def _of(measurement: Measurement, devices: int = 1, cores: int = 8, **config: Any) -> list[str]:
    return quality_warnings(measurement, derive(measurement, devices), config, {"cpu_cores_usable": cores})


def _warnings(seconds: list[float], **config: Any) -> str:
    return " ".join(_of(Measurement(images_per_step=8, step_seconds=seconds), **config))


def test_a_steady_run_on_a_quiet_machine_raises_none() -> None:
    assert _warnings([0.100, 0.101, 0.099, 0.100, 0.102, 0.100, 0.098, 0.100, 0.101, 0.100]) == ""


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        ([0.1] * 3, "Only 3 steps were measured"),
        ([0.1], "Only 1 step was measured, too few for an interval: increase --num_batches or"),
        ([0.1, 0.2] * 6, "unsteady"),
        ([0.1] * 6 + [0.12] * 6, "20% slower"),
        ([0.12] * 6 + [0.1] * 6, "17% faster"),
        (
            [0.1] * 50 + [10.0] + [0.1] * 49,
            "Step 51 took 10 s, 100 times the median, 50% of the measured time",
        ),
    ],
)
def test_odd_steps_are_named(seconds: list[float], words: str) -> None:
    assert words in _warnings(seconds)


def test_only_a_long_step_that_counts_is_a_pause() -> None:
    assert "second half" not in _warnings([10.0] + [0.1] * 99), "no warm-up helps"
    assert "took" not in _warnings([0.1] * 1000 + [1.1])
    assert "took" not in _warnings([0.1] * 20 + [0.9])
    assert "took" not in _warnings(([0.1] * 15 + [6.0]) * 3, modifiers={"local_sgd_steps": 16})
    beats = Measurement(images_per_step=8, step_seconds=[0.3, 0.001, 0.001] * 8, tower_step_seconds=[[0.3] * 8] * 2)
    assert "took" not in " ".join(_of(beats, 2))


def test_steps_that_are_no_whole_rounds_are_named() -> None:
    modifiers = {"local_sgd_steps": 4}
    assert _warnings([0.1] * 10, modifiers=modifiers).endswith("set --num_batches to a multiple of 4.")
    assert _warnings([0.1] * 12, modifiers=modifiers) == _warnings([0.1] * 10, modifiers={"local_sgd_steps": 0}) == ""
    assert _warnings([0.1] * 10, modifiers=modifiers, forward_only=True) == ""


@pytest.mark.parametrize("rounds", [1, 3, 5])
def test_the_halves_of_local_sgd_have_as_many_averagings(rounds: int) -> None:
    seconds, modifiers = ([0.1] * 15 + [0.6]) * rounds, {"local_sgd_steps": 16}
    assert _warnings(seconds, modifiers=modifiers) == ""
    slower = seconds + [1.3 * each for each in seconds]
    assert "The second half of the steps was 30% slower" in _warnings(slower, modifiers=modifiers)


def test_an_evaluation_of_one_step_is_named() -> None:
    assert _warnings([0.1], eval_only=True).endswith("that of one step: reduce --eval_batch_size.")
    assert _warnings([0.1, 0.1], eval_only=True) == ""


def test_validation_images_of_the_background_class_are_named() -> None:
    last = {"images": 8, "top_1_accuracy": 0.5, "background_images": 3}
    measurement = Measurement(images_per_step=8, step_seconds=[0.1] * 10, evaluations=[last])
    (sentence,) = _of(measurement)
    assert sentence.startswith("3 of 8 validation images have label 0, the background class")


def test_a_loss_that_rises_is_named_unless_nothing_is_trained() -> None:
    measurement = Measurement(images_per_step=8, step_seconds=[0.1] * 8, losses=[2e9], warmup_losses=[7.0])
    (sentence,) = _of(measurement)
    assert "rose from 7 to 2e+09" in sentence
    assert _of(measurement, forward_only=True) == []
    by_chance = Measurement(images_per_step=8, step_seconds=[0.1] * 8, losses=[0.3, 0.2, 0.3, 0.2, 0.9])
    assert _of(by_chance) == []


def test_shared_cores_are_named() -> None:
    shared = _warnings([0.1] * 10, cores=2, device="cpu", num_devices=4)
    assert shared.startswith("4 logical CPU devices share 2 cores")
    assert _warnings([0.1] * 10, cores=2, device="gpu", num_devices=4) == ""


DURING, BEFORE = "during the measurement", "directly before the run"


@pytest.mark.parametrize(
    ("during", "before", "cluster", "named"),
    [
        ([0.1], 1.9, False, None),  # the run before has ended
        ([0.3], 0.0, False, f"0.3 of 2 cores {DURING}"),
        ([None], 0.3, False, f"0.3 of 2 cores {BEFORE}"),  # too short a run to see others
        ([None], None, False, None),
        ([1.5], 0.1, True, None),  # they are the other tasks
        ([1.5, 1.5], 0.3, True, f"0.3 of 2 cores {BEFORE}"),
        ([], 1.9, False, None),  # interleaved: the other run starts at the same time
    ],
)
def test_other_processes_are_named_if_they_use_a_tenth_of_the_cores(
    during: list[float | None], before: float | None, cluster: bool, named: str | None
) -> None:
    seen = [{"cpu_cores_used_by_others": cores} for cores in during]
    measurement = Measurement(images_per_step=8, step_seconds=[0.1] * 10, telemetry=seen)
    environment = {"cpu_cores_usable": 2, "cores_used_by_others_before": before}
    config = {"cluster": {"workers": ["a", "b"]}} if cluster else {}
    found = quality_warnings(measurement, derive(measurement, 1), config, environment)
    assert [one.startswith(f"Other processes used {named}, which may have slowed it") for one in found] == [
        True
    ] * bool(named)


def test_steady_towers_that_complete_in_beats_are_not_called_unsteady() -> None:
    beats = {"images_per_step": 8, "step_seconds": [0.1, 0.2] * 6}
    steady = Measurement(**beats, tower_step_seconds=[[0.3] * 8, [0.3] * 8])
    assert _of(steady, 2) == []
    unsteady = Measurement(**beats, tower_step_seconds=[[0.3] * 8, [0.1, 0.3] * 4])
    assert "unsteady" in " ".join(_of(unsteady, 2))


STAGES = {"read": 5000.0, "decode": 1000.0, "batch": 800.0}


ON_TWO_HOSTS = {"ps": ["a:1", "b:1"], "workers": ["c:1", "d:1", "d:2"], "local": False}


def _real(waits: list[float], config: Mapping[str, Any] | None = None, **changes: object) -> str:
    measurement = Measurement(images_per_step=8, step_seconds=[0.1] * 10, input_wait_seconds=waits, **changes)
    return " ".join(_of(measurement, **({"data_dir": "photos"} | (config or {}))))


def test_a_run_that_waits_for_images_names_the_stage_and_a_way_out() -> None:
    assert _real([0.001] * 10) == ""
    said = _real([0.05] * 10, input_stages=STAGES)
    assert "input-bound: 50% of the time" in said
    assert "The input alone reaches 800 images/s, but it shares its cores with the steps" in said
    slow = {name: rate / 10 for name, rate in STAGES.items()}
    assert "The input alone reaches 80 images/s, 160 are needed; 64% of" in _real([0.05] * 10, input_stages=slow)
    assert "64% of the pipeline's time goes into decoding the photos: store them smaller" in said
    on_two = _real([0.05] * 10, {"cluster": ON_TWO_HOSTS}, input_stages=slow)
    assert "The input alone reaches 80 images/s on a host, but it shares its cores with the steps" in on_two
    assert "'run_bench.py input' with the same flags" in _real([0.05] * 10)
    made = _real([0.05] * 10, {"data_dir": None})
    assert made.endswith("The host copies them to the devices in every step."), "there are no files to measure"


@pytest.mark.parametrize(
    ("cluster", "on_a_host"),
    [(None, 6), (ON_TWO_HOSTS, 3), ({"ps": [], "workers": ["a:1", "b:1"], "local": True}, 6)],
)
def test_the_devices_of_a_host_share_its_cores(cluster: dict[str, Any] | None, on_a_host: int) -> None:
    said = _warnings([0.1] * 10, cores=2, cluster=cluster, device="cpu", num_devices=2, num_workers=3)
    assert said.startswith(f"{on_a_host} logical CPU devices share 2 cores")


def test_records_that_were_left_out_are_mentioned_with_the_check_that_finds_them() -> None:
    """Without these flags it finds neither photos that do not decode, nor labels beyond the classes of the run."""
    said = _real([], skipped_records=3)
    assert "3 bad records were skipped: 'run_bench.py data check DIR --decode' with this run's --data_split and" in said
    assert _real([], skipped_records=0) == ""


def _gpu(uuid: str = "GPU-a", **fields: Any) -> dict[str, Any]:
    steady = {"slowed_shares": {}, "clock_mhz_by_half": [1980.0, 1975.0], "peak_memory_bytes": 10}
    return {"index": 0, "uuid": uuid} | steady | fields


def _warnings_of_gpus(*gpus_of_processes: list[dict[str, Any]]) -> list[str]:
    telemetry = [{"gpus": gpus, "cpu_cores_used": 1.5} for gpus in gpus_of_processes]
    measurement = Measurement(images_per_step=16, step_seconds=[0.1] * 8, telemetry=telemetry)
    return _of(measurement)


def test_a_gpu_that_was_throttled_is_named_with_the_reason() -> None:
    throttled = _gpu(slowed_shares={"heat (driver)": 0.25, "power brake": 0.5, POWER_LIMIT: 1})
    (sentence,) = _warnings_of_gpus([throttled])
    assert sentence.startswith(
        "GPU 0 was throttled by heat (driver) in 25% of the samples, by power brake in 50% of the samples: "
    )
    assert _warnings_of_gpus([_gpu(slowed_shares={POWER_LIMIT: 1.0}, clock_mhz_by_half=[None, None])]) == []


def test_a_falling_clock_is_reported_once_per_gpu() -> None:
    falling = _gpu("GPU-b", index=3, clock_mhz_by_half=[2000.0, 1800.0])
    (sentence,) = _warnings_of_gpus([_gpu(), falling])
    assert sentence.startswith("The clock of GPU 3 fell from 2000 MHz in the first half of the measurement to 1800 MHz")
    (sentence,) = _warnings_of_gpus([_gpu()], [falling], [falling])
    assert sentence.startswith("The clock of GPU 3 of worker 1 fell")
    assert _warnings_of_gpus([_gpu(clock_mhz_by_half=[2000.0, 1905.0])]) == []
