"""Telemetry of GPUs and host while steps are measured: clocks, power, memory, sampled once a second by a thread.

Imports no TensorFlow. Unknown values are None, never estimates.
"""

from __future__ import annotations

import dataclasses
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import contention, linux, nvml
from benchmarks.machine.contention import CpuReading
from benchmarks.machine.nvml import DriverGpu
from benchmarks.measure.timing import Clock
from benchmarks.process.tensorflow_setup import Devices
from results.measurement import POWER_LIMIT
from variable_mgr.place import Place

_INTERVAL_SECONDS = 1.0
# A shorter window holds too few of the driver's own readings, some of which are means of a second.
_MIN_ENERGY_SECONDS = 1.0
# The kernel counts CPU time of cores in hundredths of a second.
_MIN_COUNTED_SECONDS = 1.0
_JOIN_SECONDS = 5.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GpuSample:
    """One GPU at one moment; None if the driver does not know.

    The clock is that of the multiprocessors, the power that of the board, the energy the driver's count since it was
    loaded, the memory that of all processes. A kernel ran in `busy_share` of the driver's last interval (up to 1 s).
    """

    clock_mhz: float | None = None
    temperature_celsius: float | None = None
    slowed_by: Sequence[str] | None = None
    busy_share: float | None = None
    power_watts: float | None = None
    energy_joules: float | None = None
    used_bytes: float | None = None


Sample = tuple[CpuReading, Sequence[GpuSample]]  # of one moment


def _look(gpu: DriverGpu, divided: bool) -> GpuSample:
    ask = gpu.ask
    reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons")
    limited = [POWER_LIMIT] if reasons and reasons & gpu.driver.nvmlClocksThrottleReasonSwPowerCap else []

    def ask_whole(question: str) -> Any:
        return None if divided else ask(question)

    used, memory = ask_whole("nvmlDeviceGetUtilizationRates"), ask_whole("nvmlDeviceGetMemoryInfo")
    milliwatts, millijoules = ask_whole("nvmlDeviceGetPowerUsage"), ask_whole("nvmlDeviceGetTotalEnergyConsumption")
    return GpuSample(
        clock_mhz=ask("nvmlDeviceGetClockInfo", gpu.driver.NVML_CLOCK_SM),
        temperature_celsius=ask("nvmlDeviceGetTemperature", gpu.driver.NVML_TEMPERATURE_GPU),
        slowed_by=None if reasons is None else gpu.slowed_by(reasons) + limited,
        busy_share=None if used is None else used.gpu / 100,
        power_watts=None if milliwatts is None else milliwatts / 1000,
        energy_joules=None if millijoules is None else millijoules / 1000,
        used_bytes=None if memory is None else memory.used,
    )


class Telemetry:
    """Takes a sample at the start, after every interval and at the end, in a thread of its own.

    Args:
        gpus: those to ask.
        root: holds `proc` and `sys`.
        clock: seconds, monotonic.
        cpu_seconds: this process' CPU time.
        pause: waits that many seconds, and returns whether to end.
    """

    def __init__(
        self,
        gpus: Sequence[DriverGpu] = (),
        root: Path = Path("/"),
        clock: Clock = time.perf_counter,
        cpu_seconds: Callable[[], float] = time.process_time,
        pause: Callable[[float], bool] | None = None,
    ) -> None:
        self._gpus, self._root, self._clock, self._cpu_seconds = gpus, root, clock, cpu_seconds
        # For a MIG instance the driver reports only the usage of the whole GPU, which others may share.
        self._divided = [gpu.is_divided for gpu in gpus]
        host = linux.boot_id(root)[:8]
        self._names = [gpu.ask("nvmlDeviceGetUUID") or f"{host}/{gpu.index}" for gpu in gpus]
        self._stopped = threading.Event()
        self._pause = pause or self._stopped.wait
        self._thread = threading.Thread(target=self.run, name="telemetry", daemon=True)
        self._samples: list[Sample] = []
        self._failure = ""

    def __enter__(self) -> Telemetry:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(_JOIN_SECONDS)  # a driver that hangs must not delay the run

    def run(self) -> None:
        """Takes samples until the end; an error ends only the telemetry."""
        try:
            self._samples.append(self._sample())
            while not self._pause(_INTERVAL_SECONDS):
                self._samples.append(self._sample())
            self._samples.append(self._sample())
        except Exception as error:
            self._failure = f"{type(error).__name__}: {error}"

    def _sample(self) -> Sample:
        cpu = contention.read(self._root, self._clock, self._cpu_seconds)
        return cpu, [_look(gpu, divided) for gpu, divided in zip(self._gpus, self._divided, strict=True)]

    def summary(self) -> dict[str, Any]:
        """Returns the telemetry so far, as `Measurement.telemetry` holds it; empty without samples."""
        samples = list(self._samples)
        if self._failure:
            return {"failure": self._failure}
        if not samples:
            return {}
        (first, _), (last, _) = samples[0], samples[-1]
        seconds = last.at_seconds - first.at_seconds
        if seconds <= 0:
            return {}
        gpus = [
            {"index": gpu.index, "uuid": name, **_of_gpu(seconds, [seen[number] for _, seen in samples])}
            for number, (gpu, name) in enumerate(zip(self._gpus, self._names, strict=True))
        ]
        others = contention.cores_used_by_others(first, last) if seconds >= _MIN_COUNTED_SECONDS else None
        return {
            "window_seconds": seconds,
            "samples": len(samples),
            "cpu_cores_used": (last.own_seconds - first.own_seconds) / seconds,
            "cpu_cores_used_by_others": others,
            "gpus": gpus,
        }


def prepared_telemetry(devices: Devices, place: Place) -> Telemetry:
    """Returns the telemetry, to be entered, of this process and its physical GPUs. Without any, no driver is opened."""
    gpus = 0 if place.hosts else devices.physical_gpus  # with hosts, it does not see the other workers' devices
    return Telemetry(nvml.opened().gpus[:gpus] if gpus else ())


def _of_gpu(seconds: float, seen: Sequence[GpuSample]) -> dict[str, Any]:
    clocks = [one.clock_mhz for one in seen]
    halves = (_summary(clocks[: len(seen) // 2]), _summary(clocks[-(len(seen) // 2) :]))
    reasons = [one.slowed_by for one in seen if one.slowed_by is not None]
    return {
        "clock_mhz": _summary(clocks),
        "clock_mhz_by_half": [half and half["mean"] for half in halves],
        "temperature_celsius": _summary([one.temperature_celsius for one in seen]),
        "busy_share": _summary([one.busy_share for one in seen]),
        "slowed_shares": {
            why: sum(why in each for each in reasons) / len(reasons) for why in sorted({w for r in reasons for w in r})
        },
        "power_watts": _summary([one.power_watts for one in seen]),
        "energy_joules": _gpu_joules(seconds, seen),
        "peak_memory_bytes": max(_known([one.used_bytes for one in seen]), default=None),
    }


def _gpu_joules(seconds: float, seen: Sequence[GpuSample]) -> float | None:
    """Returns the difference of the driver's count if it has one, otherwise what the mean power amounts to."""
    if seconds < _MIN_ENERGY_SECONDS:
        return None
    first, last = seen[0].energy_joules, seen[-1].energy_joules
    if first is not None and last is not None and last >= first:
        return last - first
    watts = _known([one.power_watts for one in seen])
    return seconds * statistics.fmean(watts) if len(watts) == len(seen) else None


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _summary(values: Sequence[float | None]) -> dict[str, float] | None:
    known = _known(values)
    return {"min": min(known), "mean": statistics.fmean(known), "max": max(known)} if known else None
