"""Signals at many moments of a command's life, from its first instruction (Ctrl-C: of run_bench) to after its last."""

from __future__ import annotations

import os
import shlex
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.commands import RUN_BENCH
from tests.support.scratch import ENDLESS, TINY, Scratch

SHORT = (*TINY, "--num_batches=40")
AB = ("--nowarmup", "--nointerleave_steps", "--max_repeats=6", "--output_dir=out")
COMMANDS = {
    "run": ("run", *SHORT),
    "sweep": ("sweep", "--device=cpu", "--model=trivial", "--batch_size=2,3", "--num_batches=20"),
    "ab": ("ab", f"--base_command={shlex.join(RUN_BENCH)}", *SHORT, *AB),
    "cluster": ("run", *SHORT, "--local_cluster=worker:2", "--variable_update=collective_all_reduce"),
}
# `make faults MOMENTS=40`.
MOMENTS = int(os.environ.get("MOMENTS", "4"))
# How many runs at a time: with more, a run takes longer than it does alone.
AT_ONCE = max(2, (os.cpu_count() or 1) // 2)
# Records of a command that has done all. At the moments below, `ab` has run one of its six rounds.
ALL_RECORDS = {"run": 1, "sweep": 2, "cluster": 1}


@pytest.mark.fault(
    "R5",
    "SIGTERM, SIGINT or SIGHUP at many moments of a run, a sweep, ab or a local cluster",
    survives="status 143, 130 or 129 within 60 s, or all was done; whole results, nothing left",
)
@pytest.mark.timeout(900 + 60 * MOMENTS)
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)], ids=lambda of: str(of)
)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_signal_at_any_moment(tmp_path: Path, command: str, number: signal.Signals, status: int) -> None:
    words = COMMANDS[command]

    def inject(index: int) -> None:
        with Scratch(tmp_path / str(index)) as scratch:
            started = scratch.start(*words)
            # Before, Ctrl-C meets Python while it starts: a traceback, and status 1. A cluster starts it three times.
            last = ("-X cnn_bench_private_network",) if command == "cluster" else ()
            if number is signal.SIGINT:
                started.wait_until(lambda: scratch.processes(*last) and started.handles(signal.SIGUSR1))
            over = started.ended_within(life * index / MOMENTS)
            # A terminal sends Ctrl-C and SIGHUP to the whole group, `kill` SIGTERM to one process.
            started.send(number, group=number is not signal.SIGTERM)
            ended = started.end(60)
            # A signal that comes when all is done changes nothing.
            is_whole = len(scratch.records()) == ALL_RECORDS.get(command)
            done = ended.status == 0 and (is_whole or (over and command != "ab"))
            assert ended.status == status or done, f"at moment {index}: {ended}"

    def live(name: str) -> float:
        with Scratch(tmp_path / name) as scratch:
            start = time.monotonic()
            scratch.start(*COMMANDS["run" if command == "ab" else command]).end(300)
            return time.monotonic() - start

    with ThreadPoolExecutor(AT_ONCE) as threads:
        # Under the load of the others; of `ab`, one round of two runs.
        life = max(threads.map(live, (f"life-{index}" for index in range(AT_ONCE)))) * (2 if command == "ab" else 1)
        list(threads.map(inject, range(MOMENTS)))


@pytest.mark.fault("R5", "Ctrl-C five times within half a second", survives="status 130, one record, no traceback")
def test_an_impatient_user(scratch: Scratch) -> None:
    run = scratch.start("run", *ENDLESS)
    run.wait_for("3\timages/sec")
    for _ in range(5):
        run.send(signal.SIGINT, group=True)
        time.sleep(0.1)
    scratch.expect(run.end(60), 130, records=["interrupted"])
