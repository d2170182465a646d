"""Each update rule against its formula in NumPy, in float64, over several steps and two variables."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.training import optimizers
from benchmarks.training.options import Training

RATE, MOMENTUM, STEPS = 0.1, 0.9, 4
CONSTANTS = Training(
    learning_rate=RATE,
    rmsprop_decay=0.7,
    rmsprop_momentum=0.6,
    rmsprop_epsilon=0.5,
    adam_beta1=0.8,
    adam_beta2=0.99,
    adam_epsilon=0.1,
)
START = [np.array([1.0, -2.0, 3.0]), np.array([[0.5, -1.0]])]


def _gradient(step: int, value: np.ndarray) -> np.ndarray:
    """A gradient that changes from step to step and does not depend on the variable."""
    return np.cos(np.arange(value.size).reshape(value.shape) + step)


def _sgd(x: np.ndarray, g: np.ndarray, t: int, memory: dict) -> np.ndarray:
    return x - RATE * g


def _momentum(x: np.ndarray, g: np.ndarray, t: int, memory: dict) -> np.ndarray:
    memory["v"] = MOMENTUM * memory.get("v", 0.0) + g
    return x - RATE * memory["v"]


def _nesterov(x: np.ndarray, g: np.ndarray, t: int, memory: dict) -> np.ndarray:
    memory["v"] = MOMENTUM * memory.get("v", 0.0) + g
    return x - RATE * (g + MOMENTUM * memory["v"])


def _lars(x: np.ndarray, g: np.ndarray, t: int, memory: dict) -> np.ndarray:
    ratio = 0.5 * np.linalg.norm(x) / np.linalg.norm(g) if x.ndim > 1 else 1.0
    memory["v"] = MOMENTUM * memory.get("v", 0.0) + RATE * ratio * g
    return x - memory["v"]


def _rmsprop(x: np.ndarray, g: np.ndarray, t: int, memory: dict) -> np.ndarray:
    decay, momentum = CONSTANTS.rmsprop_decay, CONSTANTS.rmsprop_momentum
    memory["ms"] = decay * memory.get("ms", 1.0) + (1 - decay) * g**2
    memory["v"] = momentum * memory.get("v", 0.0) + RATE * g / np.sqrt(memory["ms"] + CONSTANTS.rmsprop_epsilon)
    return x - memory["v"]


def _adam(x: np.ndarray, g: np.ndarray, t: int, memory: dict) -> np.ndarray:
    beta1, beta2 = CONSTANTS.adam_beta1, CONSTANTS.adam_beta2
    memory["m"] = beta1 * memory.get("m", 0.0) + (1 - beta1) * g
    memory["v"] = beta2 * memory.get("v", 0.0) + (1 - beta2) * g**2
    rate = RATE * np.sqrt(1 - beta2 ** (t + 1)) / (1 - beta1 ** (t + 1))
    return x - rate * memory["m"] / (np.sqrt(memory["v"]) + CONSTANTS.adam_epsilon)


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("sgd", _sgd),
        ("momentum", _momentum),
        ("nesterov", _nesterov),
        ("rmsprop", _rmsprop),
        ("adam", _adam),
        ("lars", _lars),
    ],
)
def test_rule_follows_its_formula(name: str, formula: Callable[..., np.ndarray]) -> None:
    expected, memories = list(START), [{}, {}]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variables = [tf.Variable(value.astype(np.float32)) for value in START]
        fed = [tf.compat.v1.placeholder(tf.float32, value.shape) for value in START]
        training = dataclasses.replace(CONSTANTS, optimizer=name, lars_trust_coefficient=0.5)
        rule = optimizers.make(training, RATE)
        updates = rule.apply(variables, fed)
        assert len(updates) == len(variables)
        session.run(tf.compat.v1.global_variables_initializer())
        for step in range(STEPS):
            gradients = [_gradient(step, value) for value in START]
            session.run(updates, dict(zip(fed, gradients, strict=True)))
            expected = [formula(x, g, step, m) for x, g, m in zip(expected, gradients, memories, strict=True)]
            for variable, value in zip(session.run(variables), expected, strict=True):
                np.testing.assert_allclose(variable, value, rtol=2e-5, atol=1e-6)


def test_memory_lives_where_the_variable_lives() -> None:
    with tf.Graph().as_default():
        with tf.device("/cpu:1"):
            variable = tf.Variable([1.0])
        optimizers.make(Training(optimizer="momentum", learning_rate=RATE), RATE).apply(
            [variable], [tf.constant([1.0])]
        )
        assert {v.device for v in tf.compat.v1.global_variables()} == {"/device:CPU:1"}


@pytest.mark.parametrize("weight", [0.0, 2.0])
def test_lars_without_a_norm_takes_the_plain_step(weight: float) -> None:
    """A ratio of norms that are zero would be no number."""
    gradient = 1.0 - np.sign(weight)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.Variable([[weight]])
        rule = optimizers.make(Training(optimizer="lars", learning_rate=RATE), RATE)
        updates = rule.apply([variable], [tf.constant([[gradient]], tf.float32)])
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(updates)
        assert session.run(variable) == pytest.approx(weight - RATE * gradient)


@pytest.mark.parametrize(
    ("limits", "wanted"),
    [
        ({}, [[3.0, -4.0], [12.0]]),
        ({"gradient_clip": 3.5}, [[3.0, -3.5], [3.5]]),
        ({"gradient_clip_norm": 6.5}, [[1.5, -2.0], [6.0]]),
        ({"gradient_clip_norm": 14.0}, [[3.0, -4.0], [12.0]]),
        ({"gradient_clip": 4.0, "gradient_clip_norm": 1.0}, np.array([3.0, -4.0, 4.0]) / np.sqrt(41)),
    ],
    ids=str,
)
def test_gradients_are_limited_one_by_one_then_together(limits: dict[str, float], wanted: list) -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variables = [tf.Variable([0.0, 0.0]), tf.Variable([0.0])]
        rule = optimizers.make(Training(learning_rate=1.0, **limits), 1.0)
        updates = rule.apply(variables, [tf.constant([3.0, -4.0]), tf.constant([12.0])])
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(updates)
        got = -np.concatenate(session.run(variables))
    np.testing.assert_allclose(got, np.hstack(wanted), rtol=1e-6)


def test_state_is_found_by_variable_and_shared_state_in_every_copy() -> None:
    with tf.Graph().as_default():
        one, other = tf.Variable([1.0]), tf.Variable([1.0])
        rule = optimizers.make(Training(optimizer="adam", learning_rate=RATE), RATE)
        assert rule.slots_of(one) == {}
        for copy in (one, other):
            rule.apply([copy], [tf.constant([1.0])])
        slots = [rule.slots_of(copy) for copy in (one, other)]
        assert [set(each) for each in slots] == [{"m", "v"}] * 2
        assert slots[0]["m"] is not slots[1]["m"]
        assert [len(copies) for copies in rule.shared_state().values()] == [2]
