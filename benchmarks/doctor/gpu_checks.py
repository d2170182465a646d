"""Are the GPUs quiet enough to measure on? Asks NVIDIA's driver once. Needs no TensorFlow."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from benchmarks.doctor.machine import UNSEEN, Observation, observed
from benchmarks.system import nvml
from benchmarks.system.nvml import DriverGpu

_BUSY_PERCENT = 5
_CLOCK_SHARE = 0.95
_NEAR_CELSIUS = 10
# By check: why it matters, and what to try.
_ADVICE = {
    "use": "End the processes that use it, or choose another GPU with --gpus (nvidia-smi lists processes; in a "
    "container, not all).",
    "clock": "Its steps take longer than they should: check its cooling, its power and the clock that is set "
    "(nvidia-smi -q -d CLOCK,PERFORMANCE).",
    "temperature": "It is about to slow down: let it cool, and check fans and air flow.",
    "persistence mode": "Between two runs the driver is unloaded and forgets the clocks that were set: sudo nvidia-smi "
    "-pm 1.",
    "memory errors": "Reset the GPU (sudo nvidia-smi --gpu-reset) or restart the machine; if the errors return, "
    "replace the GPU.",
}
# What was checked, what was seen (nothing if the driver does not answer), and whether that disturbs.
_Seen = tuple[str, str, bool]


def look(environment: Mapping[str, str] = os.environ, driver: Any = None) -> list[Observation]:
    """Checks the GPUs that CUDA_VISIBLE_DEVICES leaves visible; without a driver there are none.

    Call it before this process uses a GPU: in a container the driver may know this process by another id.

    Args:
        environment: the environment variables.
        driver: a module like pynvml; None: pynvml.
    """
    found = []
    with nvml.opened(environment, driver) as opened:
        for index, gpu in {gpu.index: gpu for gpu in opened.gpus}.items():
            for check in (_use, _clock, _temperature, _persistence, _memory_errors):
                name, seen, is_disturbing = check(gpu)
                found.append(observed(f"GPU {index} {name}", seen, is_disturbing, _ADVICE[name]))
    # Memory without error correction has no errors to report.
    return [one for one in found if not (one.name.endswith("memory errors") and one.value == UNSEEN)]


def _use(gpu: DriverGpu) -> _Seen:
    load, processes = gpu.ask("nvmlDeviceGetUtilizationRates"), gpu.ask("nvmlDeviceGetComputeRunningProcesses")
    if load is None and processes is None:
        return "use", "", False
    users = ", ".join(f"pid {one.pid}" for one in processes or () if one.pid != os.getpid())
    busy = "" if load is None else f"{load.gpu}% busy, "
    is_busy = load is not None and load.gpu > _BUSY_PERCENT
    return "use", busy + (f"used by {users}" if users else "no other process is seen"), bool(users) or is_busy


def _clock(gpu: DriverGpu) -> _Seen:
    """Checks whether the clock is held down. An idle GPU's clock is low, which is no fault."""
    clock = gpu.ask("nvmlDeviceGetClockInfo", gpu.driver.NVML_CLOCK_SM)
    wanted = gpu.ask("nvmlDeviceGetApplicationsClock", gpu.driver.NVML_CLOCK_SM)
    # The name that drivers before 535 know, too.
    reasons = gpu.ask("nvmlDeviceGetCurrentClocksThrottleReasons")
    slowed_by = [] if reasons is None else gpu.slowed_by(reasons)
    is_idle = None if reasons is None else bool(reasons & gpu.driver.nvmlClocksThrottleReasonGpuIdle)
    words = [] if clock is None else [f"{clock} MHz" + (f" of {wanted} MHz" if wanted else "")]
    words += ["idle"] if is_idle else []
    words += [f"held down by {why}" for why in slowed_by]
    is_low = bool(clock and wanted and is_idle is False and clock < _CLOCK_SHARE * wanted)
    return "clock", ", ".join(words), is_low or bool(slowed_by)


def _temperature(gpu: DriverGpu) -> _Seen:
    celsius = gpu.ask("nvmlDeviceGetTemperature", gpu.driver.NVML_TEMPERATURE_GPU)
    limit = gpu.ask("nvmlDeviceGetTemperatureThreshold", gpu.driver.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
    if celsius is None:
        return "temperature", "", False
    slows_down = f", slows down at {limit} °C" if limit else ""
    return "temperature", f"{celsius} °C{slows_down}", bool(limit and celsius > limit - _NEAR_CELSIUS)


def _persistence(gpu: DriverGpu) -> _Seen:
    is_on = gpu.ask("nvmlDeviceGetPersistenceMode")
    return "persistence mode", "" if is_on is None else "on" if is_on else "off", is_on is not None and not is_on


def _memory_errors(gpu: DriverGpu) -> _Seen:
    uncorrected = (gpu.driver.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, gpu.driver.NVML_VOLATILE_ECC)
    errors = gpu.ask("nvmlDeviceGetTotalEccErrors", *uncorrected)
    rows = gpu.ask("nvmlDeviceGetRemappedRows")
    retiring = gpu.ask("nvmlDeviceGetRetiredPagesPendingStatus")
    if errors is None and rows is None and retiring is None:
        return "memory errors", "", False
    _, _, remapping, failed = rows or (0, 0, 0, 0)
    faults = {
        f"{errors} uncorrected errors since the driver was loaded": errors,
        "rows wait to be replaced": remapping,
        "rows could not be replaced": failed,
        "pages wait to be retired": retiring,
    }
    found = ", ".join(words for words, is_so in faults.items() if is_so)
    return "memory errors", found or "none", bool(found)
