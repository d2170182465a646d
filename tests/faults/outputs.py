"""Faults of stdout, stderr, locales and names."""

from __future__ import annotations

import os
import time

from tests.faults.catalog import fault
from tests.faults.harness import (
    ENDLESS,
    MEASURES,
    TINY,
    Failed,
    Scratch,
    fill,
    in_shell,
    read_until,
    small_pipe,
    want,
)


@fault(
    "reader-gone-then-sigterm",
    "R5",
    injects="the reader of stdout and stderr ends, then SIGTERM",
    must="status 143, one record",
)
def _reader_gone(scratch: Scratch) -> None:
    reader, writer = os.pipe()
    run = scratch.start("run", *ENDLESS, stdout=writer, stderr=writer)
    os.close(writer)
    read_until(reader, MEASURES.encode())
    os.close(reader)
    time.sleep(1)
    run.process.terminate()
    scratch.expect(run.end(60), 143, records=["interrupted"])


@fault(
    "reader-of-a-sweep-gone",
    "R2",
    injects="the reader of a sweep's stdout and stderr ends during its first run",
    must="all runs of the sweep are stored",
)
def _sweep_reader_gone(scratch: Scratch) -> None:
    reader, writer = os.pipe()
    words = ("--device=cpu", "--model=trivial", "--batch_size=1,2,3", "--num_batches=5")
    sweep = scratch.start("sweep", *words, stdout=writer, stderr=writer)
    os.close(writer)
    os.read(reader, 1)
    os.close(reader)
    sweep.end()
    scratch.expect(sweep.end(), 0, records=["ok"] * 3)


@fault(
    "sigterm-while-the-reader-pauses",
    "R5",
    injects="the reader of stdout never reads again, then SIGTERM",
    must="status 143 within 30 s, one record",
)
def _sigterm_blocked(scratch: Scratch) -> None:
    reader, writer = small_pipe()
    run = scratch.start("run", *ENDLESS, stdout=writer)
    os.close(writer)
    try:
        read_until(reader, MEASURES.encode())
        time.sleep(8)  # long enough to fill the pipe
        run.process.terminate()
        scratch.expect(run.end(30), 143, records=["interrupted"])
    finally:
        os.close(reader)


@fault(
    "temporary-folder-fills",
    "R2",
    injects="TMPDIR is full during a sweep; the results directory has room",
    must="all runs are ok",
    needs=["root"],
)
def _tmpdir_full(scratch: Scratch) -> None:
    disk = scratch.small_disk(64)
    words = ("--device=cpu", "--model=trivial", "--batch_size=1,2", "--num_batches=5")
    sweep = scratch.start("sweep", *words, variables={"TMPDIR": str(disk)})
    sweep.wait_until(lambda: len(scratch.processes("run_bench.py")) > 1, "started a run")
    fill(disk)
    scratch.expect(sweep.end(), 0, records=["ok", "ok"])


@fault(
    "flag-that-is-not-utf-8",
    "R1",
    injects="--session_id with a byte that is not UTF-8",
    must="the record is in the JSONL, the CSV and the report",
)
def _bytes_in_a_flag(scratch: Scratch) -> None:
    ended = scratch.bench("run", *TINY, "--num_batches=5", b"--session_id=s\xff")
    scratch.expect(ended, 0, records=["ok"])
    _in_the_report(scratch)


@fault(
    "directory-that-is-not-utf-8",
    "R1",
    injects="--data_dir with a byte that is not UTF-8",
    must="the record is in the JSONL, the CSV and the report",
)
def _bytes_in_a_path(scratch: Scratch) -> None:
    directory = os.fsencode(scratch.directory) + b"/m\xff"
    os.mkdir(directory)
    scratch.expect(scratch.bench("data", "make-mnist", directory), 0)
    words = ("--device=cpu", "--model=mlp", "--batch_size=2", "--num_batches=5")
    scratch.expect(scratch.bench("run", *words, b"--data_dir=" + directory), 0, records=["ok"])
    _in_the_report(scratch)


@fault(
    "locale-that-is-not-utf-8",
    "R1",
    injects="LC_ALL=C without Python's UTF-8 mode, and a flag with the letter ×",
    must="the record is in the JSONL, the CSV and the report",
)
def _ascii(scratch: Scratch) -> None:
    variables = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ended = scratch.bench("run", *TINY, "--num_batches=5", "--session_id=×", variables=variables)
    scratch.expect(ended, 0, records=["ok"])
    scratch.expect(scratch.bench("report", scratch.out, variables=variables), 0, says=["trivial"], never=["damaged"])
    _in_the_report(scratch)


@fault(
    "ascii-output",
    "R1",
    injects="PYTHONIOENCODING=ascii:strict, and a results directory with a letter beyond it; run, report and its page",
    must="status 0 each, no traceback",
)
def _ascii_output(scratch: Scratch) -> None:
    variables = {"PYTHONIOENCODING": "ascii:strict"}
    out = scratch.directory / "ergebnisse-ä"
    scratch.expect(scratch.bench("run", *TINY, "--num_batches=5", f"--output_dir={out}", variables=variables), 0)
    want(len(scratch.records(out)) == 1, "no record")
    for more in ([], [f"--output={scratch.directory / 'seite-ä'}"]):
        scratch.expect(scratch.bench("report", out, *more, variables=variables), 0)


@fault(
    "few-file-descriptors",
    "R1",
    injects="a limit of 64 open files",
    must="status 0 with one record, or status 2 or 4 with a sentence",
)
def _few_files(scratch: Scratch) -> None:
    ended = scratch.bench("run", *TINY, "--num_batches=5", under=in_shell("ulimit -n 64"))
    scratch.expect(ended, 0, 2, 4)
    if ended.status == 0:
        scratch.expect(ended, 0, records=["ok"])
    elif not ended.stderr.strip():
        raise Failed(f"status {ended.status} without a word")


def _in_the_report(scratch: Scratch) -> None:
    scratch.expect(scratch.bench("report", scratch.out), 0, says=[scratch.records()[0]["config"]["model"]])
