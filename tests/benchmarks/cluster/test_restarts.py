"""What a task learns of the failed attempts before it."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.cluster.restarts import Attempts
from tests.support.commands import ROOT

TELL = "from benchmarks.cluster import restarts; print(restarts.inherited(), *restarts.warnings())"


def _told(attempts: Attempts) -> str:
    command = attempts.handed_over([sys.executable, "-c", TELL])
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def test_the_first_attempt_knows_of_none() -> None:
    assert _told(Attempts("this")) == f"{Attempts('this')}\n"


def test_the_next_attempts_know_of_which_run_they_are_and_what_failed() -> None:
    attempts = Attempts("this", ("At noon: worker 1 was killed.", "At two: 'ps 0' ended."))
    told = _told(attempts)
    assert told.startswith(f"{attempts} The cluster was started again 2 times; ")
    assert told.endswith("At noon: worker 1 was killed. At two: 'ps 0' ended.\n")
