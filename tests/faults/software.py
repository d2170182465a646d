"""Faults of the software that is measured: other versions, other repositories, programs that misbehave."""

from __future__ import annotations

import copy
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

from tests.faults.catalog import fault
from tests.faults.harness import (
    LONG,
    MEASURES,
    TINY,
    Scratch,
    a_record,
    busy,
    in_shell,
    want,
    write_records,
)
from tests.support.commands import ROOT, RUN_BENCH

_SWEEP = ("--device=cpu", "--model=trivial", "--num_batches=5")


def _git(directory: Path, *words: str) -> str:
    identity = ("-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false")
    command = ["git", "-C", str(directory), *identity, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@fault(
    "sweep-killed-and-resumed",
    "R6",
    injects="kill -9 of a sweep during its second of three runs; then sweep --resume",
    must="no process is left by the kill; then each run is there once and ok, and the first was not repeated",
)
def _resumed(scratch: Scratch) -> None:
    words = (*_SWEEP, "--batch_size=1,2,3")
    sweep = scratch.start("sweep", *words)
    sweep.wait_until(scratch.records, "stored the first run")
    sweep.wait_until(lambda: scratch.processes("--batch_size=2 "), "started the second run")
    sweep.send(signal.SIGKILL)
    sweep.end()
    scratch.may_leave_temporary_files()
    scratch.check()
    (first,) = [record["identity"]["run_id"] for record in scratch.records() if record["status"] == "ok"]
    scratch.expect(scratch.bench("sweep", *words, "--resume"), 0)
    ok = [record for record in scratch.records() if record["status"] == "ok"]
    want([record["config"]["batch_per_device"] for record in ok] == [1, 2, 3], "not 1, 2, 3 once each")
    want(ok[0]["identity"]["run_id"] == first, "the first run was repeated")


for _name, _part, _change in (
    ("tensorflow", "environment", {"tensorflow_version": "2.19.0"}),
    ("commit", "identity", {"suite_commit": "0123456789ab"}),
    ("suite", "identity", {"suite_version": "0.0.1"}),
):

    @fault(
        f"resume-after-another-{_name}",
        "R6",
        injects=f"sweep --resume where the stored run has another {next(iter(_change))}",
        must="the run is repeated",
    )
    def _other(scratch: Scratch, part: str = _part, change: dict[str, str] = _change) -> None:
        record = copy.deepcopy(a_record())
        record[part] |= change
        if part == "environment":
            record["identity"]["software_key"] = "0" * 12
        write_records(scratch.out, record)
        scratch.expect(scratch.bench("sweep", *_SWEEP, "--batch_size=2", "--resume"), 0, records=["ok", "ok"])


@fault("resume-of-what-is-done", "R6", injects="sweep --resume where the run is stored", must="it is not repeated")
def _done(scratch: Scratch) -> None:
    words = (*_SWEEP, "--batch_size=2")
    scratch.expect(scratch.bench("sweep", *words), 0, records=["ok"])
    scratch.expect(scratch.bench("sweep", *words, "--resume"), 0, records=["ok"])


@fault(
    "git-variables-of-a-hook",
    "R10",
    injects="GIT_DIR, GIT_WORK_TREE and GIT_CONFIG_GLOBAL of another repository",
    must="the record has the commit of this suite",
    needs=["git"],
)
def _git_dir(scratch: Scratch) -> None:
    other = scratch.directory / "other"
    _git(scratch.directory, "init", "-q", str(other))
    _git(other, "commit", "-q", "--allow-empty", "-m", "other")
    variables = {"GIT_DIR": str(other / ".git"), "GIT_WORK_TREE": str(other)}
    scratch.expect(scratch.bench("run", *TINY, "--num_batches=5", variables=variables), 0, records=["ok"])
    found = scratch.records()[0]["identity"]["suite_commit"] or ""
    own = _git(ROOT, "rev-parse", "HEAD")
    want(found and own.startswith(found.rstrip("+")), f"suite_commit is {found}, not {own[:12]}")


@fault(
    "commit-during-the-run",
    "R10",
    injects="a commit and a changed file in the suite's checkout while it runs",
    must="the record has the commit from before, without a mark of changes",
    needs=["git"],
)
def _commit(scratch: Scratch) -> None:
    clone = scratch.directory / "clone"
    _git(scratch.directory, "clone", "-q", "--shared", str(ROOT), str(clone))
    before = _git(clone, "rev-parse", "HEAD")
    program = (sys.executable, "-B", clone / "run_bench.py")
    run = scratch.start("run", *LONG, program=program)
    run.wait_for(MEASURES)
    _git(clone, "commit", "-q", "--allow-empty", "-m", "later")
    (clone / "run_bench.py").write_text("changed\n")
    scratch.expect(run.end(), 0, records=["ok"])
    found = scratch.records()[0]["identity"]["suite_commit"]
    want(found and before.startswith(found), f"suite_commit is {found}, not {before[:12]}")


@fault("loss-that-is-nan", "R10", injects="a learning rate of 1e30", must="status 4, and a record invalid")
def _nan(scratch: Scratch) -> None:
    scratch.expect(scratch.bench("run", *TINY, "--num_batches=10", "--init_learning_rate=1e30"), 4, records=["invalid"])


@fault(
    "gpu-that-is-missing",
    "R10",
    injects="--num_gpus=64 --device=gpu",
    must="status 2, and no record that looks like a measurement",
)
def _no_gpu(scratch: Scratch) -> None:
    ended = scratch.bench("run", "--device=gpu", "--num_gpus=64", "--model=trivial", "--num_batches=5")
    scratch.expect(ended, 2, says=["gpu"])
    want(not any(record["status"] == "ok" for record in scratch.records()), "a run is ok")


@fault(
    "program-that-prints-for-ever",
    "R2",
    injects="ab whose base prints for ever (sh -c yes), with a temporary folder of 512 MB and 8 GB of address space",
    must="ab ends with a verdict or a failed run, and no file has grown beyond 100 MB",
    needs=["root"],
)
def _garbage(scratch: Scratch) -> None:
    disk = scratch.small_disk(512 * 1024)
    words = (*TINY, "--num_batches=5", "--round_timeout_seconds=5", "--max_rounds=6", "--nowarmup_round")
    limits = in_shell("ulimit -v 8000000")
    ab = scratch.start(
        "ab",
        "--base_command=sh -c yes",
        *words,
        f"--output_dir={scratch.out}",
        under=limits,
        variables={"TMPDIR": str(disk)},
    )
    largest = 0
    while not ab.ended_within(0.3):
        used = sum(path.lstat().st_blocks * 512 for path in scratch.out.rglob("*")) if scratch.out.exists() else 0
        largest = max(largest, used, _used_bytes(disk))
        want(largest < 100 * 2**20, f"{largest / 2**20:.0f} MB of output are on the disk")
    scratch.expect(ab.end(), 3, 4)


def _used_bytes(disk: Path) -> int:
    usage = os.statvfs(disk)
    return (usage.f_blocks - usage.f_bfree) * usage.f_frsize


@fault(
    "ab-of-a-wrapper-killed",
    "R5",
    injects="kill -9 of ab whose base is started by a shell that waits for it",
    must="no process is left after 15 s",
)
def _wrapper(scratch: Scratch) -> None:
    script = f'{shlex.join(RUN_BENCH)} "$@"; true'
    base = f"--base_command=bash -c {shlex.quote(script)} wrapper"
    ab = scratch.start("ab", base, *TINY, "--num_batches=3000", f"--output_dir={scratch.out}")
    ab.wait_until(lambda: busy(scratch.processes("run_bench.py ", "/warmup"), 3), "started a run")
    ab.send(signal.SIGKILL)
    scratch.may_leave_temporary_files()
    scratch.expect(ab.end(), 137)


@fault(
    "environment-of-another-keras",
    "R10",
    injects="KERAS_BACKEND=jax and a ~/.keras that asks for torch",
    must="the run is ok, under TensorFlow",
)
def _keras(scratch: Scratch) -> None:
    home = scratch.directory / "home" / ".keras"
    home.mkdir(parents=True)
    (home / "keras.json").write_text(json.dumps({"backend": "torch", "image_data_format": "channels_first"}))
    variables = {"KERAS_BACKEND": "jax", "KERAS_HOME": str(home)}
    scratch.expect(scratch.bench("run", *TINY, "--num_batches=5", variables=variables), 0, records=["ok"])
