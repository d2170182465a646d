"""Sends records to one tracker: a process of its own, which `handover` starts and ends. Imports no TensorFlow.

The first line of stdin is a JSON object with the `sender` and its `target`; each other line is a record. Each record
that was sent is a line of stdout. The last line of stderr says why the process failed.
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
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing is left to be done in order
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as reports:
        os.dup2(2, 1)  # where libraries print
        try:
            job = json.loads(sys.stdin.buffer.readline())
            tracker = _tracker(job["sender"], job["target"])
            for line in sys.stdin.buffer:
                record = Record.from_json(line)
                where = tracker.send(tracked(record))
                print(json.dumps({"run_id": record.identity.run_id, "where": where}), file=reports, flush=True)
        except Exception as error:  # of any library
            print(one_line(f"{type(error).__name__}: {headline(error)}"), file=sys.stderr, flush=True)
            return 1
    return 0


def _tracker(sender: str, target: str) -> Tracker:
    module, _, name = sender.partition(":")
    tracker: Tracker = getattr(importlib.import_module(module), name)(target)
    return tracker


if __name__ == "__main__":
    sys.exit(main())
