"""A sweep goes on after a cell whose batch does not fit into memory."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import RUN_BENCH, USER_ENVIRONMENT

LIMIT_BYTES = 8 * 2**30


@pytest.mark.slow
def test_a_cell_that_does_not_fit_is_a_row(tmp_path: Path, records: Callable[[], list[dict[str, Any]]]) -> None:
    words = ["--device=cpu", "--model=trivial", "--batch_size=100000,2", "--num_batches=3"]
    done = subprocess.run(
        [*RUN_BENCH, "sweep", *words],
        cwd=tmp_path,
        env=USER_ENVIRONMENT,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES)),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 4, done.stderr
    found = {record["config"]["batch_per_device"]: record for record in records()}
    assert {batch: record["status"] for batch, record in found.items()} == {100000: "oom", 2: "ok"}
    assert "shape[100000,227,227,3]" in found[100000]["reason"] and "device:CPU:0" in found[100000]["reason"]
    assert len(found[2]["measurement"]["step_seconds"]) == 3
