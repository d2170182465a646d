"""Faults that make something wait for ever: a FIFO among files, a lock that is never freed, a stopped process."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from pathlib import Path

from results.store import JSONL_NAME
from tests.faults.catalog import fault
from tests.faults.harness import LONG, MEASURES, TINY, Scratch, busy, want
from tests.support.commands import ROOT, RUN_BENCH


def _with_fifo(scratch: Scratch) -> Path:
    """Makes a folder of photos in which one is a FIFO that nobody writes."""
    photos = scratch.directory / "photos"
    (photos / "train" / "a").mkdir(parents=True)
    os.mkfifo(photos / "train" / "a" / "x.jpg")
    return photos


@fault("fifo-data-check", "R4", injects="a FIFO among photos, data check", must="status 5 within 60 s, naming the FIFO")
def _check(scratch: Scratch) -> None:
    scratch.expect(scratch.bench("data", "check", _with_fifo(scratch), seconds=60), 5, says=["x.jpg"])


@fault(
    "fifo-data-convert", "R4", injects="a FIFO among photos, data convert", must="status 5 within 60 s, naming the FIFO"
)
def _convert(scratch: Scratch) -> None:
    words = ("data", "convert", _with_fifo(scratch), scratch.directory / "converted")
    scratch.expect(scratch.bench(*words, seconds=60), 5, says=["x.jpg"])


@fault(
    "fifo-input",
    "R4",
    injects="a FIFO among photos, input; Ctrl-C after 30 s if it still waits",
    must="status 5 naming the FIFO, or 130 within 20 s after Ctrl-C",
)
def _input(scratch: Scratch) -> None:
    words = ("input", "--device=cpu", "--model=trivial", f"--data_dir={_with_fifo(scratch)}")
    measuring = scratch.start(*words)
    if measuring.ended_within(30):
        scratch.expect(measuring.end(), 5, says=["x.jpg"])
        return
    measuring.send(signal.SIGINT, group=True)
    scratch.expect(measuring.end(20), 130)


@fault(
    "fifo-run",
    "R4",
    injects="a FIFO among photos, run with --step_timeout_seconds=10",
    must="status 5 naming the FIFO, or 124, within 60 s; one record",
)
def _run(scratch: Scratch) -> None:
    words = (*TINY, "--num_batches=5", "--step_timeout_seconds=10", f"--data_dir={_with_fifo(scratch)}")
    ended = scratch.bench("run", *words, seconds=60)
    scratch.expect(ended, 5, 124)
    want(ended.status == 124 or "x.jpg" in ended.text, f"x.jpg is not named: {ended.tail}")
    want(len(scratch.records()) == 1, f"status {ended.status}, {len(scratch.records())} records")


@fault(
    "cache-lock-held",
    "R4",
    injects="a stopped process holds the lock of the cache while another saves a recommendation",
    must="it goes on within 90 s and warns about the lock",
)
def _cache_lock(scratch: Scratch) -> None:
    holder = scratch.hold_lock(Path(scratch.variables["XDG_CACHE_HOME"]) / "cnn_bench" / "recommendations.lock")
    holder.send(signal.SIGSTOP)
    script = "from benchmarks.machine import cache; cache.put('key', {'batch_size': 2})"
    try:
        saving = scratch.start(program=(sys.executable, "-c", script), variables={"PYTHONPATH": str(ROOT)})
        scratch.expect(saving.end(90), 0, says=["lock"])
    finally:
        holder.process.kill()


@fault(
    "results-lock-held",
    "R4",
    injects="another process holds the lock on results.jsonl from the start",
    must="status 2 within 90 s, naming the lock, before the run starts",
)
def _results_lock(scratch: Scratch) -> None:
    holder = scratch.hold_lock(scratch.out / JSONL_NAME)
    try:
        ended = scratch.bench("run", *TINY, "--num_batches=5", seconds=90)
    finally:
        holder.process.kill()
    scratch.expect(ended, 2, says=["lock"], never=["Model:  "])


@fault(
    "results-lock-taken-during-the-run",
    "R4",
    injects="another process takes the lock on results.jsonl during the run, and keeps it",
    must="status 4 within 90 s after the last step, and the record as one line on stderr",
)
def _results_lock_later(scratch: Scratch) -> None:
    run = scratch.start("run", *LONG)
    run.wait_for(MEASURES)
    holder = scratch.hold_lock(scratch.out / JSONL_NAME)
    try:
        ended = run.end(100)
    finally:
        holder.process.kill()
    scratch.expect(ended, 4, records=[], says=["lock"])
    printed = [line for line in ended.stderr.splitlines() if line.startswith('{"identity"')]
    want(len(printed) == 1, f"{len(printed)} records on stderr: {ended.tail}")


@fault(
    "side-of-ab-stopped",
    "R4",
    injects="SIGSTOP of the base's process while ab interleaves steps",
    must="ab names the base within 4 minutes, and runs the pair once more",
)
def _side_stopped(scratch: Scratch) -> None:
    words = (*TINY, "--num_batches=3000", "--step_timeout_seconds=15")
    ab = scratch.start("ab", f"--base_command={shlex.join(RUN_BENCH)}", *words, f"--output_dir={scratch.out}")
    ab.wait_until(lambda: busy(scratch.processes("/base "), 6), "started the base's run")
    for process in scratch.processes("/base "):
        process.suspend()
    ab.wait_for("the base failed. timeout", 240)
    ab.wait_until(lambda: scratch.processes("/base "), "run the pair once more")
    ab.send(signal.SIGTERM)
    scratch.expect(ab.end(60), 143, says=["waited in vain", "may be stopped"])


@fault(
    "side-of-ab-stopped-at-the-start",
    "R4",
    injects="SIGSTOP of the base's process while it starts",
    must="ab names the base within 4 minutes, and goes on",
)
def _side_stopped_at_the_start(scratch: Scratch) -> None:
    ab = scratch.start("ab", f"--base_command={shlex.join(RUN_BENCH)}", *TINY, f"--output_dir={scratch.out}")
    ab.wait_until(lambda: scratch.processes("/base "), "started the base's run")
    for process in scratch.processes("/base "):
        process.suspend()
    ab.wait_for("started at once, the base failed. timeout: Killed because it neither computed", 240)
    ab.send(signal.SIGTERM)
    scratch.expect(ab.end(60), 143, says=["may be stopped"])
