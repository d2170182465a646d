"""Is this machine quiet enough to measure on? Reads /proc and /sys twice, and asks NVIDIA's driver. No TensorFlow.

Containers hide some files, and kernels differ: a number that cannot be read is NaN, never an error. Every comparison
with NaN is false, so what is hidden never counts as disturbing. An idle machine shows less than a loaded one: steal
time, heat and CPU limits appear only while something computes.
"""

from __future__ import annotations

import dataclasses
import math
import os
import resource
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.errors import BenchError
from benchmarks.machine import contention, linux, nvml
from benchmarks.machine.nvml import DriverGpu
from results.text import Table, counted

UNSEEN = "cannot be seen here"
# Of each check of the host: the largest value that does not disturb, and what to try if it is larger.
_LIMITS = {
    # Relative to `_bearable_cores`.
    "CPU used by others": (1.0, "End it or wait for it, or keep it off these cores (taskset, cpusets)."),
    "CPU used by others in the container": (
        1.0,
        "End the other processes in this container, or measure in another container.",
    ),
    "CPU limit of the container": (
        0.0,  # cores without time of their own
        "Threads on all cores use up the limit and are then stopped for a while: reserve cores for the container "
        "(docker --cpuset-cpus, Kubernetes' static CPU manager) instead of a share of time, or start it with taskset.",
    ),
    "stopped by the CPU limit": (
        0.0,  # share of the time
        "A process in this container has used up its CPU limit: end it, or raise the limit.",
    ),
    "CPU taken by the hypervisor": (
        0.01,
        "Other virtual machines use this host's cores: take a type with dedicated ones.",
    ),
    "memory": (
        0.9,  # share that is in use
        "Files that are read cannot stay in memory, and soon the machine swaps: end what holds the memory.",
    ),
    # MB per second.
    "swapping": (1.0, "Memory is short, and pages go to and from the disk: end what holds it."),
    "frequency governor": (
        0,  # governors other than `performance`
        "Cores are slow until they have been busy for a while: sudo cpupower frequency-set -g performance.",
    ),
    "slowdowns by heat": (0, "Let the machine cool down, and check its fans."),
}
_SECONDS = 2.0  # a shorter look misses what comes and goes
_CPUS = "sys/devices/system/cpu"
_MOST_NAMED = 3
_WORTH_NAMING_CORES = 0.01
_BUSY_PERCENT = 5
_CLOCK_SHARE = 0.95
_NEAR_CELSIUS = 10

# The name of each process and the CPU seconds it has used so far, by its id and start time, since ids are reused.
Processes = Mapping[tuple[int, float], tuple[str, float]]
Numbers = Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class Observation:
    """The result of one check.

    Attributes:
        name: what was checked.
        value: what was seen, with its unit; `UNSEEN` where a container, a kernel or a driver hides it.
        is_disturbing: whether it makes measurements differ.
        advice: why it matters and what to try; empty if it does not disturb.
    """

    name: str
    value: str
    is_disturbing: bool = False
    advice: str = ""


def observed(name: str, seen: str, is_disturbing: bool = False, advice: str = "") -> Observation:
    """Returns an observation: `UNSEEN` if nothing was seen, and with the advice only if it disturbs."""
    return Observation(name, seen or UNSEEN, is_disturbing, advice if is_disturbing else "")


def report(observations: Sequence[Observation]) -> list[str]:
    """Returns a table of what was seen, then what to do about what disturbs, and the verdict."""
    disturbing = [check for check in observations if check.is_disturbing]
    rows = [
        (check.name, "?" if check.value == UNSEEN else "disturbs" if check.is_disturbing else "ok", check.value)
        for check in observations
    ]
    lines = [*Table(("what", "", "seen"), rows).text(rule=False), ""]
    if not disturbing:
        return [*lines, "This machine is quiet."]
    names = ", ".join(check.name for check in disturbing)
    advice = [f"{check.name}: {check.advice}" for check in disturbing]
    return [*lines, *advice, "", f"This machine is not quiet: {names}."]


def list_processes() -> Processes:
    """Returns all visible processes but this one."""
    processes = {}
    for process in psutil.process_iter(["pid", "name", "create_time", "cpu_times"]):
        pid, times = process.info["pid"], process.info["cpu_times"]
        if times is not None and pid != os.getpid():
            started = process.info["create_time"] or 0.0
            processes[pid, started] = process.info["name"] or "?", times.user + times.system
    return processes


def _host_numbers(root: Path, cpus: frozenset[int]) -> dict[str, float]:
    """Returns numbers of the host now: seconds (of CPU: of these cores), bytes and events since it started."""
    proc, folder = root / "proc", root / _CPUS
    cpu = contention.read(root, time.monotonic, time.process_time, cpus)
    memory, pages = linux.table(proc / "meminfo"), linux.table(proc / "vmstat")
    hot = [linux.number(folder / f"cpu{number}/thermal_throttle/core_throttle_count") for number in cpus]
    return {
        **dataclasses.asdict(cpu),
        **_container(root),
        "swapped_bytes": (pages.get("pswpin", math.nan) + pages.get("pswpout", math.nan)) * resource.getpagesize(),
        "memory_gib": (memory.get("MemTotal", 0) or math.nan) / 2**20,
        "memory_available_gib": memory.get("MemAvailable", math.nan) / 2**20,
        "hot_events": math.nan if None in hot else sum(filter(None, hot)),
    }


def _container(root: Path) -> dict[str, float]:
    cores, group = min(linux.cpu_limits(root), default=(math.nan, root))  # which has no such file
    stat = linux.table(group / "cpu.stat")
    used, throttled = (stat.get(name, math.nan) / 1e6 for name in ("usage_usec", "throttled_usec"))
    return {"container_cores": cores, "container_used_seconds": used, "container_throttled_seconds": throttled}


def look(root: Path = Path("/"), cpus: frozenset[int] | None = None) -> list[Observation]:
    """Checks the host and its GPUs for two seconds, in which this process should do nothing else.

    `root` holds `proc` and `sys`. `cpus` are the cores that this process may use; None: ask the system.
    """
    cpus = cpus or linux.own_cores()
    processes, before = list_processes(), _host_numbers(root, cpus)
    time.sleep(_SECONDS)
    later, now = list_processes(), _host_numbers(root, cpus)
    change = {name: now[name] - before[name] for name in now}
    seconds, available, total = change["at_seconds"], now["memory_available_gib"], now["memory_gib"]
    busiest = ", ".join(_busiest(processes, later, seconds))
    governor_files = (root / _CPUS / f"cpu{cpu}/cpufreq/scaling_governor" for cpu in cpus)
    governors = sorted({governor for file in governor_files if (governor := linux.text(file))})
    hot = "{:.0f} while looking, {:.0f} since the start"
    return [
        *_cpu_checks(now, change, len(cpus), busiest),
        _check("memory", 1 - available / total, "{1:.1f} of {2:.1f} GiB available", available, total),
        _check("swapping", change["swapped_bytes"] / 1e6 / seconds, "{:.1f} MB/s"),
        _check("frequency governor", len({*governors} - {"performance"}), "{1}", ", ".join(governors)),
        _check("slowdowns by heat", change["hot_events"], hot, now["hot_events"]),
        *look_at_gpus(),
    ]


def _busiest(before: Processes, now: Processes, seconds: float) -> Iterator[str]:
    used = []
    for key, (name, cpu_seconds) in now.items():
        _, earlier = before.get(key, (name, 0.0))
        used.append(((cpu_seconds - earlier) / seconds, f"{name} (pid {key[0]})"))
    for cores, process in sorted(used, reverse=True)[:_MOST_NAMED]:
        if cores >= _WORTH_NAMING_CORES:
            yield f"{cores:.2f} {process}"


def _check(name: str, value: float, template: str, *shown: float | str) -> Observation:
    """Compares a value with its limit; the template shows it and what else is given."""
    is_hidden = any(each != each for each in (value, *shown))  # NaN is not itself
    limit, advice = _LIMITS[name]
    return observed(name, "" if is_hidden else template.format(value, *shown), value > limit, advice)


def _cpu_checks(now: Numbers, change: Numbers, cores: int, busiest: str) -> Iterator[Observation]:
    seconds, limit = change["at_seconds"], now["container_cores"]
    # Noise makes some differences negative. NaN stays NaN: `max` returns its first argument unless another is greater.
    used = max(change["busy_seconds"] - change["own_seconds"], 0.0) / seconds
    others = _check("CPU used by others", used / _bearable_cores(cores), "{1:.2f} of {2}", used, counted(cores, "core"))
    if others.is_disturbing:
        unnamed = "It is the kernel, has ended, or is outside this container: wait, or ask who shares the host."
        value, advice = (f"{others.value}: {busiest}", others.advice) if busiest else (others.value, unnamed)
        others = Observation(others.name, value, True, advice)
    yield others
    if not math.isnan(limit):
        on = counted(cores, "core")
        yield _check("CPU limit of the container", cores - limit, "{1:g} cores' time on {2}", limit, on)
        used = max(change["container_used_seconds"] - change["own_seconds"], 0.0) / seconds
        name, template = "CPU used by others in the container", "{1:.2f} of {2:g} cores' time"
        within = [
            _check(name, used / _bearable_cores(limit), template, used, limit),
            _check("stopped by the CPU limit", change["container_throttled_seconds"] / seconds, "{:.1%} of the time"),
        ]
        yield from (check for check in within if check.value != UNSEEN)
    stolen = max(change["stolen_seconds"], 0.0) / max(change["total_seconds"], 1e-9)
    yield _check("CPU taken by the hypervisor", stolen, "{:.1%} of the time (steal)")


def _bearable_cores(cores: float) -> float:
    """Returns how much others may use: half of the smallest drop that comparisons look for, but what daemons need."""
    return max(0.1, 0.02 * cores)


def look_at_gpus(environment: Mapping[str, str] = os.environ, driver: Any = None) -> list[Observation]:
    """Checks the GPUs that CUDA_VISIBLE_DEVICES leaves visible; without a driver there are none.

    Call it before this process uses a GPU: in a container the driver may know this process by another id. `driver` is a
    module like pynvml; None: pynvml.
    """
    try:
        opened = nvml.opened(environment, driver)
    except BenchError as error:
        return [observed("GPU driver", "no answer", True, str(error))]
    missing = [observed("GPU driver", opened.problem, True, "nvidia-smi says more.")] if opened.problem else []
    return missing + [check(gpu) for gpu in opened.gpus for check in (_use, _clock, _temperature)]


def _use(gpu: DriverGpu) -> Observation:
    load, processes = gpu.ask("nvmlDeviceGetUtilizationRates"), gpu.ask("nvmlDeviceGetComputeRunningProcesses")
    users = ", ".join(f"pid {process.pid}" for process in processes or () if process.pid != os.getpid())
    is_busy = load is not None and load.gpu > _BUSY_PERCENT
    seen = ("" if load is None else f"{load.gpu}% busy, ") + (
        f"used by {users}" if users else "no other process is seen"
    )
    advice = (
        "End the processes that use it, or choose another GPU with --gpus (nvidia-smi lists processes; in a container, "
        "not all)."
    )
    is_seen = load is not None or processes is not None
    return observed(f"GPU {gpu.index} use", seen if is_seen else "", bool(users) or is_busy, advice)


def _clock(gpu: DriverGpu) -> Observation:
    """Checks whether the clock is held down. An idle GPU's clock is low, which is no fault."""
    clock = gpu.ask("nvmlDeviceGetClockInfo", gpu.driver.NVML_CLOCK_SM)
    usual = gpu.ask("nvmlDeviceGetApplicationsClock", gpu.driver.NVML_CLOCK_SM)
    # The name that drivers before 535 know, too.
    reasons = gpu.ask("nvmlDeviceGetCurrentClocksThrottleReasons")
    slowed_by = gpu.slowed_by(reasons or 0)
    is_idle = None if reasons is None else bool(reasons & gpu.driver.nvmlClocksThrottleReasonGpuIdle)
    words = [] if clock is None else [f"{clock} MHz" + (f" of {usual} MHz" if usual else "")]
    words += ["idle"] if is_idle else []
    words += [f"held down by {why}" for why in slowed_by]
    is_low = bool(clock and usual and is_idle is False and clock < _CLOCK_SHARE * usual)
    advice = (
        "Its steps take longer than they should: check its cooling, its power and the clock that is set (nvidia-smi -q "
        "-d CLOCK,PERFORMANCE)."
    )
    return observed(f"GPU {gpu.index} clock", ", ".join(words), is_low or bool(slowed_by), advice)


def _temperature(gpu: DriverGpu) -> Observation:
    celsius = gpu.ask("nvmlDeviceGetTemperature", gpu.driver.NVML_TEMPERATURE_GPU)
    limit = gpu.ask("nvmlDeviceGetTemperatureThreshold", gpu.driver.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
    seen = "" if celsius is None else f"{celsius} °C" + (f", slows down at {limit} °C" if limit else "")
    is_hot = bool(seen and limit and celsius > limit - _NEAR_CELSIUS)
    advice = "It is about to slow down: let it cool, and check fans and air flow."
    return observed(f"GPU {gpu.index} temperature", seen, is_hot, advice)
