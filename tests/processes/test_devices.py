"""What TensorFlow decides once per process: its kernels, its threads, and what is imported with it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.commands import ROOT, RunBench


@pytest.mark.slow
def test_what_no_run_needs_is_not_imported_and_can_be_afterwards() -> None:
    script = (
        "import sys; from benchmarks.process import tensorflow_setup as environment; "
        "environment.prepare(environment.Runtime()); environment.import_tensorflow(); "
        "assert not {'matplotlib', 'pandas', 'scipy'} & set(sys.modules); import matplotlib, pandas, scipy.stats"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)


@pytest.mark.slow
def test_the_cpus_kernels_are_those_that_were_asked_for(run_process: RunBench) -> None:
    """oneDNN's convolutions take images by channel, and TensorFlow's own do not."""
    flags = ("--device=cpu", "--model=resnet20", "--data_format=NCHW", "--batch_size=2", "--num_batches=2")
    refused = run_process(*flags, "--onednn=off")
    assert refused.status == 2 and "--onednn=on" in refused.stderr and "--data_format=NHWC" in refused.stderr
    run_process(*flags, "--onednn=on", TF_ENABLE_ONEDNN_OPTS="0").succeeded()


COUNT_THREADS = """
import os, sys
from benchmarks.config import config, run_flags, flag
from benchmarks.process import tensorflow_setup
chosen = config.resolve(flag.parse(sys.argv[1:], run_flags.RUN_FLAGS).values, lambda: 0)
tensorflow_setup.prepare(chosen.runtime)
import tensorflow as tf
from benchmarks.graph import run_graph
run_graph.plan_devices(chosen)
tf.constant(1.0)  # starts the eager runtime, as an input pipeline does
with tf.Graph().as_default():
    product = tf.matmul(*[tf.random.normal([300, 300])] * 2)
    with tf.compat.v1.Session(config=run_graph.session_config(chosen.devices, chosen.runtime)) as session:
        session.run(product)
        print(len(os.listdir("/proc/self/task")))
"""


@pytest.mark.rotates
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_a_process_has_as_many_threads_as_requested(layout: str) -> None:
    """TensorFlow makes its pools once, and under NCHW a check of the kernels comes before the session."""

    def count(within: int, at_once: int) -> int:
        threads = (f"--num_intra_threads={within}", f"--num_inter_threads={at_once}")
        command = [sys.executable, "-c", COUNT_THREADS, "--device=cpu", "--onednn=on", f"--data_format={layout}"]
        done = subprocess.run([*command, *threads], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    fewest = count(2, 3)
    assert count(7, 3) - fewest == 5, "all share one pool within an operation"
    assert count(2, 9) - fewest == 12, "the session and the eager runtime have a pool each for operations"
