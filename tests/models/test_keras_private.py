"""Keras still has the private names that this suite uses, and they mean the same."""

from __future__ import annotations

from typing import Any

import keras

from models import building
from models.keras_private import (
    initializer_of,
    is_rematerialized,
    last_operation,
    layers_in,
    number_of_calls,
    without_calls,
)


class _Outer(keras.layers.Layer):
    def build(self, input_shape: Any) -> None:
        self.inner = keras.Sequential([keras.layers.Dense(3, name="deep")], name="inner")
        self.inner.build(input_shape)

    def call(self, x: Any) -> Any:
        return self.inner(x)


def test_private_names_of_keras_mean_what_they_did() -> None:
    with building.stateless_building(seed=0):
        images = keras.Input((4,))
        shared, outer = keras.layers.Dense(4), _Outer(name="outer")
        model = keras.Model(images, outer(shared(shared(images / 255.0))))
    assert {"inner", "deep"} <= {layer.name for layer in layers_in(model)} and model not in layers_in(model)
    _, divide, *_ = model.operations
    assert layers_in(divide) == () and number_of_calls(shared) == 2
    assert last_operation(model, 0) == (outer, 0) and last_operation(outer.inner, 0)[0].name == "deep"
    again = keras.Model(model.input, without_calls(shared)(model.input))
    assert number_of_calls(shared) == 1 and again.operations[-1] is shared
    with keras.RematScope(mode="full"):
        assert is_rematerialized(keras.layers.Dense(4)) and not is_rematerialized(shared)
    assert isinstance(initializer_of(shared.kernel), keras.initializers.GlorotUniform)
