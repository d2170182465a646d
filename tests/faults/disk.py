"""Faults of the disk, and of files that exist where outputs go."""

from __future__ import annotations

import json
import shutil
import subprocess

from results.store import Store
from tests.faults.catalog import fault
from tests.faults.harness import (
    LONG,
    MEASURES,
    TINY,
    Scratch,
    fill,
    want,
)
from tests.support.records import fake_run

# What a run prints when it starts: a run that is refused in time does not get there.
_STARTS = "Model:  "


def _records_in(text: str) -> list[str]:
    """Returns the lines of an output that are records."""
    return [line for line in text.splitlines() if line.startswith("{") and "identity" in json.loads(line)]


@fault(
    "disk-full-at-start",
    "R11",
    injects="the results directory is on a full disk",
    must="status 2 with a sentence, before the run starts",
    needs=["root"],
)
def _full(scratch: Scratch) -> None:
    disk = scratch.small_disk(256)
    fill(disk)
    ended = scratch.bench("run", *TINY, "--num_batches=5", f"--output_dir={disk / 'out'}")
    scratch.expect(ended, 2, says=[str(disk), "no space left"], never=[_STARTS])


@fault(
    "disk-fills-during-the-run",
    "R11",
    injects="the disk of the results directory fills during the run",
    must="status 4, the record as one line on stderr and not on stdout, every line of results.jsonl is whole",
    needs=["root"],
)
def _fills(scratch: Scratch) -> None:
    disk = scratch.small_disk(4096)
    run = scratch.start("run", *LONG, f"--output_dir={disk / 'out'}")
    run.wait_for(MEASURES)
    fill(disk)
    ended = run.end()
    scratch.expect(ended, 4, says=["no space left"])
    want(len(_records_in(ended.stderr)) == 1, f"{len(_records_in(ended.stderr))} records on stderr: {ended.tail}")
    want(not _records_in(ended.stdout), "the record is on stdout")


@fault(
    "disk-read-only",
    "R11",
    injects="the results directory is on a read-only disk",
    must="status 2 with a sentence, before the run starts",
    needs=["root"],
)
def _read_only(scratch: Scratch) -> None:
    disk = scratch.small_disk(4096)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    ended = scratch.bench("run", *TINY, "--num_batches=5", f"--output_dir={disk}")
    scratch.expect(ended, 2, says=[str(disk), "read-only"], never=[_STARTS])


@fault(
    "results-directory-removed",
    "R2",
    injects="the results directory is removed during a sweep",
    must="all later runs are stored or printed, or a sentence names the directory; no traceback",
)
def _removed(scratch: Scratch) -> None:
    words = ("--device=cpu", "--model=trivial", "--batch_size=1,2,3", "--num_batches=100")
    sweep = scratch.start("sweep", *words)
    sweep.wait_until(scratch.records, "stored the first run")
    shutil.rmtree(scratch.out)
    ended = sweep.end()
    scratch.expect(ended, 0, 4)
    kept = len(scratch.records()) + len(_records_in(ended.text))
    want(kept >= 2 or str(scratch.out.name) in ended.stderr, f"{kept} records, and no sentence: {ended.tail}")


@fault(
    "report-into-a-results-directory",
    "R14",
    injects="report A B --output=B, where B has results of its own",
    must="B/results.csv still has the rows of B/results.jsonl, and no others",
)
def _report_over_results(scratch: Scratch) -> None:
    sides = [scratch.directory / name for name in ("a", "b")]
    for side in sides:
        Store(side).append(fake_run())
    scratch.expect(scratch.bench("report", *sides, f"--output={sides[1]}"), 0, 2)
    scratch.check_results(sides[1])
