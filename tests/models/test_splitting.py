"""A model that is cut before its dense layers is still the same model."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from benchmarks.devices import device_plan
from benchmarks.process.tensorflow_setup import Devices
from models import building, splitting
from models.model_spec import ModelSpec
from tests.support import models
from tests.support.models import small_models


@small_models
def test_both_parts_make_the_whole(spec: ModelSpec) -> None:
    model = models.build_spec(spec)
    split = splitting.split(model)
    with tf.Graph().as_default(), tf.device(device_plan.HOST):
        values = [variable.initial_value() for variable in model.variables]
        images = tf.random.stateless_normal((2, spec.image_size, spec.image_size, spec.channels), (1, 2))
        by_name = {variable.name: value for variable, value in zip(model.variables, values, strict=True)}
        logits, state = model.call(values, images, training=True)
        outputs, split_state = split.compute_features(by_name, images)
        assert outputs.shape[-1] == split.features
        for layer in split.tail:
            outputs, new = layer.call(outputs, by_name)
            split_state |= new
        with tf.compat.v1.Session(config=device_plan.session_config(Devices())) as session:
            whole, parts = session.run([(logits, state), (outputs, split_state)])
    np.testing.assert_allclose(parts[0], whole[0], rtol=1e-5, atol=1e-5)
    assert parts[1].keys() == whole[1].keys()
    for name, value in whole[1].items():
        np.testing.assert_allclose(parts[1][name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "dense"), [("alexnet", 3), ("vgg16", 3), ("resnet50", 1), ("inception3", 1)])
def test_what_is_divided_are_the_dense_layers_at_the_end(name: str, dense: int) -> None:
    model = models.build(name)
    split = splitting.split(model)
    assert len(split.divided) == 2 * dense, "a kernel and a bias each"
    assert {"logits/kernel", "logits/bias"} <= split.divided
    assert split.tail[0].weights, "the first layer after the cut is dense"
    assert split.tail[-1].outputs == 1001
    assert not model.divided


def test_a_model_without_dense_layers_at_the_end_has_nothing_to_divide() -> None:
    with building.stateless_building(seed=0):
        images = keras.Input((4, 4, 3))
        model = building.adapt(keras.Model(images, keras.layers.Flatten()(keras.layers.Conv2D(2, 3)(images))))
    with pytest.raises(ValueError, match="nothing to divide"):
        splitting.split(model)
