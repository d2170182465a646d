"""Sends records to one tracker: a process of its own, which `handover` starts and ends. Imports no TensorFlow.

The first line of stdin is a JSON object with the `sender`, its `target` and `limit_seconds`; each other line is a
record. Each record that was sent is a line of stdout. If so many seconds pass without one, SIGALRM ends the process.
The last line of stderr says why the first record that was not sent failed.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys

from benchmarks.errors import headline
from benchmarks.trackers.tracked_run import Tracker, tracked
from results.record import Record
from results.text import one_line


def main() -> int:
    """Sends all records of stdin, and returns the exit status."""
    for number in (signal.SIGINT, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)  # nothing is left to be done in order
    failed = ""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as reports:
        os.dup2(2, 1)  # where libraries print
        try:
            job = json.loads(sys.stdin.buffer.readline())
            signal.setitimer(signal.ITIMER_REAL, job["limit_seconds"])
            tracker = _tracker(job["sender"], job["target"])
            for line in sys.stdin.buffer:
                try:
                    record = Record.from_json(line)
                    where = tracker.send(tracked(record))
                except Exception as error:  # the others can be sent
                    failed = failed or _in_words(error)
                    continue
                signal.setitimer(signal.ITIMER_REAL, job["limit_seconds"])
                print(json.dumps({"run_id": record.identity.run_id, "where": where}), file=reports, flush=True)
        except Exception as error:  # of any library
            failed = failed or _in_words(error)
    if failed:
        print(failed, file=sys.stderr, flush=True)
    return 1 if failed else 0


def _in_words(error: Exception) -> str:
    return one_line(f"{type(error).__name__}: {headline(error)}")


def _tracker(sender: str, target: str) -> Tracker:
    module, _, name = sender.partition(":")
    tracker: Tracker = getattr(importlib.import_module(module), name)(target)
    return tracker


if __name__ == "__main__":
    sys.exit(main())
