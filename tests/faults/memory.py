"""Faults of memory, and of processes that are killed."""

from __future__ import annotations

import signal
import sys
import time
from typing import Any

from tests.faults.catalog import fault
from tests.faults.harness import ENDLESS, MEASURES, Scratch, busy, want

_LIMIT_BYTES = 1500 * 2**20
_TOO_LARGE = ("--device=cpu", "--model=vgg16", "--num_batches=2")
# What is written by another process, after the run has ended.
_ROW_SECONDS = 15.0


def _row(scratch: Scratch) -> dict[str, Any]:
    """Returns the only record; it may be written after the run has ended."""
    until = time.monotonic() + _ROW_SECONDS
    while not scratch.records() and time.monotonic() < until:
        time.sleep(0.2)
    records = scratch.records()
    want(len(records) == 1, f"{len(records)} records")
    return records[0]


@fault(
    "sweep-out-of-memory",
    "R3",
    injects="a sweep over batch sizes in a control group of 1500 MB, which the kernel enforces with SIGKILL",
    must="status 4; the batch of 64 is a row oom that names the request; the sweep goes on",
    needs=["memory_groups"],
)
def _sweep(scratch: Scratch) -> None:
    ended = scratch.bench("sweep", *_TOO_LARGE, "--batch_size=64,1", under=scratch.memory_limit(_LIMIT_BYTES))
    found = {record["config"]["batch_per_device"]: record for record in scratch.records()}
    statuses = {batch: record["status"] for batch, record in found.items()}
    want(ended.status == 4, f"status {ended.status}, {statuses}: {ended.tail}")
    want(statuses.get(64) == "oom" and statuses.get(1) in ("ok", "oom"), f"{statuses}: {ended.tail}")
    want("64" in found[64]["reason"], f"no request in: {found[64]['reason']}")


@fault(
    "run-out-of-memory",
    "R3",
    injects="a single run in a control group of 1500 MB, which the kernel enforces with SIGKILL",
    must="status 137, and a row oom that names the request",
    needs=["memory_groups"],
)
def _run(scratch: Scratch) -> None:
    ended = scratch.bench("run", *_TOO_LARGE, "--batch_size=64", under=scratch.memory_limit(_LIMIT_BYTES))
    scratch.expect(ended, 137)
    row = _row(scratch)
    want(row["status"] == "oom", f"{row['status']}: {row['reason']}")
    want("64" in row["reason"], f"no request in: {row['reason']}")


@fault(
    "address-space-too-small",
    "R3",
    injects="a batch of 256 for vgg16 with ulimit -v of 6 GB",
    must="status 4, or 134 where the C++ runtime aborts; a row oom that names the request and the device",
)
def _address_space(scratch: Scratch) -> None:
    ended = scratch.bench("run", *_TOO_LARGE, "--batch_size=256", under=("prlimit", "--as=6000000000"))
    scratch.expect(ended, 4, 134)
    row = _row(scratch)
    want(row["status"] == "oom", f"{row['status']}: {row['reason']}")
    want("256" in row["reason"] and "cpu" in row["reason"].lower(), f"no request or device in: {row['reason']}")


@fault("run-killed", "R1", injects="kill -9 of a single run that measures", must="status 137, and a row crash")
def _killed(scratch: Scratch) -> None:
    run = scratch.start("run", *ENDLESS)
    run.wait_for(MEASURES)
    run.send(signal.SIGKILL)
    scratch.expect(run.end(), 137)
    row = _row(scratch)
    want(row["status"] == "crash", f"{row['status']}: {row['reason']}")


@fault(
    "run-of-a-sweep-killed",
    "R2",
    injects="kill -9 of the first run of a sweep",
    must="it is a row crash, the next run is ok",
)
def _cell_killed(scratch: Scratch) -> None:
    words = ("--device=cpu", "--model=trivial", "--batch_size=1,2", "--num_batches=20")
    sweep = scratch.start("sweep", *words)
    sweep.wait_until(lambda: busy(scratch.processes("--batch_size=1 "), 3), "started TensorFlow")
    for process in scratch.processes("--batch_size=1 "):
        process.kill()
    ended = sweep.end()
    found = {record["config"]["batch_per_device"]: record["status"] for record in scratch.records()}
    want(found == {1: "crash", 2: "ok"}, f"status {ended.status}, {found}: {ended.tail}")


# Takes memory until the kernel kills it, before any other process of its control group.
_HOG = """
open("/proc/self/oom_score_adj", "w").write("1000")
taken = []
while True:
    taken.append(b"x" * 2**24)
"""


@fault(
    "another-process-out-of-memory",
    "R3",
    injects="kill -9 of a run of a sweep, some seconds after the kernel killed another process of its group for memory",
    must="it is a row crash and not oom; the next run is ok",
    needs=["memory_groups"],
)
def _other_process(scratch: Scratch) -> None:
    group = scratch.memory_limit(4000 * 2**20)
    words = ("--device=cpu", "--model=trivial", "--batch_size=1,2", "--num_batches=20")
    sweep = scratch.start("sweep", *words, under=group)
    sweep.wait_until(lambda: busy(scratch.processes("--batch_size=1 "), 2), "started TensorFlow")
    runs = scratch.processes("--batch_size=1 ")
    for run in runs:
        run.suspend()  # until the other one is dead, which takes longer than this one may last
    scratch.expect(scratch.start("-c", _HOG, under=group, program=(sys.executable,)).end(), 137)
    time.sleep(4)  # two kills within a second or two cannot be told apart if the run is large
    for run in runs:
        run.kill()
    ended = sweep.end()
    found = {record["config"]["batch_per_device"]: record["status"] for record in scratch.records()}
    want(found == {1: "crash", 2: "ok"}, f"status {ended.status}, {found}: {ended.tail}")


@fault(
    "no-process-can-be-started",
    "R2",
    injects="the kernel refuses the first run of a sweep a process (EAGAIN)",
    must="it is a row crash, the next run is ok, no traceback",
    needs=["strace"],
)
def _no_fork(scratch: Scratch) -> None:
    words = ("--device=cpu", "--model=trivial", "--batch_size=1,2", "--num_batches=5")
    trace = ("strace", "-o", "/dev/null", "-e", "trace=clone,fork", "-e", "inject=clone,fork:error=EAGAIN:when=1")
    ended = scratch.bench("sweep", *words, under=trace)
    found = {record["config"]["batch_per_device"]: record["status"] for record in scratch.records()}
    want(found == {1: "crash", 2: "ok"}, f"status {ended.status}, {found}: {ended.tail}")
