"""Power, memory and clocks of a run: what follows from what its processes saw."""

from __future__ import annotations

from typing import Any

import pytest

from results.measurement import POWER_LIMIT, Measurement, derive
from results.quality import Conditions, quality_warnings

QUIET = Conditions(load_per_core=0.0, cpu_devices=0, cores=8)


def gpu(uuid: str = "GPU-a", **fields: Any) -> dict[str, Any]:
    return {
        "index": 0,
        "uuid": uuid,
        "slowed_shares": {},
        "clock_mhz_by_half": [1980.0, 1975.0],
        "peak_memory_bytes": 10,
    } | fields


def process(watts: dict[str, float | None], *gpus: dict[str, Any]) -> dict[str, Any]:
    return {"gpus": list(gpus), "mean_watts": watts, "cpu_cores_used": 1.5, "energy_of": "GPU only"}


def run(*telemetry: dict[str, Any]) -> Measurement:
    """160 images per second."""
    return Measurement(images_per_step=16, step_seconds=[0.1] * 8, telemetry=telemetry)


def sentences(*telemetry: dict[str, Any]) -> list[str]:
    measurement = run(*telemetry)
    return quality_warnings(measurement, derive(measurement, 1), QUIET)


def test_images_per_joule_is_rate_over_power() -> None:
    derived = derive(run(process({"GPU-a": 30.0, "GPU-b": 50.0}, gpu(), gpu("GPU-b", peak_memory_bytes=30))), 2)
    assert (derived.power_watts, derived.gpu_memory_reserved_bytes, derived.cpu_cores_used) == (80.0, 30, 1.5)
    assert derived.images_per_joule == pytest.approx(2.0)


def test_the_energy_of_pauses_counts() -> None:
    paused = {**process({"GPU-a": 80.0}, gpu()), "window_seconds": 1.6}
    assert derive(run(paused), 1).images_per_joule == pytest.approx(128 / (80 * 1.6))


def test_what_workers_share_counts_once() -> None:
    shared = (process({"GPU-a": 30.0}, gpu()), process({"GPU-a": 30.0}, gpu()), process({"GPU-b": 10.0}))
    assert derive(run(*shared), 3).power_watts == 40.0
    assert derive(run(*shared), 3).cpu_cores_used == 4.5


@pytest.mark.parametrize(
    "telemetry",
    [
        (),
        (process({}),),
        (process({"GPU-a": 30.0, "GPU-b": None}),),
        (process({"GPU-a": 30.0}), process({"GPU-b": None})),
        (process({"GPU-a": 30.0}), {"failure": "OSError: gone"}),
    ],
)
def test_a_part_that_is_not_known_makes_the_sum_unknown(telemetry: tuple[dict[str, Any], ...]) -> None:
    derived = derive(run(*telemetry), 2)
    assert (derived.power_watts, derived.images_per_joule) == (None, None)


def test_a_message_has_power_and_no_images() -> None:
    measurement = Measurement(images_per_step=None, step_seconds=[0.1] * 5, telemetry=[process({"GPU-a": 30.0})])
    derived = derive(measurement, 1)
    assert (derived.power_watts, derived.images_per_joule) == (30.0, None)


def test_a_steady_gpu_at_its_power_limit_raises_no_warning() -> None:
    assert sentences(process({}, gpu(slowed_shares={POWER_LIMIT: 1.0}))) == []
    assert sentences(process({}, gpu(clock_mhz_by_half=[None, None]))) == []
    assert sentences({"failure": "OSError: gone"}) == []


def test_a_gpu_that_was_throttled_is_named_with_the_reason() -> None:
    (sentence,) = sentences(process({}, gpu(slowed_shares={"heat (driver)": 0.25, "power brake": 0.5, POWER_LIMIT: 1})))
    assert sentence.startswith(
        "GPU 0 was throttled by heat (driver) in 25% of the samples, by power brake in 50% of the samples: "
    )


def test_a_falling_clock_is_reported_once_per_gpu() -> None:
    falling = gpu("GPU-b", index=3, clock_mhz_by_half=[2000.0, 1800.0])
    (sentence,) = sentences(process({}, gpu(), falling))
    assert sentence.startswith("The clock of GPU 3 fell from 2000 MHz in the first half of the measurement to 1800 MHz")
    (sentence,) = sentences(process({}, gpu()), process({}, falling), process({}, falling))
    assert sentence.startswith("The clock of GPU 3 of worker 1 fell")
    assert sentences(process({}, gpu(clock_mhz_by_half=[2000.0, 1905.0]))) == []
