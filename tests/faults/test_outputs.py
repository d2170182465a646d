"""Faults of stdout, stderr, locales and open files."""

from __future__ import annotations

import fcntl
import os
import time

import pytest

from tests.support.scratch import ENDLESS, MEASURES, TINY, Scratch, in_shell


def read_until(reader: int, text: bytes) -> None:
    seen = b""
    while text not in seen:
        more = os.read(reader, 256)
        assert more, f"the output ended: {seen[-300:]!r}"
        seen += more


@pytest.mark.fault("R5", "the reader of stdout and stderr ends, then SIGTERM", survives="status 143, one record")
def test_a_signal_after_the_reader_has_gone(scratch: Scratch) -> None:
    reader, writer = os.pipe()
    run = scratch.start("run", *ENDLESS, stdout=writer, stderr=writer)
    os.close(writer)
    read_until(reader, MEASURES.encode())
    os.close(reader)
    time.sleep(1)
    run.process.terminate()
    scratch.expect(run.end(60), 143, records=["interrupted"])


@pytest.mark.fault(
    "R5", "the reader of stdout never reads again, then SIGTERM", survives="status 143 within 30 s, one record"
)
def test_a_signal_while_the_reader_pauses(scratch: Scratch) -> None:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)  # which a few lines fill
    run = scratch.start("run", *ENDLESS, stdout=writer)
    os.close(writer)
    read_until(reader, MEASURES.encode())
    time.sleep(8)  # long enough to fill the pipe
    run.process.terminate()
    scratch.expect(run.end(30), 143, records=["interrupted"])
    os.close(reader)


@pytest.mark.fault(
    "R1",
    "a --data_dir and a --session_id with a byte that is not UTF-8",
    survives="the record is in the JSONL, the CSV and the report",
)
def test_bytes_that_are_not_utf_8(scratch: Scratch) -> None:
    directory = os.fsencode(scratch.directory) + b"/m\xff"
    os.mkdir(directory)
    scratch.expect(scratch.bench("data", "make_mnist", directory), 0)
    words = ("--device=cpu", "--model=mlp", "--batch_size=2", "--num_batches=5", b"--session_id=s\xff")
    scratch.expect(scratch.bench("run", *words, b"--data_dir=" + directory), 0, records=["ok"])
    scratch.expect(scratch.bench("report", scratch.out), 0, says=["mlp"])


@pytest.mark.fault(
    "R1",
    "LC_ALL=C without Python's UTF-8 mode, or PYTHONIOENCODING=ascii:strict; a flag and a results directory with "
    "letters beyond ASCII",
    survives="status 0; the record is in the JSONL, the CSV, the report and its page",
)
@pytest.mark.parametrize(
    "variables",
    [{"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"PYTHONIOENCODING": "ascii:strict"}],
    ids=["locale", "output"],
)
def test_letters_beyond_the_locale(scratch: Scratch, variables: dict[str, str]) -> None:
    out = scratch.directory / "ergebnisse-ä"
    words = (*TINY, "--num_batches=5", "--session_id=×", f"--output_dir={out}")
    scratch.expect(scratch.bench("run", *words, **variables), 0)
    assert [record["status"] for record in scratch.records(out)] == ["ok"]
    for more in ([], [f"--output={scratch.directory / 'seite-ä'}"]):
        scratch.expect(scratch.bench("report", out, *more, **variables), 0)
    assert "damaged" not in scratch.bench("report", out, **variables).stderr


@pytest.mark.fault(
    "R1", "a limit of 64 open files", survives="status 0 with one record, or status 2 or 4 with a sentence"
)
def test_few_file_descriptors(scratch: Scratch) -> None:
    ended = scratch.bench("run", *TINY, "--num_batches=5", under=in_shell("ulimit -n 64"))
    scratch.expect(ended, 0, 2, 4, records=["ok"] if ended.status == 0 else None)
    assert ended.status == 0 or ended.stderr.strip()
