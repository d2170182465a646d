"""The parts of a model make the whole, and the stages of a pipeline are balanced."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from benchmarks.training import model_parallel
from models import building, parts, specs
from models.building import Model
from models.model_spec import ModelSpec
from tests.support import models
from tests.support.models import small_models
from tests.support.steps import cpu_session
from variable_mgr.place import HOST


def _fresh(spec: ModelSpec) -> Model:
    """Builds a model of its own: stages become part of its layers."""
    return building.build(spec, data_format="NHWC", num_classes=spec.classes + 1, seed=1)


@pytest.mark.parametrize("staged", [False, True], ids=["before its dense layers", "at all points"])
@small_models
def test_the_parts_of_a_model_make_the_whole(spec: ModelSpec, staged: bool) -> None:
    model = _fresh(spec)
    split = None if staged else parts.split(model)
    pieces = parts.cut(model, parts.cut_points(model)) if split is None else [split.trunk]
    assert pieces[0].input_shape == (spec.image_size, spec.image_size, spec.channels)
    with tf.Graph().as_default(), tf.device(HOST):
        values = [variable.initial_value() for variable in model.variables]
        by_name = {variable.name: value for variable, value in zip(model.variables, values, strict=True)}
        images = tf.random.stateless_normal((2, *pieces[0].input_shape), (1, 2))
        logits, state = model.call(values, images, training=True)
        outputs, its_state = images, {}
        for piece in pieces:
            outputs, new = piece.call(by_name, outputs)
            its_state |= new
        if split is not None:
            assert outputs.shape[-1] == split.features
            for layer in split.tail:
                outputs, new = layer.call(outputs, by_name)
                its_state |= new
        with cpu_session() as session:
            whole, chained = session.run([(logits, state), (outputs, its_state)])
    np.testing.assert_allclose(chained[0], whole[0], rtol=1e-5, atol=1e-5)
    assert chained[1].keys() == whole[1].keys()
    for name, value in whole[1].items():
        np.testing.assert_allclose(chained[1][name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "dense"), [("alexnet", 3), ("vgg16", 3), ("resnet50", 1), ("inception3", 1)])
def test_what_is_divided_are_the_dense_layers_at_the_end(name: str, dense: int) -> None:
    model = models.build(name)
    split = parts.split(model)
    assert len(split.divided) == 2 * dense, "a kernel and a bias each"
    assert {"logits/kernel", "logits/bias"} <= split.divided
    assert split.tail[0].weights, "the first layer after the cut is dense"
    assert split.tail[-1].outputs == 1001


class Louder(keras.layers.Dense):
    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        return 2.0 * super().call(inputs, training=training)


@pytest.mark.parametrize(
    "end",
    [
        keras.layers.Softmax(),
        Louder(5),
        *(keras.layers.Dense(5, activation=how) for how in ("log_softmax", keras.layers.Softmax(), lambda x: 2 * x)),
        keras.ops.relu,
    ],
    ids=["layer", "own", "softmax", "a layer as activation", "own activation", "operation"],
)
def test_a_model_without_dense_layers_at_the_end_has_nothing_to_divide(end: Callable[..., Any]) -> None:
    with building.stateless_building(seed=0):
        images = keras.Input((4, 4, 3))
        logits = end(keras.layers.Dense(5)(keras.layers.Flatten()(images)))
        model = building.adapt(keras.Model(images, logits))
        followed = building.adapt(keras.Model(images, keras.layers.Dense(5)(logits)))
    split = parts.split(model)
    assert (split.tail, split.divided, split.features) == ([], frozenset(), 5)
    refusal = str(model_parallel.why_not(split, 1))
    assert f"the model ends in '{model.keras_model.operations[-1].name}', which is no dense layer of Keras" in refusal
    assert len(parts.split(followed).tail) == 1, "what is before it is not left out"


def test_what_is_frozen_is_not_divided() -> None:
    with building.stateless_building(seed=0):
        images = keras.Input((4, 4, 3))
        x = keras.layers.Dense(5)(keras.layers.Flatten()(images))
        logits = keras.layers.Dense(5)(keras.layers.Dense(5, trainable=False)(x))
        model = building.adapt(keras.Model(images, logits))
    assert len(parts.split(model).tail) == 1


def test_blocks_with_branches_are_not_cut() -> None:
    model = _fresh(specs.find_model("resnet20"))
    ends = [stage.layers[1] for stage in parts.cut(model, parts.cut_points(model))]
    blocks = [
        f"stage{stage}_block{block}_{end}" for stage in (1, 2, 3) for block in (1, 2, 3) for end in ("add", "relu")
    ]
    assert ends == ["stem", "stem_bn", "stem_relu", *blocks, "global_average", "logits"]
    inception = _fresh(specs.find_model("inception3"))
    ends = [stage.layers[1] for stage in parts.cut(inception, parts.cut_points(inception))]
    assert [end for end in ends if "35" in end] == ["mixed35_1", "mixed35_2", "mixed35_3", "reduce35"]


def test_the_most_expensive_stage_is_as_cheap_as_possible() -> None:
    # 3+4 | 6 | 2+3: in all other groupings of these in three, one has 8 or more.
    assert parts.balanced([3, 4, 6, 2, 3], [1, 1, 1, 1, 1], 3) == [1, 2]
    assert parts.balanced([3, 4, 6, 2, 3], [1, 1, 1, 1, 1], 1) == []
    # 4+4 | 2+2+4: the piece without cost goes where less is sent, and otherwise stays with the piece before it.
    assert parts.balanced([4, 4, 0, 2, 2, 4], [9, 9, 5, 9, 9, 9], 2) == [2]
    assert parts.balanced([4, 4, 0, 2, 2, 4], [9, 5, 9, 9, 9, 9], 2) == [1]
    assert parts.balanced([4, 4, 0, 2, 2, 4], [9, 9, 9, 9, 9, 9], 2) == [2]


def test_no_other_grouping_is_better() -> None:
    generator = np.random.default_rng(3)
    for _ in range(50):
        costs, sent = generator.integers(0, 5, 7).tolist(), generator.integers(1, 4, 7).tolist()
        possible = {}
        for ends in itertools.combinations(range(6), 2):
            groups = np.split(costs, [end + 1 for end in ends])
            sums = [int(group.sum()) for group in groups]
            if min(sums) > 0:
                possible[ends] = (max(sums), sum(sent[end] for end in ends))
        found = parts.balanced(costs, sent, 3)
        assert found is None if not possible else possible[tuple(found or ())] == min(possible.values())
