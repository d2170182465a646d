"""Each update rule against its formula in NumPy, in float64, over several steps and two variables."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.config.optimizer_options import Hyperparameters
from benchmarks.training import optimizers

RATE, MOMENTUM, STEPS = 0.1, 0.9, 4
OTHERS = Hyperparameters(
    rmsprop_decay=0.7,
    rmsprop_momentum=0.6,
    rmsprop_epsilon=0.5,
    adam_beta1=0.8,
    adam_beta2=0.99,
    adam_epsilon=0.1,
)
START = [np.array([1.0, -2.0, 3.0]), np.array([[0.5]])]


def _gradient(step: int, value: np.ndarray) -> np.ndarray:
    """A gradient that changes from step to step and does not depend on the variable."""
    return np.cos(np.arange(value.size).reshape(value.shape) + step)


def _sgd(x: np.ndarray, g: np.ndarray, t: int, memory: dict, c: Hyperparameters) -> np.ndarray:
    return x - RATE * g


def _momentum(x: np.ndarray, g: np.ndarray, t: int, memory: dict, c: Hyperparameters) -> np.ndarray:
    memory["v"] = MOMENTUM * memory.get("v", 0.0) + g
    return x - RATE * memory["v"]


def _rmsprop(x: np.ndarray, g: np.ndarray, t: int, memory: dict, c: Hyperparameters) -> np.ndarray:
    memory["ms"] = c.rmsprop_decay * memory.get("ms", 1.0) + (1 - c.rmsprop_decay) * g**2
    memory["v"] = c.rmsprop_momentum * memory.get("v", 0.0) + RATE * g / np.sqrt(memory["ms"] + c.rmsprop_epsilon)
    return x - memory["v"]


def _adam(x: np.ndarray, g: np.ndarray, t: int, memory: dict, c: Hyperparameters) -> np.ndarray:
    memory["m"] = c.adam_beta1 * memory.get("m", 0.0) + (1 - c.adam_beta1) * g
    memory["v"] = c.adam_beta2 * memory.get("v", 0.0) + (1 - c.adam_beta2) * g**2
    rate = RATE * np.sqrt(1 - c.adam_beta2 ** (t + 1)) / (1 - c.adam_beta1 ** (t + 1))
    return x - rate * memory["m"] / (np.sqrt(memory["v"]) + c.adam_epsilon)


def test_the_constants_are_those_of_tf_cnn_benchmarks() -> None:
    usual = Hyperparameters()
    assert (usual.rmsprop_decay, usual.rmsprop_momentum, usual.rmsprop_epsilon) == (0.9, 0.9, 1.0)
    assert (usual.adam_beta1, usual.adam_beta2, usual.adam_epsilon) == (0.9, 0.999, 1e-8)


@pytest.mark.parametrize("constants", [Hyperparameters(), OTHERS], ids=["usual", "others"])
@pytest.mark.parametrize(
    ("name", "formula"), [("sgd", _sgd), ("momentum", _momentum), ("rmsprop", _rmsprop), ("adam", _adam)]
)
def test_rule_follows_its_formula(name: str, formula: Callable[..., np.ndarray], constants: Hyperparameters) -> None:
    expected, memories = list(START), [{}, {}]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variables = [tf.Variable(value.astype(np.float32)) for value in START]
        fed = [tf.compat.v1.placeholder(tf.float32, value.shape) for value in START]
        rule = optimizers.make(name, learning_rate=RATE, momentum=MOMENTUM, constants=constants)
        updates = rule.apply(variables, fed)
        assert len(updates) == len(variables)
        session.run(tf.compat.v1.global_variables_initializer())
        for step in range(STEPS):
            gradients = [_gradient(step, value) for value in START]
            session.run(updates, dict(zip(fed, gradients, strict=True)))
            expected = [
                formula(x, g, step, m, constants) for x, g, m in zip(expected, gradients, memories, strict=True)
            ]
            for variable, value in zip(session.run(variables), expected, strict=True):
                np.testing.assert_allclose(variable, value, rtol=2e-5, atol=1e-6)


def test_memory_lives_where_the_variable_lives() -> None:
    with tf.Graph().as_default():
        with tf.device("/cpu:1"):
            variable = tf.Variable([1.0])
        optimizers.make("momentum", learning_rate=RATE, momentum=MOMENTUM).apply([variable], [tf.constant([1.0])])
        assert {v.device for v in tf.compat.v1.global_variables()} == {"/device:CPU:1"}
