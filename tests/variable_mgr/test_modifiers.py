"""Every pair of modifiers under every manager either runs or is refused with a sentence."""

from __future__ import annotations

import itertools

import keras
import pytest
import tensorflow as tf

from benchmarks import devices, objectives, optimizers, training
from benchmarks.inputs import TowerInput
from models import building, splitting
from variable_mgr import factory
from variable_mgr.algorithms import Place
from variable_mgr.catalog import MANAGERS
from variable_mgr.modifiers import Modifiers, why_not

MODIFIERS = {
    "asynchronous": True,
    "staged_vars": True,
    "relaxed_consistency": True,
    "all_reduce_spec": "xring",
    "gradient_repacking": 2,
    "agg_small_grads_max_bytes": 100,
    "compact_gradient_transfer": True,
    "local_sgd_steps": 2,
    "fc_model_parallel": True,
}
PLACE = Place(("/cpu:0", "/cpu:1"), devices.HOST)
PAIRS = [{}, *({name: MODIFIERS[name]} for name in MODIFIERS)] + [
    {first: MODIFIERS[first], second: MODIFIERS[second]} for first, second in itertools.combinations(MODIFIERS, 2)
]


def _train(manager: str, modifiers: Modifiers) -> None:
    with building.stateless_building(seed=0):
        images = keras.Input((4,))
        hidden = keras.layers.Dense(5, activation="relu", name="hidden")(keras.layers.Dense(4, name="first")(images))
        whole = building.adapt(keras.Model(images, keras.layers.Dense(3, name="logits")(hidden)))
    plan = devices.plan("cpu", 2, virtual_gpus=1, shared_on="cpu")
    with tf.Graph().as_default():
        model = splitting.split(whole) if modifiers.fc_model_parallel else whole
        step = training.build_training_step(
            model,
            [TowerInput(tf.ones([2, 4]), tf.zeros([2], tf.int64))] * 2,
            plan,
            manager=factory.make(
                manager, PLACE, shared_devices=plan.shared, modifiers=modifiers, divided=model.divided
            ),
            optimizer=optimizers.make("momentum", learning_rate=0.1, momentum=0.9),
            objective=objectives.Objective(loss=objectives.cross_entropy, weight_decay=0.0),
        )
        with tf.compat.v1.Session(config=devices.session_config("cpu", 2)) as session:
            step.initialize(session)
            losses = [step.run(session) for _ in range(6)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("chosen", PAIRS, ids=lambda chosen: "+".join(chosen) or "none")
@pytest.mark.parametrize("manager", MANAGERS)
def test_a_run_or_a_sentence(manager: str, chosen: dict) -> None:
    modifiers = Modifiers(**chosen)
    sentence = why_not(manager, modifiers, PLACE)
    if sentence is None:
        _train(manager, modifiers)
    else:
        assert sentence.endswith(".") and "--" in sentence
        with pytest.raises(ValueError, match="--"):
            factory.make(manager, PLACE, shared_devices=(devices.HOST,), modifiers=modifiers)


def test_every_modifier_goes_with_some_manager() -> None:
    for name, value in MODIFIERS.items():
        assert any(why_not(manager, Modifiers(**{name: value}), PLACE) is None for manager in MANAGERS), name
