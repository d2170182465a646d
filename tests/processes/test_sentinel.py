"""What is left of a process, or of a run, that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.clusters import measuring, processes_in
from tests.support.commands import ROOT, USER_ENVIRONMENT, Records, wait_until
from tests.support.scratch import ENDLESS

ENVIRONMENT = {**USER_ENVIRONMENT, "PYTHONPATH": str(ROOT)}
# Names the sentinel, then ends as its argument says, with a core dump if the signal makes one.
PROGRAM = """
import os, resource, sys, time
from benchmarks.process import sentinel
most = resource.getrlimit(resource.RLIMIT_CORE)[1]
resource.setrlimit(resource.RLIMIT_CORE, (most, most))
def act(death):
    with open("death", "w") as file: print(death.signal, death.out_of_memory, os.getpid(), file=file)
    os.rename("death", "dead")
with sentinel.unless_dismissed(act) as dismiss:
    print("ready", flush=True)
    exec(sys.argv[1])
"""


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts the program, and returns when it is ready; it leaves nothing behind."""

    def start(end: str = "time.sleep(60)", **variables: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, end],
            cwd=tmp_path,
            env={**ENVIRONMENT, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        processes.append(process)
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        return process

    processes: list[subprocess.Popen[str]] = []
    yield start
    for process in processes:
        process.kill()
        process.communicate(timeout=60)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
@pytest.mark.parametrize("send", [os.kill, os.killpg])
def test_a_killed_process_has_its_sentinel_act(
    tmp_path: Path, started: Callable[..., Any], send: Callable[[int, int], None], number: int
) -> None:
    process = started()
    send(process.pid, number)
    process.communicate(timeout=60)  # until the sentinel has closed the output, too
    seen, out_of_memory, pid = (tmp_path / "dead").read_text().split()
    assert seen in (str(int(number)), "None") and out_of_memory == "False"
    assert int(pid) != process.pid


@pytest.mark.parametrize("end", ["pass", "1 / 0", "os._exit(0)"])
def test_a_process_that_ends_without_dismissing_its_sentinel_has_it_act(
    tmp_path: Path, started: Callable[..., Any], end: str
) -> None:
    started(end).communicate(timeout=60)
    assert (tmp_path / "dead").read_text().startswith("None False ")


@pytest.mark.parametrize(
    ("end", "variables"),
    [
        ("dismiss(); os.kill(os.getpid(), 9)", {}),
        ("dismiss(); dismiss(); 1 / 0", {}),
        ("from benchmarks.errors import UsageError; raise UsageError", {}),
        ("os.kill(os.getpid(), 9)", {"CNN_BENCH_RECORDED_BY_PARENT": "1"}),
    ],
    ids=["dismissed", "twice", "usage error", "recorded by its parent"],
)
def test_a_process_that_has_dismissed_its_sentinel_has_not(
    tmp_path: Path, started: Callable[..., Any], end: str, variables: dict[str, str]
) -> None:
    started(end, **variables).communicate(timeout=60)
    assert not (tmp_path / "dead").exists()


def test_a_sentinel_is_detached_and_holds_none_of_our_files(tmp_path: Path, started: Callable[..., Any]) -> None:
    process = started("print(os.listdir('/proc/self/fd'), flush=True); time.sleep(60)")
    (sentinel,) = (each for each in processes_in(tmp_path) if each.pid != process.pid)
    assert sentinel.ppid() != process.pid and os.getsid(sentinel.pid) != os.getsid(process.pid)
    # Standard input, output, error, and one end of a pipe; more while it looks at us.
    wait_until(lambda: sentinel.num_fds() == 4)


def killed_when_ready(program: str) -> str:
    """Returns what is printed afterwards; the output is closed once the sentinel has ended."""
    process = subprocess.Popen([sys.executable, "-c", program], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.kill()
    return process.communicate(timeout=60)[0]


def test_a_process_with_threads_has_none() -> None:
    """A fork of a process with threads may find their locks taken for ever."""
    program = (
        "import threading, time; from benchmarks.process import sentinel\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "with sentinel.unless_dismissed(lambda death: print('acts')): print('ready', flush=True); time.sleep(60)"
    )
    assert killed_when_ready(program) == ""


def test_a_sentinel_whose_act_never_ends_keeps_no_reader_waiting() -> None:
    """As when the results are on a file system that no longer answers."""
    program = (
        "import signal, time; from benchmarks.process import sentinel\n"
        "sentinel._ACT_SECONDS = 1; signal.signal(signal.SIGALRM, lambda *_: None)\n"
        "with sentinel.unless_dismissed(lambda death: (print('acts', flush=True), time.sleep(600))):\n"
        "    print('ready', flush=True); time.sleep(60)"
    )
    assert killed_when_ready(program) == "acts\n"


@pytest.mark.fault("R1", "kill -9 or SIGSEGV of a single run that measures", survives="a row crash with the reason")
@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSEGV, marks=pytest.mark.slow)])
def test_a_run_that_is_killed_leaves_a_record(tmp_path: Path, records: Records, number: int) -> None:
    run = measuring(tmp_path, *ENDLESS)
    run.send_signal(number)
    text, _ = run.communicate(timeout=60)
    assert run.returncode == -number
    (record,) = records()
    assert record["status"] == "crash" and record["config"]["batch_per_device"] == 2
    assert record["reason"].startswith("The run was ended by ")
    assert f"run_bench: {record['reason']}\n" in text
