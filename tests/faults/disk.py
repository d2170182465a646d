"""Faults of the disk, of several writers of one file, and files of results with odd contents."""

from __future__ import annotations

import copy
import json
import math
import shutil
import signal
import subprocess
import time
from typing import Any

from results.store import Store
from tests.faults.catalog import fault
from tests.faults.harness import (
    ENDLESS,
    LONG,
    MEASURES,
    TINY,
    Scratch,
    a_record,
    busy,
    fill,
    want,
    write_records,
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


_RUNS, _KILLED = 12, 4


@fault(
    "twelve-runs-four-killed",
    "R13",
    injects=f"{_RUNS} runs into one directory at once; {_KILLED} of them are killed with -9 at different moments",
    must=f"the {_RUNS - _KILLED} others are stored, every line is JSON, the CSV equals the JSONL",
)
def _twelve(scratch: Scratch) -> None:
    doomed = {index: scratch.start("run", *ENDLESS, f"--session_id=d{index}") for index in range(_KILLED)}
    others = [
        scratch.start("run", *TINY, "--num_batches=30", f"--session_id=o{index}") for index in range(_RUNS - _KILLED)
    ]
    for index, run in doomed.items():  # while it starts, imports, builds and measures
        run.wait_until(lambda n=index: busy(scratch.processes(f"--session_id=d{n} "), 0.2 + 2.5 * n), "used CPU time")
        run.send(signal.SIGKILL)
    scratch.may_leave_temporary_files()
    for run in others:
        scratch.expect(run.end(400), 0)
    time.sleep(2)  # a row of a killed run may be written after its end
    found = {record["identity"]["session_id"] for record in scratch.records() if record["status"] == "ok"}
    want(found == {f"o{index}" for index in range(_RUNS - _KILLED)}, f"stored: {sorted(found)}")


def _odd_records() -> list[dict[str, Any]]:
    """Returns records that are JSON of the right format, each with something no run writes."""
    changes: list[tuple[str, str, Any]] = [
        ("config", "model", "$\\frac{$"),
        ("config", "model", {"a": 1}),
        ("config", "model", None),
        ("config", "modifiers", "a text"),
        ("config", "num_devices", "two"),
        ("config", "batch_per_device", [1]),
        ("measurement", "step_seconds", "a text"),
        ("measurement", "step_seconds", [0.0, 0.0, 0.0]),
        ("measurement", "step_seconds", [-1.0, "x"]),
        ("measurement", "losses", {"a": 1}),
        ("derived", "images_per_sec", "fast"),
        ("environment", "variables", 7),
        ("placement", "sent_per_step", "all"),
        ("identity", "time_utc", "yesterday"),
        ("identity", "command", "rm"),
    ]
    odd = []
    for number, (part, name, value) in enumerate(changes):
        record = copy.deepcopy(a_record())
        record["identity"]["run_id"] = f"0dd0dd0dd{number:03}"
        record[part][name] = value
        odd.append(record)
    for part in ("config", "measurement", "environment", "identity"):
        odd.append({**copy.deepcopy(a_record()), part: "a text"})
    return odd


def _odd_directory(scratch: Scratch) -> None:
    path = write_records(scratch.out, a_record(), *_odd_records())
    with path.open("ab") as file:  # JSON that is no record, and numbers that no float holds
        file.write(b'[]\n"text"\n7\nnull\n{}\n' + json.dumps({**a_record(), "status": "great"}).encode() + b"\n")


@fault(
    "odd-records-report",
    "R17",
    injects="a results file with one good and 25 odd records; report, and report --output",
    must="status 0, the good one is in the table, the others are skipped with a reason",
)
def _odd_report(scratch: Scratch) -> None:
    _odd_directory(scratch)
    for more in ([], [f"--output={scratch.directory / 'page'}"]):
        ended = scratch.bench("report", scratch.out, *more)
        scratch.expect(ended, 0, says=["skipped"])
    rate = a_record()["derived"]["images_per_sec"]
    want(
        rate and f"{math.floor(rate)}" in scratch.bench("report", scratch.out).stdout,
        "the good run is not in the table",
    )


@fault(
    "odd-records-resume",
    "R17",
    injects="a results file with one good and 25 odd records; sweep --resume",
    must="status 0, what is missing is run and stored, no traceback",
)
def _odd_resume(scratch: Scratch) -> None:
    _odd_directory(scratch)
    words = ("--device=cpu", "--model=trivial", "--batch_size=3", "--num_batches=5", "--resume")
    before = len(scratch.records())
    scratch.expect(scratch.bench("sweep", *words), 0)
    want(len(scratch.records()) == before + 1, f"{len(scratch.records()) - before} records were added")
