"""The processes of a cluster that a test has started by hand, as a user would."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from benchmarks.cluster import launch_plan
from tests.support.commands import ROOT, RUN_BENCH, USER_ENVIRONMENT

SMALL = ("--model=trivial", "--device=cpu", "--num_gpus=1", "--batch_size=2", "--num_batches=8")


def local(tasks: str) -> tuple[str, ...]:
    """Returns the flags that start these tasks on this host, in a private network if the kernel permits one."""
    return (f"--local_cluster={tasks}", *(() if _may_have_a_private_network() else ("--noprivate_network",)))


@functools.cache
def _may_have_a_private_network() -> bool:
    code = "import sys; from benchmarks.process import private_network; sys.exit(private_network.enter() is not None)"
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60).returncode == 0


def measuring(directory: Path, *flags: str, **variables: str) -> subprocess.Popen[str]:
    """Starts a run that shows every step, and returns it when it has measured some, with a pipe of all its output.

    Keyword arguments are environment variables.
    """
    process = subprocess.Popen(
        [*RUN_BENCH, *flags],
        cwd=directory,
        env={**USER_ENVIRONMENT, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("3\timages/sec"):
            return process
    pytest.fail(f"it ended before it measured, with status {process.wait()}")


def processes_in(directory: Path) -> list[psutil.Process]:
    """Returns the processes that work in a directory."""
    return [process for process in psutil.process_iter(["cwd"]) if process.info["cwd"] == str(directory)]


@dataclasses.dataclass
class Tasks:
    """The processes of a cluster by task, each with a file that holds what it has printed."""

    addresses: dict[str, str]
    processes: dict[str, subprocess.Popen[bytes]]
    outputs: dict[str, Path]

    def text(self, task: str) -> str:
        """Returns what a task has printed until now."""
        return self.outputs[task].read_text(errors="replace")

    def wait_for(self, task: str, text: str, seconds: float = 300.0) -> None:
        """Waits until a task has printed something."""
        deadline = time.monotonic() + seconds
        while text not in self.text(task):
            assert time.monotonic() < deadline, f"{task} never said {text!r}:\n{self.text(task)}"
            assert self.processes[task].poll() is None, f"{task} has ended:\n{self.text(task)}"
            time.sleep(0.05)

    def statuses(self, seconds: float, *, but: str = "") -> dict[str, int]:
        """Waits for all tasks, but one, to end; returns their exit statuses."""
        deadline = time.monotonic() + seconds
        ended = {}
        for task, process in self.processes.items():
            if task != but:
                try:
                    ended[task] = process.wait(max(0.1, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    pytest.fail(f"{task} still runs after {seconds:g} s:\n{self.text(task)[-3000:]}")
        return ended

    def listening(self) -> list[str]:
        """Returns the addresses at which something still listens."""
        found = []
        for address in self.addresses.values():
            host, port = address.split(":")
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
                found.append(address)
        return found


StartCluster = Callable[..., Tasks]


def free_addresses(count: int) -> list[str]:
    """Returns addresses of this host at which nothing listens."""
    return list(launch_plan.with_free_ports(launch_plan.on_this_host(f"worker:{count}")).workers)
