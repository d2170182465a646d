"""Models that other code builds compute here what they compute in Keras, with this suite's layers."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import keras
import numpy as np
import pytest
import tensorflow as tf

from benchmarks.data.pipeline import tower_input
from benchmarks.training import flop_count, model_facts
from benchmarks.training.computing import Computing
from models import applications, building, from_keras, parts, specs
from models.convolutions import (
    DepthwiseConvolution,
    GroupedConvolution,
    Kernels,
    PixelwiseProduct,
    ProductGradient,
    SeparableConvolution,
)
from models.layers import FusedBatchNorm, Layers, Pool, SeparateBatchNorm
from models.model_spec import ModelSpec
from models.outside_code import UnusableModelError
from tests.support import references
from tests.support.rotation import rotating
from tests.support.steps import cpu_session, on_cpus, step_of
from variable_mgr import variables

pytestmark = pytest.mark.xdist_group("models")

CLASSES = 11


def _spec(name: str, image_size: int) -> ModelSpec:
    build = applications.builder(name)
    return dataclasses.replace(specs.find_model("mobilenet"), name=name, build=build, image_size=image_size)


def _build(name: str, image_size: int, **options: Any) -> building.Model:
    given = {"data_format": "NHWC", "num_classes": CLASSES, "seed": 1} | options
    return building.build(_spec(name, image_size), **given)


def _values(model: building.Model, gain: float = 2.0) -> list[np.ndarray]:
    random = np.random.default_rng(2)
    return [references.random_value(variable, random, gain) for variable in model.variables]


def _both_outputs(name: str, size: int, images_factor: float = 1.0, gain: float = 2.0) -> tuple[np.ndarray, np.ndarray]:
    """Returns our logits, and what the model's own code computes with the same values from images times a factor."""
    ours, images = _build(name, size), references.images(size)
    with building.stateless_building(seed=0):
        theirs = building.adapt(from_keras.keras_model(name, CLASSES, (size, size, 3)))
    drawn = _values(ours, gain)
    found = ours.call([tf.constant(value) for value in drawn], tf.constant(images), training=False)[0]
    pairs = zip(ours.variables, drawn, strict=True)
    following, values = iter([value for variable, value in pairs if variable.kind != "tower_state"]), []
    for variable in theirs.variables:
        if variable.kind == "tower_state":
            value = np.zeros(variable.shape)
        elif variable.name.startswith("normalization"):  # left out by us
            value = np.full(variable.shape, float(variable.name.endswith("variance")))
        else:
            value = next(following)
        assert value.shape == variable.shape, variable.name
        values.append(tf.constant(value, variable.dtype))
    assert not list(following)
    wanted = theirs.call(values, tf.constant(images * images_factor), training=False)[0]
    return found.numpy(), wanted.numpy()


def _assert_same_logits(name: str, size: int, images_factor: float = 1.0, gain: float = 2.0) -> None:
    found, wanted = _both_outputs(name, size, images_factor, gain)
    assert wanted.std(axis=0).mean() > 0.01 * np.abs(wanted).max(), "logits must depend on the image"
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.parametrize("name", ["keras:MobileNetV2", "keras:MobileNetV3Small"])
def test_logits_are_those_of_keras(name: str) -> None:
    _assert_same_logits(name, 64)


@pytest.mark.slow
@rotating(
    ("name", "size", "factor", "gain"),
    [
        ("keras:ConvNeXtTiny", 64, 1.0, 2.0),
        ("keras:DenseNet121", 64, 1.0, 2.0),
        ("keras:EfficientNetB0", 64, 255.0, 2.0),
        ("keras:EfficientNetV2S", 64, 1.0, 1.1),
        ("keras:NASNetMobile", 64, 1.0, 2.0),
        ("keras:ResNet50V2", 64, 1.0, 2.0),
        ("keras:Xception", 96, 1.0, 2.0),
    ],
    first=2,
)
def test_logits_of_larger_models_are_those_of_keras(name: str, size: int, factor: float, gain: float) -> None:
    _assert_same_logits(name, size, factor, gain)


OWN = """
import keras
import tensorflow as tf


class Scale(keras.layers.Layer):  # does not say how to make a copy
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def call(self, x):
        return self.inner(x)

    def get_config(self):
        raise NotImplementedError


def branch(filters):
    images = keras.Input((None, None, filters))
    x = keras.layers.Conv2D(filters, 3, padding="same", groups=2)(images)
    x = keras.layers.Conv2D(filters, 3, padding="same", groups=filters)(x)
    x = keras.layers.BatchNormalization()(x)
    return keras.Model(images, keras.layers.Conv2D(filters, 1, activation="relu")(x))


def build(num_classes):
    images = keras.Input((16, 16, 3))
    x = keras.layers.Rescaling(0.5)(images)
    x = keras.layers.Conv2D(8, 3, padding="same", activation="relu")(x)
    shared = keras.layers.Conv2D(8, 3, padding="same", name="shared")
    x = shared(shared(x))
    x = branch(8)(x) + branch(8)(x)
    x = keras.layers.MaxPooling2D()(x)
    x = keras.layers.DepthwiseConv2D(3)(x)
    x = keras.layers.SeparableConv2D(8, 3, padding="same")(x)
    x = keras.layers.DepthwiseConv2D(3, padding="same", dilation_rate=2)(x)  # stays as it is
    x = keras.layers.AveragePooling2D((2, 1))(x)
    x = Scale(keras.layers.BatchNormalization())(x)
    x = keras.layers.Reshape((-1, 8))(x)
    x = x + keras.layers.MultiHeadAttention(2, 4)(x, x)
    x = keras.layers.Lambda(lambda x: x[:, ::2])(x)
    x = keras.layers.Flatten()(x)
    x = keras.layers.Dropout(0.5)(keras.layers.Dense(12, activation="relu")(x))
    return keras.Model(images, keras.layers.Dense(num_classes, activation="softmax")(x))


def sequential():
    return keras.Sequential([
        keras.Input((16, 16, 3)),
        keras.layers.Conv2D(4, 3, activation="relu"),
        keras.Sequential([keras.layers.BatchNormalization(), keras.layers.MaxPooling2D()]),
        keras.layers.Flatten(),
        keras.layers.Dense(11),
        keras.layers.Softmax(),
    ])


def with_tensorflow():
    return net(last=keras.layers.Dense(11, activation=tf.nn.softmax))


def with_layer_inside():
    return net(last=keras.layers.Dense(11, activation=keras.layers.Softmax()))


def with_list_of_axes():
    return net(last=keras.Sequential([keras.layers.Dense(11), keras.layers.Softmax([-1])]))


def with_scaling_inside():
    images = keras.Input((16, 16, 3))
    scaled = keras.layers.Rescaling(2.0)(keras.layers.Normalization(mean=[0.0] * 3, variance=[16.0] * 3)(images))
    first = keras.Model(images, keras.layers.Conv2D(8, 3)(scaled))
    # The second scaling is of features, and stays.
    return net(first, keras.layers.Rescaling(3.0), last=keras.layers.Dense(11, activation="softmax"))


def net(*features, last=None):
    images = keras.Input((16, 16, 3))
    x = images
    for layer in (*features, keras.layers.Flatten(), last or keras.layers.Dense(11)):
        x = layer(x)
    return keras.Model(images, x)


class Louder(keras.layers.Conv2D):
    def __init__(self, filters, size, gain=1.0, **options):  # get_config() leaves out the gain
        super().__init__(filters, size, **options)
        self.gain = gain

    def call(self, x):
        return self.gain * super().call(x)


class Sharper(keras.layers.Dense):
    def __init__(self, units, factor=1.0, **options):
        super().__init__(units, **options)
        self.factor = factor

    def call(self, x):
        return self.factor * super().call(x)


def arguments():
    return net(Louder(8, 3, gain=7.0), last=Sharper(11, factor=5.0))


class Reversed(keras.layers.Layer):
    def build(self, shape):
        def from_the_end(shape, dtype):
            return keras.ops.arange(shape[0] - 1, -1, -1, dtype=dtype)

        self.order = self.add_weight(
            shape=shape[1:2], dtype="int32", initializer=from_the_end, trainable=False, name="order"
        )

    def call(self, x):
        return keras.ops.take(x, self.order, axis=1)


def with_order():
    return net(keras.layers.Conv2D(8, 3), Reversed(name="reversed"), keras.layers.Dropout(0.5))


class Tied(keras.layers.Layer):
    def __init__(self, other):
        super().__init__()
        self.other = other

    def call(self, x):
        return x @ keras.ops.transpose(self.other.kernel)


def tied():
    dense = keras.layers.Dense(5)
    return net(dense, Tied(dense))


def loaded():
    model = net(keras.layers.Conv2D(8, 3))
    model.set_weights([0.0 * each for each in model.get_weights()])
    return model


def frozen():
    images, attention = keras.Input((16, 16, 3)), keras.layers.MultiHeadAttention(2, 4)
    x = keras.layers.Reshape((64, 12))(images)
    x = keras.layers.Flatten()(attention(x, x))
    attention.trainable = False
    return keras.Model(images, keras.layers.Dense(11)(x))


def augmented():
    first = keras.Sequential([keras.layers.RandomFlip(), keras.layers.RandomBrightness(0.5)])
    return net(first, keras.layers.RandomContrast(0.2), keras.layers.Rescaling(2.0), keras.layers.Conv2D(8, 3))


class Residual(keras.Sequential):
    def call(self, x, training=None, mask=None):
        return x + super().call(x, training=training)


def calls():
    return net(keras.layers.Conv2D(8, 3), Residual([keras.layers.Conv2D(8, 3, padding="same"), keras.layers.ReLU()]))


def shared():
    twice = keras.layers.Conv2D(3, 3, padding="same")
    first, second = (keras.Sequential([keras.Input((16, 16, 3)), twice, then]) for then in (keras.layers.ReLU(), twice))
    return keras.Sequential([keras.Input((16, 16, 3)), first, second, keras.layers.Flatten(), keras.layers.Dense(11)])


class Classes(keras.layers.Dense):
    def __init__(self, units):  # does not take what get_config() returns
        super().__init__(units)


def leaky(x):
    return tf.nn.leaky_relu(x, 0.3)


def activations():
    first = keras.layers.Conv2D(8, 3, activation=lambda x: tf.nn.leaky_relu(x, 0.3))
    return net(first, keras.layers.Conv2D(8, 3, activation=leaky), last=Classes(11))


def relu(x):
    return 3.0 * x


def softmax(x):
    return 2.0 * x


def named_as_those_of_keras():
    first = keras.layers.Conv2D(4, 3, padding="same", activation=relu)
    recurrent = keras.layers.LSTM(4, activation=keras.ops.gelu)
    return net(first, keras.layers.Reshape((16, -1)), recurrent, last=keras.layers.Dense(11, activation=softmax))


def over_the_batch():
    return net(last=keras.Sequential([keras.layers.Dense(11), keras.layers.Softmax(axis=0)]))


def inner_with_two_outputs():
    images = keras.Input((16, 16, 3))
    features = keras.layers.Dense(8, activation="softmax")(keras.layers.Flatten()(images))
    inner = keras.Model(images, [features, keras.layers.Dense(11)(features)])
    return keras.Model(images, inner(images)[1])


def last_is_called_twice():
    twice = keras.layers.Dense(11, activation="softmax")
    return net(last=keras.Sequential([keras.layers.Dense(11), twice, twice]))


def twins():
    def branch(name):
        images = keras.Input((None, None, 4))
        return keras.Model(images, keras.layers.Conv2D(4, 3, name=name)(images))

    return net(keras.layers.Conv2D(4, 3), branch("conv"), branch("conv"), branch("conv.1"))


def by_constants():
    return net(keras.layers.Conv2D(8, 3), keras.layers.Normalization(mean=[0.1] * 8, variance=[4.0] * 8))


def by_figures():
    return net(keras.layers.Conv2D(8, 3), keras.layers.Normalization())


def float32_at_the_end():
    dense, last = keras.layers.Dense(11, dtype="float32"), keras.layers.Lambda(lambda x: leaky(x), dtype="float32")
    return net(last=keras.Sequential([dense, last]))


class _Same(keras.layers.Layer):
    def build(self, shape):
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

    def call(self, x):
        return self.scale * x


def private():
    return net(_Same(), keras.layers.Conv2D(4, 3, name="logits"), last=keras.layers.Dense(10))


def sets_policy():
    keras.config.set_dtype_policy("mixed_bfloat16")
    return net()


def sets_type():
    keras.config.set_floatx("float16")
    return net()
"""


@pytest.fixture
def own(tmp_path: Path) -> Iterator[str]:
    path = tmp_path / "own.py"
    path.write_text(OWN)
    yield str(path)
    sys.path.remove(str(tmp_path))


@pytest.mark.parametrize(
    ("function", "images_factor"),
    [
        ("build", 2.0),
        ("sequential", 1.0),
        ("with_tensorflow", 1.0),
        ("with_layer_inside", 1.0),
        ("with_list_of_axes", 1.0),
        ("with_scaling_inside", 2.0),
    ],
)
def test_a_function_of_a_user_gives_logits_whose_softmax_is_its_output(
    own: str, function: str, images_factor: float
) -> None:
    """The factor undoes the scaling of images by the function, which is left out here."""
    logits, wanted = _both_outputs(f"{own}:{function}", 16, images_factor)
    np.testing.assert_allclose(tf.nn.softmax(logits).numpy(), wanted, rtol=1e-4, atol=1e-5)
    assert np.abs(logits).max() > 1.5, "not already a softmax"


@pytest.mark.parametrize(
    "function",
    [
        "arguments",
        "calls",
        "shared",
        "activations",
        "named_as_those_of_keras",
        "over_the_batch",
        "last_is_called_twice",
        "inner_with_two_outputs",
        "twins",
        "tied",
        "by_constants",
    ],
)
def test_what_keras_could_not_copy_computes_the_same(own: str, function: str) -> None:
    """Arguments and a call() that get_config() leaves out; layers of several models; functions that cannot be saved.

    A softmax stays if it is not over the classes, or is called twice. Layers of unlike models may have equal names.
    """
    _assert_same_logits(f"{own}:{function}", 16)


def test_layers_may_have_any_names_that_keras_takes(own: str) -> None:
    """Of a class with an underscore; a convolution that is called as the last layer is called here."""
    name = f"{own}:private"
    with tf.Graph().as_default():  # as in a run
        model = _build(name, 16)
        variables.create_copies(model.variables, on_cpus(2).place)
    work = flop_count.of_built(model, batch=1, forward_only=False)
    assert work.flops > 0


@pytest.mark.parametrize("function", ["by_constants", "by_figures"])
def test_a_normalization_works_in_every_graph(own: str, function: str) -> None:
    name = f"{own}:{function}"
    model = _build(name, 16)
    for forward_only in (True, False):
        work = flop_count.of_built(model, batch=1, forward_only=forward_only)
        assert work.flops > 0


def test_a_layer_that_is_called_keeps_its_type(own: str) -> None:
    model = _build(f"{own}:float32_at_the_end", 16, precision="fp16")
    logits, _ = model.call(_values(model), tf.constant(references.images(16)), training=False)
    assert (logits.numpy() != logits.numpy().astype(np.float16)).mean() > 0.9, "not rounded to 16 bits"


@pytest.mark.parametrize(
    ("function", "what"), [("sets_policy", "the dtype policy mixed_bfloat16, "), ("sets_type", ".*or floatx float16, ")]
)
def test_code_that_sets_the_types_of_layers_is_refused(own: str, function: str, what: str) -> None:
    with building.stateless_building(seed=0):
        with pytest.raises(UnusableModelError, match=f"sets {what}.* leave that to --precision"):
            from_keras.keras_model(f"{own}:{function}", CLASSES)
        assert (keras.config.dtype_policy().name, keras.config.floatx()) == ("float32", "float32")


def test_augmentation_is_of_scaled_images_and_scaling_behind_it_is_left_out(own: str) -> None:
    name = f"{own}:augmented"
    _assert_same_logits(name, 16, images_factor=0.5)
    found = from_keras.operations_in(_build(name, 16).keras_model)
    assert [[*layer.value_range] for layer in found if hasattr(layer, "value_range")] == [[-2.12, 2.64]] * 2


def test_weights_that_the_code_loads_are_not_those_of_a_reference_loop_either(own: str) -> None:
    name = f"{own}:loaded"
    spec = dataclasses.replace(_spec(name, 16), ignored=("the weights that it loads",))
    owned, ours = (
        building.build(spec, data_format="NHWC", num_classes=CLASSES, seed=1, owning=owning) for owning in (True, False)
    )
    for variable, described in zip(building.ordered(owned.keras_model), ours.variables, strict=True):
        np.testing.assert_array_equal(variable.numpy(), described.initial_value().numpy())
    assert np.any(owned.keras_model.trainable_variables[0].numpy())


def test_only_seeds_are_of_a_tower(own: str) -> None:
    variables = _build(f"{own}:with_order", 16).variables
    kinds = {variable.kind: variable.name for variable in variables if variable.kind != "weight"}
    assert kinds["statistic"] == "reversed/order" and kinds["tower_state"].startswith("seed_") and len(kinds) == 2


def test_what_a_frozen_layer_makes_in_its_build_is_frozen(own: str) -> None:
    weights = [each for each in _build(f"{own}:frozen", 16).variables if each.kind == "weight"]
    assert [weight.name for weight in weights] == ["logits/kernel", "logits/bias"]


def test_layers_become_those_of_this_suite(own: str) -> None:
    def kinds(**options: Any) -> set[type]:
        layers = _build(f"{own}:build", 16, **options).keras_model.layers
        inner = [layer for model in layers if hasattr(model, "layers") for layer in model.layers]
        return {type(layer) for layer in (*layers, *inner)}

    plain = kinds()
    assert {FusedBatchNorm, GroupedConvolution, DepthwiseConvolution, SeparableConvolution, Pool} <= plain
    assert keras.layers.DepthwiseConv2D in plain and keras.layers.SeparableConv2D not in plain
    assert not {keras.layers.BatchNormalization, keras.layers.MaxPooling2D, PixelwiseProduct} & plain
    assert {PixelwiseProduct, ProductGradient} <= kinds(kernels=Kernels(conv1x1=True, filter_gradients=True))
    assert SeparateBatchNorm in kinds(fused_bn=False)
    with building.stateless_building(seed=0):
        kept = keras.layers.BatchNormalization(momentum=0.7, epsilon=0.02, scale=False, name="kept")
        kept(keras.Input((4, 4, 3)))
        vars(kept).pop("renorm", None)  # Keras has it since 3.14
        ours = from_keras._replaced(kept, Layers("NHWC"))
        frozen = keras.layers.BatchNormalization(trainable=False)
        frozen(keras.Input((4, 4, 3)))
        assert from_keras._replaced(frozen, Layers("NHWC")) is None
    assert (ours.momentum, ours.epsilon, ours.scale, ours.center, ours.name) == (0.7, 0.02, False, True, "kept")


def test_names_are_unique_and_do_not_depend_on_what_was_built_before(own: str) -> None:
    name = f"{own}:build"
    first = [variable.name for variable in _build(name, 16).variables]
    _build("keras:MobileNetV2", 32)
    keras.layers.Dense(1)
    assert [variable.name for variable in _build(name, 16).variables] == first
    assert len(set(first)) == len(first)
    assert {"conv2d/kernel", "shared/kernel", "logits/kernel", "multi_head_attention/query/kernel"} <= set(first)


@pytest.mark.slow
@rotating(("precision", "xla"), [("fp32", "jit"), ("bf16", "off"), ("fp16", "off")], first=1)
def test_it_trains_at_every_precision(own: str, precision: str, xla: Literal["jit", "off"]) -> None:
    plan = on_cpus(1)
    model = _build(f"{own}:build", 16, precision=precision)
    with tf.Graph().as_default():
        wanted = tower_input.InputSpec(
            batch_per_device=8, image_size=16, data_format="NHWC", num_classes=CLASSES, seed=1
        )
        inputs = tower_input.synthetic(plan.towers, wanted)
        step, _ = step_of(model, inputs, plan, weight_decay=4e-5, computing=Computing(xla=xla))
        with cpu_session() as session:
            step.initialize(session)
            losses = [step.take(session) for _ in range(8)]
    assert np.isfinite(losses).all() and min(losses[4:]) < losses[0]


def test_its_dense_layers_are_divided_and_its_stages_are_not_cut_where_it_calls_a_layer_twice(own: str) -> None:
    model = _build(f"{own}:build", 16)
    assert [layer.outputs for layer in parts.split(model).tail] == [12, 0, CLASSES]
    assert parts.cut_points(model) == []
    assert len(parts.cut_points(_build(f"{own}:sequential", 16))) > 2


def test_its_parameters_are_counted_by_kind(own: str) -> None:
    name = f"{own}:build"
    facts = model_facts.of(_build(name, 16), _spec(name, 16))
    # Attention: queries, keys, values and output, 8 x 2 x 4 each, with biases; then 9 positions of 8 to 12, to 11.
    dense = 4 * (8 * 8 + 8) + (9 * 8 + 1) * 12 + 13 * CLASSES
    assert facts.parameters_by_kind["dense"] == dense
