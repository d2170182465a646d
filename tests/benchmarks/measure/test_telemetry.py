"""Clocks, power and memory: made-up drivers, counters and clocks, and a thread that no run waits for."""

from __future__ import annotations

import functools
import os
import re
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pynvml
import pytest

from benchmarks.machine import nvml
from benchmarks.measure import telemetry
from benchmarks.measure.result_text import resource_lines, startup_line
from benchmarks.measure.telemetry import Telemetry
from benchmarks.process.tensorflow_setup import Devices
from results.measurement import POWER_LIMIT, Derived, Measurement, derive
from tests.support.commands import Records, RunBench
from tests.support.nvidia import Machine
from tests.support.records import make_record
from variable_mgr.place import Place

HEAT = pynvml.nvmlClocksThrottleReasonSwThermalSlowdown
CAP = pynvml.nvmlClocksThrottleReasonSwPowerCap
LAST = 4  # of the moments 0 to 4 seconds
ANSWERS = {
    "nvmlDeviceGetUUID": lambda gpu: f"GPU-{gpu}-uuid",
    "nvmlDeviceGetClockInfo": 1980,
    "nvmlDeviceGetTemperature": [50, 55, 60, 62, 61],
    "nvmlDeviceGetCurrentClocksThrottleReasons": 0,
    "nvmlDeviceGetUtilizationRates": types.SimpleNamespace(gpu=90),
    "nvmlDeviceGetMemoryInfo": [types.SimpleNamespace(used=n * 2**30) for n in (3, 5, 4, 4, 4)],
    "nvmlDeviceGetPowerUsage": [100_000, 300_000, 300_000, 300_000, 100_000],
    "nvmlDeviceGetTotalEnergyConsumption": [7_000, 0, 0, 0, 1_007_000],
}


class Driver(Machine):
    """A driver. An answer may be a list, one per moment, or a function of the GPU; None is refused."""

    def __init__(self, count: int = 1, **answers: Any) -> None:
        super().__init__(count)
        self.moment = 0
        for name, answer in (ANSWERS | answers).items():
            self._answers[name] = functools.partial(self._answer, answer)

    def _answer(self, answer: Any, gpu: int, *which: int) -> Any:
        if isinstance(answer, list):
            answer = answer[self.moment]
        if answer is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return answer(gpu) if callable(answer) else answer


def watch(
    driver: Driver | None = None,
    root: Path = Path("/nowhere"),
    at_each: Callable[[int], object] = lambda moment: None,
) -> Any:
    """Returns the summary of samples at 0, 1, 2, 3 and 4 seconds; the process uses 1.5 cores."""
    driver = driver or Driver(count=0)
    at_each(0)

    def pause(seconds: float) -> bool:
        assert seconds == 1.0
        driver.moment += 1
        at_each(driver.moment)
        return driver.moment == LAST

    watched = Telemetry(
        nvml.opened({}, driver).gpus,
        root,
        clock=lambda: 100.0 + driver.moment,
        cpu_seconds=lambda: 7.0 + 1.5 * driver.moment,
        pause=pause,
    )
    watched.run()
    return watched.summary()


@pytest.mark.row("S0.9")
def test_what_a_gpu_did_is_summed_up() -> None:
    seen = watch(Driver())
    assert (seen["window_seconds"], seen["samples"], seen["cpu_cores_used"]) == (4.0, 5, 1.5)
    assert seen["gpus"] == [
        {
            "index": 0,
            "uuid": "GPU-0-uuid",
            "clock_mhz": {"min": 1980, "mean": 1980.0, "max": 1980},
            "clock_mhz_by_half": [1980.0, 1980.0],
            "temperature_celsius": {"min": 50, "mean": 57.6, "max": 62},
            "busy_share": {"min": 0.9, "mean": pytest.approx(0.9), "max": 0.9},
            "slowed_shares": {},
            "power_watts": {"min": 100.0, "mean": 220.0, "max": 300.0},
            "energy_joules": 1000.0,
            "peak_memory_bytes": 5 * 2**30,
        }
    ]


def test_every_gpu_has_its_own_numbers() -> None:
    driver = Driver(2, nvmlDeviceGetClockInfo=lambda gpu: 1000 + gpu, nvmlDeviceGetPowerUsage=lambda gpu: 1000 * gpu)
    seen = watch(driver)["gpus"]
    assert [(gpu["uuid"], gpu["clock_mhz"]["max"], gpu["power_watts"]["max"]) for gpu in seen] == [
        ("GPU-0-uuid", 1000, 0.0),
        ("GPU-1-uuid", 1001, 1.0),
    ]


@pytest.mark.parametrize("counter", [None, [9_000_000, 0, 0, 0, 5_000]], ids=["none", "began anew"])
def test_without_a_counter_energy_is_that_of_the_mean_power(counter: list[int] | None) -> None:
    (gpu,) = watch(Driver(nvmlDeviceGetTotalEnergyConsumption=counter))["gpus"]
    assert gpu["energy_joules"] == 4 * 220


def test_shares_are_of_the_samples_that_tell() -> None:
    (gpu,) = watch(Driver(nvmlDeviceGetCurrentClocksThrottleReasons=[0, CAP, CAP | HEAT, CAP, None]))["gpus"]
    assert gpu["slowed_shares"] == {"heat (driver)": 0.25, POWER_LIMIT: 0.75}


def test_halves_show_a_clock_that_falls() -> None:
    (gpu,) = watch(Driver(nvmlDeviceGetClockInfo=[1980, 1960, 1700, 1510, 1490]))["gpus"]
    assert gpu["clock_mhz_by_half"] == [1970.0, 1500.0]


@pytest.mark.parametrize("gone_at", [0, 2, LAST])
def test_a_gpu_that_is_lost_has_no_energy(gone_at: int) -> None:
    answers = {
        name: ([*answer] if isinstance(answer, list) else [answer] * 5)[:gone_at] + [None] * (5 - gone_at)
        for name, answer in ANSWERS.items()
    }
    (gpu,) = watch(Driver(**answers))["gpus"]
    assert gpu["energy_joules"] is None
    assert (gpu["clock_mhz"] is None) == (gone_at == 0)


def test_a_gpu_of_which_others_have_a_part_tells_nothing_of_ours_alone() -> None:
    (gpu,) = watch(Driver(nvmlDeviceGetMigMode=(1, 1)))["gpus"]
    assert gpu["clock_mhz"] and gpu["temperature_celsius"]
    assert {gpu[name] for name in ("power_watts", "energy_joules", "busy_share", "peak_memory_bytes")} == {None}


def test_too_short_a_window_knows_no_energy(tmp_path: Path) -> None:
    driver, ticks = Driver(), iter((0.0, 0.5))

    def pause(seconds: float) -> bool:
        driver.moment = LAST
        return True

    watched = Telemetry(nvml.opened({}, driver).gpus, tmp_path, clock=lambda: next(ticks), pause=pause)
    watched.run()
    seen = watched.summary()
    assert seen["gpus"][0]["energy_joules"] is None
    assert seen["gpus"][0]["peak_memory_bytes"] == 4 * 2**30


def test_the_cores_that_other_processes_use_are_counted(tmp_path: Path) -> None:
    def at_each(second: int) -> None:
        """Each second, all processes use two seconds of user and half of system time; virtual machines, a quarter."""
        ticks = os.sysconf("SC_CLK_TCK") * second
        (tmp_path / "proc").mkdir(exist_ok=True)
        (tmp_path / "proc/stat").write_text(f"cpu {2 * ticks} 0 {ticks // 2} {9 * ticks} 0 0 0 {ticks // 4}\n")

    assert watch(root=tmp_path, at_each=at_each)["cpu_cores_used_by_others"] == pytest.approx(2.5 - 1.5 + 0.25)
    assert watch(root=tmp_path / "none")["cpu_cores_used_by_others"] is None


# The thread.


def test_it_looks_at_once_and_a_last_time_from_its_own_thread() -> None:
    names: list[str] = []

    def clock() -> float:
        names.append(threading.current_thread().name)
        return float(len(names))

    watched = Telemetry(clock=clock)
    with watched:
        pass
    assert names == ["telemetry", "telemetry"]
    seen = watched.summary()
    assert seen["samples"] == 2


def test_a_look_in_between_is_a_summary_until_then() -> None:
    taken: list[Any] = []
    driver = Driver(count=0)
    watched: Telemetry

    def pause(seconds: float) -> bool:
        taken.append(watched.summary())
        driver.moment += 1
        return driver.moment == 2

    watched = Telemetry(clock=lambda: float(driver.moment), pause=pause)
    assert watched.summary() == {}
    watched.run()
    assert taken[0] == {}, "one sample is no window"
    assert (taken[1]["samples"], taken[1]["window_seconds"]) == (2, 1.0)


def test_what_goes_wrong_in_it_ends_nothing_else() -> None:
    def broken() -> float:
        raise OSError("the clock is broken")

    with Telemetry(clock=broken) as watched:
        pass
    assert watched.summary() == {"failure": "OSError: the clock is broken"}


@pytest.mark.parametrize(
    ("device", "num_devices", "virtual_gpus", "hosts", "indices"),
    [
        ("cpu", 3, 1, (), []),
        ("gpu", 2, 1, (), [3, 1]),
        ("gpu", 3, 2, (), [3, 1]),
        ("gpu", 2, 1, ("of worker 0", "of worker 1"), []),  # one client drives the towers of several workers
    ],
)
def test_only_the_gpus_that_are_used_here_are_watched(
    monkeypatch: pytest.MonkeyPatch,
    device: Literal["cpu", "gpu"],
    num_devices: int,
    virtual_gpus: int,
    hosts: tuple[str, ...],
    indices: list[int],
) -> None:
    found = nvml.opened({"CUDA_VISIBLE_DEVICES": "3,1,0"}, Driver(count=4))
    looks: list[None] = []
    monkeypatch.setattr(nvml, "opened", lambda: looks.append(None) or found)
    devices = Devices(device=device, num_devices=num_devices, virtual_gpus=virtual_gpus)
    with telemetry.prepared_telemetry(devices, Place((), "", hosts=hosts)) as watched:
        pass
    assert bool(looks) == bool(indices), "without persistence mode, to open it initialises the GPUs"
    seen = watched.summary()
    assert [gpu["index"] for gpu in seen["gpus"]] == indices


# On the way to the record and to the reader.


def test_what_is_known_is_told_in_lines() -> None:
    seen = watch(Driver(nvmlDeviceGetCurrentClocksThrottleReasons=[0, HEAT, 0, HEAT, 0]))
    measurement = Measurement(
        images_per_step=16,
        step_seconds=[0.1] * 6,
        startup_seconds=8.31,
        startup_phases_seconds={"Python": 0.41, "TensorFlow": 5.9, "graph": 1.6, "variables": 0.4},
        first_step_seconds=0.9,
        peak_host_memory_bytes=2_340_000_000,
        peak_gpu_memory_bytes=1_230_000_000,
        telemetry=[seen],
    )
    record = make_record(measurement=measurement, derived=derive(measurement, 1))
    assert resource_lines(record) == [
        "power:          250 W on average, 0.096 images per joule (GPU only)",
        "memory:         2.34 GB peak of a process, 1.23 GB peak of a GPU, 5.37 GB reserved on a GPU",
        "CPU:            1.50 cores busy on average",
        "GPU 0:          1980 MHz on average (1980 to 1980), at most 62 °C, busy 90% of the time, "
        "slowed 40% of the time by heat (driver)",
    ]
    assert startup_line(measurement) == (
        "start-up:       8.3 s (Python 0.4, TensorFlow 5.9, graph 1.6, variables 0.4), then 0.9 s for the first step"
    )


def test_what_is_not_known_has_no_line() -> None:
    measurement = Measurement(images_per_step=16, step_seconds=[0.1] * 6, startup_seconds=2.0, first_step_seconds=1.0)
    assert resource_lines(make_record(measurement=measurement, derived=derive(measurement, 1))) == []
    assert startup_line(measurement) == "start-up:       2.0 s, then 1.0 s for the first step"
    lost = Measurement(images_per_step=1, telemetry=[{"failure": "OSError: gone"}])
    assert resource_lines(make_record(measurement=lost, derived=Derived())) == []


@pytest.mark.row("S0.9")
def test_a_run_keeps_what_it_saw(run_bench: RunBench, records: Records) -> None:
    done = run_bench("--model=trivial", "--device=cpu", "--num_batches=5", "--batch_size=2").succeeded()
    (record,) = records()
    measurement = record["measurement"]
    assert sum(measurement["startup_phases_seconds"].values()) == pytest.approx(measurement["startup_seconds"])
    assert list(measurement["startup_phases_seconds"]) == ["Python", "TensorFlow", "graph", "variables"]
    (seen,) = measurement["telemetry"]
    assert seen["gpus"] == []
    assert 0 < seen["window_seconds"]
    assert measurement["peak_host_memory_bytes"] > 100e6  # TensorFlow alone
    assert record["derived"]["cpu_cores_used"] == seen["cpu_cores_used"] > 0
    assert re.search(r"^start-up: .* \(Python [0-9.]+, TensorFlow [0-9.]+, graph", done.stdout, re.MULTILINE)
