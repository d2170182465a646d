"""The formulas of what is sent, against what a traced step really sends between devices."""

from __future__ import annotations

import types
from typing import Any

import keras
import pytest
import tensorflow as tf

from benchmarks.config import config
from benchmarks.data.pipeline.tower_input import TowerInput
from benchmarks.devices import device_plan
from benchmarks.graph import sent_bytes
from benchmarks.process.tensorflow_setup import Devices
from benchmarks.tracing import step_trace
from benchmarks.training.training_step import Step
from models import building, parts
from tests.support.settings import resolve
from tests.support.steps import step_of
from variable_mgr.place import HOST, Place
from variable_mgr.transfers import DEVICE, Transfer, by_kind, total_bytes

WIDTHS = (24, 12, 36)  # of 12 inputs, two hidden layers and the logits; 2, 3 and 4 towers divide them without padding
BATCH = 6


def _dense_model() -> building.Model:
    with building.stateless_building(seed=0):
        images = keras.Input((12, 1, 1))
        x = keras.layers.Conv2D(12, 1, use_bias=False, name="conv")(images)
        x = keras.layers.Flatten(name="flatten")(x)
        for number, width in enumerate(WIDTHS):
            x = keras.layers.Dense(width, activation="relu" if number < 2 else None, name=f"dense_{number}")(x)
        return building.adapt(keras.Model(images, x))


ON_THREE_TOWERS = [
    ["--variable_update=independent"],
    ["--variable_update=parameter_server", "--local_parameter_device=cpu"],
    ["--variable_update=parameter_server", "--local_parameter_device=gpu"],
    ["--variable_update=parameter_server", "--local_parameter_device=gpu", "--fc_model_parallel"],
    *(
        ["--variable_update=replicated", f"--all_reduce_spec={spec}", *more]
        for spec in ("pscpu", "psgpu", "xring", "hierarchical", "pscpu:100:xring")
        for more in ([], ["--fc_model_parallel"])
    ),
    ["--variable_update=replicated", "--all_reduce_spec=xring", "--compact_gradient_transfer"],
    ["--variable_update=replicated", "--all_reduce_spec=pscpu", "--gradient_repacking=2"],
]
# What these send grows in another way with the number of towers; rechd needs a power of two.
ON_OTHER_NUMBERS = [
    (["--variable_update=replicated", f"--all_reduce_spec={spec}", *more], towers)
    for spec, more in (("xring", []), ("rechd", []), ("hierarchical", []), ("rechd", ["--fc_model_parallel"]))
    for towers in (2, 4)
]
ON_TWO_TOWERS = [
    ["--variable_update=parameter_server", "--staged_vars"],
    ["--variable_update=replicated", "--all_reduce_spec=xring#2"],
    ["--variable_update=replicated", "--variable_consistency=relaxed"],
    ["--variable_update=collective_all_reduce"],
    ["--variable_update=local_sgd", "--local_sgd_steps=1"],
]


@pytest.mark.parametrize(
    ("given", "towers"),
    [
        *((given, 3) for given in ON_THREE_TOWERS),
        *ON_OTHER_NUMBERS,
        *((given, 2) for given in ON_TWO_TOWERS),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_a_traced_step_sends_what_the_formula_counts(given: list[str], towers: int) -> None:
    chosen, whole = _chosen(given, towers), _dense_model()
    with tf.Graph().as_default():
        step = _built(chosen, whole, towers)
        options = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE, output_partition_graphs=True)
        options.experimental.collective_graph_key = 1
        with tf.compat.v1.Session(config=device_plan.session_config(Devices(num_devices=towers + 1))) as session:
            step.initialize(session, options=options)
            metadata = tf.compat.v1.RunMetadata()
            session.run(step.loops[0].operation, options=options, run_metadata=metadata)
    found = step_trace.crossings(metadata, cpu_is_host=True, towers_in_total=towers)
    by_formula = sent_bytes.sent_in_one_process(chosen.devices, chosen.variables, whole, BATCH)
    assert found.by_kind == by_kind(by_formula)
    assert found.unknown == 0
    assert total_bytes(by_formula) == sum(size for _, size in found.by_kind.values())


def _chosen(given: list[str], towers: int) -> config.Config:
    arguments = [*given, f"--num_gpus={towers}", "--device=cpu", f"--batch_size={BATCH}"]
    return resolve(*arguments)


def _built(chosen: config.Config, whole: building.Model, towers: int) -> Step:
    """Builds a step in the default graph, on devices of which none is the host."""
    names = tuple(f"/cpu:{tower + 1}" for tower in range(towers))  # none is the host
    shared = (HOST,) if chosen.variables.shared_on == "cpu" else names
    plan = device_plan.DevicePlan(place=Place(names, HOST), shared=shared, description="")
    model = parts.split(whole) if chosen.variables.modifiers.fc_model_parallel else whole
    inputs = []
    for name in names:
        with tf.device(name):
            inputs.append(TowerInput(tf.ones([BATCH, 12, 1, 1]), tf.zeros([BATCH], tf.int64)))
    return step_of(model, inputs, plan, chosen.variables.variable_update, chosen.variables.modifiers)[0]


@pytest.mark.parametrize("trained_before", [set(), {"conv"}])
def test_images_need_no_gradient(trained_before: set[str]) -> None:
    """Two towers with 4 images each send 784 features, 100 hidden units and 10 logits to each other."""
    divided = {"hidden", "logits"}
    variables = [types.SimpleNamespace(name=name, kind="weight") for name in divided | trained_before]
    tail = [types.SimpleNamespace(outputs=outputs) for outputs in (100, 0, 10)]
    split: Any = types.SimpleNamespace(variables=variables, divided=divided, features=784, tail=tail)
    forward = 4 * (8 * 784 + 8 * 100 + 4 * 10)
    backward = forward if trained_before else forward - 4 * 8 * 784
    number = 2 * 3 + 2 * (3 if trained_before else 2)
    assert sent_bytes.sent_by_divided_layers(split, 2, 4) == [
        Transfer(DEVICE, DEVICE, forward + backward, number, "activation")
    ]
