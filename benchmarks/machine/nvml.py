"""The only module that talks to NVIDIA's driver (NVML), about the GPUs that may be used. Imports no TensorFlow."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import itertools
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.errors import BenchError, UsageError
from benchmarks.machine import linux
from benchmarks.outside_text import whole_number

ROOT = Path("/")  # holds `dev` and `sys`
_IN_WSL = Path("usr/lib/wsl/lib/libnvidia-ml.so.1")
_ANSWER_SECONDS = 60.0
# Words of CUDA_VISIBLE_DEVICES that are meant to hide all GPUs: nothing, also in quotes, -1, Slurm's NoDevFiles, void.
_HIDES_ALL = re.compile(r"""(-\d+|no[a-z]*|void|''|"")?""", re.IGNORECASE)
_OTHER_DRIVERS = ("nouveau", "vfio-pci")  # which do not let CUDA have a GPU
_OF_NVIDIA, _DISPLAY = "0x10de", "0x03"  # of PCI devices: the vendor, and how the class begins
# Reasons for a lowered clock, by pynvml's names. A power limit is not one: it is usual under full load.
SLOWED_BY = {
    "nvmlClocksThrottleReasonHwThermalSlowdown": "heat (hardware)",
    "nvmlClocksThrottleReasonSwThermalSlowdown": "heat (driver)",
    "nvmlClocksThrottleReasonHwPowerBrakeSlowdown": "power brake",
    "nvmlClocksThrottleReasonHwSlowdown": "hardware slowdown",
}


@dataclasses.dataclass(frozen=True)
class DriverGpu:
    """One GPU while the driver is open: its number in the driver, the driver, and the driver's handle.

    `instance` is the handle of the MIG instance that CUDA shows of it; None: it is whole, or none is known.
    """

    index: int
    driver: Any
    handle: Any
    instance: Any = None

    def ask(self, what: str, *which: int) -> Any:
        """Returns the driver's answer to one of pynvml's queries about this GPU; None if there is none."""
        try:
            return getattr(self.driver, what)(self.handle, *which)
        except (self.driver.NVMLError, UnicodeDecodeError):  # in WSL, driver 555 has names that are no text
            return None

    @property
    def is_divided(self) -> bool:
        """Whether it is divided into MIG instances, of which programs see one."""
        enabled, *_ = self.ask("nvmlDeviceGetMigMode") or (0,)
        return bool(enabled)

    def slowed_by(self, reasons: int) -> list[str]:
        """Returns the reasons for a lowered clock in words, from the driver's bits."""
        return [why for name, why in SLOWED_BY.items() if reasons & getattr(self.driver, name)]


@dataclasses.dataclass(frozen=True)
class Driver:
    """The GPUs that CUDA shows, in the order of CUDA_VISIBLE_DEVICES, and the driver's version.

    `cuda_version` is the newest CUDA that the driver supports, such as `12.8`. `problem` is why GPUs are missing.
    """

    gpus: tuple[DriverGpu, ...] = ()
    version: str | None = None
    cuda_version: str | None = None
    problem: str = ""


def opened(environment: Mapping[str, str] = os.environ, driver: Any = None) -> Driver:
    """Opens the driver, a module like pynvml, until this process ends; without a driver there are no GPUs.

    Without persistence mode, GPUs are initialised by the first process that opens the driver, in 1 to 3 seconds each,
    and deinitialised when the last one closes it (NVIDIA, Driver Persistence): a run would pay that several times.

    Raises:
        BenchError: the driver hangs, or the package that asks it is too old.
    """
    import pynvml

    return _within_limit(lambda: _open(driver or pynvml, environment))


def _within_limit(ask: Callable[[], Driver]) -> Driver:
    """Asks the driver in a thread, since a call into a driver that hangs never returns, and no signal ends it."""
    answer: concurrent.futures.Future[Driver] = concurrent.futures.Future()

    def fulfil() -> None:
        try:
            answer.set_result(ask())
        except Exception as error:
            answer.set_exception(error)

    thread = threading.Thread(target=fulfil, name="NVML", daemon=True)
    thread.start()
    thread.join(_ANSWER_SECONDS)  # some of what follows needs a process with a single thread
    if thread.is_alive():
        raise BenchError(
            f"NVIDIA's driver has not answered for {_ANSWER_SECONDS:g} s (nvidia-smi would hang, too): restart the "
            "machine, or run on the CPU with --device=cpu."
        )
    return answer.result()


def hides_all(environment: Mapping[str, str]) -> bool:
    """Returns whether CUDA_VISIBLE_DEVICES is meant to hide all GPUs."""
    setting = environment.get("CUDA_VISIBLE_DEVICES")
    return setting is not None and _HIDES_ALL.fullmatch(setting.partition(",")[0].strip()) is not None


def _open(driver: Any, environment: Mapping[str, str]) -> Driver:
    setting, are_hidden = environment.get("CUDA_VISIBLE_DEVICES"), hides_all(environment)
    try:
        driver.nvmlInit()
        count = driver.nvmlDeviceGetCount()
    except driver.NVMLError as error:
        return Driver(problem="" if are_hidden else _why_not_started(error, driver))
    every, problems = [], []
    for index in range(count):
        try:
            every.append(DriverGpu(index, driver, driver.nvmlDeviceGetHandleByIndex(index)))
        except driver.NVMLError as error:  # such as one that has fallen off its bus
            if error.value != driver.NVML_ERROR_NO_PERMISSION:  # that of a GPU which a scheduler has given to others
                problems.append(f"GPU {index} of the driver does not answer ({error})")
    version = cuda = None
    with contextlib.suppress(driver.NVMLError, UnicodeDecodeError):
        version = driver.nvmlSystemGetDriverVersion()
    if isinstance(version, bytes):
        raise UsageError(
            "An old package 'pynvml' hides that of nvidia-ml-py, and its texts are bytes: run "
            f"{sys.executable} -m pip install 'pynvml>=11.5', or uninstall pynvml."
        )
    with contextlib.suppress(driver.NVMLError):
        number = driver.nvmlSystemGetCudaDriverVersion()  # such as 12080
        cuda = f"{number // 1000}.{number % 1000 // 10}"
    indices = visible_indices(len(every), environment, lambda name: _index_of(name, every, driver))
    gpus = _shown_by_cuda([every[index] for index in indices], environment)
    if every and not gpus:
        which = f"it must begin with one of the driver's, 0 to {len(every) - 1}, and name none twice"
        problems.append(f"CUDA_VISIBLE_DEVICES='{setting}' shows no GPU: {which}")
    return Driver(gpus, version, cuda, "" if are_hidden else "; ".join(problems))


def _why_not_started(error: Any, driver: Any) -> str:
    """Returns why there are no GPUs; nothing on a machine without any, as far as Linux shows."""
    hint = ""
    if error.value == driver.NVML_ERROR_LIBRARY_NOT_FOUND:
        hint = "; a container needs --gpus, and 'utility' in NVIDIA_DRIVER_CAPABILITIES"
        if (ROOT / _IN_WSL).exists():
            hint = f"; /{_IN_WSL.parent} must be in LD_LIBRARY_PATH"
        elif not any((ROOT / "dev").glob("nvidia[0-9]*")):
            return ""
    elif error.value == driver.NVML_ERROR_DRIVER_NOT_LOADED:
        every = (ROOT / "sys/bus/pci/devices").glob("*")
        devices = [device for device in every if (device / "driver").resolve().name not in _OTHER_DRIVERS]
        facts = [(linux.text(device / "vendor"), linux.text(device / "class") or "") for device in devices]
        if not any(vendor == _OF_NVIDIA and kind.startswith(_DISPLAY) for vendor, kind in facts):
            return ""
    return f"NVIDIA's driver does not start ({error}{hint})"


def _shown_by_cuda(gpus: list[DriverGpu], environment: Mapping[str, str]) -> tuple[DriverGpu, ...]:
    """Returns one GPU if any of them is divided: CUDA then shows a process one instance, and no whole GPU beside it.

    NVIDIA's MIG user guide, "CUDA Device Enumeration".
    """
    for gpu in gpus:
        if gpu.is_divided and (instances := list(_instances(gpu, environment))):
            return (dataclasses.replace(gpu, instance=instances[0]),)
    return tuple(gpus)


def _instances(gpu: DriverGpu, environment: Mapping[str, str]) -> Iterator[Any]:
    """Yields the handles of a divided GPU's instances, first that which CUDA_VISIBLE_DEVICES names."""
    name = environment.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0].strip()
    if name.startswith("MIG-"):
        with contextlib.suppress(gpu.driver.NVMLError):
            yield gpu.driver.nvmlDeviceGetHandleByUUID(name)
    for number in range(gpu.ask("nvmlDeviceGetMaxMigDeviceCount") or 0):
        if (handle := gpu.ask("nvmlDeviceGetMigDeviceHandleByIndex", number)) is not None:
            yield handle


def _index_of(name: str, every: list[DriverGpu], driver: Any) -> int | None:
    """Returns the position of the GPU with this start of its UUID, or with this MIG instance."""
    if name.startswith("GPU-"):
        named = ((gpu.ask("nvmlDeviceGetUUID") or "").startswith(name) for gpu in every)
        return next(itertools.compress(itertools.count(), named), None)
    try:
        whole = driver.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(driver.nvmlDeviceGetHandleByUUID(name))
        index = int(driver.nvmlDeviceGetIndex(whole))
    except driver.NVMLError:
        return None
    return next((position for position, gpu in enumerate(every) if gpu.index == index), None)


def visible_indices(
    count: int, environment: Mapping[str, str], index_of: Callable[[str], int | None] = lambda name: None
) -> list[int]:
    """Returns which of `count` GPUs CUDA shows, each once: those before the first word that is none.

    If a GPU stands twice, CUDA shows none (PyTorch, torch/cuda/__init__.py); MIG instances of one GPU are not the same.
    `index_of` finds the GPU that a UUID (`GPU-...`, `MIG-...`) names; if it returns None, one is assumed.
    """
    setting = environment.get("CUDA_VISIBLE_DEVICES")
    if setting is None or not count:
        return list(range(count))
    indices: list[int] = []
    words = [*map(str.strip, setting.split(","))]
    for place, word in enumerate(words):
        if word.startswith(("GPU-", "MIG-")):
            index = index_of(word)
        elif (index := whole_number(word)) is None or index >= count:
            break
        if word in words[:place] or index in indices and not word.startswith("MIG-"):
            return []
        indices.append(min(len(indices), count - 1) if index is None else index)
    return list(dict.fromkeys(indices))


def bus_id(info: Any) -> str:
    """Returns a PCI address as Linux writes it: the domain has four digits, and the driver's eight."""
    if not info:
        return ""
    domain, _, rest = info.busId.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"
