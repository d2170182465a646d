"""What Linux says of a machine at one moment: counters and settings from /proc and /sys.

Containers hide some of it, and kernels differ: what is missing or unreadable is None or empty, never an error.
"""

from __future__ import annotations

import dataclasses
import os
import re
import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.doctor import gpu_checks
from benchmarks.doctor.gpu_checks import GpuState
from benchmarks.system import linux

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_CPUS = "sys/devices/system/cpu"


@dataclasses.dataclass(frozen=True)
class Process:
    """A process, and how much CPU time it has used so far."""

    pid: int
    name: str
    cpu_seconds: float


# By process id and start, since ids are given again.
Processes = Mapping[tuple[int, float], Process]


@dataclasses.dataclass(frozen=True)
class Cores:
    """CPU time since the machine's start, summed over the cores that this process may use."""

    busy_seconds: float
    stolen_seconds: float
    total_seconds: float


@dataclasses.dataclass(frozen=True)
class Container:
    """The control group with the tightest CPU limit, of ours and those around it."""

    limit_cores: float
    used_seconds: float | None
    throttled_seconds: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class MachineState:
    """One moment.

    Attributes:
        clock_seconds: when.
        own_cpu_seconds: what this process has used so far.
        cores: of the machine; None where /proc/stat cannot be read.
        load_1min: processes that ran or waited, over the last minute.
        container: None without a CPU limit.
        stalled_seconds: for how long somebody waited so far, by `cpu` and `memory`.
        swapped_bytes: moved to and from swap so far.
        memory: by the names of /proc/meminfo, in KiB.
        governors: what decides the cores' clocks, such as `performance`.
        turbo: whether cores may exceed their nominal clock.
        hot_events: how often cores slowed down since they were too hot.
        has_smt: whether two threads share a core.
        numa_nodes: 0 if not known.
        processes: all that can be seen, this one left out.
    """

    clock_seconds: float
    own_cpu_seconds: float
    cores: Cores | None
    load_1min: float | None
    container: Container | None
    stalled_seconds: Mapping[str, float]
    swapped_bytes: int | None
    memory: Mapping[str, int]
    governors: Sequence[str]
    turbo: bool | None
    hot_events: int | None
    has_smt: bool | None
    numa_nodes: int
    processes: Processes


def list_processes() -> Processes:
    """Returns all processes that can be seen but this one."""
    found = {}
    for process in psutil.process_iter(["pid", "name", "create_time", "cpu_times"]):
        pid, times = process.info["pid"], process.info["cpu_times"]
        if times is not None and pid != os.getpid():
            started = process.info["create_time"] or 0.0
            found[pid, started] = Process(pid, process.info["name"] or "?", times.user + times.system)
    return found


@dataclasses.dataclass(frozen=True)
class Sources:
    """Where a look at the machine gets what it says; tests put others here.

    Attributes:
        root: holds `proc` and `sys`.
        cpus: the cores that this process may use.
        clock: seconds, monotonic.
        sleep: waits for so many seconds.
        own_cpu_seconds: what this process has used so far.
        processes: all others.
        gpus: those that may be used.
    """

    root: Path = Path("/")
    cpus: frozenset[int] = dataclasses.field(default_factory=lambda: frozenset(os.sched_getaffinity(0)))
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Any] = time.sleep
    own_cpu_seconds: Callable[[], float] = time.process_time
    processes: Callable[[], Processes] = list_processes
    gpus: Callable[[], Sequence[GpuState]] = gpu_checks.read_all

    def read(self) -> MachineState:
        """Returns the machine as it is now."""
        proc, cpus = self.root / "proc", self.root / _CPUS
        each = [cpus / f"cpu{index}" for index in sorted(self.cpus)]
        governors = filter(None, (linux.text(cpu / "cpufreq/scaling_governor") for cpu in each))
        hot = [linux.number(cpu / "thermal_throttle/core_throttle_count") for cpu in each]
        smt = linux.number(cpus / "smt/active")
        pages = linux.table(proc / "vmstat")
        swapped = pages["pswpin"] + pages["pswpout"] if {"pswpin", "pswpout"} <= pages.keys() else None
        return MachineState(
            processes=self.processes(),
            # These three belong together: what this process does between them would be taken for somebody else's.
            clock_seconds=self.clock(),
            own_cpu_seconds=self.own_cpu_seconds(),
            cores=_cores(linux.text(proc / "stat"), self.cpus),
            load_1min=_load(linux.text(proc / "loadavg")),
            container=_container(self.root),
            stalled_seconds=dict(_stalled(proc / "pressure")),
            swapped_bytes=None if swapped is None else swapped * resource.getpagesize(),
            memory=linux.table(proc / "meminfo"),
            governors=sorted(set(governors)),
            turbo=_turbo(cpus),
            hot_events=None if None in hot else sum(filter(None, hot)),
            has_smt=None if smt is None else smt > 0,
            numa_nodes=len(list((self.root / "sys/devices/system/node").glob("node[0-9]*"))),
        )


def _load(text: str | None) -> float | None:
    match = re.match(r"[0-9.]+", text or "")
    return float(match[0]) if match else None


def _cores(text: str | None, cpus: frozenset[int]) -> Cores | None:
    """Sums the lines of these cores, or takes the line of all where a container numbers its cores anew."""
    rows = {name: times for name, *times in map(str.split, (text or "").splitlines()) if name.startswith("cpu")}
    own = [rows[f"cpu{cpu}"] for cpu in cpus if f"cpu{cpu}" in rows] or [rows[name] for name in rows if name == "cpu"]
    # user, nice, system, idle, iowait, irq, softirq, steal; what follows is in user and nice already.
    ticks = [sum(map(int, column)) for column in zip(*own, strict=False)][:8]
    if len(ticks) < 8:
        return None
    user, nice, system, _, _, irq, softirq, steal = (count / _TICKS_PER_SECOND for count in ticks)
    return Cores(user + nice + system + irq + softirq, steal, sum(ticks) / _TICKS_PER_SECOND)


def _container(root: Path) -> Container | None:
    """Returns the tightest limit of control groups (version 2)."""
    limits = []
    for group in linux.control_groups(root):
        quota, *period = (linux.text(group / "cpu.max") or "max").split()
        if quota.isdigit() and period:
            limits.append((int(quota) / int(period[0]), group))
    if not limits:
        return None
    limit_cores, group = min(limits)
    used = linux.table(group / "cpu.stat")
    return Container(
        limit_cores=limit_cores,
        used_seconds=used["usage_usec"] / 1e6 if "usage_usec" in used else None,
        throttled_seconds=used["throttled_usec"] / 1e6 if "throttled_usec" in used else None,
    )


def _stalled(pressure: Path) -> Iterator[tuple[str, float]]:
    for what in ("cpu", "memory"):
        match = re.search(r"^some .*total=(\d+)", linux.text(pressure / what) or "", re.MULTILINE)
        if match:
            yield what, int(match[1]) / 1e6


def _turbo(cpus: Path) -> bool | None:
    forbidden = linux.number(cpus / "intel_pstate/no_turbo")
    allowed = linux.number(cpus / "cpufreq/boost")
    if forbidden is not None:
        return forbidden == 0
    return None if allowed is None else allowed > 0
