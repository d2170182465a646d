"""What every model promises: to be in `models.specs.MODELS` is to be tested here."""

from __future__ import annotations

import itertools
import math
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from benchmarks.data.pipeline import tower_input
from benchmarks.devices import device_plan
from benchmarks.process.tensorflow_setup import Devices
from models import building, specs
from models.convolutions import Kernels, PixelwiseProduct, ProductGradient
from models.layers import FusedBatchNorm, SeparateBatchNorm
from models.model_spec import ModelSpec
from tests.support import models, references
from tests.support.models import every_model, every_model_in_parts, small_and_whole_models, small_models
from tests.support.rotation import rotating
from tests.support.steps import on_cpus, step_of

# Of the first loss of four images. Logits of ConvNeXt have a standard deviation of 0.9, so its mean is higher by 0.4.
_SCATTER = 1.5


def _parameters(model: building.Model) -> int:
    return sum(math.prod(variable.shape) for variable in model.variables if variable.kind == "weight")


@every_model
def test_parameters_are_those_of_the_literature(spec: ModelSpec) -> None:
    with_background = models.build_spec(spec)
    (kernel,) = (v for v in with_background.variables if v.name == "logits/kernel")
    assert kernel.shape[1] == spec.classes + 1
    assert _parameters(with_background) == spec.parameters + kernel.shape[0] + 1


@pytest.mark.row("G2.1")
@every_model_in_parts
def test_variables_have_unique_names_that_do_not_depend_on_layout_or_history(spec: ModelSpec) -> None:
    other = "NCHW" if spec.nchw else "NHWC"
    first, later = models.build_spec(spec), models.build_spec(spec, data_format=other, precision="bf16")
    names = [variable.name for variable in first.variables]
    assert len(set(names)) == len(names)
    assert [v.name for v in later.variables] == names
    assert [v.shape for v in later.variables] == [v.shape for v in first.variables]


@every_model
def test_only_kernels_decay(spec: ModelSpec) -> None:
    for variable in models.build_spec(spec).variables:
        assert variable.decayed == variable.name.endswith("/kernel"), variable.name


@every_model_in_parts
def test_no_variable_is_allocated_and_each_has_an_initial_value_that_is_drawn_at_run_time(spec: ModelSpec) -> None:
    with tf.Graph().as_default() as graph:
        for variable in models.build_spec(spec).variables:
            value = variable.initial_value()
            assert (tuple(value.shape), value.dtype.name) == (variable.shape, variable.dtype), variable.name
    assert not [o for o in graph.get_operations() if o.type in ("VarHandleOp", "VariableV2")]
    drawn = models.drawn_at_run_time(graph)
    assert drawn and all(drawn)


def _train(spec: ModelSpec, steps: int, batch: int, *, manager: str = "independent", towers: int = 1) -> list[float]:
    """Losses of the default optimizer on one fixed batch per tower, dropout and all."""
    plan = on_cpus(towers)
    with tf.Graph().as_default():
        wanted = tower_input.InputSpec(
            batch_per_device=batch,
            image_size=spec.image_size,
            channels=spec.channels,
            data_format="NHWC",
            num_classes=spec.classes + 1,
            seed=1,
        )
        inputs, rate = tower_input.synthetic(plan.towers, wanted), spec.learning_rate
        step, _ = step_of(models.build_spec(spec), inputs, plan, manager, learning_rate=rate, weight_decay=4e-5)
        config = device_plan.session_config(Devices(num_devices=towers))
        # Optimising the graph takes longer than a few steps of it; runs of one tower do it.
        config.graph_options.rewrite_options.disable_meta_optimizer = towers > 1
        with tf.compat.v1.Session(config=config) as session:
            step.initialize(session)
            return [step.take(session) for _ in range(steps)]


@small_and_whole_models
def test_the_first_loss_is_that_of_guessing_and_falls(spec: ModelSpec) -> None:
    losses = _train(spec, steps=4, batch=4)
    assert losses[0] == pytest.approx(math.log(spec.classes + 1), abs=_SCATTER)
    assert losses[1] < losses[0]
    assert losses[-1] < losses[0]
    assert all(map(math.isfinite, losses))


@pytest.mark.slow
@small_models
def test_two_steps_on_two_devices_lower_the_loss(spec: ModelSpec) -> None:
    """Under a manager with one shared copy of the variables, and one with a copy per device."""
    shared, copied = (
        _train(spec, steps=3, batch=2, manager=manager, towers=2) for manager in ("parameter_server", "replicated")
    )
    assert shared[0] == pytest.approx(math.log(spec.classes + 1), abs=_SCATTER)
    assert shared[2] < shared[0] and copied[2] < copied[0]
    assert np.isfinite([shared, copied]).all()


@pytest.mark.seldom
@every_model
def test_a_longer_run_at_the_default_rate_stays_finite_and_learns(spec: ModelSpec) -> None:
    losses = _train(spec, steps=25, batch=spec.batch_on_cpu)
    assert all(map(math.isfinite, losses))
    assert np.mean(losses[-3:]) < losses[0] - 0.1  # the small ResNets v2 fall by 0.15 to 0.2


def _logits(spec: ModelSpec, data_format: str) -> np.ndarray:
    size = spec.image_size
    images = np.random.default_rng(0).normal(size=(2, size, size, spec.channels)).astype(np.float32)
    images = models.twice(images)
    model = models.build_spec(spec, data_format=data_format)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        # As they are, kernels of EfficientNetV2-S amplify the last bit of an image to a percent of the logits.
        factors = [0.9 if len(variable.shape) == 4 else 1 for variable in model.variables]
        values = [factor * v.initial_value() for factor, v in zip(factors, model.variables, strict=True)]
        fed = tf.constant(images.transpose(0, 3, 1, 2) if data_format == "NCHW" else images)
        return session.run(model.call(values, fed, training=False)[0])


@pytest.mark.row("G2.1")
@small_and_whole_models
def test_both_layouts_compute_the_same(spec: ModelSpec) -> None:
    if not spec.nchw:
        pytest.skip(f"{spec.name} is for NHWC only")
    try:
        device_plan.require_nchw_on_cpu(Devices())
    except device_plan.UsageError as error:
        pytest.skip(str(error))
    nhwc, nchw = _logits(spec, "NHWC"), _logits(spec, "NCHW")
    assert nhwc.shape == (4, spec.classes + 1)
    np.testing.assert_allclose(nchw, nhwc, rtol=0, atol=models.rounding(nhwc))


def test_equal_seeds_start_equal_and_others_do_not() -> None:
    def kernel(seed: int) -> np.ndarray:
        model = building.build(specs.find_model("resnet20"), data_format="NHWC", num_classes=10, seed=seed)
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            return session.run(model.variables[0].initial_value())

    first = kernel(1)
    assert (kernel(1) == first).all()
    assert (kernel(2) != first).any()


def test_kernels_that_pad_give_the_same_and_copy_nothing() -> None:
    def trained(**options: Any) -> tuple[list[np.ndarray], set[str]]:
        model = models.build("resnet50_v1.5", image_size=32, **options)
        with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
            values = [tf.convert_to_tensor(variable.initial_value()) for variable in model.variables]
            logits, _ = model.call(values, tf.constant(references.images(32)), training=False)
            weights = [v for v, of in zip(values, model.variables, strict=True) if of.kind == "weight"]
            found = session.run([logits, *tf.gradients(logits, weights)])
        return found, {operation.type for operation in graph.get_operations()}

    (usual, with_copies), (found, without) = trained(), trained(kernels=Kernels(that_pad=True))
    assert "Pad" in with_copies and "Pad" not in without
    for one, other in zip(found, usual, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-4 * np.abs(other).max())


@pytest.mark.parametrize(("name", "wide"), [("alexnet", ["fc6", "fc7"]), ("vgg16", ["fc1", "fc2"])])
def test_half_of_each_wide_dense_layer_is_dropped(name: str, wide: list[str]) -> None:
    pairs = list(itertools.pairwise(models.build(name).keras_model.layers))
    found = [(before.name, layer.rate) for before, layer in pairs if isinstance(layer, keras.layers.Dropout)]
    assert found == [(dense, 0.5) for dense in wide]


def test_a_keras_model_built_outside_is_refused() -> None:
    images = keras.Input((4,))
    model = building.adapt(keras.Model(images, keras.layers.Dense(2)(images)))
    with tf.Graph().as_default(), pytest.raises(RuntimeError, match="stateless_building"):
        model.variables[0].initial_value()


@rotating(("precision", "dtype"), [("bf16", tf.bfloat16), ("fp16", tf.float16)], first=1)
@small_and_whole_models
def test_16_bits_are_what_layers_compute_in_and_nothing_else(spec: ModelSpec, precision: str, dtype: tf.DType) -> None:
    model = models.build_spec(spec, precision=precision)
    with tf.Graph().as_default() as graph:
        values = [tf.compat.v1.placeholder(v.dtype, v.shape) for v in model.variables]
        images = tf.compat.v1.placeholder(tf.float32, (2, spec.image_size, spec.image_size, spec.channels))
        logits, state = model.call(values, images, training=True)
        weights = [value for value, v in zip(values, model.variables, strict=True) if v.kind == "weight"]
        gradients = tf.gradients(logits, weights)
    assert logits.dtype == tf.float32
    assert {gradient.dtype for gradient in gradients} == {tf.float32}
    assert {value.dtype for value in state.values()} <= {tf.float32, tf.int64}
    kernels = [
        o for o in graph.get_operations() if o.type in ("Conv2D", "MatMul") and not o.name.startswith("gradients")
    ]
    assert [o.outputs[0].dtype for o in kernels] == [dtype] * (len(kernels) - 1) + [tf.float32], "logits"
    norms = [o for o in graph.get_operations() if o.type == "FusedBatchNormV3"]
    assert bool(norms) == spec.has_batch_norm
    assert {o.inputs[0].dtype for o in norms} <= {dtype} and {o.inputs[1].dtype for o in norms} <= {tf.float32}
    assert keras.config.dtype_policy().name == "float32", "the next model is not affected"


@every_model_in_parts
def test_a_model_states_which_convolutions_and_normalisation_it_has(spec: ModelSpec) -> None:
    usual = models.build_spec(spec).keras_model.layers
    other = models.build_spec(
        spec, kernels=Kernels(conv1x1=True, filter_gradients=True), fused_bn=False
    ).keras_model.layers
    for has, kind in (
        (spec.has_conv1x1, PixelwiseProduct),
        (spec.has_larger_convolutions, ProductGradient),
        (spec.has_batch_norm, SeparateBatchNorm),
    ):
        assert has == any(isinstance(layer, kind) for layer in other), kind
        assert not any(isinstance(layer, kind) for layer in usual), kind
    assert spec.has_batch_norm == any(isinstance(layer, FusedBatchNorm) for layer in usual)
