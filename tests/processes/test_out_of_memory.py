"""A batch that does not fit into memory is a row, also if the kernel kills its process."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import RUN_BENCH, USER_ENVIRONMENT, Records, RunBench, finished, wait_until

# TensorFlow itself takes 0.6 GB, and the larger batch 12 GB.
GROUP_LIMIT_BYTES = 3 * 2**29
TOO_LARGE = "trivial with 20000 images per device on 1 CPU device. Try half the batch, --batch_size=10000, or "
TOO_LARGE += "--batch_size=auto, which finds the largest that fits."


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A control group with a limit of memory."""
    group = Path("/sys/fs/cgroup/memory") / f"run_bench_test_{os.getpid()}"
    if not (group.parent / "memory.limit_in_bytes").exists() or os.geteuid() != 0:
        pytest.skip("no memory group can be made")
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(GROUP_LIMIT_BYTES))
    yield group
    wait_until(lambda: not (group / "cgroup.procs").read_text())
    group.rmdir()


@pytest.fixture
def run_in_group(memory_group: Path, tmp_path: Path) -> RunBench:
    """Runs run_bench.py as a process in that group.

    The kernel may kill a second process while the first is still giving its memory back. It may not take this one, only
    what it starts and marks as the first to be killed, unless there is nothing else.
    """
    enter = f'echo -900 > /proc/self/oom_score_adj; echo $$ > {memory_group}/cgroup.procs; exec "$@"'
    return lambda *words: finished(["sh", "-c", enter, "sh", *RUN_BENCH, *words], tmp_path, USER_ENVIRONMENT)


SHORT = ("--device=cpu", "--model=trivial", "--num_batches=3")


@pytest.mark.fault(
    "R3",
    "a single run in a control group of 1.5 GiB, which the kernel enforces with SIGKILL",
    survives="a row oom that names the request and the limit",
)
@pytest.mark.slow
def test_a_run_that_the_kernel_kills_leaves_a_record(run_in_group: RunBench, records: Records) -> None:
    done = run_in_group(*SHORT, "--batch_size=20000")
    assert done.status == -signal.SIGKILL
    (record,) = records()
    assert record["status"] == "oom" and record["reason"].endswith(TOO_LARGE)
    assert "1.5 GiB is the limit" in record["reason"] and f"run_bench: {record['reason']}\n" in done.stderr


@pytest.mark.fault(
    "R3",
    "a sweep over batch sizes in a control group of 1.5 GiB, which the kernel enforces with SIGKILL",
    survives="status 4; the large batch is a row oom that names the request; the sweep goes on",
)
@pytest.mark.rotates
def test_a_cell_that_the_kernel_kills_is_a_row(run_in_group: RunBench, records: Records) -> None:
    done = run_in_group("sweep", *SHORT, "--batch_size=20000,2")
    assert done.status == 4, done.stderr
    large, small = records()
    assert large["status"] == "oom" and TOO_LARGE in large["reason"]
    assert small["status"] == "ok"
