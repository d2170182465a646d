"""Clusters of real processes, started by hand as a user would."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.conftest import ROOT, USER_ENVIRONMENT

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


@pytest.fixture
def start_cluster(tmp_path: Path) -> Iterator[StartCluster]:
    """Starts one process per task, in a given order, as the guide does; none of them survives the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(
        *flags: str,
        ps: int = 1,
        workers: int = 2,
        order: tuple[str, ...] = (),
        pause_seconds: float = 0.0,
        per_task: Mapping[str, tuple[str, ...]] | None = None,
    ) -> Tasks:
        names = [*(f"ps {i}" for i in range(ps)), *(f"worker {i}" for i in range(workers))]
        addresses = dict(zip(names, _free_addresses(len(names)), strict=True))
        hosts = [f"--worker_hosts={','.join(a for n, a in addresses.items() if n.startswith('worker'))}"]
        if ps:
            hosts.append(f"--ps_hosts={','.join(a for n, a in addresses.items() if n.startswith('ps'))}")
        tasks = Tasks(addresses, {}, {name: tmp_path / f"{name.replace(' ', '-')}.log" for name in names})
        for name in order or tuple(names):
            job, index = name.split()
            with tasks.outputs[name].open("wb") as output:
                process = subprocess.Popen(
                    [
                        sys.executable,
                        str(ROOT / "run_bench.py"),
                        *flags,
                        *(per_task or {}).get(name, ()),
                        *hosts,
                        f"--job_name={job}",
                        f"--task_index={index}",
                    ],
                    cwd=tmp_path,
                    env=USER_ENVIRONMENT,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            started.append(process)
            tasks.processes[name] = process
            time.sleep(pause_seconds)
        return tasks

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(120)


def _free_addresses(count: int) -> list[str]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
