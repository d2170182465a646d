"""What GPUs and host did while steps were measured: clocks, power, memory, looked at once a second from a thread.

Imports no TensorFlow. What cannot be seen is None, never an estimate.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import resource
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure.timing import Clock
from benchmarks.system import linux, nvml
from benchmarks.system.linux import PackageCounters
from benchmarks.system.nvml import DriverGpu
from results.measurement import POWER_LIMIT

# Whose energy is set against images.
GPU_ONLY = "GPU only"
CPU_PACKAGE = "CPU package"
_INTERVAL_SECONDS = 1.0
# A shorter window holds too few of the readings that the driver itself takes, some of which are means of a second.
_MIN_ENERGY_SECONDS = 1.0
_JOIN_SECONDS = 5.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GpuSample:
    """One GPU at one moment; None is what the driver does not tell.

    Attributes:
        clock_mhz: of its multiprocessors.
        temperature_celsius: of the chip.
        slowed_by: what holds the clock down, in words.
        busy_share: of the driver's last interval (up to a second), in how much of it something ran, 0 to 1.
        power_watts: of the whole board.
        energy_joules: the driver's own count since it was loaded.
        used_bytes: memory that is taken, by whomever.
    """

    clock_mhz: float | None = None
    temperature_celsius: float | None = None
    slowed_by: Sequence[str] | None = None
    busy_share: float | None = None
    power_watts: float | None = None
    energy_joules: float | None = None
    used_bytes: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One moment.

    Attributes:
        at_seconds: when, by the clock.
        cpu_seconds: what this process has used so far, of all cores.
        resident_bytes: its memory; None where /proc does not tell.
        package_microjoules: the counters of the CPU packages; None where one cannot be read, or there is none.
        gpus: in the order of `Sources.gpus`.
    """

    at_seconds: float
    cpu_seconds: float
    resident_bytes: int | None
    package_microjoules: Sequence[int] | None
    gpus: Sequence[GpuSample]


class Sources:
    """Where samples come from; tests put others here.

    Args:
        gpus: to be asked in each sample.
        root: holds `proc` and `sys`.
        clock: seconds, monotonic.
        cpu_seconds: what this process has used so far.
    """

    def __init__(
        self,
        gpus: Sequence[DriverGpu] = (),
        root: Path = Path("/"),
        clock: Clock = time.perf_counter,
        cpu_seconds: Callable[[], float] = time.process_time,
    ) -> None:
        self._root, self._clock, self._cpu_seconds = root, clock, cpu_seconds
        self.gpus = list({gpu.index: gpu for gpu in gpus}.values())
        # What a MIG instance uses is not told, only what the whole GPU does, which others may use as well.
        self._divided = [(gpu.ask("nvmlDeviceGetMigMode") or (0,))[0] == 1 for gpu in self.gpus]
        self.names = [nvml.text(gpu.ask("nvmlDeviceGetUUID") or f"{self.host()}/{gpu.index}") for gpu in self.gpus]
        self.packages = PackageCounters(root)

    def host(self) -> str:
        """Returns what processes on one host, and no others, have in common until it is started anew."""
        return (linux.text(self._root / "proc/sys/kernel/random/boot_id") or "")[:8]

    def sample(self) -> Sample:
        """Returns what can be seen now."""
        pages = (linux.text(self._root / "proc/self/statm") or "").split()
        return Sample(
            at_seconds=self._clock(),
            cpu_seconds=self._cpu_seconds(),
            resident_bytes=int(pages[1]) * resource.getpagesize() if len(pages) > 1 else None,
            package_microjoules=self.packages.read(),
            gpus=[_look(gpu, divided) for gpu, divided in zip(self.gpus, self._divided, strict=True)],
        )


def _look(gpu: DriverGpu, divided: bool) -> GpuSample:
    ask = gpu.ask
    reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons")
    limited = [POWER_LIMIT] if reasons and reasons & gpu.driver.nvmlClocksThrottleReasonSwPowerCap else []
    own = GpuSample(
        clock_mhz=ask("nvmlDeviceGetClockInfo", gpu.driver.NVML_CLOCK_SM),
        temperature_celsius=ask("nvmlDeviceGetTemperature", gpu.driver.NVML_TEMPERATURE_GPU),
        slowed_by=None if reasons is None else gpu.slowed_by(reasons) + limited,
    )
    if divided:
        return own
    used, memory = ask("nvmlDeviceGetUtilizationRates"), ask("nvmlDeviceGetMemoryInfo")
    milliwatts, millijoules = ask("nvmlDeviceGetPowerUsage"), ask("nvmlDeviceGetTotalEnergyConsumption")
    return dataclasses.replace(
        own,
        busy_share=None if used is None else used.gpu / 100,
        power_watts=None if milliwatts is None else milliwatts / 1000,
        energy_joules=None if millijoules is None else millijoules / 1000,
        used_bytes=None if memory is None else memory.used,
    )


class Telemetry:
    """Looks at once, then in every interval, and a last time when it ends; each time from a thread of its own.

    A sample of eight GPUs takes 2 KB.

    Args:
        sources: what is looked at.
        energy_of: whose energy is set against images: `GPU_ONLY`, `CPU_PACKAGE`, or nothing where that of others which
            take part is not seen.
        interval_seconds: between samples.
        pause: waits so long, and returns whether to end; None for a thread's event.
    """

    def __init__(
        self,
        sources: Sources,
        *,
        energy_of: str = "",
        interval_seconds: float = _INTERVAL_SECONDS,
        pause: Callable[[float], bool] | None = None,
    ) -> None:
        self._sources, self._energy_of, self._interval = sources, energy_of, interval_seconds
        self._stopped = threading.Event()
        self._pause = pause or self._stopped.wait
        self._thread = threading.Thread(target=self.run, name="telemetry", daemon=True)
        self._samples: list[Sample] = []
        self._own_seconds = 0.0
        self._failure = ""

    def __enter__(self) -> Telemetry:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(_JOIN_SECONDS)  # a driver that does not answer must not hold up a run

    def run(self) -> None:
        """Takes samples until the end; what goes wrong ends only this."""
        try:
            self._take()
            while not self._pause(self._interval):
                self._take()
            self._take()
        except Exception as error:
            self._failure = f"{type(error).__name__}: {error}"

    def _take(self) -> None:
        begin = time.thread_time()
        self._samples.append(self._sources.sample())
        self._own_seconds += time.thread_time() - begin

    def summary(self) -> dict[str, Any]:
        """Returns what was seen until now, as `results.measurement.Measurement.telemetry` holds it; may be empty."""
        samples = list(self._samples)
        if self._failure:
            return {"failure": self._failure}
        seconds = samples[-1].at_seconds - samples[0].at_seconds if samples else 0.0
        if seconds <= 0:
            return {}
        gpus = [
            {"index": gpu.index, "uuid": name, **_of_gpu(samples, number)}
            for number, (gpu, name) in enumerate(zip(self._sources.gpus, self._sources.names, strict=True))
        ]
        package_joules = None
        if seconds >= _MIN_ENERGY_SECONDS:
            package_joules = self._sources.packages.joules([sample.package_microjoules for sample in samples])
        cpu_seconds = samples[-1].cpu_seconds - samples[0].cpu_seconds
        joules = {
            GPU_ONLY: {gpu["uuid"]: gpu["energy_joules"] for gpu in gpus},
            CPU_PACKAGE: {self._sources.host(): package_joules},
        }.get(self._energy_of, {})
        return {
            "window_seconds": seconds,
            "samples": len(samples),
            "sampling_cpu_share": self._own_seconds / seconds,
            "cpu_cores_used": cpu_seconds / seconds,
            "resident_bytes": _summary([sample.resident_bytes for sample in samples]),
            "cpu_package_joules": package_joules,
            "gpus": gpus,
            "energy_of": self._energy_of,
            "mean_watts": {name: None if used is None else used / seconds for name, used in joules.items()},
        }


@contextlib.contextmanager
def prepared(physical_gpus: int, energy_of: str) -> Iterator[Telemetry]:
    """Yields what looks at the first so many of the visible GPUs, and at this process, once it is entered.

    Args:
        physical_gpus: how many the run uses; 0 does not ask the driver at all.
        energy_of: see `Telemetry`.
    """
    with contextlib.ExitStack() as stack:
        driver = stack.enter_context(nvml.opened()) if physical_gpus else nvml.Driver()
        yield Telemetry(Sources(driver.gpus[:physical_gpus]), energy_of=energy_of)


def _of_gpu(samples: Sequence[Sample], number: int) -> dict[str, Any]:
    seen = [sample.gpus[number] for sample in samples]
    clocks = [one.clock_mhz for one in seen]
    half = len(seen) // 2
    reasons = [one.slowed_by for one in seen if one.slowed_by is not None]
    return {
        "clock_mhz": _summary(clocks),
        "clock_mhz_by_half": [_mean(clocks[:half]), _mean(clocks[-half:])],
        "temperature_celsius": _summary([one.temperature_celsius for one in seen]),
        "busy_share": _summary([one.busy_share for one in seen]),
        "slowed_shares": {
            why: sum(why in each for each in reasons) / len(reasons) for why in sorted({w for r in reasons for w in r})
        },
        "power_watts": _summary([one.power_watts for one in seen]),
        "energy_joules": _gpu_joules([sample.at_seconds for sample in samples], seen),
        "peak_memory_bytes": max(_known([one.used_bytes for one in seen]), default=None),
    }


def _gpu_joules(at_seconds: Sequence[float], seen: Sequence[GpuSample]) -> float | None:
    """Returns the difference of the driver's count if it has one, else the power integrated (trapezoids)."""
    if at_seconds[-1] - at_seconds[0] < _MIN_ENERGY_SECONDS:
        return None
    first, last = seen[0].energy_joules, seen[-1].energy_joules
    if first is not None and last is not None and last >= first:
        return last - first
    watts = _known([one.power_watts for one in seen])
    if len(watts) < len(seen):
        return None
    steps = zip(itertools.pairwise(at_seconds), itertools.pairwise(watts), strict=True)
    return sum((end - begin) * (before + after) / 2 for (begin, end), (before, after) in steps)


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _summary(values: Sequence[float | None]) -> dict[str, float] | None:
    known = _known(values)
    return {"min": min(known), "mean": statistics.fmean(known), "max": max(known)} if known else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = _known(values)
    return statistics.fmean(known) if known else None
