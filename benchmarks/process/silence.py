"""Finds a process that does nothing while another one waits for it, as a stopped one does. Imports no TensorFlow."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.machine import linux

SILENT_SECONDS = 120.0
# Threads that only look around need less than this CPU time in that while; a slow start needs more.
_LEAST_CPU_SECONDS = 0.2
_LOOK_SECONDS = 2.0
_USER, _SYSTEM = 11, 12  # fields 14 and 15 of proc(5), after pid and name


class Silence:
    """Notes since when a process, with those that it has started, has neither computed nor written.

    Args:
        process: its number.
        written_bytes: returns the size of its output.
        clock: in seconds.
    """

    def __init__(
        self, process: int, written_bytes: Callable[[], int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._process, self._written_bytes, self._clock = process, written_bytes, clock
        self._seen = (0.0, 0)
        self._computes_at = self._writes_at = self._looked_at = clock()

    def look(self) -> None:
        """Notes what it does; costs nothing if the last look was just before."""
        now = self._clock()
        if now - self._looked_at < _LOOK_SECONDS:
            return
        self._looked_at = now
        cpu_seconds, written = self._seen
        if abs(_cpu_seconds(self._process) - cpu_seconds) >= _LEAST_CPU_SECONDS:  # less: something it started has ended
            cpu_seconds, self._computes_at = _cpu_seconds(self._process), now
        if self._written_bytes() != written:
            written, self._writes_at = self._written_bytes(), now
        self._seen = (cpu_seconds, written)

    @property
    def computes(self) -> bool:
        """Returns whether it has computed of late."""
        return self._clock() - self._computes_at < SILENT_SECONDS

    @property
    def writes(self) -> bool:
        """Returns whether it has written of late."""
        return self._clock() - self._writes_at < SILENT_SECONDS


def _cpu_seconds(process: int) -> float:
    """Returns the CPU time of a process and of those that it has started; 0 if it is gone."""
    about = linux.text(Path(f"/proc/{process}/stat"))
    if about is None:
        return 0.0
    fields = about.rpartition(")")[2].split()
    children = (linux.text(Path(f"/proc/{process}/task/{process}/children")) or "").split()
    own = (int(fields[_USER]) + int(fields[_SYSTEM])) / os.sysconf("SC_CLK_TCK")
    return own + sum(_cpu_seconds(int(child)) for child in children)
