"""Faults of the disk that the results are on: real file systems, which are mounted as root."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.scratch import MEASURES, TINY, Scratch


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    directory = tmp_path / "disk"
    directory.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4096k", "fault", directory], capture_output=True)
    if done.returncode:
        pytest.skip(f"a file system can be mounted only on some machines, and needs root: {done.stderr!r}")
    yield directory
    subprocess.run(["umount", "--lazy", directory], check=True)


def fill(directory: Path) -> None:
    """Fills the file system of a directory to the last byte."""
    with contextlib.suppress(OSError), (directory / "filler").open("ab", buffering=0) as file:
        for size in (2**16, 1):
            with contextlib.suppress(OSError):
                while file.write(b"\0" * size):
                    pass


def make_read_only(directory: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", directory], check=True)


@pytest.mark.fault(
    "R11",
    "the results directory is on a full or a read-only disk",
    survives="status 2 with a sentence, before the run starts",
)
@pytest.mark.parametrize(("spoil", "sentence"), [(fill, "no space left"), (make_read_only, "read-only")])
def test_a_disk_that_cannot_be_written_is_reported_at_the_start(
    scratch: Scratch, disk: Path, spoil: Callable[[Path], None], sentence: str
) -> None:
    spoil(disk)
    ended = scratch.bench("run", *TINY, "--num_batches=5", f"--output_dir={disk / 'out'}")
    scratch.expect(ended, 2, says=[str(disk), sentence])
    assert "Model:  " not in ended.stdout


@pytest.mark.fault(
    "R11",
    "the disk of the results directory fills during the run",
    survives="status 4, the record as one line on stderr and not on stdout, every line of results.jsonl is whole",
)
def test_a_disk_that_fills_during_the_run_costs_no_record(scratch: Scratch, disk: Path) -> None:
    run = scratch.start("run", *TINY, "--num_batches=400", "--display_every=1", f"--output_dir={disk / 'out'}")
    run.wait_for(MEASURES)
    fill(disk)
    ended = run.end()
    scratch.expect(ended, 4, says=["no space left"])
    printed = [line for line in ended.stderr.splitlines() if line.startswith("{")]
    assert len(printed) == 1 and "identity" in json.loads(printed[0]) and '{"identity' not in ended.stdout
    scratch.records(disk / "out")
