"""A real run that takes time slices with this test."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from benchmarks.measure import interleaved_steps
from benchmarks.measure.interleaved_steps import TimeSlices
from results.loading import load
from tests.support.commands import RUN_BENCH, USER_ENVIRONMENT

STEP_SECONDS = 6
PAUSE_SECONDS = 8


@pytest.mark.slow
def test_a_run_may_wait_for_its_time_slice_longer_than_a_step_may_take(tmp_path: Path) -> None:
    first, second = interleaved_steps.pair()
    words = ["--device=cpu", "--model=mlp", "--batch_size=4", "--num_warmup_batches=3", "--output_format=json"]
    with subprocess.Popen(
        [*RUN_BENCH, *words, "--num_batches=20", f"--step_timeout_seconds={STEP_SECONDS}"],
        cwd=tmp_path,
        env={**USER_ENVIRONMENT, **second.variables()},
        pass_fds=[second.socket.fileno()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        second.socket.close()
        peer = TimeSlices(first.socket, begins=True)
        peer.begin(20, 0.1)
        for step in range(20):
            time.sleep(PAUSE_SECONDS if step == 3 else 0)
            peer.after_step()
        peer.finish()
        _, stderr = process.communicate(timeout=100)
    assert process.returncode == 0, stderr
    (record,) = load(tmp_path / "out" / "results.jsonl").records
    assert len(record.measurement.step_seconds) == 20
    assert max(record.measurement.step_seconds) < PAUSE_SECONDS, "no step contains the pause"
    assert record.environment["steps_per_slice"] == peer.steps_per_slice in (1, 2) and record.is_interleaved
    assert not record.measurement.telemetry, "the energy and the time of two runs are not those of one"
