"""What Linux says in small files under /proc and /sys. What is missing or unreadable is None, never an error."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil


def text(path: Path) -> str | None:
    """Returns what a file holds, without white space around it."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None


def number(path: Path) -> int | None:
    """Returns the whole number that is all a file holds."""
    found = text(path)
    return int(found) if found and re.fullmatch(r"[0-9]+", found) else None


class PackageCounters:
    """The energy counters of all packages of this host. They count whoever uses the packages, not this process alone.

    Args:
        root: holds `sys`.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        # `intel-rapl:0` is a package; `intel-rapl:0:0` is a part of one, and `intel-rapl-mmio:0` is one once more.
        zones = [zone for zone in root.glob("sys/class/powercap/intel-rapl:*") if zone.name.count(":") == 1]
        packages = sorted(zone for zone in zones if (text(zone / "name") or "").startswith("package"))
        self._counters = [zone / "energy_uj" for zone in packages]
        self._ranges = [number(zone / "max_energy_range_uj") for zone in packages]

    def read(self) -> list[int] | None:
        """Returns each package's microjoules; None where one cannot be read, or there is none."""
        counts = [number(counter) for counter in self._counters]
        known = [count for count in counts if count is not None]
        return known if known and len(known) == len(counts) else None

    def joules(self, readings: Sequence[Sequence[int] | None]) -> float | None:
        """Returns what all packages used from the first to the last of these readings; None if one is missing.

        A counter begins again at 0 behind its range, so two readings may not be further apart than that lasts: at least
        ten minutes.
        """
        known = [reading for reading in readings if reading is not None]
        if len(known) < max(2, len(readings)):
            return None
        microjoules = 0
        for before, after in itertools.pairwise(known):
            for begin, end, size in zip(before, after, self._ranges, strict=True):
                if end < begin and size is None:
                    return None
                microjoules += end - begin + (size or 0) * (end < begin)
        return microjoules / 1e6


def available_bytes(root: Path = Path("/")) -> int:
    """Returns what is available now: the least of what the kernel says and what control groups leave.

    Args:
        root: of the file system.
    """
    return min([psutil.virtual_memory().available, *_left_by_groups(root)])


def _left_by_groups(root: Path) -> Iterator[int]:
    top = root / "sys/fs/cgroup"
    lines = (text(root / "proc/self/cgroup") or "").splitlines()
    own = [Path(line[3:].lstrip("/")) for line in lines if line.startswith("0::") and ".." not in line]
    groups = {top, *(top / group for path in own for group in (path, *path.parents))}  # each limits all below it
    for group, limit_name, used_name in (
        *((group, "memory.max", "memory.current") for group in groups),
        (top / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        limit, used = number(group / limit_name), number(group / used_name)
        if limit is not None and used is not None:  # else it is "max"
            # What is kept of files counts as used, and goes as soon as it is in the way.
            stat = dict(line.split() for line in (text(group / "memory.stat") or "").splitlines())
            yield max(0, limit - used + int(stat.get("inactive_file", 0)))
