"""Runs that are killed, that have no memory, whose model misbehaves, and what secrets they leave."""

from __future__ import annotations

import contextlib
import signal
import sys
import time

import pytest

from tests.support.scratch import ENDLESS, TINY, Scratch

RUNS, KILLED = 12, 4
MODEL = """
import sys, keras

IS_RUN = "model_probe" not in " ".join(sys.orig_argv)


def net():
    images = keras.Input((8, 8, 3))
    return keras.Model(images, keras.layers.Dense(10)(keras.layers.Flatten()(images)))


def exits():
    return sys.exit(0) if IS_RUN else net()


def raises():
    if IS_RUN:
        raise BaseException("odd")
    return net()
"""
SECRETS = {
    "NVIDIA_API_KEY": "secret-1",
    "TF_TOKEN_app_terraform_io": "secret-2",
    "TF_VAR_db_password": "secret-3",
    "NCCL_TOKEN": "secret-4",
    "XLA_FLAGS_CREDENTIALS": "secret-5",
}
SHORT = (*TINY, "--num_batches=5")


def cpu_seconds(scratch: Scratch, pattern: str) -> float:
    """Returns what one of these processes has used; the import of TensorFlow takes about 5 s."""
    used = [0.0]
    for process in scratch.processes(pattern):
        with contextlib.suppress(Exception):
            used.append(sum(process.cpu_times()[:2]))
    return max(used)


@pytest.mark.fault(
    "R13",
    "12 runs into one directory at once; 4 of them are killed with -9 while they start, import, build and measure",
    survives="the 8 others are stored, every line is JSON, the CSV equals the JSONL",
)
def test_many_runs_into_one_directory_of_which_some_are_killed(scratch: Scratch) -> None:
    killed = [scratch.start("run", *ENDLESS, f"--session_id=d{index}") for index in range(KILLED)]
    others = [scratch.start("run", *SHORT, f"--session_id=o{index}") for index in range(RUNS - KILLED)]
    for index, run in enumerate(killed):
        run.wait_until(lambda index=index: cpu_seconds(scratch, f"--session_id=d{index} ") > 0.2 + 2.5 * index)
        run.send(signal.SIGKILL)
    scratch.leaves_temporary_files = True
    for run in others:
        scratch.expect(run.end(400), 0)
    time.sleep(2)  # a row of a killed run may be written after its end
    stored = {record["identity"]["session_id"] for record in scratch.records() if record["status"] == "ok"}
    assert stored == {f"o{index}" for index in range(RUNS - KILLED)}


@pytest.mark.fault(
    "R3",
    "a batch of 256 for vgg16 with ulimit -v of 6 GB",
    survives="status 4, or 134 or 139 where the C++ runtime ends it; a row oom that names request and device",
)
def test_an_address_space_that_is_too_small(scratch: Scratch) -> None:
    words = ("--device=cpu", "--model=vgg16", "--num_batches=2", "--batch_size=256")
    ended = scratch.bench("run", *words, under=("prlimit", "--as=6000000000"))
    scratch.expect(ended, 4, 134, 139)
    until = time.monotonic() + 15
    while not scratch.records() and time.monotonic() < until:  # of an aborted run, another process writes it
        time.sleep(0.2)
    (record,) = scratch.records()
    assert record["status"] == "oom" and "256" in record["reason"] and "cpu" in record["reason"].lower()


@pytest.mark.fault(
    "R10",
    "an own model whose code calls sys.exit(0) or raises a BaseException in the run's process",
    survives="status 4, a sentence that names --model, a record crash",
)
@pytest.mark.parametrize("function", ["exits", "raises"])
def test_a_model_that_would_end_the_run(scratch: Scratch, function: str) -> None:
    (scratch.directory / "net.py").write_text(MODEL)
    ended = scratch.bench("run", "--device=cpu", f"--model=net.py:{function}", "--batch_size=2", "--num_batches=3")
    scratch.expect(ended, 4, says=[f"--model=net.py:{function}: its code would end"], records=["crash"])


@pytest.mark.fault(
    "R15",
    "secrets in variables such as NVIDIA_API_KEY and TF_TOKEN_HOST, in a --base_command of ab, and in an address that "
    "--data_dir names",
    survives="none is in a record, a report's page, a summary of GitHub, any other file, or an output",
)
def test_secrets_stay_inside(scratch: Scratch) -> None:
    outputs = [f"--{name}={scratch.directory / name}" for name in ("json", "junit", "markdown")]
    base = f"--base_command=env API_TOKEN=secret-7 {sys.executable} -c 0"
    ab = (*SHORT, base, "--nowarmup", "--max_repeats=6", f"--output_dir={scratch.directory / 'ab'}")
    summary = {"GITHUB_STEP_SUMMARY": str(scratch.directory / "summary.md")}
    scratch.expect(scratch.bench("run", *SHORT, **SECRETS), 0, records=["ok"])
    page = f"--output={scratch.directory / 'page'}"
    scratch.expect(scratch.bench("report", scratch.out, page, **SECRETS), 0)
    scratch.expect(scratch.bench("ab", *ab, *outputs, **summary), 3, 4)
    scratch.expect(scratch.bench("run", *SHORT, "--data_dir=https://me:secret-8@example.org/data"), 2, 5)
    texts = {path: path.read_bytes() for path in scratch.directory.rglob("*") if path.is_file()}
    assert not [path for path, text in texts.items() if b"secret-" in text]
