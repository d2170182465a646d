"""Reads small files of Linux under /proc and /sys. What is missing or unreadable is None, never an error."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterator
from pathlib import Path

import psutil

from benchmarks.outside_text import whole_number

_GROUPS = "sys/fs/cgroup"


def text(path: Path) -> str | None:
    """Returns the text of a file, without white space around it."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None


def boot_id(root: Path = Path("/")) -> str:
    """Returns what all processes of a machine have in common until it starts again; containers do not change it."""
    return text(root / "proc/sys/kernel/random/boot_id") or ""


def number(path: Path) -> int | None:
    """Returns the number in a file that holds nothing but a whole number."""
    return whole_number(text(path) or "")


def table(path: Path) -> dict[str, int]:
    """Returns the lines of a file that are a name and a whole number."""
    lines = (line.replace(":", " ").split() for line in (text(path) or "").splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdecimal()}


@functools.cache
def own_cores() -> frozenset[int]:
    """Returns the numbers of the cores that this process may run on, as they were at the first call.

    With OMP_PROC_BIND, OpenMP binds the main thread to one of them when PyTorch is imported.
    """
    return frozenset(os.sched_getaffinity(0))


def core_seconds(stat: str, cpus: frozenset[int]) -> tuple[float, float, float]:
    """Returns the busy, stolen and total seconds of these cores since the host started; NaN if they are unknown.

    Where a container renumbers its cores, they are those of all cores.

    Args:
        stat: the text of `/proc/stat`.
        cpus: numbers of the cores.
    """
    rows = {name: times for name, *times in map(str.split, stat.splitlines()) if name.startswith("cpu")}
    own = [rows[f"cpu{cpu}"] for cpu in cpus if f"cpu{cpu}" in rows] or [rows[name] for name in rows if name == "cpu"]
    # user, nice, system, idle, iowait, irq, softirq, steal; user and nice already include what follows.
    ticks = [sum(map(int, column)) for column in zip(*own, strict=False)][:8]
    if len(ticks) < 8:
        return math.nan, math.nan, math.nan
    user, nice, system, _, _, irq, softirq, steal = (count / os.sysconf("SC_CLK_TCK") for count in ticks)
    return user + nice + system + irq + softirq, steal, sum(ticks) / os.sysconf("SC_CLK_TCK")


def available_bytes(root: Path = Path("/")) -> int:
    """Returns the memory that is available now: the least of what the kernel reports and what control groups leave."""
    left = [psutil.virtual_memory().available]
    for limit, group, used_name in _memory_groups(root):
        used = number(group / used_name)
        if used is not None:
            # Cached files count as used, and are dropped when memory is needed.
            left.append(max(0, limit - used + table(group / "memory.stat").get("inactive_file", 0)))
    return min(left)


def memory_limits(root: Path = Path("/")) -> list[int]:
    """Returns the limits of memory that control groups set, in bytes, the smallest first."""
    return sorted(limit for limit, _, _ in _memory_groups(root))


def _memory_groups(root: Path) -> Iterator[tuple[int, Path, str]]:
    """Yields each limit of memory, its control group (version 2 or 1), and the file with what the group uses."""
    for group in control_groups(root):
        limit = number(group / "memory.max")
        if limit is not None:  # else it is "max"
            yield limit, group, "memory.current"
    group = group_v1("memory", root)
    limit = table(group / "memory.stat").get("hierarchical_memory_limit")
    if limit is not None:
        yield limit, group, "memory.usage_in_bytes"


def cpu_limits(root: Path = Path("/")) -> list[tuple[float, Path]]:
    """Returns each limit of CPU time, in cores, and the control group that sets it."""
    of_v1 = group_v1("cpu", root)
    quota_and_period = [text(of_v1 / f"cpu.cfs_{name}_us") or "-1" for name in ("quota", "period")]
    stated = [(of_v1, quota_and_period), *((g, (text(g / "cpu.max") or "").split()) for g in control_groups(root))]
    return [
        (int(numbers[0]) / int(numbers[1]), group)
        for group, numbers in stated
        if len(numbers) == 2 and all(number.strip().isdecimal() and int(number) for number in numbers)
    ]


def group_v1(controller: str, root: Path = Path("/")) -> Path:
    """Returns the directory of this process' control group (version 1) of a controller, which need not exist."""
    top = root / _GROUPS / controller
    for line in (text(root / "proc/self/cgroup") or "").splitlines():
        _, _, named = line.partition(":")
        controllers, _, name = named.partition(":")
        if controller in controllers.split(",") and (top / name.lstrip("/")).is_dir():
            return top / name.lstrip("/")
    return top  # a container may show the group's name on the host, and the group itself at the top


def control_groups(root: Path = Path("/")) -> list[Path]:
    """Returns the control group (version 2) of this process and those around it; each limits all below it."""
    top = root / _GROUPS
    lines = (text(root / "proc/self/cgroup") or "").splitlines()
    named = [line[3:].lstrip("/") for line in lines if line.startswith("0::") and ".." not in line]
    own = top / named[0] if named else top
    return [group for group in (own, *own.parents) if group == top or top in group.parents]
