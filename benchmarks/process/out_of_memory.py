"""Whether the kernel has killed a process because memory ran out, by the counters of this process' control group."""

from __future__ import annotations

import collections
import re
import signal
from pathlib import Path

import psutil

from benchmarks.machine import linux

# A shell that has run the process reports its signal so.
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
# The kernel takes the largest process, or one that was marked.
_LEAST_SHARE = 0.1
# It counts a kill first, and the process dies some looks later.
_KEPT_LOOKS = 4


def count_kills(root: Path = Path("/")) -> int:
    """Returns how many processes of this control group, or else of this host, the kernel has killed for want of memory.

    Args:
        root: of the file system.
    """
    groups = linux.control_groups(root)
    files = [linux.group_v1("memory", root) / "memory.oom_control", *(group / "memory.events" for group in groups)]
    counts = (linux.table(file).get("oom_kill") for file in [*files, root / "proc/vmstat"])
    return next((count for count in counts if count is not None), 0)


def limit_bytes(root: Path = Path("/")) -> int:
    """Returns the memory that this process may take: its control groups' limit, or all of the host's."""
    return min([psutil.virtual_memory().total, *linux.memory_limits(root)])


class Looks:
    """What was seen of a living process and of all that it has started, to say at its end whether memory ran out."""

    def __init__(self, process: int) -> None:
        self._process = process
        self._last = collections.deque([(count_kills(), 0)], maxlen=_KEPT_LOOKS)
        self.look()

    def look(self) -> None:
        """Looks at the process. To be called often.

        A process that frees its memory is dying. That takes long, so looks during it do not count.
        """
        kills = count_kills()
        if held := _held_bytes(self._process):
            self._last.append((kills, held))

    @property
    def held_bytes(self) -> int:
        """Returns the most memory that was held of late."""
        return max(held for _, held in self._last)

    def was_killed(self, status: int | None) -> bool:
        """Returns whether the kernel has just killed it for want of memory, and not another one.

        This suite itself has not killed it. Its `status` is negative for a signal, and None if it is unknown.
        """
        was_any = count_kills() > self._last[0][0]
        return was_any and self.held_bytes / limit_bytes() >= _LEAST_SHARE and (status is None or status in _KILLED)


def _held_bytes(process: int) -> int | None:
    """Returns the memory of a process and its children; None if one is dying, 0 if the process is dead."""
    about = linux.text(Path(f"/proc/{process}/status")) or "State:\tX"
    size = re.search(r"^VmRSS:\s*([0-9]+) kB$", about, re.MULTILINE)
    if size is None:
        return 0 if re.search(r"^State:\s*[XZ]", about, re.MULTILINE) else None
    # Of its main thread, as a wrapper has them: TensorFlow has hundreds of threads, and starts none.
    children = (linux.text(Path(f"/proc/{process}/task/{process}/children")) or "").split()
    sizes = [1024 * int(size[1]), *(_held_bytes(int(child)) for child in children)]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None
