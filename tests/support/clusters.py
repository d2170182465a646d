"""The processes of a cluster that a test has started by hand, as a user would."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

SMALL = ("--model=trivial", "--device=cpu", "--num_gpus=1", "--batch_size=2", "--num_batches=8")


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
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
