"""A watchdog that starts no thread."""

from __future__ import annotations

from benchmarks.process.watchdog import Watchdog


class NotedWatchdog(Watchdog):
    """Notes what it is to expect, and for how many seconds; nothing is ("", 0)."""

    def __init__(self) -> None:
        self.expected: list[tuple[str, float]] = []

    def expect(self, what: str, within_seconds: float) -> None:
        self.expected.append((what, within_seconds))

    def expect_nothing(self) -> None:
        self.expected.append(("", 0.0))
