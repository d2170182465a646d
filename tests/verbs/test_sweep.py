"""Sweeps whose runs end in every way that a run may end."""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import tracemalloc
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from msgspec.structs import replace

from benchmarks import console
from benchmarks.cli import main
from benchmarks.config import flag
from benchmarks.errors import ExitStatus, UsageError
from benchmarks.process import subprocesses
from benchmarks.sweep import grid, isolated_run, sweep_verb
from benchmarks.sweep.progress import estimate_seconds
from models import specs
from results.loading import load
from results.record import Record, Status, key_of
from results.store import Store, StoreError
from tests.support.commands import ROOT, USER_ENVIRONMENT, Finished, RunBench, wait_until
from tests.support.fake_runs import Failure, FakeRun, FakeRuns, interrupt, record_of
from tests.support.records import fake_run
from tests.support.settings import resolve


class Runs:
    """Runs of a sweep: each leaves a record, but batches that have another end."""

    def __init__(self) -> None:
        self.ends: dict[int, Record | Failure] = {}
        self.signals: dict[int, int] = {}
        self.started: list[int] = []

    def __call__(self, run: FakeRun) -> Record | Failure:
        batch = run.config.workload.batch_per_device
        self.started.append(batch)
        if batch in self.signals:
            interrupt(self.signals[batch])
        return self.ends.get(batch) or record_of(run)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Runs, in place of processes."""
    made = Runs()
    monkeypatch.setattr(subprocesses, "supervise", FakeRuns(made))
    return made


Sweep = Callable[..., Finished]


@pytest.fixture
def sweep(run_bench: RunBench, runs: Runs) -> Sweep:
    """Sweeps a small model."""
    return lambda *arguments: run_bench("sweep", "--device=cpu", "--model=trivial", *arguments)


def _records(tmp_path: Path) -> list[Record]:
    return load(tmp_path / "out" / "results.jsonl").records


def _values(*words: str) -> Mapping[str, Any]:
    return flag.parse(words, grid.sweep_groups(sweep_verb.SWEEP_FLAGS)).values


def _printed(run: FakeRun) -> Failure:
    """A run that could print its record and not store it."""
    made = record_of(run)
    identity = replace(made.identity, session_id=run.flags["session_id"])
    return Failure(returncode=4, stdout=replace(made, identity=identity).to_json())


def _what(record: Record) -> tuple[int, int, bool, str]:
    modifiers = record.config["modifiers"]
    return (
        record.config["batch_per_device"],
        record.config["num_devices"],
        modifiers["staged_vars"],
        str(record.status),
    )


# Runs in processes: batches of 2 to 7 fail, each in its own way; once the file `hangs` exists, the third run hangs.
CHILD = f"""
import faulthandler, os, signal, sys, time
flags = dict(word[2:].split("=", 1) for word in sys.argv[1:])
batch = int(flags.get("batch_size", 0))
if batch == 2: sys.exit(3)
if batch == 3: print("garbage \\x00\\xff \\u2603"); sys.stdout.flush(); os._exit(0)
if batch == 4: os.kill(os.getpid(), signal.SIGSEGV)
if batch == 5:
    faulthandler.register(signal.SIGUSR1, chain=True)
    time.sleep(120)
if batch == 6: os.kill(os.getpid(), signal.SIGKILL)
if batch == 7: print("run_bench: no such device", file=sys.stderr); sys.exit(2)
if os.path.exists("hangs") and open(flags["output_dir"] + "/results.jsonl").read().count("\\n") == 2:
    print("it hangs", file=sys.stderr, flush=True)
    time.sleep(120)
sys.path.insert(0, {str(ROOT)!r})
from tests.support import fake_runs
run = fake_runs.FakeRun(sys.argv)
run.leave(fake_runs.record_of(run))
"""


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    """A program that stands for run_bench.py."""
    child = tmp_path / "child.py"
    child.write_text(CHILD)
    return [sys.executable, str(child)]


@pytest.mark.fault(
    "R2",
    "runs of a sweep exit, print garbage, crash, hang, are killed with -9 or refuse",
    survives="each is a row with the reason; the sweep goes on",
)
@pytest.mark.process
def test_a_sweep_goes_on_whatever_happens_to_a_process(
    tmp_path: Path, program: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (f"--output_dir={tmp_path / 'out'}", "--device=cpu", "--model=trivial", "--run_timeout_seconds=2")
    run = subprocesses.supervise

    def run_longer(command: subprocesses.Command, timeout_seconds: float) -> list[subprocesses.ExitInfo]:
        hangs = "--batch_size=5" in command.words  # the others may be slow
        return run(command, timeout_seconds=timeout_seconds if hangs else 60.0)

    monkeypatch.setattr(subprocesses, "supervise", run_longer)
    monkeypatch.setattr(isolated_run, "PROGRAM", program)
    assert sweep_verb.run_sweep(_values(*words, "--batch_size=1,2,3,4,5,6,7,8"), []) == ExitStatus.RUN_FAILED
    by_batch = {record.config["batch_per_device"]: record for record in _records(tmp_path)}
    assert {batch: str(record.status) for batch, record in by_batch.items()} == {
        1: "ok",
        2: "crash",
        3: "crash",
        4: "crash",
        5: "timeout",
        6: "crash",
        7: "skipped",
        8: "ok",
    }
    assert "status 3" in by_batch[2].reason and "garbage" in by_batch[3].reason
    assert "Segmentation fault" in by_batch[4].reason
    assert "--run_timeout_seconds" in by_batch[5].reason and "child.py" in by_batch[5].reason, "with its stack"
    assert "Killed" in by_batch[6].reason and "memory" in by_batch[6].reason
    assert by_batch[7].reason == "no such device"
    (log,) = (tmp_path / "out" / "logs").glob("*-0007.log")
    assert log.read_text() == "run_bench: no such device\n"
    origins = {
        (one.identity.session_id, one.identity.software_key, one.identity.hardware_key) for one in by_batch.values()
    }
    assert len(origins) == 1, "also of records that the sweep itself has written"
    shown = capsys.readouterr()
    assert "8 of 8 combinations" in shown.out and "[8/8]" in shown.err
    assert "garbage" not in shown.out.split("crash")[0]


def test_combinations_that_cannot_be_are_rows_with_the_reason(sweep: Sweep, tmp_path: Path) -> None:
    sweep("--variable_update=parameter_server,independent", "--staged_vars=true,false").succeeded()
    statuses = [(r.config["variable_update"], str(r.status)) for r in _records(tmp_path)]
    assert sorted(statuses) == [
        ("independent", "ok"),
        ("independent", "skipped"),
        ("parameter_server", "ok"),
        ("parameter_server", "ok"),
    ]
    (skipped,) = (r for r in _records(tmp_path) if r.status is Status.SKIPPED)
    assert "--staged_vars goes with parameter_server" in skipped.reason


@pytest.mark.parametrize("several", ["--batch_size=4,8 --train_dir=mine", "--repeats=2 --train_dir=mine", "--suite=s"])
def test_no_run_continues_the_training_of_another(sweep: Sweep, runs: Runs, several: str, tmp_path: Path) -> None:
    (tmp_path / "s").write_text('[[grid]]\ntrain_dir="other"\n[[grid]]\ntrain_dir="mine"\nbatch_size=[4,8]')
    done = sweep(*several.split())
    assert done.status == 2 and "--train_dir=mine: each run would continue" in done.stderr and not runs.started
    assert sweep("--train_dir=mine", "--batch_size=4").status == 0


def test_progress_names_what_differs_and_the_end_the_winner(sweep: Sweep) -> None:
    done = sweep(
        "--variable_update=parameter_server", "--local_cluster=ps:1,worker:1;ps:1,worker:2", "--batch_size=8"
    ).succeeded()
    assert "[1/2] --local_cluster=ps:1,worker:1: " in done.stderr
    assert "[2/2] --local_cluster=ps:1,worker:2: " in done.stderr
    done = sweep("--batch_size=8", "--repeats=2")
    assert "[2/2] trivial, parameter_server on cpu, 1 x 8: " in done.stderr, "if nothing does, what is run"
    done = sweep("--batch_size=8,9")
    assert "trivial, parameter_server on cpu, 1 CPU device, batch 9" in done.stdout.split("Fastest settings")[1]


def test_resume_says_what_is_left(sweep: Sweep, runs: Runs, tmp_path: Path) -> None:
    sweep("--batch_size=8,9", "--repeats=2")
    assert len(runs.started) == 4
    done = sweep("--batch_size=8,9", "--repeats=2", "--resume")
    assert "2 of 2 combinations x 2 repeats: nothing to run, 4 runs done earlier." in done.stdout
    assert done.stdout.count("   done") == 2 and "about" not in done.stdout and len(runs.started) == 4
    done = sweep("--batch_size=8,9,10", "--resume", "--dry_run")
    assert "3 of 3 combinations: 1 run, about " in done.stdout and "; 2 done earlier." in done.stdout
    stored = tmp_path / "out" / "results.jsonl"
    os.truncate(stored, stored.stat().st_size - 9)
    done = sweep("--batch_size=8,9", "--repeats=2", "--resume", "--dry_run")
    assert "1 run, about " in done.stdout and "results.jsonl:4: skipped a damaged line" in done.stderr


def test_repeats_are_interleaved_forth_and_back(sweep: Sweep, tmp_path: Path) -> None:
    sweep("--num_gpus=1,2", "--batch_size=1,8", "--repeats=3")
    order = [_what(record)[:2] for record in _records(tmp_path)]
    forth = [(1, 1), (1, 2), (8, 1), (8, 2)]
    assert order == forth + forth[::-1] + forth


def _start(tmp_path: Path, program: list[str], *arguments: str) -> subprocess.Popen[bytes]:
    """Starts a sweep in a process; the program's third run will hang."""
    (tmp_path / "hangs").touch()
    code = (
        "import json, sys; from benchmarks.config import flag\n"
        "from benchmarks.sweep import grid, isolated_run, sweep_verb\n"
        "isolated_run.PROGRAM = json.loads(sys.argv[2])\n"
        "values = flag.parse(json.loads(sys.argv[1]), grid.sweep_groups(sweep_verb.SWEEP_FLAGS)).values\n"
        "sys.exit(sweep_verb.run_sweep(values, []))"
    )
    words = ["--device=cpu", "--model=trivial", *arguments]
    return subprocess.Popen(
        [sys.executable, "-c", code, json.dumps(words), json.dumps(program)],
        cwd=tmp_path,
        env={**USER_ENVIRONMENT, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _third_run_hangs(tmp_path: Path) -> bool:
    return any(log.read_text() for log in (tmp_path / "out" / "logs").glob("*-0003.log"))


def _no_child_is_left(program: list[str]) -> bool:
    return not any(program[1] in (process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"]))


@pytest.mark.fault(
    "R6",
    "kill -9 of a sweep during a run; then sweep --resume, twice",
    survives="no process is left by the kill; each run is there once, and no finished one is repeated",
)
@pytest.mark.process
def test_kill_and_resume_leave_what_an_uninterrupted_sweep_would(
    sweep: Sweep, runs: Runs, tmp_path: Path, program: list[str]
) -> None:
    arguments = ("--num_gpus=1,2", "--repeats=2", "--staged_vars=true,false")
    sweep(*arguments, "--output_dir=whole")
    whole = load(tmp_path / "whole" / "results.jsonl").records
    killed = _start(tmp_path, program, *arguments)
    wait_until(lambda: _third_run_hangs(tmp_path))
    killed.kill()
    killed.wait()
    wait_until(lambda: _no_child_is_left(program))
    assert len(_records(tmp_path)) == 2
    assert sweep(*arguments, "--resume").status == 0
    assert list(map(_what, _records(tmp_path))) == list(map(_what, whole))
    assert len(whole) == 8 and len(runs.started) == 8 + 6
    assert sweep(*arguments, "--resume").status == 0
    assert len(runs.started) == 8 + 6, "nothing was missing"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_sweep_with_its_status(
    sweep: Sweep, runs: Runs, tmp_path: Path, number: int, status: int
) -> None:
    runs.signals[8] = number
    assert sweep("--batch_size=1,8,9").status == status
    assert [record.config["batch_per_device"] for record in _records(tmp_path)] == [1]
    runs.signals.clear()
    sweep("--batch_size=1,8,9", "--resume")
    assert runs.started == [1, 8, 8, 9]


def test_no_run_is_begun_when_time_is_over(sweep: Sweep, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = types.SimpleNamespace(monotonic=lambda: 10.0 * len(runs.started))
    monkeypatch.setattr(sweep_verb, "time", clock)
    done = sweep("--batch_size=1,8,9,10", "--budget_seconds=15")
    assert runs.started == [1, 8] and "2 runs are left for --resume" in done.stderr


def test_a_record_that_could_not_be_stored_is_taken_from_what_was_printed(
    sweep: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocesses, "supervise", FakeRuns(_printed))
    sweep("--batch_size=8")
    assert [_what(record) for record in _records(tmp_path)] == [(8, 1, False, "ok")]


def test_endless_output_is_a_row_and_not_a_full_disk(
    sweep: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: subprocesses.Command, timeout_seconds: float) -> list[subprocesses.ExitInfo]:
        for file in (command.stdout, command.stderr):
            assert file is not None
            file.write(b"y\n" * 2**20)
        return [subprocesses.ExitInfo(-signal.SIGKILL, False, False, 1.0, wrote_too_much=True)]

    monkeypatch.setattr(subprocesses, "supervise", run)
    assert sweep("--batch_size=8").status == ExitStatus.RUN_FAILED
    (record,) = _records(tmp_path)
    assert record.status is Status.CRASH
    assert record.reason.startswith("The run wrote more than 256 MiB of output, and was killed. Its last output: y")
    (log,) = (tmp_path / "out" / "logs").iterdir()
    assert log.stat().st_size == 2**20


def test_long_output_before_a_record_takes_no_memory(tmp_path: Path) -> None:
    """As a list of lines it would take 45 bytes for each of its two."""
    made = fake_run()
    made = replace(made, identity=replace(made.identity, session_id="mine"))
    with (tmp_path / "stdout").open("w+b") as stdout:
        stdout.write(b"{}\n" * 2**13 + made.to_json().encode() + b"\n{and more\n")
        tracemalloc.start()
        found = isolated_run._printed(stdout, "mine")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert found is not None and found.identity.run_id == made.identity.run_id and peak < 2**17
        assert isolated_run._printed(stdout, "another") is None


@pytest.mark.fault(
    "R2",
    "TMPDIR is full during a sweep, and the results directory has room, or the reverse",
    survives="the output of runs goes where there is room",
)
@pytest.mark.parametrize("has_room", ["temporary", "results"])
def test_what_a_run_prints_goes_where_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_room: str
) -> None:
    for name in ("temporary", "results"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=int(path.name == has_room)))
    with isolated_run._temporary_file(tmp_path / "results") as file:
        assert os.readlink(f"/proc/self/fd/{file.fileno()}").startswith(str(tmp_path / has_room))


@pytest.mark.fault(
    "R2",
    "the kernel refuses a run of a sweep a process (EAGAIN, ENOMEM)",
    survives="it is a row crash, the next run is ok",
)
@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM])
def test_a_process_that_is_refused_is_a_row(
    sweep: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    run = subprocesses.supervise

    def refuse(command: subprocesses.Command, timeout_seconds: float) -> list[subprocesses.ExitInfo]:
        if "--batch_size=2" in command.words:
            raise OSError(number, os.strerror(number))
        return run(command, timeout_seconds=timeout_seconds)

    monkeypatch.setattr(subprocesses, "supervise", refuse)
    assert sweep("--batch_size=2,8").status == ExitStatus.RUN_FAILED
    refused, fine = _records(tmp_path)
    assert refused.status is Status.CRASH
    assert refused.reason.startswith(f"Its process could not be started: {os.strerror(number)}.")
    assert fine.status is Status.OK


@pytest.mark.fault(
    "R2",
    "the results directory or results.jsonl is removed during a sweep",
    survives="all runs are stored, a sentence names the file, no traceback",
)
@pytest.mark.parametrize("what", ["out", "out/results.jsonl"])
@pytest.mark.parametrize("when", ["before the run stores", "after the run has stored", "without a record"])
def test_results_that_are_removed_meanwhile_are_stored_again(
    sweep: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, when: str
) -> None:
    def behave(run: FakeRun) -> Record | Failure:
        made = record_of(run)
        if run.flags["batch_size"] != "8":
            return made
        if when == "after the run has stored":
            run.leave(made)
        shutil.rmtree(tmp_path / what) if what == "out" else (tmp_path / what).unlink()
        return made if when == "before the run stores" else Failure(returncode=4)

    monkeypatch.setattr(subprocesses, "supervise", FakeRuns(behave))
    done = sweep("--batch_size=1,8,9")
    assert "results.jsonl was removed" in done.stderr and "Traceback" not in done.stderr
    last = "crash" if when == "without a record" else "ok"
    assert {r.config["batch_per_device"]: str(r.status) for r in _records(tmp_path)} == {1: "ok", 8: last, 9: "ok"}
    assert done.status == (ExitStatus.RUN_FAILED if last == "crash" else ExitStatus.OK)


def test_results_that_cannot_be_stored_again_end_a_sweep_with_a_sentence(
    sweep: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def behave(run: FakeRun) -> Failure:
        shutil.rmtree(tmp_path / "out")
        (tmp_path / "out").write_text("in the way")
        return _printed(run)

    monkeypatch.setattr(subprocesses, "supervise", FakeRuns(behave))
    done = sweep("--batch_size=8,9")
    assert done.status == ExitStatus.RUN_FAILED and "Traceback" not in done.stderr
    assert "results.jsonl was removed" in done.stderr and "cannot be made again" in done.stderr
    printed = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    assert [record["status"] for record in printed] == ["ok"], "the record is not lost"


def _identified(field: str) -> Callable[[Record], Record]:
    return lambda record: replace(record, identity=replace(record.identity, **{field: "another"}))


@pytest.mark.fault(
    "R6",
    "sweep --resume where the stored run has another commit, version of the suite or TensorFlow, or machine",
    survives="the run is repeated",
)
@pytest.mark.parametrize(
    ("change", "is_repeated", "is_named"),
    [
        *((_identified(field), True, True) for field in ("suite_commit", "suite_version", "software_key")),
        (_identified("hardware_key"), True, False),
        (lambda record: replace(record, status=Status.INTERRUPTED), True, False),
        (lambda record: replace(record, config={**record.config, "data_set": "4 files"}), False, False),
    ],
    ids=["commit", "version", "software", "machine", "interrupted", "data set, which only a run knows"],
)
def test_only_a_whole_run_of_this_software_on_this_machine_counts_for_resume(
    sweep: Sweep, runs: Runs, tmp_path: Path, change: Callable[[Record], Record], is_repeated: bool, is_named: bool
) -> None:
    sweep("--batch_size=7,8,9")
    same, *others = _records(tmp_path)
    store = Store(tmp_path / "out")
    store.jsonl_path.unlink()
    store.append(*map(change, others), same)
    runs.started.clear()
    done = sweep("--batch_size=7,8", "--resume")
    warning = "--resume: 1 record of another version of this suite or its packages: run again."
    assert (runs.started, warning in done.stderr) == ([8] * is_repeated, is_named)
    sweep("--batch_size=7,8", "--resume")
    assert runs.started == [8] * is_repeated, "the record of this software counts"


def test_what_another_command_stores_meanwhile_is_not_the_record_of_a_run_that_crashed(
    sweep: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def behave(run: FakeRun) -> Failure:
        Store(Path(run.flags["output_dir"])).append(fake_run())
        return Failure(returncode=3)

    monkeypatch.setattr(subprocesses, "supervise", FakeRuns(behave))
    assert sweep("--batch_size=8").status == ExitStatus.RUN_FAILED
    assert [str(record.status) for record in _records(tmp_path)] == ["ok", "crash"]


def test_a_run_whose_log_cannot_be_kept_still_has_its_reason(sweep: Sweep, runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "logs").write_text("a file")
    runs.ends[2] = Failure(returncode=3, stderr="it broke here")
    sweep("--batch_size=2,8")
    broken, fine = _records(tmp_path)
    assert broken.reason == "Ended with status 3 and left no record. Its last output: it broke here"
    assert fine.status is Status.OK


def test_what_a_run_refused_is_tried_again(sweep: Sweep, runs: Runs, tmp_path: Path) -> None:
    runs.ends[7] = Failure(returncode=2, stderr="run_bench: no such device")
    for _ in range(2):
        sweep("--batch_size=7,8", "--resume")
    assert [_what(record)[::3] for record in _records(tmp_path)] == [(7, "skipped"), (8, "ok"), (7, "skipped")]


@pytest.mark.parametrize(
    ("number", "last", "status"),
    [
        (signal.SIGABRT, "terminate called after throwing an instance of 'std::bad_alloc'", "oom"),
        (signal.SIGABRT, "F d.cc:9] Check failed: CUDA_ERROR_OUT_OF_MEMORY: out of memory", "oom"),
        (signal.SIGSEGV, "E e.cc:9] failed to allocate 2.00GiB: CUDA_ERROR_OUT_OF_MEMORY: out of memory", "crash"),
    ],
    ids=["C++", "CUDA", "CUDA, and TensorFlow did without"],
)
def test_a_run_that_the_allocator_ended_is_oom(
    sweep: Sweep, runs: Runs, tmp_path: Path, number: int, last: str, status: str
) -> None:
    runs.ends[6] = Failure(returncode=-number, stderr=last)
    sweep("--batch_size=6")
    (record,) = _records(tmp_path)
    assert record.status == status and last in record.reason
    asked = "Memory could not be allocated: trivial with 6 images"
    assert record.reason.startswith(asked if status == "oom" else "Ended by signal 11")


def test_the_time_left_is_scaled_by_what_the_runs_took(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now, shown = [0.0], []

    def run_cell(_: grid.Cell, what: str) -> Record:
        shown.append(what)
        now[0] += 20.0
        return fake_run(rate=320.0 if len(shown) == 1 else 0.0321)

    monkeypatch.setattr(sweep_verb, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    cells = [grid.Cell((f"--batch_size={batch}",), None) for batch in (1, 2)]
    runner: Any = types.SimpleNamespace(run_cell=run_cell)
    assert len(sweep_verb._run_all(runner, cells, [(cells[0], 10.0), (cells[1], 30.0)], None)) == 2
    said = capsys.readouterr().err
    assert "320.00 images/sec   (60 s left)\n" in said, "the first took twice its estimate"
    assert "0.032100 images/sec" in said
    assert shown[0] == "[1/2] --batch_size=1, 40 s left", "nothing has run yet: the estimate"
    assert shown[1] == "[2/2] --batch_size=2, 60 s left"


SUITE = """
[[grid]]
model = ["trivial", "alexnet"]
num_gpus = [1, 2]
[[grid]]
model = "vgg16"
staged_vars = true
"""


def test_a_suite_is_several_grids(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "suite.toml").write_text(SUITE)
    words = (f"--suite={tmp_path / 'suite.toml'}", "--device=cpu", "--batch_size=4", "--model=mlp")
    cells = grid.wanted(_values(*words), lambda: 0)
    found = [
        (c.config.workload.model, c.config.devices.num_devices, c.config.variables.modifiers.staged_vars)
        for c in cells
        if c.config
    ]
    assert found == [
        ("trivial", 1, False),
        ("trivial", 2, False),
        ("alexnet", 1, False),
        ("alexnet", 2, False),
        ("vgg16", 1, True),
    ]
    assert "Grids of the suite that set --model keep their values." in capsys.readouterr().err


_KEYS = ("batch_size", "num_batches", "num_warmup_batches", "display_every", "num_intra_threads", "tf_random_seed")
_KEYS_OF_100 = "".join(f"{key} = {list(range(1, 101))}\n" for key in _KEYS)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[grid]", "suite.toml cannot be read: "),
        ("model = 'vgg16'", "[[grid]]"),
        ("[[grid]]\nmodle = 'vgg16'", "Did you mean 'model'?"),
        ("[[grid]]\nprint_config = true", "for all runs together"),
        ("[[grid]]\nflagfile = 'some.flags'", "flagfile is no flag of a run"),
        ("[[grid]]\n\"output_dir=x\" = 'y'", "output_dir=x is no flag of a run"),
        (f"[[grid]]\nmodel = {'[' * 5000}", "nested too deeply"),
        (f"[[grid]]\nbatch_size = {'9' * 5000}", "A suite is a TOML file"),
        (f"[[grid]]\nbatch_size = 1{'0' * 400}", "is not a whole number"),
        ("[[grid]]\nmodel = 'vgg16'\n[[grid]]\nbatch_size = [ # 32, 64\n]\n", "batch_size needs a value"),
        ("[[grid]]\nmodel = [['trivial'], ['vgg16']]", "model needs a value, or a list with"),
        ("[[grid]]\nnum-batches = {a = 1}", "num-batches needs a value, or a list with"),
        ("[[grid]]\n" + _KEYS_OF_100, "1,000,000,000,000 runs, and one command makes at most 100,000"),
    ],
    ids=range(13),
)
def test_a_bad_suite_is_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "suite.toml").write_text(text)
    with pytest.raises(UsageError) as error:
        grid.wanted(_values(f"--suite={tmp_path / 'suite.toml'}"), lambda: 0)
    assert words in str(error.value)


@pytest.mark.row("U1.5")
@pytest.mark.parametrize("words", ["--model=all", "--model=trivial,All", "--preset=models"])
def test_all_stands_for_every_model(run_bench: RunBench, words: str) -> None:
    done = run_bench("sweep", words, "--device=cpu", "--dry_run").succeeded()
    assert all(f"--model={name}" in done.stdout.split() for name in specs.names())


def test_as_json_a_sweep_prints_its_records_alone(sweep: Sweep, runs: Runs) -> None:
    done = sweep("--batch_size=2,4", "--output_format=json")
    printed = [Record.from_json(line) for line in done.stdout.splitlines()]
    assert [record.config["batch_per_device"] for record in printed] == [2, 4]
    assert "2 of 2 combinations: 2 runs" in done.stderr
    done = sweep("--variable_update=parameter_server,staged", "--staged_vars=false,true", "--dry_run")
    assert "same as an earlier one" in done.stdout and "cannot run: --nostaged_vars does not go with" in done.stdout


def test_a_grid_shows_how_far_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(console, "on_terminal", lambda: True)
    assert len(grid.cells([{"device": ["cpu"], "model": ["mlp"], "batch_size": ["1", "2", "3"]}], lambda: 0)) == 3
    assert "Checking combinations of flags: 0 of 3" in capsys.readouterr().err


def test_a_value_that_is_no_number_is_a_text(sweep: Sweep, runs: Runs) -> None:
    done = sweep("--model=\u00b2,trivial")
    assert done.status == ExitStatus.OK and len(runs.started) == 1, done.stderr


def test_a_sweep_without_a_valid_run_is_a_failure(sweep: Sweep, runs: Runs) -> None:
    runs.ends[1] = Failure(returncode=2, stderr="run_bench: no such device")
    done = sweep("--batch_size=1")
    assert (done.status, runs.started) == (ExitStatus.RUN_FAILED, [1]) and "No run has a valid rate." in done.stdout


def test_names_may_have_dashes_and_records_have_underscores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "suite.toml").write_text("[[grid]]\nbatch-size = [1, 2]\n")
    asked: list[tuple[Mapping[str, Any], Sequence[str]]] = []
    monkeypatch.setattr(sweep_verb, "run_sweep", lambda *asked_for: asked.append(asked_for))
    words = ["--dry-run", "-m", "mlp", "--no-async", "--device=cpu"]
    main.dispatch(["sweep", f"--suite={tmp_path / 'suite.toml'}", *words])
    ((values, command),) = asked
    assert command[2:] == ["--dry_run", "--model", "mlp", "--noasync", "--device=cpu"] and values["dry_run"]
    found = grid.wanted(values, lambda: 0)
    assert [cell.config.workload.batch_per_device for cell in found if cell.config] == [1, 2]


def test_booleans_without_a_value_also_in_a_flag_file(tmp_path: Path) -> None:
    (tmp_path / "some.flags").write_text("--staged_vars\n--num-batches=50\n")
    words = ["--nofc_model_parallel", "--model", "vgg16", "--forward_only", "true,false"]
    values = _values(f"--flagfile={tmp_path / 'some.flags'}", *words)
    assert {name: value for name, value in values.items() if value is not None} == {
        "staged_vars": "true",
        "num_batches": "50",
        "fc_model_parallel": "false",
        "model": "vgg16",
        "forward_only": "true,false",
    }


def test_estimates_learn_from_earlier_runs() -> None:
    chosen = resolve("--device=cpu", "--num_batches=10", "--num_warmup_batches=0")
    guess = estimate_seconds(chosen, [])
    assert guess > 6
    earlier = fake_run(step_seconds=2.0)
    identity = replace(earlier.identity, config_key=key_of(chosen.key_fields()))
    earlier = replace(earlier, identity=identity)
    assert estimate_seconds(chosen, [earlier]) == pytest.approx(3 + 12 * 2.0)
    by_time = dataclasses.replace(chosen, length=dataclasses.replace(chosen.length, at_least_seconds=30.0))
    assert estimate_seconds(by_time, [earlier]) == pytest.approx(3 + 2 * 2.0 + 30.0)
    capped = dataclasses.replace(by_time, length=dataclasses.replace(by_time.length, at_least_seconds=1e6))
    assert estimate_seconds(capped, [earlier]) == pytest.approx(3 + 2 * 2.0 + 20_000 * 2.0)
    assert estimate_seconds(by_time, [earlier], steps=10) == pytest.approx(3 + 12 * 2.0)
    by_epochs = dataclasses.replace(chosen, length=dataclasses.replace(chosen.length, num_batches=None, num_epochs=0.5))
    steps = math.ceil(0.5 * 1_281_167 / chosen.batch_global)
    assert estimate_seconds(by_epochs, [earlier]) == pytest.approx(3 + (2 + steps) * 2.0)
    own = dataclasses.replace(by_epochs, data=dataclasses.replace(chosen.data, data_dir="x"))
    assert estimate_seconds(own, [earlier]) == pytest.approx(3 + 102 * 2.0), "its images are not counted"


def test_runs_that_will_be_killed_are_announced(run_bench: RunBench) -> None:
    words = ("sweep", "--model=resnet50", "--device=cpu", "--dry_run")
    assert "is killed after 60 min: pass a larger" in run_bench(*words, "--num_epochs=1").succeeded().stderr
    assert "is killed" not in run_bench(*words, "--num_batches=1").succeeded().stderr


def test_estimates_include_the_start_of_a_gpu_and_compiling() -> None:
    plain, compiled = (estimate_seconds(resolve("--device=gpu", f"--xla={on}", gpus=1), [], 1) for on in (False, True))
    assert 20 < plain < 30 and compiled - plain == pytest.approx(40)


def test_spellings_that_contradict_each_other_are_skipped_cells() -> None:
    found = grid.cells([{"device": ["cpu"], "precision": ["bf16", "fp16"], "use_fp16": ["true", "false"]}], lambda: 0)
    possible = [cell.arguments[1:] for cell in found if cell.config]
    assert possible == [("--precision=bf16", "--use_fp16=false"), ("--precision=fp16", "--use_fp16=true")]
    assert all("contradict each other" in str(cell.why_not) for cell in found if not cell.config)


def test_a_full_disk_loses_no_record(sweep: Sweep, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Store, *records: object) -> list[str]:
        raise StoreError("The record could not be stored: No space left on device.")

    runs.ends[2] = Failure(returncode=3)
    monkeypatch.setattr(Store, "append", full)
    done = sweep("--batch_size=2")
    assert done.status == ExitStatus.RUN_FAILED
    assert "No space left" in done.stderr and '"status":"crash"' in done.stderr
