"""Makes a Keras model that other code builds computable like the models of this suite, which keep their own kernels.

Batch normalisation, pooling and convolutions become those of `models.layers`; all other layers are those of the model.
The scaling of images at the start and a final softmax are left out. Names of layers and variables stay.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn
from unittest import mock

import keras
import tensorflow as tf

from models.applications import APPLICATION
from models.building import keras_format
from models.convolutions import DepthwiseConvolution, GroupedConvolution, SeparableConvolution
from models.keras_private import initializer_of, last_operation, layers_in, without_calls
from models.layers import KERAS_FORMATS, Layers, Normalization, Pool, PoolKind, Tensor
from models.outside_code import UnusableModelError, contained
from models.outside_functions import kept_precision, load
from models.seeds import RunTimeSeed

_USUAL_SIZE = (224, 224)
_SCALING = (keras.layers.Rescaling, keras.layers.Normalization)
_AUGMENTING: Any = keras.layers.RandomFlip.__base__  # of all layers that move, cut and colour images
_VALUE_RANGE = (-2.12, 2.64)  # what 0 and 255 become in images that are scaled by ImageNet's mean and deviation
_NORM_VARIABLES = ("beta", "gamma", "moving_mean", "moving_variance")
_BY_CHANNEL: dict[type, type[keras.Layer]] = {
    keras.layers.DepthwiseConv2D: DepthwiseConvolution,
    keras.layers.SeparableConv2D: SeparableConvolution,
}
_POOLS: dict[type, PoolKind] = {keras.layers.MaxPooling2D: "max", keras.layers.AveragePooling2D: "avg"}
# Keras raises them if it cannot make a layer from what get_config() returns, such as a lambda.
_NO_COPY = (NotImplementedError, TypeError, ValueError)


def build(images: Tensor, layers: Layers, num_classes: int, *, name: str) -> Tensor:
    """Returns the logits of a model that other code builds; see `keras_model`."""
    with keras_format(layers.data_format):
        model = keras_model(name, num_classes, tuple(images.shape[1:]))
    with contextlib.nullcontext() if name.startswith(APPLICATION) else contained():  # it calls the user's layers
        return adopt(model, images, layers)


def keras_model(name: str, num_classes: int, image_shape: tuple[int, ...] | None = None) -> keras.Model:
    """Builds a model in Keras' current data format.

    Args:
        name: `keras:NAME` for a model of `keras.applications`; else of a user's function, see `load`.
        num_classes: passed to the builder if it takes that.
        image_shape: of one image, for an application; None: the size that it is for. A user's function decides itself.

    Raises:
        UnusableModelError: a user's function does not exist, does what it may not do here, or does not return a model
            from images to logits.
    """
    if not name.startswith(APPLICATION):
        return _model_of_function(name, num_classes)
    builder = getattr(keras.applications, name.removeprefix(APPLICATION))
    options: dict[str, Any] = {"input_shape": image_shape} if image_shape else {}
    if "include_preprocessing" in inspect.signature(builder).parameters:
        options["include_preprocessing"] = False
    model = builder(weights=None, classes=num_classes, classifier_activation=None, **options)
    if None in model.inputs[0].shape[1:]:  # of no size in particular
        is_nchw = keras.config.image_data_format() == "channels_first"
        return keras_model(name, num_classes, (3, *_USUAL_SIZE) if is_nchw else (*_USUAL_SIZE, 3))
    return model


def _model_of_function(name: str, num_classes: int) -> keras.Model:
    """Returns what a user's function returns; see `keras_model`."""
    try:
        with _without_training():
            function, given = load(name), {"num_classes": num_classes} if takes_num_classes(name) else {}
            _check_parameters(function, given)
            with contained(), kept_precision():
                return _checked(function(**given))
    except AssertionError as error:
        if "reset_default_graph" not in str(error):
            raise
        raise UnusableModelError("it calls clear_session() or reset_default_graph(): leave that out.") from error
    except (AttributeError, NotImplementedError, TypeError) as error:
        if "symbolic" not in str(error).lower():
            raise
        raise UnusableModelError(
            "it reads values of weights or tensors, as get_weights(), numpy() and bool() do, and a run builds the "
            f"model before they have any ({' '.join(str(error).split())}): compute constants with NumPy, and load "
            "weights with --initial_weights."
        ) from error
    except Exception as error:
        if "URL fetch failure" not in str(error):
            raise
        raise UnusableModelError(
            f"it downloads a file, which failed ({error}). If these are weights, build the model with weights=None: "
            "a run ignores weights that the function loads, and --initial_weights loads them."
        ) from error


@contextlib.contextmanager
def _without_training() -> Iterator[None]:
    """Inside it, compile() only keeps the optimizer, and variables may be made of arrays, as optimizers make them.

    Where no variable is allocated, Keras wants initialisers. What trains or computes is refused.
    """
    make = keras.Variable.__init__

    def compiled(model: keras.Model, optimizer: Any = "rmsprop", *_args: Any, **_options: Any) -> None:
        model.compiled, model.optimizer = True, keras.optimizers.get(optimizer)

    def refuse(*_args: Any, **_options: Any) -> NoReturn:
        raise UnusableModelError(
            "it trains its model, or computes with it: do that only behind if __name__ == '__main__'."
        )

    def made(variable: keras.Variable, initializer: Any, shape: Any = None, dtype: Any = None, **options: Any) -> None:
        if not (callable(initializer) or isinstance(initializer, str)):
            value = tf.get_static_value(keras.ops.convert_to_tensor(initializer, dtype))
            if value is not None:
                shape, dtype = value.shape, value.dtype.name
                initializer = keras.initializers.Constant(value)
        make(variable, initializer, shape, dtype, **options)

    replaced: dict[str, Any] = dict.fromkeys(("fit", "evaluate", "predict", "train_on_batch"), refuse)
    replaced |= {"compile": compiled, "compile_from_config": _compile_nothing}
    with mock.patch.object(keras.Variable, "__init__", made), mock.patch.multiple(keras.Model, **replaced):
        yield


def _compile_nothing(model: keras.Model, config: Any) -> None:
    """Stands in for `compile_from_config` of loaded and copied models."""


def _check_parameters(function: Callable[..., Any], given: Mapping[str, int]) -> None:
    """Raises UnusableModelError if a call needs other arguments than those given."""
    try:
        inspect.signature(function).bind(**given)
    except TypeError as error:
        raise UnusableModelError(
            f"the function is called with {'num_classes only' if given else 'no argument'} ({error}): give its other "
            "parameters defaults, or name a function that calls it with them."
        ) from error


def takes_num_classes(name: str) -> bool:
    """Returns whether the builder of a model takes the number of classes."""
    return name.startswith(APPLICATION) or "num_classes" in inspect.signature(load(name)).parameters


def _checked(model: Any) -> keras.Model:
    """Returns a graph of layers, from one batch of images to [batch, classes].

    Raises:
        UnusableModelError: it is not one.
    """
    if not isinstance(model, keras.Model):
        raise UnusableModelError(
            f"the function returned an object of type {type(model).__name__}: return a model of Keras 3, "
            "such as keras.Model(images, logits)."
        )
    if not (_is_graph(model) and getattr(model, "inputs", None)):
        raise UnusableModelError(
            "its model has no graph of layers with known shapes, or a call() of its own: return keras.Model(images, "
            "model(images)) with images = keras.Input((height, width, channels))."
        )
    if any(getattr(layer, "quantization_mode", None) for layer in layers_in(model)):
        raise UnusableModelError("its model is quantized, which is for inference: return it before quantize().")
    inputs, outputs = ([tuple(tensor.shape) for tensor in ends] for ends in (model.inputs, model.outputs))
    match inputs, outputs:
        case [(None, int(), int(), int())], [(None, int(classes))] if classes > 1:
            return model
    raise UnusableModelError(
        f"its model maps inputs of shape {', '.join(map(str, inputs))} to outputs of shape "
        f"{', '.join(map(str, outputs))}: it must map one batch of images, (None, height, width, channels) of a fixed "
        "size, to the logits of at least two classes, (None, classes); for two classes Dense(2) without an activation. "
        "--batch_size chooses the size of the batch."
    )


def _is_model(layer: Any) -> bool:
    return isinstance(layer, keras.Sequential) or hasattr(layer, "operations")


def _is_graph(layer: Any) -> bool:
    """Returns whether a layer is a model that calls its layers in order, without a call() of its own."""
    return _is_model(layer) and _is_of_keras(type(layer).call)


def _is_of_keras(code: Any) -> bool:
    return code.__module__.partition(".")[0] == "keras"


def adopt(keras_model: keras.Model, images: Tensor, layers: Layers) -> Tensor:
    """Moves the layers of a functional or sequential model onto images and returns float32 logits, [batch, classes].

    The model given is of no use afterwards. Its regularizers and constraints are not used, and layers that scale the
    images are left out. Images are symbolic, in the data format that the model was built for.
    """
    last, preparing = _last(keras_model), {id(layer) for layer in preparing_layers(keras_model)}
    is_taken = any(layer.name == "logits" for layer in operations_in(keras_model))

    def move(layer: Any) -> Any:
        if layer is last:
            return _as_logits(layer, layer.name if is_taken else "logits")
        if id(layer) in preparing and isinstance(layer, _SCALING):
            return keras.layers.Identity(name=layer.name)
        clips = hasattr(layer, "value_range") and type(layer).__name__ != "RandomInvert"  # which subtracts from the end
        if id(layer) in preparing and clips and _is_of_keras(type(layer)):
            return type(layer).from_config(layer.get_config() | {"value_range": _VALUE_RANGE})
        return _replaced(layer, layers) or without_calls(layer)

    clone = cloning(move)
    if isinstance(keras_model, keras.Sequential):  # whose clone would have an input of its own
        logits = images
        for layer in keras_model.layers:
            logits = clone(layer)(logits)
    else:
        inputs = keras.tree.map_structure(lambda _: images, keras_model.input)
        with mock.patch.object(keras.Model, "compile_from_config", _compile_nothing):
            logits = keras.models.clone_model(keras_model, input_tensors=inputs, clone_function=clone).outputs[0]
    made = keras.Model(images, logits)
    for layer in layers_in(made):
        for inner in () if layer.trainable or _is_model(layer) else layers_in(layer):
            inner.trainable = False  # it was made in the build() of a frozen layer
    for variable in made.variables:
        initializer = initializer_of(variable)
        if isinstance(getattr(initializer, "seed", None), int):
            initializer.seed = RunTimeSeed(initializer.seed)
        variable.regularizer = variable.constraint = None  # which Keras' fit would apply, and no other loop
    return logits if logits.dtype == "float32" else InFloat32("logits_in_float32")(logits)


def cloning(copy: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns a function that copies a layer, or a model layer by layer. It copies none twice: layers may be shared."""
    copies: dict[int, Any] = {}

    def clone(layer: Any) -> Any:
        if id(layer) not in copies:
            is_graph = _is_graph(layer)
            copies[id(layer)] = keras.models.clone_model(layer, clone_function=clone) if is_graph else copy(layer)
        return copies[id(layer)]

    return clone


def preparing_layers(keras_model: keras.Model) -> Iterator[Any]:
    """Returns the layers that scale and augment images before any other layer, also those of a model in the model."""
    prepare = (keras.layers.InputLayer, _AUGMENTING, *_SCALING)
    return itertools.takewhile(lambda layer: isinstance(layer, prepare), operations_in(keras_model))


def operations_in(keras_model: Any) -> Iterator[Any]:
    """Yields the layers and operations of a model, also of models in it."""
    for layer in getattr(keras_model, "operations", keras_model.layers):
        yield from operations_in(layer) if _is_graph(layer) else (layer,)


def _last(keras_model: keras.Model) -> Any:
    """Returns the layer that computes the output, also of a model in the model; None if it computes more than that."""
    last: Any = keras_model
    output = 0
    while _is_graph(last):
        last, output = last_operation(last, output)
    return last


def _as_logits(layer: Any, name: str) -> Any:
    """Returns the last layer or operation in float32 and without its softmax; a dense layer of Keras gets the name."""
    is_softmax = _is_softmax(layer)
    if is_softmax and not hasattr(layer, "activation"):
        return InFloat32(layer.name)
    if not isinstance(layer, keras.layers.Dense | keras.layers.Activation):
        return without_calls(layer)
    if is_softmax:
        layer.activation = keras.activations.linear
    named = _remade(layer, type(layer), {"name": name}) if type(layer) is keras.layers.Dense else None
    made = named or without_calls(layer)
    made.dtype_policy = "float32"
    return made


def _is_softmax(layer: Any) -> bool:
    """Returns whether a layer or operation, or its activation, is Keras' or TensorFlow's softmax over the classes."""
    applied = getattr(layer, "activation", None) or layer
    code = applied if inspect.isfunction(applied) else type(applied)
    is_named = code.__name__.lower() in ("softmax", "softmax_v2")
    is_known = code.__module__.partition(".")[0] in ("keras", "tensorflow")
    return is_named and is_known and keras.tree.flatten(getattr(applied, "axis", -1)) in ([-1], [1])


class InFloat32(keras.layers.Layer):
    """Returns its inputs in float32; takes the mask that Keras passes to a softmax layer."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, dtype="float32")

    def call(self, inputs: Any, mask: Any = None) -> Any:
        """Returns the inputs, which Keras has cast."""
        return inputs


def _replaced(layer: Any, layers: Layers) -> keras.Layer | None:
    """Returns the layer of this suite that computes the same; None if there is none."""
    kind, channels = type(layer), layers.data_format.index("C")
    if kind is keras.layers.BatchNormalization:
        is_of_images = (
            layer.input_spec is not None and layer.input_spec.ndim == 4 and layer.axis in (channels, channels - 4)
        )
        has_renorm = getattr(layer, "renorm", False)  # since Keras 3.14
        if not is_of_images or not layer.trainable or has_renorm or layer.synchronized:
            return None
        names = ("name", "momentum", "epsilon", "center", "scale", *(f"{of}_initializer" for of in _NORM_VARIABLES))
        return layers.batch_norm(data_format=layers.data_format, **{name: getattr(layer, name) for name in names})
    if kind is keras.layers.Normalization:
        return _remade(layer, Normalization)
    if getattr(layer, "data_format", None) != KERAS_FORMATS[layers.data_format]:
        return None
    if kind in _POOLS and len({*layer.pool_size}) == len({*layer.strides}) == 1:
        return Pool(
            _POOLS[kind],
            size=layer.pool_size[0],
            stride=layer.strides[0],
            padding=layer.padding,
            data_format=layers.data_format,
            name=layer.name,
        )
    if {*getattr(layer, "dilation_rate", ())} != {1}:
        return None
    if kind in _BY_CHANNEL:
        return _remade(layer, _BY_CHANNEL[kind])
    if kind is keras.layers.Conv2D:
        if layer.groups > 1:
            return _remade(layer, GroupedConvolution)
        if len({*layer.strides}) == 1:
            return _remade(layer, layers.kernels.layer(tuple(layer.kernel_size), layer.strides[0]))
    return None


def _remade(layer: Any, kind: Any, changes: Mapping[str, Any] | None = None) -> Any:
    """Returns a layer of another class with the configuration and activation of a layer; None if Keras cannot."""
    with warnings.catch_warnings(), contextlib.suppress(*_NO_COPY):
        warnings.filterwarnings("ignore", "The object being serialized includes a `lambda`")  # nothing is saved
        made = kind.from_config(layer.get_config() | (changes or {}))
        if hasattr(layer, "activation"):
            made.activation = layer.activation  # its name in the configuration could be that of another function
        return made
    return None
