"""Managers on a model of the user's, against the gradients of single towers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.config import outside_models
from benchmarks.devices import device_plan
from benchmarks.process.tensorflow_setup import Devices
from benchmarks.training import optimizers
from benchmarks.verify import cases, model_oracle
from benchmarks.verify.cases import TOWERS, Case, CaseResult
from benchmarks.verify.oracle import OracleSession
from tests.support.settings import resolve
from variable_mgr import variables
from variable_mgr.catalog import MANAGERS
from variable_mgr.managers.replicated import Replicated
from variable_mgr.modifiers import Modifiers

# Layers whose names differ in case alone, batch normalisation, and dropout.
OWN = """
import keras
import tensorflow as tf


def build():
    images = keras.Input((32, 32, 3))
    x = keras.layers.Conv2D(4, 3, strides=4, name="Conv")(images)
    x = keras.layers.Conv2D(4, 3, strides=2, name="conv")(x)
    x = keras.layers.ReLU()(keras.layers.BatchNormalization()(x))
    x = keras.layers.Dropout(0.5)(keras.layers.Flatten()(x))
    return keras.Model(images, keras.layers.Dense(10)(x))


def noisy():
    images = keras.Input((32, 32, 3))
    noise = keras.layers.Lambda(lambda x: x + tf.random.normal(tf.shape(x)))
    return keras.Model(images, keras.layers.Dense(10)(keras.layers.Flatten()(noise(images))))
"""
FACTS = outside_models.Facts(image_size=32, channels=3, outputs=10, takes_classes=False)
ROUNDING = 1e-3
Compare = Callable[..., list[CaseResult]]


@pytest.fixture
def compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compare:
    """Compares managers with modifiers on the model of `OWN`."""
    monkeypatch.setattr(outside_models, "_facts", lambda *_: FACTS)
    (tmp_path / "own.py").write_text(OWN)

    def compare(*chosen: tuple[str, Modifiers], towers: int = 2, function: str = "build") -> list[CaseResult]:
        words = [f"--model={tmp_path}/own.py:{function}", "--device=cpu", f"--num_gpus={towers}"]
        resolved = resolve(*words)
        compared = [Case(manager, modifiers, "cpu", TOWERS, manager) for manager, modifiers in chosen]
        return list(model_oracle.results(resolved, compared))

    return compare


def test_managers_do_the_arithmetic(compare: Compare) -> None:
    chosen = (
        ("collective_all_reduce", Modifiers()),
        ("independent", Modifiers()),
        ("local_sgd", Modifiers(local_sgd_steps=2)),
        ("parameter_server", Modifiers(staged_vars=True)),
        ("replicated", Modifiers(compact_gradient_transfer=True, compact_gradient_dtype="bfloat16")),
    )
    *exact, rounded = compare(*chosen)
    for result in exact:
        assert result.error is not None and result.error < ROUNDING and not result.reason
    assert rounded.error is not None and 0.0 < rounded.error < rounded.case.tolerance == 0.1


def test_managers_do_the_arithmetic_of_three_towers(compare: Compare) -> None:
    relaxed = Modifiers(gradient_repacking=2, relaxed_consistency=True)
    chosen = (
        ("parameter_server", Modifiers()),
        ("parameter_server", Modifiers(asynchronous=True)),
        ("replicated", relaxed),
    )
    for result in compare(*chosen, towers=3):
        assert result.error is not None and result.error < ROUNDING and not result.reason


@pytest.mark.parametrize("manager", ["distributed_replicated", "parameter_server"])
def test_a_worker_with_a_parameter_server_does_the_arithmetic(
    compare: Compare, monkeypatch: pytest.MonkeyPatch, manager: str
) -> None:
    """Both in this process. What several workers add to it, `test_the_arithmetic_across_processes` compares."""
    plan = device_plan.plan(Devices(num_devices=2), shared_on="cpu")
    served = dataclasses.replace(plan, place=dataclasses.replace(plan.place, ps=("/cpu:1",)))
    monkeypatch.setattr(device_plan, "plan", lambda *_, **__: served)
    (result,) = compare((manager, Modifiers()))
    assert result.error is not None and result.error < ROUNDING and not result.reason


def test_random_numbers_that_no_variable_determines_cannot_be_verified(compare: Compare) -> None:
    for result in compare(("replicated", Modifiers()), ("independent", Modifiers()), function="noisy"):
        assert result.error is None and "draws other numbers in each tower, as tf.random does" in result.reason


def _sum_of_all(values: Sequence[Sequence[tf.Tensor]]) -> list[list[tf.Tensor]]:
    return [[tf.add_n(parts) for parts in zip(*values, strict=True)]] * len(values)


def _mean_without_the_last(values: Sequence[Sequence[tf.Tensor]]) -> list[list[tf.Tensor]]:
    return [list(values[0])] * len(values)


def _mean_without_one_bias(values: Sequence[Sequence[tf.Tensor]]) -> list[list[tf.Tensor]]:
    means = [tf.add_n(parts) / len(parts) for parts in zip(*values, strict=True)]
    return [[*means[:-1], tf.zeros_like(means[-1])]] * len(values)


def _mean_for_the_first_alone(values: Sequence[Sequence[tf.Tensor]]) -> list[list[tf.Tensor]]:
    return [[tf.add_n(parts) / len(parts) for parts in zip(*values, strict=True)], *map(list, values[1:])]


WRONG = [_sum_of_all, _mean_without_the_last, _mean_without_one_bias, _mean_for_the_first_alone]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_mean_is_found(
    compare: Compare,
    monkeypatch: pytest.MonkeyPatch,
    wrong: Callable[[Sequence[Sequence[tf.Tensor]]], list[list[tf.Tensor]]],
) -> None:
    class Wrong(Replicated):
        def __init__(self, place: Any, reduction: Any) -> None:
            super().__init__(place, reduction)
            self._reduction = self

        def mean(self, gradients: Sequence[Sequence[tf.Tensor]]) -> tuple[list[list[tf.Tensor]], list[tf.Operation]]:
            with tf.device(self._place.host):
                return wrong(gradients), []

    monkeypatch.setattr("variable_mgr.managers.replicated.Replicated", Wrong)
    (result,) = compare(("replicated", Modifiers()))
    assert result.error is not None and result.error > 0.1 and not result.passed
    assert "of tower" in result.reason and "after step" in result.reason


@pytest.mark.parametrize(("kept", "named"), [("moving_mean", "moving_mean"), ("seed", "seed_generator")])
def test_a_state_that_is_not_stored_is_found(
    compare: Compare, monkeypatch: pytest.MonkeyPatch, kept: str, named: str
) -> None:
    assign_all = variables.assign_all

    def without(copy: dict[str, tf.Variable], values: dict[str, tf.Tensor]) -> list[tf.Operation]:
        floats = [name for name, value in values.items() if value.dtype.is_floating]
        lost = {"moving_mean": floats[:1], "seed": [name for name in values if name not in floats]}[kept]
        return assign_all(copy, {name: value for name, value in values.items() if name not in lost})

    monkeypatch.setattr(variables, "assign_all", without)
    (result,) = compare(("replicated", Modifiers()))
    assert not result.passed and named in result.reason


def test_copies_that_start_unequal_are_found(compare: Compare, monkeypatch: pytest.MonkeyPatch) -> None:
    import_copies = variables._import_copies

    def unequal(built: Any, values: Sequence[tf.Tensor], device: str, prefix: str) -> list[tf.Variable]:
        others = values if prefix == "tower_0" else [value + 2.0**-12 for value in values]
        return import_copies(built, others, device, prefix)

    monkeypatch.setattr(variables, "_import_copies", unequal)
    (result,) = compare(("independent", Modifiers()))
    assert result.error == float("inf") and "of tower 1 before the first step" in result.reason


def test_momentum_that_is_lost_is_found(compare: Compare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(optimizers._RULES, "momentum", optimizers.GradientDescent)
    (result,) = compare(("parameter_server", Modifiers()))
    assert not result.passed and "after step" in result.reason and "step 1" not in result.reason


def test_a_loss_that_is_wrong_is_found(compare: Compare, monkeypatch: pytest.MonkeyPatch) -> None:
    step = OracleSession.step
    monkeypatch.setattr(OracleSession, "step", lambda session: 1.1 * step(session))
    (result,) = compare(("replicated", Modifiers()))
    assert not result.passed and "the loss of step" in result.reason


def test_an_error_is_relative_to_the_change_of_its_own_variable() -> None:
    before, wanted, got = ({"a": np.array(a), "b": np.array(b)} for a, b in ((0.0, 0.0), (1.0, 0.01), (1.0, 0.0)))
    kinds = {"a": "weight", "b": "weight"}
    assert model_oracle._errors(got, wanted, before, kinds) == {"a": 0.0, "b": 1.0}


def test_every_manager_is_compared_on_every_model() -> None:
    resolved = resolve("--model=mlp", "--device=cpu")
    assert [case.manager for case in cases.model_cases("mlp")] == list(MANAGERS)
    (one,) = cases.model_cases("mlp", resolved.variables)
    assert one.title == "mlp under parameter_server"
