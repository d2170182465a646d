"""The stages of `.ci/run`, and what they may take: `python3 -m tests.support.budget`.

Prints the minutes of each stage on an otherwise idle machine: what other processes used of the cores is taken away. It
needs nothing but Python, because its first stage installs the rest.
"""

from __future__ import annotations

import dataclasses
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

# Minutes on an otherwise idle machine of two cores.
WARN_MINUTES = 35.0
MOST_MINUTES = 60.0

_CLOCK_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def cpu_seconds_of_others() -> float:
    """Returns the CPU seconds used on this machine, in all, by what is neither this process nor a child that ended."""
    user, nice, system, _, _, irq, softirq, steal, *_ = map(int, Path("/proc/stat").read_text().split()[1:11])
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    used = (user + nice + system + irq + softirq + steal) / _CLOCK_TICKS_PER_SECOND
    return used - sum(usage.ru_utime + usage.ru_stime for usage in usages)


class IdleStopwatch:
    """Seconds since it was made, as they would be if no other process used the cores."""

    def __init__(self) -> None:
        self._begin, self._others = time.monotonic(), cpu_seconds_of_others()

    def seconds(self) -> float:
        """Returns the seconds until now."""
        seconds = time.monotonic() - self._begin
        others = max(0.0, cpu_seconds_of_others() - self._others) / (os.cpu_count() or 1)
        return max(0.0, seconds - others)


@dataclasses.dataclass(frozen=True)
class Stage:
    """Targets of the Makefile that run one after the other, beside which `meanwhile` runs."""

    name: str
    targets: tuple[str, ...]
    meanwhile: tuple[str, ...] = ()


STAGES = (
    Stage("install", ("install-test",), meanwhile=("browser",)),
    Stage("lint", ("lint",)),
    Stage("types and tests", ("pytest-ci",), meanwhile=("typecheck",)),
)


def verdict(minutes: float) -> tuple[int, str]:
    """Returns the exit status of a build that took so long, and what is to be said about it."""
    sentence = f"the build took {minutes:.1f} minutes, and may take {MOST_MINUTES:g}. See tests/README.md."
    if minutes > MOST_MINUTES:
        return 1, f"FAILED: {sentence}"
    return 0, f"WARNING: {sentence}" if minutes > WARN_MINUTES else ""


def main() -> int:
    """Runs the stages until one fails; returns the exit status."""
    whole = IdleStopwatch()
    lines = []
    for stage in STAGES:
        watch = IdleStopwatch()
        status = _run(stage)
        lines.append(f"{stage.name} {watch.seconds() / 60:.1f}")
        if status:
            break
    minutes = whole.seconds() / 60
    late, sentence = verdict(minutes)
    print(f"Minutes on an otherwise idle machine: {', '.join(lines)}; in all {minutes:.1f}", flush=True)
    if sentence:
        print(sentence, file=sys.stderr)
    return status or late


def _run(stage: Stage) -> int:
    make = ("make", "--no-print-directory")
    if not stage.meanwhile:
        return subprocess.run([*make, *stage.targets]).returncode
    with subprocess.Popen([*make, *stage.meanwhile], stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as beside:
        status = subprocess.run([*make, *stage.targets]).returncode
        output, _ = beside.communicate()
    sys.stdout.buffer.write(output)
    return status or beside.returncode


if __name__ == "__main__":
    sys.exit(main())
