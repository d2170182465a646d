"""Can TensorFlow use the GPUs, and are they quiet enough to measure on? Asks NVIDIA's driver once, no TensorFlow."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.doctor.machine import Observation, observed
from benchmarks.errors import BenchError
from benchmarks.machine import gpu_support, hardware, nvml
from benchmarks.machine.nvml import Driver, DriverGpu
from benchmarks.machine.provenance import describe_software

_BUSY_PERCENT = 5
_CLOCK_SHARE = 0.95
_NEAR_CELSIUS = 10


def look(environment: Mapping[str, str] = os.environ, driver: Any = None) -> list[Observation]:
    """Checks the GPUs that CUDA_VISIBLE_DEVICES leaves visible; without a driver there are none.

    Call it before this process uses a GPU: in a container the driver may know this process by another id. `driver` is a
    module like pynvml; None: pynvml.
    """
    try:
        with nvml.opened(environment, driver) as opened:
            gpus = {gpu.index: gpu for gpu in opened.gpus}.values()
            checks = (functools.partial(_software, opened), _use, _clock, _state, _memory_errors)
            return [found for gpu in gpus for check in checks for found in check(gpu)]
    except BenchError as error:
        return [observed("GPU driver", "no answer", True, str(error))]


def _software(opened: Driver, gpu: DriverGpu) -> Iterator[Observation]:
    """Checks whether TensorFlow, the driver and cuDNN have code for the GPU; yields nothing for an unknown one."""
    software, described = describe_software(), hardware.describe_gpu(gpu)
    if described.compute_capability is None:
        return
    names = ("TensorFlow", "cuDNN", "driver's CUDA")
    versions = (software["tensorflow_version"], software["cudnn_version"], opened.cuda_version)
    seen = ", ".join(f"{name} {version}" for name, version in zip(names, versions, strict=True) if version)
    found = gpu_support.judge({described.name: described.compute_capability}, opened.cuda_version, software)
    advice = " ".join(one.sentence for one in found if one.is_fatal)
    yield observed(f"GPU {gpu.index} software", seen, bool(advice), advice)


def _use(gpu: DriverGpu) -> Iterator[Observation]:
    load, processes = gpu.ask("nvmlDeviceGetUtilizationRates"), gpu.ask("nvmlDeviceGetComputeRunningProcesses")
    users = ", ".join(f"pid {one.pid}" for one in processes or () if one.pid != os.getpid())
    is_busy = load is not None and load.gpu > _BUSY_PERCENT
    seen = ("" if load is None else f"{load.gpu}% busy, ") + (
        f"used by {users}" if users else "no other process is seen"
    )
    advice = (
        "End the processes that use it, or choose another GPU with --gpus (nvidia-smi lists processes; in a container, "
        "not all)."
    )
    is_seen = load is not None or processes is not None
    yield observed(f"GPU {gpu.index} use", seen if is_seen else "", bool(users) or is_busy, advice)


def _clock(gpu: DriverGpu) -> Iterator[Observation]:
    """Checks whether the clock is held down. An idle GPU's clock is low, which is no fault."""
    clock = gpu.ask("nvmlDeviceGetClockInfo", gpu.driver.NVML_CLOCK_SM)
    wanted = gpu.ask("nvmlDeviceGetApplicationsClock", gpu.driver.NVML_CLOCK_SM)
    # The name that drivers before 535 know, too.
    reasons = gpu.ask("nvmlDeviceGetCurrentClocksThrottleReasons")
    slowed_by = gpu.slowed_by(reasons or 0)
    is_idle = None if reasons is None else bool(reasons & gpu.driver.nvmlClocksThrottleReasonGpuIdle)
    words = [] if clock is None else [f"{clock} MHz" + (f" of {wanted} MHz" if wanted else "")]
    words += ["idle"] if is_idle else []
    words += [f"held down by {why}" for why in slowed_by]
    is_low = bool(clock and wanted and is_idle is False and clock < _CLOCK_SHARE * wanted)
    advice = (
        "Its steps take longer than they should: check its cooling, its power and the clock that is set (nvidia-smi -q "
        "-d CLOCK,PERFORMANCE)."
    )
    yield observed(f"GPU {gpu.index} clock", ", ".join(words), is_low or bool(slowed_by), advice)


def _state(gpu: DriverGpu) -> Iterator[Observation]:
    celsius = gpu.ask("nvmlDeviceGetTemperature", gpu.driver.NVML_TEMPERATURE_GPU)
    limit = gpu.ask("nvmlDeviceGetTemperatureThreshold", gpu.driver.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
    seen = "" if celsius is None else f"{celsius} °C" + (f", slows down at {limit} °C" if limit else "")
    is_hot = bool(seen and limit and celsius > limit - _NEAR_CELSIUS)
    advice = "It is about to slow down: let it cool, and check fans and air flow."
    yield observed(f"GPU {gpu.index} temperature", seen, is_hot, advice)
    is_on = gpu.ask("nvmlDeviceGetPersistenceMode")
    advice = "Between two runs the driver is unloaded and forgets the clocks that were set: sudo nvidia-smi -pm 1."
    yield observed(f"GPU {gpu.index} persistence mode", {None: "", 0: "off"}.get(is_on, "on"), is_on == 0, advice)


def _memory_errors(gpu: DriverGpu) -> Iterator[Observation]:
    """Yields nothing for memory without error correction, which has no errors to report."""
    uncorrected = (gpu.driver.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, gpu.driver.NVML_VOLATILE_ECC)
    errors = gpu.ask("nvmlDeviceGetTotalEccErrors", *uncorrected)
    rows = gpu.ask("nvmlDeviceGetRemappedRows")
    retiring = gpu.ask("nvmlDeviceGetRetiredPagesPendingStatus")
    if errors is None and rows is None and retiring is None:
        return
    _, _, remapping, failed = rows or (0, 0, 0, 0)
    faults = {
        f"{errors} uncorrected errors since the driver was loaded": errors,
        "rows wait to be replaced": remapping,
        "rows could not be replaced": failed,
        "pages wait to be retired": retiring,
    }
    found = ", ".join(words for words, is_so in faults.items() if is_so)
    advice = (
        "Reset the GPU (sudo nvidia-smi --gpu-reset) or restart the machine; if the errors return, replace the GPU."
    )
    yield observed(f"GPU {gpu.index} memory errors", found or "none", bool(found), advice)
