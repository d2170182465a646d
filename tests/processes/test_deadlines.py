"""Verbs whose main thread waits in TensorFlow for ever: they end by themselves, and a signal ends them."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from results.loading import load
from results.record import Record, Status
from tests.support.commands import ROOT, USER_ENVIRONMENT
from tests.support.rotation import rotating

SECONDS = 240.0
# `run_bench.py` with an operation that waits for a queue that stays empty. WHAT is waited for only for a short time.
HANGING = """
import sys
sys.path.insert(0, {root!r})
from benchmarks.cli import main
from benchmarks.process import tensorflow_setup, watchdog

expect, import_tensorflow = watchdog.Watchdog.expect, tensorflow_setup.import_tensorflow

def never():
    # Printed by the step, not while the graph is built: there a signal can make TensorFlow print a traceback.
    with tf.control_dependencies([tf.print("hangs", output_stream=sys.stderr)]):
        return tf.compat.v1.FIFOQueue(1, tf.float32, shapes=[()]).dequeue()

def import_and_patch():
    global tf
    import_tensorflow()
    import tensorflow as tf
{patch}

tensorflow_setup.import_tensorflow = import_and_patch
watchdog._GRACE_SECONDS = watchdog._GRACE_AFTER_SIGNAL_SECONDS = 0.5
if {what!r}:
    watchdog.Watchdog.expect = lambda self, what, seconds: expect(self, what, 0.5 if {what!r} in what else seconds)
sys.exit(main.main(sys.argv[1:]))
"""
ALL_REDUCE = """
    from benchmarks.microbench import allreduce
    allreduce._step = lambda *_: never().op
"""
INPUT = """
    from benchmarks.data.pipeline import input_stages
    input_stages._bare_decode = lambda *_: tf.data.Dataset.from_tensors(never())
"""
VERIFY = """
    from benchmarks.verify import oracle
    from benchmarks.data.pipeline.tower_input import TowerInput
    numbers = oracle._numbers
    oracle._numbers = lambda devices: [TowerInput(t.images + never(), t.labels) for t in numbers(devices)]
"""
STORAGE = """
    import time
    tf.io.gfile.stat = lambda path: time.sleep(600)
"""
SMALL = ["allreduce", "--device=cpu", "--num_gpus=2", "--model=none", "--max_bytes=1K", "--all_reduce_spec=psgpu,pscpu"]


def start(directory: Path, patch: str, what: str, *words: str) -> subprocess.Popen[str]:
    code = HANGING.format(root=str(ROOT), patch=patch, what=what)
    command = [sys.executable, "-c", code, *words]
    return subprocess.Popen(
        command, cwd=directory, env=USER_ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def records(directory: Path) -> list[Record]:
    return load(directory / "out" / "results.jsonl").records


@pytest.mark.fault("R4", "a main thread that waits in TensorFlow for ever", survives="the process ends by itself")
@pytest.mark.fault(
    "R4",
    "an operation that waits for ever in allreduce, input, a storage or verify",
    survives="status 124, the stacks of all threads, and a row timeout",
)
def test_a_reduction_that_hangs_is_a_record(tmp_path: Path) -> None:
    with start(tmp_path, ALL_REDUCE, "All-reduce of", *SMALL) as process:
        stdout, stderr = process.communicate(timeout=SECONDS)
    assert process.returncode == 124, stderr
    assert "stacks of all threads" in stderr and "All-reduce of 1K by psgpu took longer than 0.5 s." in stderr
    found = records(tmp_path)
    assert [record.config["modifiers"]["all_reduce_spec"] for record in found] == ["psgpu", "pscpu"]
    assert {(record.status, record.reason) for record in found} == {
        (Status.TIMEOUT, "All-reduce of 1K by psgpu took longer than 0.5 s.")
    }
    assert stdout.count("TIMEOUT: All-reduce of 1K by psgpu") == 2


@rotating(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)], first=1)
def test_a_signal_ends_a_reduction_that_hangs(tmp_path: Path, number: signal.Signals, status: int) -> None:
    with start(tmp_path, ALL_REDUCE, "", *SMALL) as process:
        assert process.stderr is not None
        while "hangs" not in (line := process.stderr.readline()):
            assert line, "it has ended"
        process.send_signal(number)
        _, stderr = process.communicate(timeout=SECONDS)
    assert process.returncode == status, stderr
    assert {record.status for record in records(tmp_path)} == {Status.INTERRUPTED}
    assert "Traceback" not in stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("patch", "words", "what"),
    [
        (INPUT, ["input", "--model=trivial"], "Building the input's stages"),
        (STORAGE, ["--model=mlp", "--train_dir=ram://x/y"], "An answer from the storage of --train_dir=ram://x/y"),
        (VERIFY, ["verify", "--num_gpus=2"], "A step of a comparison"),
    ],
    ids=["input", "storage", "verify"],
)
def test_what_hangs_ends_with_its_reason(
    tmp_path: Path, fake_imagenet: Path, patch: str, words: list[str], what: str
) -> None:
    data = [f"--data_dir={fake_imagenet}"] if patch == INPUT else []
    with start(tmp_path, patch, what, *words, *data, "--device=cpu") as process:
        _, stderr = process.communicate(timeout=SECONDS)
    reason = f"{what} took longer than 0.5 s."
    assert process.returncode == 124 and reason in stderr, stderr
    if patch != VERIFY:  # which leaves no record
        (record,) = records(tmp_path)
        assert (record.status, record.reason) == (Status.TIMEOUT, reason)
        assert bool(data) == ("data_set" in record.config)
