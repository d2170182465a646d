"""Runs train as a loop does that shares no code with them: NumPy's arithmetic."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.measure.run_log import RunLog
from models import building, specs

STEPS, PER_DEVICE, CLASSES, SEED = 5, 4, 10, 3
RATE, DECAY = 0.02, 0.5


def _initial_weights() -> list[np.ndarray]:
    """Returns kernel and bias of the hidden layer, and those of the logits."""
    model = building.build(specs.find_model("mlp"), data_format="NHWC", num_classes=CLASSES, seed=SEED, owning=True)
    return model.keras_model.get_weights()


def _batch(num_devices: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the synthetic images and labels of all devices, as one batch."""
    seeds = [(SEED, device) for device in range(num_devices)]
    images = [tf.random.stateless_normal((PER_DEVICE, 28, 28, 1), seed) for seed in seeds]
    labels = [tf.random.stateless_uniform((PER_DEVICE,), seed, 0, CLASSES, tf.int64) for seed in seeds]
    return np.concatenate(images), np.concatenate(labels)


def _losses_of_numpy(num_devices: int, momentum: float) -> list[float]:
    images, labels = _batch(num_devices)
    x = images.reshape(len(images), -1).astype(np.float64)
    weights = [weight.astype(np.float64) for weight in _initial_weights()]
    velocities = [np.zeros_like(weight) for weight in weights]
    losses = []
    for _ in range(STEPS):
        kernel, bias, top_kernel, top_bias = weights
        before_relu = x @ kernel + bias
        hidden = np.maximum(before_relu, 0)
        exponentials = np.exp(hidden @ top_kernel + top_bias)
        probabilities = exponentials / exponentials.sum(axis=1, keepdims=True)
        losses.append(-np.log(probabilities[np.arange(len(x)), labels]).mean())
        by_logits = (probabilities - np.eye(CLASSES)[labels]) / len(x)
        by_hidden = by_logits @ top_kernel.T * (before_relu > 0)
        gradients = [
            *(x.T @ by_hidden + DECAY * kernel, by_hidden.sum(axis=0)),
            *(hidden.T @ by_logits + DECAY * top_kernel, by_logits.sum(axis=0)),
        ]
        velocities = [momentum * v + gradient for v, gradient in zip(velocities, gradients, strict=True)]
        weights = [weight - RATE * v for weight, v in zip(weights, velocities, strict=True)]
    return losses


@pytest.mark.parametrize(("optimizer", "momentum"), [("sgd", 0.0), ("momentum", 0.8)])
@pytest.mark.parametrize("num_devices", [1, 2])
def test_losses_are_those_of_numpy(
    train_here: Callable[..., RunLog], num_devices: int, optimizer: str, momentum: float
) -> None:
    log = train_here(
        *("--device=cpu", "--model=mlp", f"--tf_random_seed={SEED}", f"--batch_size={PER_DEVICE}"),
        *(f"--num_gpus={num_devices}", "--variable_update=replicated"),
        *(f"--optimizer={optimizer}", f"--momentum={momentum}"),
        *(f"--init_learning_rate={RATE}", f"--weight_decay={DECAY}"),
        *("--num_warmup_batches=1", f"--num_batches={STEPS - 1}"),
    )
    losses = [*log.first.losses, *log.warmup.losses, *log.measured.losses]
    expected = _losses_of_numpy(num_devices, momentum)
    assert expected[-1] < expected[0] - 0.5, "it must learn, or agreeing would prove nothing"
    assert losses == pytest.approx(expected, rel=1e-5)
