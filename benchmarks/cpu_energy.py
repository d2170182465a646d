"""What the CPU packages have used, as Linux counts it (RAPL, /sys/class/powercap); often only root may read it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from benchmarks import kernel_files


class PackageCounters:
    """The energy counters of all packages of this host. They count whoever uses the packages, not this process alone.

    Args:
        root: holds `sys`.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        # `intel-rapl:0` is a package; `intel-rapl:0:0` is a part of one, and `intel-rapl-mmio:0` is one once more.
        zones = [zone for zone in root.glob("sys/class/powercap/intel-rapl:*") if zone.name.count(":") == 1]
        packages = sorted(zone for zone in zones if (kernel_files.text(zone / "name") or "").startswith("package"))
        self._counters = [zone / "energy_uj" for zone in packages]
        self._ranges = [kernel_files.number(zone / "max_energy_range_uj") for zone in packages]

    def read(self) -> list[int] | None:
        """Returns each package's microjoules; None where one cannot be read, or there is none."""
        counts = [kernel_files.number(counter) for counter in self._counters]
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
