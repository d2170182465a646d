"""Fixtures of the tests that start processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.clusters import StartCluster, Tasks, free_addresses
from tests.support.commands import RUN_BENCH, USER_ENVIRONMENT


@pytest.fixture
def start_cluster(tmp_path: Path) -> Iterator[StartCluster]:
    """Starts one process per task, in a given order, as the guide does; none of them survives the test.

    Without `hosts`, the flags have the lists of addresses. `per_task` are more flags of some tasks, and `variables` of
    their environment. With `await_first`, the other tasks are started when the first has printed that.
    """
    started: list[subprocess.Popen[bytes]] = []

    def start(
        *flags: str,
        ps: int = 1,
        workers: int = 2,
        order: tuple[str, ...] = (),
        await_first: str = "",
        per_task: Mapping[str, tuple[str, ...]] | None = None,
        variables: Mapping[str, Mapping[str, str]] | None = None,
        hosts: bool = True,
    ) -> Tasks:
        names = [*(f"ps {i}" for i in range(ps)), *(f"worker {i}" for i in range(workers))]
        addresses = dict(zip(names, free_addresses(len(names)), strict=True))
        lists = [f"--worker_hosts={','.join(a for n, a in addresses.items() if n.startswith('worker'))}"]
        if ps:
            lists.append(f"--ps_hosts={','.join(a for n, a in addresses.items() if n.startswith('ps'))}")
        tasks = Tasks(addresses, {}, {name: tmp_path / f"{name.replace(' ', '-')}.log" for name in names})
        for name in order or tuple(names):
            job, index = name.split()
            with tasks.outputs[name].open("wb") as output:
                process = subprocess.Popen(
                    [
                        *RUN_BENCH,
                        *flags,
                        *(per_task or {}).get(name, ()),
                        *(lists if hosts else ()),
                        f"--job_name={job}",
                        f"--task_index={index}",
                    ],
                    cwd=tmp_path,
                    env={**USER_ENVIRONMENT, **(variables or {}).get(name, {})},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            started.append(process)
            tasks.processes[name] = process
            if await_first and len(tasks.processes) == 1:
                tasks.wait_for(name, await_first)
        return tasks

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(120)
