"""Fixtures for all tests. TensorFlow is imported once, quietly, and only by tests that need it."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import process_environment  # noqa: E402 - after the path to it

if TYPE_CHECKING:
    from benchmarks.run_log import RunLog

# What run_bench meets in a process of its own: the environment before this process was prepared for TensorFlow. What
# tests make up does not belong into the summary of a job that runs them.
USER_ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "GITHUB_STEP_SUMMARY"}

# How long an example takes is not asserted: whoever shares the machine may hold it up.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")
# Whoever starts the tests in the background may have them ignore Ctrl-C, and all that they start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No test here uses a GPU unless it says so, and whoever imports TensorFlow first must have said that.
process_environment.prepare(device="cpu", visible_gpus=None)


@dataclasses.dataclass(frozen=True)
class Finished:
    """How a command ended."""

    status: int
    stdout: str
    stderr: str


@pytest.fixture
def run_bench(tmp_path: Path) -> Callable[..., Finished]:
    """Runs run_bench.py as a user would, in an empty directory, as a process of its own."""

    def run(*arguments: str, **variables: str) -> Finished:
        done = subprocess.run(
            [sys.executable, str(ROOT / "run_bench.py"), *arguments],
            cwd=tmp_path,
            env={**USER_ENVIRONMENT, **variables},
            capture_output=True,
            text=True,
            timeout=600,
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def train_here() -> Callable[..., RunLog]:
    """Takes a run's steps in this process, given its flags: the start of a process takes longer than they do."""
    from benchmarks import config, execution, flags
    from benchmarks.display import JsonDisplay
    from benchmarks.run_log import RunLog
    from benchmarks.team import Alone

    def train(*words: str) -> RunLog:
        chosen = config.resolve(flags.parse(list(words), flags.RUN_FLAGS).values, lambda: 0)
        log = RunLog(images_per_step=chosen.batch_global, towers=chosen.num_devices)
        execution.execute(chosen, log, JsonDisplay(), Alone())
        return log

    return train


@pytest.fixture
def records(tmp_path: Path) -> Callable[[], list[dict[str, Any]]]:
    """Reads the records that run_bench has left in its default output directory."""
    return lambda: [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]


@pytest.fixture(scope="session")
def fake_imagenet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fake ImageNet of 40 images in 4 shards. Tests must not change it."""
    from benchmarks.datasets import fake_imagenet, splits

    directory = tmp_path_factory.mktemp("imagenet")
    part = splits.split("train", 40, 10)
    fake_imagenet.write(directory, part, seed=3, on_shard=lambda path, images: None)
    return directory
