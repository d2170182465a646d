"""The learning rate of a schedule reaches the steps; weight decay and smoothing reach the loss."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.training import objectives
from models import building, specs
from tests.support.commands import RunBench

RUN = ("--device=cpu", "--model=mlp", "--num_gpus=2", "--batch_size=5", "--num_warmup_batches=1")
# A step of two towers is 10 of MNIST's 60,000 images: the boundary is after three steps, and the first step is at 0.
STOPS_AFTER_3 = ("--piecewise_learning_rate_schedule=0.1;0.0005;0", "--num_learning_rate_warmup_epochs=0.0001666")


@pytest.mark.parametrize("manager", ["replicated", "parameter_server"])
def test_a_step_has_the_rate_of_its_epoch(run_bench: RunBench, manager: str) -> None:
    done = run_bench(*RUN, f"--variable_update={manager}", "--num_batches=6", "--output_format=json", *STOPS_AFTER_3)
    assert done.status == 0, done.stderr
    losses = json.loads(done.stdout)["measurement"]["losses"]
    # The first step is not measured; the losses are those before each update.
    moved = np.abs(np.diff(losses)) > 0
    assert moved.tolist() == [True, True, False, False, False], "the fourth step and those after it are at 0"


def test_smoothed_labels_are_those_of_the_formula() -> None:
    logits, labels = np.array([[1.0, 2.0, -1.0], [0.5, 0.0, 3.0]], np.float32), np.array([1, 0])
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    targets = 0.9 * np.eye(3)[labels] + 0.1 / 3
    wanted = -(targets * np.log(probabilities)).sum(axis=1).mean()
    assert float(objectives.smoothed_cross_entropy(0.1)(tf.constant(logits), tf.constant(labels))) == pytest.approx(
        wanted
    )
    assert objectives.smoothed_cross_entropy(0.0) is objectives.cross_entropy


def test_weight_decay_acts_on_what_is_chosen() -> None:
    with tf.Graph().as_default():
        model = building.build(specs.find_model("resnet20"), data_format="NHWC", num_classes=10, seed=1)
        decayed = {
            which: {v.name.rsplit("/", 1)[-1] for v in building.decaying(model, which).variables if v.decayed}
            for which in ("kernels", "kernels_and_biases", "all")
        }
    assert decayed == {
        "kernels": {"kernel"},
        "kernels_and_biases": {"kernel", "bias"},
        "all": {"kernel", "bias", "gamma", "beta"},
    }
