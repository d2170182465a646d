"""Faults of the disk, and of files that exist where outputs go."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess

from results.store import Store
from tests.faults.catalog import fault
from tests.faults.harness import (
    LONG,
    MEASURES,
    TINY,
    Ended,
    Scratch,
    Skipped,
    a_record,
    fill,
    in_shell,
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
    "csv-is-a-directory",
    "R11",
    injects="results.csv is a directory",
    must="status 2 before the run starts, with a sentence that names it",
)
def _csv_directory(scratch: Scratch) -> None:
    (scratch.out / "results.csv").mkdir(parents=True)
    ended = scratch.bench("run", *TINY, "--num_batches=5")
    scratch.expect(ended, 2, records=[], says=["results.csv"], never=[_STARTS])


@fault(
    "csv-becomes-a-directory",
    "R11",
    injects="results.csv becomes a directory during the run",
    must="the record is stored and not printed; a sentence names results.csv",
)
def _csv_lost(scratch: Scratch) -> None:
    run = scratch.start("run", *LONG)
    run.wait_for(MEASURES)
    (scratch.out / "results.csv").unlink(missing_ok=True)
    (scratch.out / "results.csv").mkdir()
    ended = run.end()
    scratch.expect(ended, 0, 4, records=["ok"], says=["results.csv"], never=["could not be stored"])
    want(not _records_in(ended.text), "the record was printed although it is stored")


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
    "output-to-a-device",
    "R14",
    injects="compare --json=DEVICE, a copy of /dev/null, as root",
    must="the device stays a device",
    needs=["root"],
)
def _device(scratch: Scratch) -> None:
    device = scratch.directory / "null"
    os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    try:
        device.open("wb").close()
    except OSError as error:
        raise Skipped(f"devices cannot be used here: {error}") from None
    scratch.expect(_compare(scratch, f"--json={device}"), 0, 1, 2, 3)
    want(stat.S_ISCHR(device.lstat().st_mode), "the device was replaced by a file")


@fault(
    "output-through-a-link",
    "R14",
    injects="compare --json=LINK, to a file of mode 0600",
    must="the link stays, its file has the findings and its mode",
)
def _link(scratch: Scratch) -> None:
    target, link = scratch.directory / "findings.json", scratch.directory / "link.json"
    target.write_text("old")
    target.chmod(0o600)
    link.symlink_to(target)
    scratch.expect(_compare(scratch, f"--json={link}"), 0, 1, 3)
    want(link.is_symlink(), "the link was replaced by a file")
    want(isinstance(json.loads(target.read_text()), dict), "the file behind the link has no findings")
    want(stat.S_IMODE(target.stat().st_mode) == 0o600, f"the mode became {stat.S_IMODE(target.stat().st_mode):o}")


def _compare(scratch: Scratch, flag: str) -> Ended:
    sides = [scratch.directory / name for name in ("a", "b")]
    for side in sides:
        Store(side).append(*(fake_run() for _ in range(5)))
    return scratch.bench("compare", *sides, flag)


@fault(
    "umask-of-a-private-user",
    "R14",
    injects="umask 077",
    must="neither results.jsonl nor results.csv can be read by others",
)
def _umask(scratch: Scratch) -> None:
    scratch.expect(scratch.bench("run", *TINY, "--num_batches=5", under=in_shell("umask 077")), 0, records=["ok"])
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in scratch.out.iterdir()}
    want(not any(mode & 0o077 for mode in modes.values()), str({name: f"{mode:o}" for name, mode in modes.items()}))


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


@fault(
    "jsonl-moved-away",
    "R14",
    injects="results.jsonl is renamed, as a rotation does, before the next run",
    must="the old row is still in a CSV file of the directory",
)
def _rotated(scratch: Scratch) -> None:
    write_records(scratch.out, a_record())
    scratch.expect(scratch.bench("run", *TINY, "--num_batches=5"), 0, records=["ok", "ok"])
    (scratch.out / "results.jsonl").rename(scratch.out / "results-old.jsonl")
    scratch.expect(scratch.bench("run", *TINY, "--num_batches=5"), 0, records=["ok"])
    tables = [path for path in scratch.out.iterdir() if "csv" in path.name]
    old = a_record()["identity"]["run_id"]
    want(any(old in path.read_text() for path in tables), f"the old row is in none of {[p.name for p in tables]}")
