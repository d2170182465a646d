"""Sends records to one tracker: the process that `handover` starts with a time limit. Imports no TensorFlow.

The first line of stdin is a JSON object with the tracker's `package` and its `target`; each other line is a record.
Each record that was sent is a line of stdout: where it can be seen. The last line of stderr says why the first record
that was not sent failed.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys

from benchmarks.errors import headline
from benchmarks.trackers.tracked_run import tracked
from results.record import Record
from results.text import one_line


def main() -> str | None:
    """Sends all records of stdin, and returns why the first one failed; None if none did."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends at once, without a traceback
    failed = []
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as places:
        os.dup2(2, 1)  # where libraries print
        try:
            job = json.loads(sys.stdin.buffer.readline())
            tracker = importlib.import_module(f"benchmarks.trackers.to_{job['package']}")
        except Exception as error:  # of any library
            return _in_words(error)
        for line in sys.stdin.buffer:
            try:
                print(one_line(tracker.send(tracked(Record.from_json(line)), job["target"])), file=places, flush=True)
            except Exception as error:  # the others can be sent
                failed.append(_in_words(error))
    return failed[0] if failed else None


def _in_words(error: Exception) -> str:
    return one_line(f"{type(error).__name__}: {headline(error)}")


if __name__ == "__main__":
    sys.exit(main())
