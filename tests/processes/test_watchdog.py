"""A watchdog ends a process whose main thread cannot end it."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.support.commands import ROOT

SECONDS = 120.0
STUCK = """
import sys, threading
sys.path.insert(0, {root!r})
from benchmarks.process.watchdog import Watchdog
watchdog = Watchdog(lambda error: print("kept:", error, flush=True))
watchdog.start()
watchdog.expect("Waiting", 0.1)
stuck = threading.Lock()
stuck.acquire()
stuck.acquire()
"""


@pytest.mark.fault("R4", "a main thread that waits in TensorFlow for ever", survives="the process ends by itself")
def test_a_process_that_is_stuck_ends() -> None:
    command = [sys.executable, "-c", STUCK.format(root=str(ROOT))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert (done.returncode, done.stdout) == (124, "kept: Waiting took longer than 0.1 s.\n")
    assert 'File "<string>", line' in done.stderr


HANDLED = "import signal; [signal.signal(s, signal.default_int_handler) for s in (signal.SIGTERM, signal.SIGHUP)]"
DEAF = """
import ctypes, sys, threading
sys.path.insert(0, {root!r})
from benchmarks.process import watchdog
watchdog._GRACE_SECONDS = 0.5
watchdog.Watchdog(lambda error: print("kept:", error, error.record_status, flush=True)).start()
threading.Timer(0.3, print, ["deaf"], {{"flush": True}}).start()
mutex = ctypes.create_string_buffer(64)
for _ in range(2):
    ctypes.CDLL(None).pthread_mutex_lock(mutex)
"""


@pytest.mark.parametrize(
    ("number", "status", "said"),
    [
        (signal.SIGINT, 130, "Interrupted by Ctrl-C."),
        (signal.SIGTERM, 143, "Ended by SIGTERM."),
        (signal.SIGHUP, 129, "Ended by SIGHUP: its terminal or connection was closed."),
    ],
)
def test_a_signal_ends_a_process_whose_main_thread_cannot_hear_it(
    number: signal.Signals, status: int, said: str
) -> None:
    command = [sys.executable, "-c", HANDLED + DEAF]
    command[-1] = command[-1].format(root=str(ROOT))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "deaf\n"
        process.send_signal(number)
        assert process.communicate(timeout=SECONDS)[0] == f"kept: {said} interrupted\n"
        assert process.returncode == status
