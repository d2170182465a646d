"""Are the GPUs quiet enough to be measured on? What NVIDIA's driver says of them at one moment, and what to do."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.doctor.observation import UNSEEN, Observation, judged
from benchmarks.system import nvml
from benchmarks.system.nvml import DriverGpu

_BUSY_SHARE = 0.05
_CLOCK_SHARE = 0.95
_NEAR_CELSIUS = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class GpuState:
    """One GPU at one moment; None is what the driver does not know or tell.

    Attributes:
        index: as the driver counts.
        busy_share: of the last moments in which something ran on it, 0 to 1.
        tenants: process ids that compute on it, this process left out.
        slowed_by: why its clock is held down, in words.
        is_idle: whether its clock is low since nothing runs.
        is_persistent: whether the driver stays loaded when nobody uses the GPU.
        clock_mhz: of its multiprocessors.
        application_clock_mhz: what they should have under load.
        temperature_celsius: of the chip.
        slowdown_celsius: where it begins to slow down.
        memory_faults: what is wrong with its memory, in words.
    """

    index: int
    busy_share: float | None = None
    tenants: Sequence[int] | None = None
    slowed_by: Sequence[str] | None = None
    is_idle: bool | None = None
    is_persistent: bool | None = None
    clock_mhz: int | None = None
    application_clock_mhz: int | None = None
    temperature_celsius: int | None = None
    slowdown_celsius: int | None = None
    memory_faults: Sequence[str] | None = None


def read_all(environment: Mapping[str, str] = os.environ, driver: Any = None) -> list[GpuState]:
    """Returns the GPUs that CUDA_VISIBLE_DEVICES leaves visible; none without a driver.

    To be called before this process uses a GPU: in a container the driver may know it by another process id.

    Args:
        environment: the environment variables.
        driver: a module with what pynvml has; None for pynvml.
    """
    with nvml.opened(environment, driver) as opened:
        return [_read(gpu) for gpu in {gpu.index: gpu for gpu in opened.gpus}.values()]


def _read(gpu: DriverGpu) -> GpuState:
    ask, driver = gpu.ask, gpu.driver
    used, tenants = ask("nvmlDeviceGetUtilizationRates"), ask("nvmlDeviceGetComputeRunningProcesses")
    # By the name that drivers before 535 know, too.
    reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons")
    uncorrected = (driver.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, driver.NVML_VOLATILE_ECC)
    return GpuState(
        index=gpu.index,
        busy_share=None if used is None else used.gpu / 100,
        tenants=None if tenants is None else [one.pid for one in tenants if one.pid != os.getpid()],
        slowed_by=None if reasons is None else gpu.slowed_by(reasons),
        is_idle=None if reasons is None else bool(reasons & driver.nvmlClocksThrottleReasonGpuIdle),
        is_persistent=ask("nvmlDeviceGetPersistenceMode"),
        clock_mhz=ask("nvmlDeviceGetClockInfo", driver.NVML_CLOCK_SM),
        application_clock_mhz=ask("nvmlDeviceGetApplicationsClock", driver.NVML_CLOCK_SM),
        temperature_celsius=ask("nvmlDeviceGetTemperature", driver.NVML_TEMPERATURE_GPU),
        slowdown_celsius=ask("nvmlDeviceGetTemperatureThreshold", driver.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),
        memory_faults=_memory_faults(
            ask("nvmlDeviceGetTotalEccErrors", *uncorrected),
            ask("nvmlDeviceGetRemappedRows"),
            ask("nvmlDeviceGetRetiredPagesPendingStatus"),
        ),
    )


def _memory_faults(errors: int | None, rows: Sequence[int] | None, retiring: int | None) -> list[str] | None:
    """Returns what is wrong; None if nothing is told, as of memory without error correction."""
    if errors is None and rows is None and retiring is None:
        return None
    _, _, remapping, failed = rows or (0, 0, 0, 0)
    found = {
        f"{errors} uncorrected errors since the driver was loaded": errors,
        "rows wait to be replaced": remapping,
        "rows could not be replaced": failed,
        "pages wait to be retired": retiring,
    }
    return [words for words, is_so in found.items() if is_so]


def observe(gpu: GpuState) -> Iterator[Observation]:
    """Yields what is to be said of one GPU."""
    name = f"GPU {gpu.index}"
    yield _use(f"{name} use", gpu)
    yield _clock(f"{name} clock", gpu)
    yield _temperature(f"{name} temperature", gpu)
    if gpu.is_persistent is None:
        yield Observation(f"{name} persistence mode", UNSEEN)
    else:
        yield judged(
            f"{name} persistence mode",
            "on" if gpu.is_persistent else "off",
            not gpu.is_persistent,
            "Between two runs the driver is unloaded, and clocks that were set are forgotten: sudo nvidia-smi -pm 1.",
        )
    if gpu.memory_faults is not None:
        yield judged(
            f"{name} memory errors",
            ", ".join(gpu.memory_faults) or "none",
            bool(gpu.memory_faults),
            "Reset the GPU (sudo nvidia-smi --gpu-reset) or start the machine anew; if they come back, replace it.",
        )


def _use(name: str, gpu: GpuState) -> Observation:
    if gpu.busy_share is None and gpu.tenants is None:
        return Observation(name, UNSEEN)
    who = ", ".join(f"pid {pid}" for pid in gpu.tenants or ())
    busy = [] if gpu.busy_share is None else [f"{gpu.busy_share:.0%} busy"]
    return judged(
        name,
        ", ".join([*busy, f"used by {who}" if who else "no other process is seen"]),
        bool(who) or (gpu.busy_share or 0.0) > _BUSY_SHARE,
        "End what uses it, or choose another GPU with --gpus (nvidia-smi lists processes; in a container, not all).",
    )


def _clock(name: str, gpu: GpuState) -> Observation:
    """Says whether the clock is held down; that of an idle GPU is low, which is no fault."""
    if gpu.clock_mhz is None and gpu.slowed_by is None:
        return Observation(name, UNSEEN)
    clock, wanted = gpu.clock_mhz, gpu.application_clock_mhz
    words = [] if clock is None else [f"{clock} MHz" + (f" of {wanted} MHz" if wanted else "")]
    words += ["idle"] if gpu.is_idle else []
    is_low = bool(clock and wanted and gpu.is_idle is False and clock < _CLOCK_SHARE * wanted)
    return judged(
        name,
        ", ".join(words + [f"held down by {why}" for why in gpu.slowed_by or ()]),
        is_low or bool(gpu.slowed_by),
        "Its steps take longer than they should: look at its cooling and power, and at what clock is set "
        "(nvidia-smi -q -d CLOCK,PERFORMANCE).",
    )


def _temperature(name: str, gpu: GpuState) -> Observation:
    if gpu.temperature_celsius is None:
        return Observation(name, UNSEEN)
    limit = gpu.slowdown_celsius
    return judged(
        name,
        f"{gpu.temperature_celsius} °C" + (f", slows down at {limit} °C" if limit else ""),
        bool(limit and gpu.temperature_celsius > limit - _NEAR_CELSIUS),
        "Soon it slows down: let it cool, and look at fans and air.",
    )
