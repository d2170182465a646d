"""Is this host quiet enough to measure on? Reads /proc and /sys twice and compares. Needs no TensorFlow.

Containers hide some files, and kernels differ: a number that cannot be read is NaN, never an error. Every comparison
with NaN is false, so what is hidden never counts as disturbing. An idle machine shows less than a loaded one: steal
time, heat and CPU limits appear only while something computes.
"""

from __future__ import annotations

import math
import os
import re
import resource
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from benchmarks.doctor import gpu_checks
from benchmarks.doctor.machine import UNSEEN, Observation, observed
from benchmarks.machine import linux
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
_SECONDS = 2.0  # a shorter look misses what comes and goes
_CPUS = "sys/devices/system/cpu"
_WAITED = "{:.1%} of the time something waited for it"
_MOST_NAMED = 3
_WORTH_NAMING_CORES = 0.01


# The name of each process and the CPU seconds it has used so far, by its id and start time, since ids are reused.
Processes = Mapping[tuple[int, float], tuple[str, float]]
Numbers = Mapping[str, float]


def list_processes() -> Processes:
    """Returns all visible processes but this one."""
    found = {}
    for process in psutil.process_iter(["pid", "name", "create_time", "cpu_times"]):
        pid, times = process.info["pid"], process.info["cpu_times"]
        if times is not None and pid != os.getpid():
            started = process.info["create_time"] or 0.0
            found[pid, started] = process.info["name"] or "?", times.user + times.system
    return found


def _read(root: Path, cpus: frozenset[int]) -> dict[str, float]:
    """Returns numbers of the host now: seconds (of CPU: of these cores), bytes and events since it started."""
    proc, folder = root / "proc", root / _CPUS
    # These three belong together: what this process does between them would count as work of others.
    clock, own_cpu, stat = time.monotonic(), time.process_time(), linux.text(proc / "stat")
    busy, stolen, total = linux.core_seconds(stat or "", cpus)
    memory, pages = linux.table(proc / "meminfo"), linux.table(proc / "vmstat")
    no_turbo = _number(folder / "intel_pstate/no_turbo")
    return {
        "clock_seconds": clock,
        "own_cpu_seconds": own_cpu,
        "busy_seconds": busy,
        "stolen_seconds": stolen,
        "total_seconds": total,
        "cpu_waited_seconds": _number(proc / "pressure/cpu", r"^some .*total=(\d+)") / 1e6,
        "memory_waited_seconds": _number(proc / "pressure/memory", r"^some .*total=(\d+)") / 1e6,
        "load_1min": _number(proc / "loadavg", r"^([0-9.]+)"),
        **_container(root),
        "swapped_bytes": (pages.get("pswpin", math.nan) + pages.get("pswpout", math.nan)) * resource.getpagesize(),
        "memory_gib": (memory.get("MemTotal", 0) or math.nan) / 2**20,
        "memory_available_gib": memory.get("MemAvailable", math.nan) / 2**20,
        "hot_events": sum(_number(folder / f"cpu{cpu}/thermal_throttle/core_throttle_count") for cpu in cpus),
        "turbo": _number(folder / "cpufreq/boost") if math.isnan(no_turbo) else float(no_turbo == 0),
        "smt": _number(folder / "smt/active"),
    }


def _number(path: Path, pattern: str = r"\A([0-9]+)\Z") -> float:
    match = re.search(pattern, linux.text(path) or "", re.MULTILINE)
    return float(match[1]) if match else math.nan


def _container(root: Path) -> dict[str, float]:
    """Returns numbers of the control group (version 2) with the tightest CPU limit, of ours and its parents."""
    cores, group = min(linux.cpu_limits(root), default=(math.nan, root))  # which has no such file
    stat = linux.table(group / "cpu.stat")
    used, throttled = (stat.get(name, math.nan) / 1e6 for name in ("usage_usec", "throttled_usec"))
    return {"container_cores": cores, "container_used_seconds": used, "container_throttled_seconds": throttled}


def look(root: Path = Path("/"), cpus: frozenset[int] | None = None) -> list[Observation]:
    """Checks the host and its GPUs for two seconds, in which this process should do nothing else.

    `root` holds `proc` and `sys`. `cpus` are the cores that this process may use; None: ask the system.
    """
    cpus = cpus or frozenset(os.sched_getaffinity(0))
    processes, before = list_processes(), _read(root, cpus)
    time.sleep(_SECONDS)
    later, now = list_processes(), _read(root, cpus)
    change = {name: now[name] - before[name] for name in now}
    seconds, available, total = change["clock_seconds"], now["memory_available_gib"], now["memory_gib"]
    busiest = ", ".join(_busiest(processes, later, seconds))
    each = (linux.text(root / _CPUS / f"cpu{cpu}/cpufreq/scaling_governor") for cpu in cpus)
    governors = sorted({governor for governor in each if governor})
    hot = "{:.0f} while looking, {:.0f} since the start"
    nodes = len(list((root / "sys/devices/system/node").glob("node[0-9]*")))
    return [
        *_cpu_checks(now, change, len(cpus), busiest),
        _check("memory pressure", change["memory_waited_seconds"] / seconds, _WAITED),
        _check("memory", 1 - available / total, "{1:.1f} of {2:.1f} GiB available", available, total),
        _check("swapping", change["swapped_bytes"] / 1e6 / seconds, "{:.1f} MB/s"),
        _check("frequency governor", len({*governors} - {"performance"}), "{1}", ", ".join(governors)),
        _check("slowdowns by heat", change["hot_events"], hot, now["hot_events"]),
        observed("turbo", _switch(now["turbo"], "the clock depends on how many cores are busy")),
        observed("SMT", _switch(now["smt"], "two threads share a core")),
        observed("NUMA", counted(nodes, "node") if nodes else ""),
        *gpu_checks.look(),
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
    is_hidden = any(one != one for one in (value, *shown))  # NaN is not itself
    return observed(name, "" if is_hidden else template.format(value, *shown), value > _LIMITS[name], _ADVICE[name])


def _cpu_checks(now: Numbers, change: Numbers, cores: int, busiest: str) -> Iterator[Observation]:
    seconds, limit, load = change["clock_seconds"], now["container_cores"], now["load_1min"]
    # Noise makes some differences negative. NaN stays NaN: `max` returns its first argument unless another is greater.
    used = max(change["busy_seconds"] - change["own_cpu_seconds"], 0.0) / seconds
    others = _check("CPU used by others", used / _bearable_cores(cores), "{1:.2f} of {2}", used, counted(cores, "core"))
    if others.is_disturbing:
        unnamed = "It is the kernel, has ended, or is outside this container: wait, or ask who shares the host."
        value, advice = (f"{others.value}: {busiest}", others.advice) if busiest else (others.value, unnamed)
        others = Observation(others.name, value, True, advice)
    yield others
    yield observed("load", "" if math.isnan(load) else f"{load:.2f} on average over the last minute")
    if not math.isnan(limit):
        on = counted(cores, "core")
        yield _check("CPU limit of the container", cores - limit, "{1:g} cores' time on {2}", limit, on)
        used = max(change["container_used_seconds"] - change["own_cpu_seconds"], 0.0) / seconds
        name, template = "CPU used by others in the container", "{1:.2f} of {2:g} cores' time"
        within = [
            _check(name, used / _bearable_cores(limit), template, used, limit),
            _check("stopped by the CPU limit", change["container_throttled_seconds"] / seconds, "{:.1%} of the time"),
        ]
        yield from (one for one in within if one.value != UNSEEN)
    stolen = max(change["stolen_seconds"], 0.0) / max(change["total_seconds"], 1e-9)
    yield _check("CPU taken by the hypervisor", stolen, "{:.1%} of the time (steal)")
    yield _check("CPU pressure", change["cpu_waited_seconds"] / seconds, _WAITED)


def _bearable_cores(cores: float) -> float:
    """Returns how much others may use: half of the smallest drop that comparisons look for, but what daemons need."""
    return max(0.1, 0.02 * cores)


def _switch(is_on: float, meaning: str) -> str:
    return "" if math.isnan(is_on) else f"on: {meaning}" if is_on else "off"
