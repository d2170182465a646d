"""Models in PyTorch compute what they compute in TensorFlow, from the same weights."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from benchmarks.training import objectives
from models import building, specs
from models.convolutions import Kernels
from models.outside_code import UnusableModelError

torch = pytest.importorskip("torch")
from models import to_torch  # noqa: E402 - it imports PyTorch

SEED = 6
SMALL = ("mlp", "lenet_mnist", "alexnet_cifar10", "resnet20", "resnet20_v2")
LARGE = ("resnet50", "vgg16", "alexnet", "inception3")
# With layers that no other has: LRN, tokens, depthwise convolutions, concatenation, shifts.
OTHERS = ("densenet40_k12", "googlenet", "mobilenet", "nasnet_cifar10", "vit_ti_16")


def _images(spec: specs.ModelSpec, count: int) -> np.ndarray:
    shape = (count, spec.image_size, spec.image_size, spec.channels)
    return np.random.default_rng(SEED).normal(size=shape).astype(np.float32)


def _built(name: str, data_format: str, *, pads: bool = True) -> building.Model:
    kernels, spec = Kernels(that_pad=pads), specs.find_model(name)
    return building.build(spec, data_format=data_format, num_classes=spec.classes, seed=SEED, kernels=kernels)


class _InTensorFlow:
    """The model of the suite's own runs on a CPU, in NHWC: what it computes from values of its variables."""

    def __init__(self, name: str, images: np.ndarray, labels: np.ndarray) -> None:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            model = _built(name, "NHWC", pads=False)
            values = [tf.constant(value) for value in session.run([v.initial_value() for v in model.variables])]
            generator = np.random.default_rng(SEED)
            values = [
                tf.constant(generator.uniform(0.5, 1.5, v.shape), tf.float32) if v.kind == "statistic" else value
                for v, value in zip(model.variables, values, strict=True)
            ]
            logits, _ = model.call(values, tf.constant(images), training=False)
            trained, state = model.call(values, tf.constant(images), training=True)
            loss = objectives.cross_entropy(trained, tf.constant(labels))
            weights = {
                v.name: v_value for v, v_value in zip(model.variables, values, strict=True) if v.kind == "weight"
            }
            gradients = dict(zip(weights, tf.gradients(loss, [*weights.values()]), strict=True))
            names = [variable.name for variable in model.variables]
            fetched = session.run([dict(zip(names, values, strict=True)), logits, loss, gradients, state])
            self.values, self.logits, self.loss, self.gradients, self.state = fetched


def _converted(name: str, data_format: str, values: dict[str, Any], images: np.ndarray) -> tuple[Any, Any]:
    """Returns the model and the images in PyTorch."""
    model = to_torch.convert(_built(name, data_format))
    model.load(values)
    tensor = torch.from_numpy(images).permute(0, 3, 1, 2)
    if data_format == "NCHW":
        return model, tensor.contiguous()
    model.module.to(memory_format=torch.channels_last)
    return model, tensor


def _by_variable(model: Any, tensors: dict[str, Any]) -> dict[str, np.ndarray]:
    """Returns tensors of a model in Keras' layout, by the names of its variables."""
    return {name: view(tensors[own]).numpy() for name, (own, view) in model._tensors.items() if own in tensors}


def _close(found: np.ndarray, wanted: np.ndarray, tolerance: float) -> None:
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance * max(abs(wanted).max(), 1e-3))


@pytest.mark.parametrize(
    "name",
    [
        *SMALL,
        *(pytest.param(name, marks=pytest.mark.slow) for name in LARGE),
        *(pytest.param(name, marks=pytest.mark.seldom) for name in OTHERS),
    ],
)
def test_logits_and_parameters_are_equal(name: str) -> None:
    spec = specs.find_model(name)
    images = _images(spec, 2)
    wanted = _InTensorFlow(name, images, np.zeros(2, np.int64))
    for data_format in ("NHWC", "NCHW"):
        model, tensor = _converted(name, data_format, wanted.values, images)
        trained = [parameter for parameter in model.module.parameters() if parameter.requires_grad]
        assert sum(parameter.numel() for parameter in trained) == spec.parameters
        with torch.no_grad():
            _close(model.module.eval()(tensor).numpy(), wanted.logits, 1e-5)
        for variable, value in _by_variable(model, model.module.state_dict()).items():
            np.testing.assert_array_equal(value, wanted.values[variable])


@pytest.mark.parametrize("name", ["lenet_mnist", "alexnet_cifar10", "resnet20"])
def test_images_stay_in_channels_last(name: str) -> None:
    spec = specs.find_model(name)
    model = to_torch.convert(_built(name, "NHWC"))
    module = model.module.to(memory_format=torch.channels_last)
    seen: list[bool] = []

    def look(module: Any, inputs: Any, output: Any) -> None:
        if output.dim() == 4:
            seen.append(output.is_contiguous(memory_format=torch.channels_last))

    for part in module.modules():
        part.register_forward_hook(look)
    module(torch.from_numpy(_images(spec, 2)).permute(0, 3, 1, 2))
    assert len(seen) > 3 and all(seen)


@pytest.mark.parametrize("name", ["mlp", "alexnet_cifar10", "resnet20"])
def test_a_step_in_training_is_equal(name: str) -> None:
    """The loss, all gradients, and the moving averages after it; these models have no dropout."""
    spec = specs.find_model(name)
    images, labels = _images(spec, 8), np.arange(8) % spec.classes
    wanted = _InTensorFlow(name, images, labels)
    model, tensor = _converted(name, "NHWC", wanted.values, images)
    loss = torch.nn.functional.cross_entropy(model.module.train()(tensor), torch.from_numpy(labels))
    loss.backward()
    assert loss.item() == pytest.approx(wanted.loss, rel=1e-5)
    trained = {name: parameter.grad for name, parameter in model.module.named_parameters() if parameter.requires_grad}
    gradients, state = _by_variable(model, trained), _by_variable(model, model.module.state_dict())
    assert gradients.keys() == wanted.gradients.keys()
    for variable, gradient in wanted.gradients.items():
        # By norms: a value near 0 may pass a ReLU in one and not in the other. Where none does, they differ by 1e-5.
        difference = np.linalg.norm(gradients[variable] - gradient)
        assert difference < 0.05 * np.linalg.norm(gradient), variable
    for variable, average in wanted.state.items():
        _close(state[variable], average, 1e-4)


def test_decay_is_on_the_same_weights() -> None:
    built = _built("resnet20", "NHWC")
    for model in (built, building.decaying(built, "all")):
        decayed = to_torch.convert(model).decayed
        assert len(decayed) == sum(variable.decayed for variable in model.variables)
    assert not any(name.endswith("bias") for name in to_torch.convert(built).decayed)


@pytest.mark.parametrize("kind", ["max", "avg"])
@pytest.mark.parametrize(("pixels", "size", "stride"), [(8, 3, 2), (9, 3, 2), (7, 2, 2), (8, 3, 1), (10, 5, 3)])
def test_padding_is_that_of_tensorflow(kind: str, pixels: int, size: int, stride: int) -> None:
    """Its `same` pads unequally; an average does not count what is padded."""
    images = np.random.default_rng(SEED).normal(size=(1, pixels, pixels, 2)).astype(np.float32)

    def build() -> building.Model:
        from models.layers import Layers

        with building.stateless_building(SEED):
            layers = Layers("NHWC")
            entry = keras.Input((pixels, pixels, 2))
            x = layers.pool(entry, kind, size, stride, padding="same", name="pool")  # type: ignore[arg-type]
            x = layers.conv_alone(x, 3, size, stride=stride, padding="same", name="convolution")
            return building.adapt(keras.Model(entry, x))

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        model = build()
        values = session.run([variable.initial_value() for variable in model.variables])
        wanted = session.run(model.call(list(map(tf.constant, values)), tf.constant(images), training=False)[0])
    converted = to_torch.convert(model)
    converted.load({variable.name: value for variable, value in zip(model.variables, values, strict=True)})
    with torch.no_grad():
        found = converted.module(torch.from_numpy(images).permute(0, 3, 1, 2)).permute(0, 2, 3, 1).numpy()
    _close(found, wanted, 1e-5)


def test_a_layer_that_is_not_known_is_named() -> None:
    with tf.Graph().as_default(), building.stateless_building(SEED):
        entry = keras.Input((4,))
        model = building.adapt(keras.Model(entry, keras.layers.GaussianNoise(0.1, name="noisy")(entry)))
    with pytest.raises(UnusableModelError, match="layer 'noisy' is a GaussianNoise"):
        to_torch.convert(model)
