"""The state of a training under one manager is the same training under every other one."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

import keras
import numpy as np
import pytest
import tensorflow as tf

from benchmarks.checkpoints.training_state import IN_FLIGHT, TrainingState
from benchmarks.data.pipeline.tower_input import TowerInput
from benchmarks.errors import DataError
from benchmarks.training import training_step
from benchmarks.training.computing import Computing, LossScaling
from models import building, parts
from models.layers import Layers
from tests.support.rotation import rotating
from tests.support.steps import cpu_session, on_cpus, step_of
from variable_mgr.catalog import IN_ONE_PROCESS
from variable_mgr.modifiers import Modifiers

pytestmark = pytest.mark.xdist_group("managers")  # they share what has been trained
BATCH, CLASSES, STEPS = 12, 6, 3
Values = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Setting:
    """How a small network is trained."""

    manager: str
    modifiers: Modifiers = Modifiers()
    towers: int = 2
    optimizer: str = "momentum"
    loss_scaling: LossScaling | None = None

    def __str__(self) -> str:
        chosen = {name: value for name, value in vars(self.modifiers).items() if value != getattr(Modifiers(), name)}
        return "-".join([self.manager, *chosen, self.optimizer])

    def model(self) -> building.Model:
        with building.stateless_building(seed=5):
            layers = Layers("NHWC")
            images = keras.Input((8, 8, 3))
            x = layers.flatten(layers.conv_bn(images, 4, 3, name="conv"))
            x = layers.dropout(layers.dense(x, 6, name="dense"), name="dropout")
            return building.adapt(keras.Model(images, layers.classifier(x, CLASSES)))


@dataclasses.dataclass(frozen=True)
class Built:
    """The graph of a setting."""

    graph: tf.Graph
    step: training_step.Step
    state: TrainingState


@functools.cache
def built(setting: Setting) -> Built:
    generator = np.random.default_rng(1)
    images = np.split(generator.normal(size=(BATCH, 8, 8, 3)).astype(np.float32), setting.towers)
    labels = np.split(generator.integers(0, CLASSES, BATCH), setting.towers)
    with tf.Graph().as_default() as graph:
        model = setting.model()
        divided = parts.split(model) if setting.modifiers.fc_model_parallel else model
        inputs = [TowerInput(tf.constant(i), tf.constant(j)) for i, j in zip(images, labels, strict=True)]
        step, manager = step_of(
            divided,
            inputs,
            on_cpus(setting.towers),
            setting.manager,
            setting.modifiers,
            optimizer=setting.optimizer,
            learning_rate=0.05,
            weight_decay=0.01,
            computing=Computing(loss_scaling=setting.loss_scaling),
        )
        return Built(
            graph, step, TrainingState(model.variables, manager, step.optimizer, tf.compat.v1.global_variables())
        )


def train(
    setting: Setting, steps: int, values: Values | None = None, *, weights_only: bool = False
) -> tuple[list[float], dict[str, np.ndarray]]:
    """Returns the losses of some steps, which begin with the values of an earlier training, and the values after."""
    graph, step, state = built(setting).graph, built(setting).step, built(setting).state
    fed = state.feeds(values, weights_only=weights_only) if values else {}
    with graph.as_default(), cpu_session(setting.towers) as session:
        step.initialize(session, values=fed, resuming=values is not None and state.resumes(values))
        losses = [step.take(session) for _ in range(steps)]
        return losses, state.fetch(session)


@functools.cache
def trained(setting: Setting) -> Values:
    return train(setting, STEPS)[1]


def canonical(values: Values) -> dict[str, np.ndarray]:
    return {name: value for name, value in values.items() if not name.startswith(IN_FLIGHT)}


def assert_equal(found: Values, wanted: Values) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


FORMS = [
    Setting("parameter_server", Modifiers(staged_vars=True)),
    *map(Setting, IN_ONE_PROCESS),
    Setting("parameter_server", Modifiers(fc_model_parallel=True), towers=3),
    Setting("parameter_server", Modifiers(asynchronous=True)),
    Setting("replicated", Modifiers(relaxed_consistency=True, gradient_repacking=2)),
    Setting("replicated", Modifiers(fc_model_parallel=True)),
]
LONE = Setting("replicated", towers=1)


@rotating("under", FORMS, first=1, ids=str)
def test_every_form_restores_what_every_other_has_saved(under: Setting) -> None:
    for before in FORMS:
        saved = canonical(trained(before))
        assert saved.keys() == canonical(trained(LONE)).keys()
        assert_equal(canonical(train(under, 0, saved)[1]), saved)


TOGETHER = [form for form in FORMS if not form.modifiers.asynchronous]
EXACT = [
    *TOGETHER,
    *(dataclasses.replace(form, optimizer="adam") for form in TOGETHER if form.modifiers != Modifiers()),
    Setting("independent", optimizer="adam"),
    Setting("local_sgd", Modifiers(local_sgd_steps=2)),
    Setting("replicated", loss_scaling=LossScaling(initial=2.0**10, increase_every=2)),
]


@rotating("setting", EXACT, first=5, ids=str)
def test_a_resumed_training_is_one_that_was_not_interrupted(setting: Setting) -> None:
    at_once, final = train(setting, 2 * STEPS)
    losses, resumed = train(setting, STEPS, trained(setting))
    assert losses == at_once[STEPS:]
    assert_equal(resumed, final)


def test_every_tower_gets_its_own_dropout_seed_again() -> None:
    """Increments are equal, so tower N's is tower 0's plus N, whatever the number of towers."""
    (name,) = (name for name in trained(LONE) if name.startswith("seed_"))
    three = Setting("replicated", towers=3)
    assert_equal({name: trained(three)[name]}, {name: trained(LONE)[name]})
    # The managers add the same gradients in another order, so some CPUs round another last bit.
    resumed, at_once = train(three, 2, trained(Setting("parameter_server", towers=3)))[0], train(three, 5)[0][STEPS:]
    np.testing.assert_allclose(resumed, at_once, rtol=1e-6)
    others = {key: value + np.ones_like(value) if key == name else value for key, value in trained(three).items()}
    assert not np.allclose(train(three, 2, others)[0], at_once, rtol=1e-4), "other masks give other losses"


def test_weights_alone_leave_the_optimizer_as_it_begins() -> None:
    saved = trained(LONE)
    _, begun = train(LONE, 0, saved, weights_only=True)
    np.testing.assert_array_equal(begun["dense/kernel"], saved["dense/kernel"])
    assert np.abs(saved["dense/kernel/momentum"]).max() > 0
    assert np.abs(begun["dense/kernel/momentum"]).max() == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda value: None, "no value of dense/kernel"),
        (lambda value: value[:-1], r"dense/kernel has the shape \[255, 6\] in the checkpoint, and \[256, 6\]"),
    ],
)
def test_values_of_another_model_are_refused(change: object, message: str) -> None:
    saved = dict(trained(LONE))
    changed = change(saved.pop("dense/kernel"))  # type: ignore[operator]
    with pytest.raises(DataError, match=message):
        train(LONE, 0, saved if changed is None else {**saved, "dense/kernel": changed})
