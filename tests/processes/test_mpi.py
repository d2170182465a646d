"""Processes with the variables of mpirun train as one cluster, without a job, an index or addresses by flags."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from results import loading
from tests.support.commands import ROOT


def two_free_ports() -> int:
    """Returns a port at which nothing listens, nor at the next one."""
    for port in range(20_000, 60_000, 2):
        with contextlib.suppress(OSError), socket.socket() as one, socket.socket() as next_one:
            one.bind(("127.0.0.1", port))
            next_one.bind(("127.0.0.1", port + 1))
            return port
    raise AssertionError("there is no free port")


@pytest.mark.slow
def test_two_ranks_are_one_run(tmp_path: Path) -> None:
    words = ["--cluster=mpi", "--variable_update=collective_all_reduce", "--model=trivial", "--device=cpu"]
    words += ["--batch_size=2", "--num_batches=2", "--num_warmup_batches=0", f"--server_port={two_free_ports()}"]
    local = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            [sys.executable, ROOT / "run_bench.py", *words],
            cwd=tmp_path,
            env={**os.environ, **local, "OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_LOCAL_RANK": rank},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in ("0", "1")
    ]
    first, second = (rank.communicate(timeout=240)[0] for rank in ranks)
    assert [rank.returncode for rank in ranks] == [0, 0], first + second
    assert "\tbase_loss of worker 0\n" in first, "the penalty is left out where workers would wait for it"
    assert "worker 0 has the total and keeps the record" in second
    (record,) = loading.load(tmp_path / "out" / "results.jsonl").records
    assert record.config["num_workers"] == 2
    assert record.status == "ok"
