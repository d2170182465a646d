"""Asking NVIDIA's driver about the GPUs that may be used: nothing else speaks with it. Imports no TensorFlow."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

# Why a clock is held down, by pynvml's names. A power limit is left out: it is the rule under full load.
SLOWED_BY = {
    "nvmlClocksThrottleReasonHwThermalSlowdown": "heat (hardware)",
    "nvmlClocksThrottleReasonSwThermalSlowdown": "heat (driver)",
    "nvmlClocksThrottleReasonHwPowerBrakeSlowdown": "power brake",
    "nvmlClocksThrottleReasonHwSlowdown": "hardware slowdown",
}


@dataclasses.dataclass(frozen=True)
class DriverGpu:
    """One GPU while the driver is open: its number as the driver counts, the driver, and the driver's handle."""

    index: int
    driver: Any
    handle: Any

    def ask(self, what: str, *which: int) -> Any:
        """Returns what the driver answers to one of pynvml's questions about this GPU; None if it does not."""
        try:
            return getattr(self.driver, what)(self.handle, *which)
        except self.driver.NVMLError:
            return None

    def slowed_by(self, reasons: int) -> list[str]:
        """Returns in words why the clock is held down, of the bits that the driver tells."""
        return [why for name, why in SLOWED_BY.items() if reasons & getattr(self.driver, name)]


@dataclasses.dataclass(frozen=True)
class Driver:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves visible, in that order, and the driver's version."""

    gpus: tuple[DriverGpu, ...] = ()
    version: str | None = None


@contextlib.contextmanager
def opened(environment: Mapping[str, str] = os.environ, driver: Any = None) -> Iterator[Driver]:
    """Yields the driver, which can be asked until the end; without one there are no GPUs.

    Args:
        environment: the environment variables.
        driver: a module with what pynvml has; None for pynvml.
    """
    import pynvml

    driver = driver or pynvml
    try:
        driver.nvmlInit()
    except driver.NVMLError:
        yield Driver()
        return
    try:
        yield _look(driver, environment)
    finally:
        with contextlib.suppress(driver.NVMLError):
            driver.nvmlShutdown()


def _look(driver: Any, environment: Mapping[str, str]) -> Driver:
    try:
        every = [
            DriverGpu(index, driver, driver.nvmlDeviceGetHandleByIndex(index))
            for index in range(driver.nvmlDeviceGetCount())
        ]
    except driver.NVMLError:
        return Driver()
    try:
        version = text(driver.nvmlSystemGetDriverVersion())
    except driver.NVMLError:
        version = None
    indices = visible_indices(len(every), environment, lambda name: _index_of(name, every, driver))
    return Driver(tuple(every[index] for index in indices), version)


def _index_of(name: str, every: list[DriverGpu], driver: Any) -> int | None:
    """Returns the number of the GPU whose UUID begins so, or of which this MIG instance is a part."""
    if name.startswith("GPU-"):
        return next((gpu.index for gpu in every if text(gpu.ask("nvmlDeviceGetUUID") or "").startswith(name)), None)
    try:
        whole = driver.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(driver.nvmlDeviceGetHandleByUUID(name))
        return int(driver.nvmlDeviceGetIndex(whole))
    except driver.NVMLError:
        return None


def visible_indices(
    count: int, environment: Mapping[str, str], index_of: Callable[[str], int | None] = lambda name: None
) -> list[int]:
    """Returns which of `count` GPUs CUDA would show: as CUDA does, it stops at the first index that is no GPU.

    Args:
        count: how many the driver has.
        environment: the environment variables.
        index_of: finds the GPU that a UUID (`GPU-...`, `MIG-...`) names; where it does not, one is assumed to be there.
    """
    setting = environment.get("CUDA_VISIBLE_DEVICES")
    if setting is None:
        return list(range(count))
    indices: list[int] = []
    for word in map(str.strip, setting.split(",")):
        if word.startswith(("GPU-", "MIG-")):
            found = index_of(word)
            indices.append(min(len(indices), max(count - 1, 0)) if found is None else found)
        elif word.isdigit() and int(word) < count:
            indices.append(int(word))
        else:
            break
    return indices[:count]


def text(value: str | bytes) -> str:
    """Returns what older versions of pynvml give as bytes."""
    return value.decode() if isinstance(value, bytes) else value
