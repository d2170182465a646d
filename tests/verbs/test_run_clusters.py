"""`run` with flags of a cluster, where it ends before it has met another task."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

import pytest

from tests.support.commands import Finished

RunBench = Callable[..., Finished]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--variable_update=distributed_replicated"], "--local_cluster=ps:1,worker:2"),
        (["--local_cluster=ps:1"], "has no worker"),
        (["--local_cluster=worker:2", "--variable_update=replicated"], "collective_all_reduce"),
        (["--local_cluster=worker:2"], "this cluster has none"),
        (["--local_cluster=ps:1,worker:2", "--variable_update=collective_all_reduce"], "no use for parameter servers"),
        (["--hosts=a,b"], "--ssh"),
        (["--hosts=a,a", "--ssh"], "name each host once"),
        (["--local_cluster=worker:2", "--hosts=a,b", "--ssh"], "give one of them"),
    ],
)
def test_what_cannot_be_is_a_sentence(run_bench: RunBench, flags: list[str], words: str) -> None:
    done = run_bench("--device=cpu", *flags)
    assert done.status == 2
    assert words in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.fault(
    "R12", "another process listens at the task's port", survives="status 6, naming the port and the process"
)
def test_a_port_that_is_taken_is_named(run_bench: RunBench) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        hosts = (f"--ps_hosts=127.0.0.1:{port}", "--worker_hosts=127.0.0.1:1")
        done = run_bench("--device=cpu", "--model=trivial", *hosts, "--job_name=ps", "--task_index=0")
    assert done.status == 6
    assert f"port {port}" in done.stderr and str(os.getpid()) in done.stderr and "another port" in done.stderr
