"""How much host memory may still be taken, by the machine and by the container around this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil

from benchmarks import kernel_files


def available_bytes(root: Path = Path("/")) -> int:
    """Returns what is available now: the least of what the kernel says and what control groups leave.

    Args:
        root: of the file system.
    """
    return min([psutil.virtual_memory().available, *_left_by_groups(root)])


def _left_by_groups(root: Path) -> Iterator[int]:
    top = root / "sys/fs/cgroup"
    lines = (kernel_files.text(root / "proc/self/cgroup") or "").splitlines()
    own = [Path(line[3:].lstrip("/")) for line in lines if line.startswith("0::") and ".." not in line]
    groups = {top, *(top / group for path in own for group in (path, *path.parents))}  # each limits all below it
    for group, limit_name, used_name in (
        *((group, "memory.max", "memory.current") for group in groups),
        (top / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        limit, used = kernel_files.number(group / limit_name), kernel_files.number(group / used_name)
        if limit is not None and used is not None:  # else it is "max"
            # What is kept of files counts as used, and goes as soon as it is in the way.
            stat = dict(line.split() for line in (kernel_files.text(group / "memory.stat") or "").splitlines())
            yield max(0, limit - used + int(stat.get("inactive_file", 0)))
