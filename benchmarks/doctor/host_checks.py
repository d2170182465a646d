"""Is this host quiet enough to measure on? Reads /proc and /sys twice and compares. Needs no TensorFlow.

Containers hide some files, and kernels differ: a number that cannot be read is NaN, never an error. Every comparison
with NaN is false, so what is hidden never counts as disturbing. An idle machine shows less than a loaded one: steal
time, heat and CPU limits appear only while something computes.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.doctor import gpu_checks
from benchmarks.doctor.machine import UNSEEN, Observation, observed
from benchmarks.system import linux
from results.text import counted

# The largest value of each check that does not disturb.
_LIMITS = {
    "CPU used by others": 1.0,  # relative to `_bearable_cores`
    "CPU used by others in the container": 1.0,
    "CPU limit of the container": 0.0,  # cores without time of their own
    "stopped by the CPU limit": 0.0,  # share of the time
    "CPU taken by the hypervisor": 0.01,
    "CPU pressure": 0.05,
    "memory pressure": 0.01,
    "memory": 0.9,  # share that is in use
    "swapping": 1.0,  # MB per second
    "frequency governor": 0,  # governors other than `performance`
    "slowdowns by heat": 0,
}
# Why a larger value matters, and what to try.
_ADVICE = {
    "CPU used by others": "End it or wait for it, or keep it off these cores (taskset, cpusets).",
    "CPU used by others in the container": "End what else runs in this container, or measure in one of its own.",
    "CPU limit of the container": "Threads on all cores use the limit up and are then stopped for a while: give the "
    "container cores of its own (docker --cpuset-cpus, Kubernetes' static CPU manager), not a share of time, or start "
    "it with taskset.",
    "stopped by the CPU limit": "A process in this container has used up its CPU limit: end it, or raise the limit.",
    "CPU taken by the hypervisor": "Other virtual machines use this host's cores: take a type with dedicated ones.",
    "CPU pressure": "More threads want to run than there are cores: end them, or wait for them.",
    "memory pressure": "Memory is short: end what holds it, or take a machine with more.",
    "memory": "Files that are read cannot stay in memory, and soon the machine swaps: end what holds the memory.",
    "swapping": "Memory is short, and pages go to and from the disk: end what holds it.",
    "frequency governor": "Cores are slow until they have been busy for a while: sudo cpupower frequency-set -g "
    "performance.",
    "slowdowns by heat": "Let the machine cool down, and check its fans.",
}
_CPUS = "sys/devices/system/cpu"
_WAITED = "{:.1%} of the time something waited for it"
_MOST_NAMED = 3
_WORTH_NAMING_CORES = 0.01


@dataclasses.dataclass(frozen=True)
class Process:
    """A process, and the CPU time it has used so far."""

    pid: int
    name: str
    cpu_seconds: float


# By process id and start time, since ids are reused.
Processes = Mapping[tuple[int, float], Process]
Numbers = Mapping[str, float]


def list_processes() -> Processes:
    """Returns all visible processes but this one."""
    found = {}
    for process in psutil.process_iter(["pid", "name", "create_time", "cpu_times"]):
        pid, times = process.info["pid"], process.info["cpu_times"]
        if times is not None and pid != os.getpid():
            started = process.info["create_time"] or 0.0
            found[pid, started] = Process(pid, process.info["name"] or "?", times.user + times.system)
    return found


@dataclasses.dataclass(frozen=True)
class Sources:
    """Where the checks read; tests replace them.

    Attributes:
        root: holds `proc` and `sys`.
        cpus: the cores that this process may use.
        clock: returns seconds, monotonic.
        sleep: waits for so many seconds.
        own_cpu_seconds: returns the CPU time of this process.
        processes: returns all others.
        gpus: returns the observations of the GPUs.
    """

    root: Path = Path("/")
    cpus: frozenset[int] = dataclasses.field(default_factory=lambda: frozenset(os.sched_getaffinity(0)))
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Any] = time.sleep
    own_cpu_seconds: Callable[[], float] = time.process_time
    processes: Callable[[], Processes] = list_processes
    gpus: Callable[[], Sequence[Observation]] = gpu_checks.look

    def read(self) -> dict[str, float]:
        """Returns numbers of the host now; the seconds, bytes and events are totals since it started.

        `busy`, `stolen` and `total` are sums over the cores that this process may use. The container is the control
        group with the tightest CPU limit, of ours and its parents.
        """
        proc, cpus = self.root / "proc", self.root / _CPUS
        # These three belong together: what this process does between them would count as work of others.
        clock, own_cpu, stat = self.clock(), self.own_cpu_seconds(), linux.text(proc / "stat")
        busy, stolen, total = _core_seconds(stat or "", self.cpus)
        limit, used, throttled = _container(self.root)
        memory, pages = linux.table(proc / "meminfo"), linux.table(proc / "vmstat")
        no_turbo = _number(cpus / "intel_pstate/no_turbo")
        return {
            "clock_seconds": clock,
            "own_cpu_seconds": own_cpu,
            "busy_seconds": busy,
            "stolen_seconds": stolen,
            "total_seconds": total,
            "cpu_waited_seconds": _found(r"^some .*total=(\d+)", proc / "pressure/cpu") / 1e6,
            "memory_waited_seconds": _found(r"^some .*total=(\d+)", proc / "pressure/memory") / 1e6,
            "load_1min": _found(r"^([0-9.]+)", proc / "loadavg"),
            "container_cores": limit,
            "container_used_seconds": used,
            "container_throttled_seconds": throttled,
            "swapped_bytes": (pages.get("pswpin", math.nan) + pages.get("pswpout", math.nan)) * resource.getpagesize(),
            "memory_gib": (memory.get("MemTotal", 0) or math.nan) / 2**20,
            "memory_available_gib": memory.get("MemAvailable", math.nan) / 2**20,
            "hot_events": sum(_number(cpus / f"cpu{cpu}/thermal_throttle/core_throttle_count") for cpu in self.cpus),
            "turbo": _number(cpus / "cpufreq/boost") if math.isnan(no_turbo) else float(no_turbo == 0),
            "smt": _number(cpus / "smt/active"),
        }


def _number(path: Path) -> float:
    found = linux.number(path)
    return math.nan if found is None else found


def _found(pattern: str, path: Path) -> float:
    """Returns the number in the first group of a pattern."""
    match = re.search(pattern, linux.text(path) or "", re.MULTILINE)
    return float(match[1]) if match else math.nan


def _core_seconds(stat: str, cpus: frozenset[int]) -> tuple[float, float, float]:
    """Returns the busy, stolen and total seconds of these cores, or of all where a container renumbers its cores."""
    rows = {name: times for name, *times in map(str.split, stat.splitlines()) if name.startswith("cpu")}
    own = [rows[f"cpu{cpu}"] for cpu in cpus if f"cpu{cpu}" in rows] or [rows[name] for name in rows if name == "cpu"]
    # user, nice, system, idle, iowait, irq, softirq, steal; user and nice already include what follows.
    ticks = [sum(map(int, column)) for column in zip(*own, strict=False)][:8]
    if len(ticks) < 8:
        return math.nan, math.nan, math.nan
    user, nice, system, _, _, irq, softirq, steal = (count / os.sysconf("SC_CLK_TCK") for count in ticks)
    return user + nice + system + irq + softirq, steal, sum(ticks) / os.sysconf("SC_CLK_TCK")


def _container(root: Path) -> tuple[float, float, float]:
    """Returns cores, used and throttled seconds of the control group (version 2) with the tightest CPU limit."""
    limits = []
    for group in linux.control_groups(root):
        quota, *period = (linux.text(group / "cpu.max") or "max").split()
        if quota.isdigit() and period:
            limits.append((int(quota) / int(period[0]), group))
    if not limits:
        return math.nan, math.nan, math.nan
    cores, group = min(limits)
    stat = linux.table(group / "cpu.stat")
    return cores, stat.get("usage_usec", math.nan) / 1e6, stat.get("throttled_usec", math.nan) / 1e6


def look(*, seconds: float = 2.0, sources: Sources | None = None) -> list[Observation]:
    """Checks the host and its GPUs; for so many seconds this process should do nothing else.

    Args:
        seconds: above 0; a shorter look misses what comes and goes.
        sources: where to read; None: this machine.
    """
    sources = sources or Sources()
    processes, before = sources.processes(), sources.read()
    sources.sleep(seconds)
    later, now = sources.processes(), sources.read()
    change = {name: now[name] - before[name] for name in now}
    busiest = ", ".join(_busiest(processes, later, change["clock_seconds"]))
    return [
        *_cpu_checks(now, change, len(sources.cpus), busiest),
        *_memory_checks(now, change),
        *_clock_checks(now, change, sources),
        *sources.gpus(),
    ]


def _busiest(before: Processes, now: Processes, seconds: float) -> Iterator[str]:
    used = []
    for key, process in now.items():
        earlier = before[key].cpu_seconds if key in before else 0.0
        used.append(((process.cpu_seconds - earlier) / seconds, process))
    for cores, process in sorted(used, key=lambda one: -one[0])[:_MOST_NAMED]:
        if cores >= _WORTH_NAMING_CORES:
            yield f"{cores:.2f} {process.name} (pid {process.pid})"


def _check(name: str, value: float, template: str, *shown: float | str) -> Observation:
    """Compares a value with its limit; the template shows it and what else is given."""
    is_hidden = any(one != one for one in (value, *shown))  # NaN is not itself
    return observed(name, "" if is_hidden else template.format(value, *shown), value > _LIMITS[name], _ADVICE[name])


def _cpu_checks(now: Numbers, change: Numbers, cores: int, busiest: str) -> Iterator[Observation]:
    seconds, limit, load = change["clock_seconds"], now["container_cores"], now["load_1min"]
    used = _positive(change["busy_seconds"] - change["own_cpu_seconds"]) / seconds
    others = _check("CPU used by others", used / _bearable_cores(cores), "{1:.2f} of {2}", used, counted(cores, "core"))
    if others.is_disturbing and busiest:
        others = dataclasses.replace(others, value=f"{others.value}: {busiest}")
    elif others.is_disturbing:
        advice = "It is the kernel, has ended, or is outside this container: wait, or ask who shares the host."
        others = dataclasses.replace(others, advice=advice)
    yield others
    yield observed("load", "" if math.isnan(load) else f"{load:.2f} on average over the last minute")
    if not math.isnan(limit):
        on = counted(cores, "core")
        yield _check("CPU limit of the container", cores - limit, "{1:g} cores' time on {2}", limit, on)
        used = _positive(change["container_used_seconds"] - change["own_cpu_seconds"]) / seconds
        used_by_others = "CPU used by others in the container"
        within = [
            _check(used_by_others, used / _bearable_cores(limit), "{1:.2f} of {2:g} cores' time", used, limit),
            _check("stopped by the CPU limit", change["container_throttled_seconds"] / seconds, "{:.1%} of the time"),
        ]
        yield from (one for one in within if one.value != UNSEEN)
    stolen = _positive(change["stolen_seconds"]) / max(change["total_seconds"], 1e-9)
    yield _check("CPU taken by the hypervisor", stolen, "{:.1%} of the time (steal)")
    yield _check("CPU pressure", change["cpu_waited_seconds"] / seconds, _WAITED)


def _memory_checks(now: Numbers, change: Numbers) -> Iterator[Observation]:
    seconds, available, total = change["clock_seconds"], now["memory_available_gib"], now["memory_gib"]
    yield _check("memory pressure", change["memory_waited_seconds"] / seconds, _WAITED)
    yield _check("memory", 1 - available / total, "{1:.1f} of {2:.1f} GiB available", available, total)
    yield _check("swapping", change["swapped_bytes"] / 1e6 / seconds, "{:.1f} MB/s")


def _clock_checks(now: Numbers, change: Numbers, sources: Sources) -> Iterator[Observation]:
    each = (linux.text(sources.root / _CPUS / f"cpu{cpu}/cpufreq/scaling_governor") for cpu in sources.cpus)
    governors = sorted({governor for governor in each if governor})
    yield _check("frequency governor", len({*governors} - {"performance"}), "{1}", ", ".join(governors))
    hot = "{:.0f} while looking, {:.0f} since the start"
    yield _check("slowdowns by heat", change["hot_events"], hot, now["hot_events"])
    yield observed("turbo", _switch(now["turbo"], "the clock depends on how many cores are busy"))
    yield observed("SMT", _switch(now["smt"], "two threads share a core"))
    nodes = len(list((sources.root / "sys/devices/system/node").glob("node[0-9]*")))
    yield observed("NUMA", counted(nodes, "node") if nodes else "")


def _bearable_cores(cores: float) -> float:
    """Returns how much others may use: half of the smallest drop that comparisons look for, but what daemons need."""
    return max(0.1, 0.02 * cores)


def _positive(number: float) -> float:
    """Returns 0 for what noise makes negative, and NaN for NaN."""
    return 0.0 if number < 0 else number


def _switch(is_on: float, meaning: str) -> str:
    return "" if math.isnan(is_on) else f"on: {meaning}" if is_on else "off"
