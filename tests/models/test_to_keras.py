"""A clone with Keras' own layers computes the same, and Keras saves and loads it."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from models import building, from_keras, specs, to_keras
from models.layers import Layers
from models.model_spec import ModelSpec
from models.outside_code import UnusableModelError
from tests.support.models import build, build_spec, rounding, small_models, twice
from tests.support.references import images

pytestmark = [
    pytest.mark.xdist_group("models"),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # Keras, when it saves
]
OWN_LAYERS = {name: {"ClassTokenAndPositions", "DotProductAttention"} for name in ("vit_b_16", "vit_ti_16")}


def _assign(made: keras.Model) -> list[np.ndarray]:
    """Gives variables values with which no part of a layer is without effect, and none that enlarges rounding."""
    random = np.random.default_rng(2)
    for variable in made.weights:
        if len(variable.shape) == 1:
            least = 3.0 if variable.name == "moving_variance" else 0.5
            variable.assign(random.uniform(least, least + 1, variable.shape))
    return [variable.numpy() for variable in building.ordered(made)]


def _of_others(path: Path) -> set[str]:
    """Returns the classes in a file of Keras that are not Keras' own."""

    def classes(config: object) -> set[str]:
        if isinstance(config, list):
            return set().union(*map(classes, config))
        if not isinstance(config, dict):
            return set()
        own = {config["class_name"]} if str(config.get("module") or "keras").split(".")[0] != "keras" else set()
        own |= {config["class_name"]} if config.get("registered_name") and config.get("module") is None else set()
        return own.union(*map(classes, config.values()))

    with zipfile.ZipFile(path) as archive:
        return classes(json.loads(archive.read("config.json")))


@small_models
def test_a_saved_model_computes_our_logits(spec: ModelSpec, tmp_path: Path) -> None:
    model = build_spec(spec)
    made = to_keras.plain(model.keras_model)
    values = _assign(made)
    made.save(tmp_path / "model.keras")
    assert _of_others(tmp_path / "model.keras") == OWN_LAYERS.get(spec.name, set())
    loaded = keras.models.load_model(tmp_path / "model.keras")
    batch = tf.constant(twice(images(spec.image_size)[..., : spec.channels]))
    expected, _ = model.call([tf.constant(value) for value in values], batch, training=False)
    found = loaded(batch)
    assert float(np.std(expected)) > 0
    np.testing.assert_allclose(found, expected, rtol=0, atol=rounding(expected.numpy()))


@pytest.mark.parametrize("name", ["alexnet_cifar10", "resnet20"])
def test_a_model_in_nchw_has_the_same_variables(name: str) -> None:
    spec = specs.find_model(name)
    of_format = [to_keras.plain(build(name, data_format=layout).keras_model) for layout in ("NHWC", "NCHW")]
    described = [[(of.path, of.shape) for of in made.weights] for made in of_format]
    assert described[0] == described[1] and of_format[1].input_shape == (None, 3, spec.image_size, spec.image_size)


def test_layers_of_a_model_in_a_model_become_those_of_keras() -> None:
    def block() -> keras.Model:
        inputs = keras.Input((8, 8, 3))
        x = keras.layers.Conv2D(4, 3, groups=1, activation="relu")(inputs)
        x = keras.layers.BatchNormalization()(keras.layers.Conv2D(4, 3, groups=4)(x))
        return keras.Model(inputs, keras.layers.MaxPooling2D()(x), name="block")

    with building.stateless_building(seed=0):
        images = keras.Input((8, 8, 3))
        x = keras.Sequential([block(), keras.layers.Flatten()], name="features")(images)
        model = keras.Model(
            images, from_keras.adopt(keras.Model(images, keras.layers.Dense(10)(x)), images, Layers("NHWC"))
        )
    made = to_keras.plain(model)
    inner = made.get_layer("features").get_layer("block")
    assert {type(layer).__module__.partition(".")[0] for layer in inner.layers} == {"keras"}
    assert [variable.path for variable in made.weights] == [variable.path for variable in model.weights]


def test_a_layer_that_cannot_be_copied_is_named() -> None:
    class Scaled(keras.layers.Layer):
        def __init__(self, factor: float, name: str) -> None:
            super().__init__(name=name)
            self.factor = factor

        def call(self, inputs: tf.Tensor) -> tf.Tensor:
            return self.factor * inputs

    with building.stateless_building(seed=0):
        inputs = keras.Input((4,))
        model = keras.Model(inputs, Scaled(2.0, "scaled")(inputs))
        with pytest.raises(UnusableModelError, match=r"layer 'scaled' cannot be saved: .* get_config"):
            to_keras.plain(model)
