"""How run_bench.py is started, and how it ended."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
RUN_BENCH = (sys.executable, str(ROOT / "run_bench.py"))

# The environment of a process that a test starts: the user's, before this process was prepared for TensorFlow. What
# tests print does not belong into the summary of a CI job.
USER_ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "GITHUB_STEP_SUMMARY"}


@dataclasses.dataclass(frozen=True)
class Finished:
    """How a command ended."""

    status: int
    stdout: str
    stderr: str

    def succeeded(self) -> Finished:
        """Returns this; fails the test, with what was printed, if the status is not 0."""
        assert self.status == 0, self.stdout + self.stderr
        return self


# What the fixtures `run_bench` and `run_process`, and `records`, give a test.
RunBench = Callable[..., Finished]
Records = Callable[[], list[dict[str, Any]]]


def losses_of(record: Mapping[str, Any]) -> list[float]:
    """Returns the losses of all steps of a record that were not left unmeasured."""
    return [*record["measurement"]["warmup_losses"], *record["measurement"]["losses"]]


def finished(command: Sequence[str | Path], directory: Path, environment: Mapping[str, str]) -> Finished:
    """Runs a command as a process in a directory, for ten minutes at most."""
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=600)
    return Finished(done.returncode, done.stdout, done.stderr)


def wait_until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Waits until a condition holds; fails if it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
