"""The numbers that follow from a measurement, each by hand."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from msgspec.structs import replace

from results.measurement import Derived, Measurement, Observed, derive, named_gpus


def derived_from(num_devices: int = 1, **observed: Any) -> Derived:
    return derive(Measurement(**{"images_per_step": 12, "step_seconds": [1.0, 3.0]} | observed), num_devices)


def test_percentiles_are_in_milliseconds() -> None:
    derived = derived_from(images_per_step=None, step_seconds=[step / 1000 for step in range(1001)])
    found = (derived.step_ms_p50, derived.step_ms_p90, derived.step_ms_p99, derived.step_ms_p999)
    assert found == pytest.approx((500, 900, 990, 999))


@pytest.mark.parametrize(("steps", "has_p999"), [(999, False), (1000, True)])
def test_the_99_9th_percentile_needs_1000_steps(steps: int, has_p999: bool) -> None:
    assert (derived_from(step_seconds=[0.1] * steps).step_ms_p999 is not None) is has_p999


def test_the_rate_per_device_and_its_spread() -> None:
    # 120 images in 30 s. Rates 12, 6, 4, 3 and 2.4: median 4, distances 8, 2, 0, 1 and 1.6, whose median is 1.6.
    derived = derived_from(num_devices=4, step_seconds=[1.0, 5.0, 2.0, 4.0, 3.0] * 2)
    assert (derived.images_per_sec, derived.images_per_sec_per_device) == pytest.approx((4.0, 1.0))
    assert derived.images_per_sec_jitter == pytest.approx(1.4826 * 1.6)
    assert derived.images_per_sec_low is not None and derived.images_per_sec_high is not None
    assert 2.4 < derived.images_per_sec_low < 4.0 < derived.images_per_sec_high < 12.0


def test_compiling_is_what_the_first_step_takes_longer_than_the_median() -> None:
    def compile_seconds(first: float | None, *, compiled: bool = True) -> float | None:
        measured = Measurement(images_per_step=1, first_step_seconds=first, step_seconds=[0.25, 0.5, 2.0])
        return derive(measured, 1, compiled=compiled).compile_seconds

    assert compile_seconds(3.0) == pytest.approx(2.5)
    assert compile_seconds(0.75) == pytest.approx(0.25)
    assert compile_seconds(0.25) == 0.0
    assert compile_seconds(None) is None
    assert compile_seconds(3.0, compiled=False) is None
    assert derived_from(first_step_seconds=3.0).compile_seconds is None


def test_the_loss_difference_is_over_the_last_ten_steps() -> None:
    losses, in_fp32 = [100.0, *range(2, 12)], [0.0, *[1.0] * 9, 2.0]
    # Of the last ten: 1, 2 ... 9 and 9.
    assert derived_from(losses=losses, fp32_losses=in_fp32).loss_difference_to_fp32 == pytest.approx(5.4)
    assert derived_from(losses=[3.0, 3.0], fp32_losses=[1.0, 2.0]).loss_difference_to_fp32 == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("losses", "in_fp32"),
    [([], []), ([1.0], []), ([1.0, None], [1.0, 1.0]), ([1.0, 2.0], [1.0, None]), ([1.0, math.inf], [1.0, 1.0])],
)
def test_without_all_losses_there_is_no_difference(losses: list[float | None], in_fp32: list[float | None]) -> None:
    assert derived_from(losses=losses, fp32_losses=in_fp32).loss_difference_to_fp32 is None


def test_a_message_has_bandwidths_and_no_rate() -> None:
    """8 GB in a mean of 2 s on 4 devices are 4 GB/s, of which each link carries 2 * 3/4."""
    derived = derived_from(num_devices=4, images_per_step=None, message_bytes=8 * 10**9)
    assert (derived.algorithm_bandwidth_gb_per_sec, derived.bus_bandwidth_gb_per_sec) == (4.0, 6.0)
    assert (derived.images_per_sec, derived.images_per_sec_low, derived.images_per_sec_jitter) == (None, None, None)
    assert derived_from().algorithm_bandwidth_gb_per_sec is None


def test_the_share_of_waiting_is_of_the_time_of_steps() -> None:
    assert derived_from().input_wait_share is None
    assert derived_from(input_wait_seconds=[0.5, 0.5]).input_wait_share == pytest.approx(0.25)
    # A wait is the mean over two asynchronous towers, whose steps take 10 s in all.
    apart = {"tower_step_seconds": [[1.0, 1.0], [4.0, 4.0]], "input_wait_seconds": [1.0, 1.5]}
    assert derived_from(**apart).input_wait_share == pytest.approx(0.5)


def test_staleness_is_the_mean_number_of_updates() -> None:
    assert derived_from().staleness_mean is None
    assert derived_from(staleness_counts=[2, 1, 0, 5]).staleness_mean == pytest.approx(16 / 8)


def test_beside_workers_that_took_no_time_none_is_slow() -> None:
    derived = derived_from(worker_compute_seconds=[[0.0] * 9, [2.0] * 9, [0.0] * 9])
    assert (derived.slowest_worker, derived.straggler_ratio) == (None, None)
    derived = derived_from(worker_compute_seconds=[[0.25] * 9, [2.0] * 9, [0.5] * 9])
    assert (derived.slowest_worker, derived.straggler_ratio) == (1, pytest.approx(2.0 / 0.375))


@pytest.mark.parametrize("name", ["tower_compute_seconds", "tower_step_seconds"])
def test_the_slow_tower_of_a_process_is_named(name: str) -> None:
    observed = {name: [[1.0] * 9, [1.0] * 9, [1.5] * 9], "step_seconds": [1.0] * 9}
    derived = derived_from(**observed)
    assert (derived.slowest_tower, derived.slowest_tower_ratio) == (2, pytest.approx(1.5))
    assert (derived.slowest_worker, derived.straggler_ratio) == (None, None)


def test_towers_that_share_cores_differ_by_the_order_in_which_they_start() -> None:
    for ratio, slowest in ((1.9, None), (2.1, 1)):
        measured = Measurement(
            images_per_step=1, step_seconds=[1.0] * 9, tower_compute_seconds=[[1.0] * 9, [ratio] * 9]
        )
        assert derive(measured, 2).slowest_tower == 1
        assert derive(measured, 2, towers_share_cores=True).slowest_tower == slowest
        workers = replace(measured, tower_compute_seconds=[], worker_compute_seconds=[[1.0] * 9, [1.9] * 9])
        assert derive(workers, 2, towers_share_cores=True).slowest_worker == 1
        apart = replace(measured, tower_compute_seconds=[], tower_step_seconds=[[1.0] * 9, [ratio] * 9])
        assert derive(apart, 2, towers_share_cores=True).slowest_tower == slowest


def test_an_asynchronous_tower_that_completes_no_step_is_named() -> None:
    derived = derived_from(tower_step_seconds=[[1.0] * 20, []], step_seconds=[1.0] * 20)
    assert derived.slowest_tower == 1 and derived.slowest_tower_ratio > 10


def test_a_slow_worker_and_a_slow_tower_are_both_named() -> None:
    slow = [[1.0] * 9, [1.5] * 9]
    derived = derived_from(worker_compute_seconds=slow, tower_compute_seconds=slow[::-1])
    assert (derived.slowest_worker, derived.slowest_tower) == (1, 0)


def test_gpus_are_named_by_worker_and_once() -> None:
    first, second = {"index": 0, "uuid": "GPU-a"}, {"index": 1, "uuid": "GPU-b"}
    alone = Measurement(images_per_step=1, telemetry=[{"gpus": [first, second]}])
    assert named_gpus(alone) == {"GPU 0": first, "GPU 1": second}
    both = Measurement(images_per_step=1, telemetry=[{"gpus": [first]}, {"gpus": [second]}])
    assert named_gpus(both) == {"GPU 0 of worker 0": first, "GPU 1 of worker 1": second}
    seen_again = {"index": 5, "uuid": "GPU-a"}
    telemetry = [{"gpus": [first]}, {"failure": "OSError: gone"}, {"gpus": [seen_again, second]}]
    shared = Measurement(images_per_step=1, telemetry=telemetry)
    assert named_gpus(shared) == {"GPU 0 of worker 0": first, "GPU 1 of worker 2": second}


def process(
    watts: dict[str, float | None], *peak_bytes: int | None, cores: float = 1.5, seconds: float = 2.0
) -> dict[str, Any]:
    gpus = [
        {"uuid": uuid, "energy_joules": None if used is None else used * seconds, "peak_memory_bytes": peak}
        for (uuid, used), peak in itertools.zip_longest(watts.items(), peak_bytes)
    ]
    return {"gpus": gpus, "window_seconds": seconds, "cpu_cores_used": cores}


def test_resources_are_of_all_processes_together() -> None:
    # Images: 24 in 4 s, 6 per second.
    derived = derived_from(telemetry=[process({"a": 1.0, "b": 2.0}, 7, None), process({"b": 2.0}, 9, cores=2.0)])
    assert (derived.power_watts, derived.images_per_joule) == pytest.approx((3.0, 2.0))
    assert (derived.cpu_cores_used, derived.gpu_memory_reserved_bytes) == (3.5, 9)
    paused = derived_from(telemetry=[process({"a": 3.0}, seconds=8.0)])
    assert paused.images_per_joule == pytest.approx(1.0), "the energy of pauses counts"
    windows = [process({name: 1.5}, seconds=seconds) for name, seconds in (("a", 4.0), ("b", 8.0))]
    own = {"worker_step_seconds": [[2.0] * 2, [2.0] * 4], "tower_step_seconds": [[2.0] * 2, [2.0] * 4]}
    asynchronous = derived_from(telemetry=windows, **own)
    assert asynchronous.images_per_joule == pytest.approx(2.0), "images count until the first worker ends"


def test_resources_that_are_partly_unknown() -> None:
    unseen = derived_from(telemetry=[process({"a": None}, None)])
    assert (unseen.power_watts, unseen.images_per_joule, unseen.gpu_memory_reserved_bytes) == (None, None, None)
    assert unseen.cpu_cores_used == 1.5
    no_gpus = derived_from(telemetry=[process({})])
    assert (no_gpus.power_watts, no_gpus.gpu_memory_reserved_bytes, no_gpus.cpu_cores_used) == (None, None, 1.5)
    for telemetry in ([], [{"failure": "OSError: gone"}], [process({"a": 1.0}, 7), {"failure": "OSError: gone"}]):
        derived = derived_from(telemetry=telemetry)
        assert (derived.power_watts, derived.cpu_cores_used, derived.gpu_memory_reserved_bytes) == (None, None, None)


def test_no_power_is_no_images_per_joule() -> None:
    derived = derived_from(telemetry=[process({"a": 0.0})])
    assert (derived.power_watts, derived.images_per_joule) == (0.0, None)
    message = derived_from(images_per_step=None, telemetry=[process({"a": 2.0})])
    assert (message.power_watts, message.images_per_joule) == (2.0, None)


def test_a_number_of_a_step_needs_a_field() -> None:
    assert Observed(loss_scales=2.0) == {"loss_scales": 2.0}
    with pytest.raises(TypeError, match="no numbers of a step: losses, surprise"):
        Observed(loss_scales=2.0, surprise=1.0, losses=3.0)
