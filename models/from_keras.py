"""Makes a Keras model that other code builds computable like the models of this suite, which keep their own kernels.

The model is cloned layer by layer: batch normalisation, pooling and convolutions become those of `models.layers`. The
scaling of images at the start and a final softmax are left out. Names of layers and variables stay.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import keras

from models.applications import APPLICATION
from models.building import keras_format
from models.convolutions import DepthwiseConvolution, GroupedConvolution, SeparableConvolution
from models.keras_private import initializer_of, last_operation, layers_in
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
# Attributes of layers that differ from copy to copy.
_OF_ONE = ("built", "name", "seed", "_called", "_lock", "_parent_path", "_path")
# Keras raises them if it cannot make a layer from what get_config() returns.
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
        function, given = load(name), {"num_classes": num_classes} if takes_num_classes(name) else {}
        try:
            with contained(), kept_precision():
                return _checked(function(**given))
        except ValueError as error:
            if "stateless scope" not in str(error):
                raise
            raise UnusableModelError(
                "it creates a variable outside the build() of a layer, as optimizers and compile() do: return the "
                "model without compiling it. keras.Variable() of an array does so, too: use add_weight()."
            ) from error
    builder = getattr(keras.applications, name.removeprefix(APPLICATION))
    options: dict[str, Any] = {"input_shape": image_shape} if image_shape else {}
    if "include_preprocessing" in inspect.signature(builder).parameters:
        options["include_preprocessing"] = False
    model = builder(weights=None, classes=num_classes, classifier_activation=None, **options)
    if None in model.inputs[0].shape[1:]:  # of no size in particular
        is_nchw = keras.config.image_data_format() == "channels_first"
        return keras_model(name, num_classes, (3, *_USUAL_SIZE) if is_nchw else (*_USUAL_SIZE, 3))
    return model


def takes_num_classes(name: str) -> bool:
    """Returns whether the builder of a model takes the number of classes."""
    return name.startswith(APPLICATION) or "num_classes" in inspect.signature(load(name)).parameters


def _checked(model: Any) -> keras.Model:
    """Returns a model that can be cloned, from one batch of images to [batch, classes].

    Raises:
        UnusableModelError: it is not one.
    """
    if not isinstance(model, keras.Model):
        raise UnusableModelError(
            f"the function returned an object of type {type(model).__name__}: return a Keras model, such as "
            "keras.Model(images, logits)."
        )
    if not (_is_graph(model) and getattr(model, "inputs", None)):
        raise UnusableModelError(
            "its model has no graph of layers with known shapes, or a call() of its own: return keras.Model(images, "
            "model(images)) with images = keras.Input((height, width, channels))."
        )
    if len(model.inputs) != 1 or len(model.outputs) != 1:
        raise UnusableModelError(
            f"its model has {len(model.inputs)} input(s) and {len(model.outputs)} output(s): it must have one input, "
            "the images, and one output, the logits."
        )
    images, logits = tuple(model.inputs[0].shape[1:]), tuple(model.outputs[0].shape[1:])
    if len(images) != 3 or None in images or len(logits) != 1 or None in logits:
        raise UnusableModelError(
            f"its model maps inputs of shape {images} to outputs of shape {logits}, without the batch: it must map "
            "images (height, width, channels) of a fixed size to (classes,)."
        )
    if logits[0] < 2:
        raise UnusableModelError(
            f"its model has {logits[0]} output: it must have one logit per class, for two classes Dense(2) without an "
            "activation."
        )
    return model


def _is_model(layer: Any) -> bool:
    return isinstance(layer, keras.Sequential) or hasattr(layer, "operations")


def _is_graph(layer: Any) -> bool:
    """Returns whether a layer is a model that calls its layers in order, without a call() of its own."""
    return _is_model(layer) and _is_of_keras(type(layer).call)


def _is_of_keras(code: Any) -> bool:
    return code.__module__.partition(".")[0] == "keras"


def adopt(keras_model: keras.Model, images: Tensor, layers: Layers) -> Tensor:
    """Clones a functional or sequential model onto images and returns float32 logits, [batch, classes].

    The variables, regularizers and constraints of the model are not used, and layers that scale the images are left
    out. Images are symbolic, in the data format that the model was built for.
    """
    last, preparing = _last(keras_model), {id(layer) for layer in _preparing(keras_model)}
    is_taken = any(layer.name == "logits" for layer in _each(keras_model))
    as_last = functools.partial(_as_logits, name=None if is_taken else "logits")

    def copy(layer: Any) -> Any:
        if id(layer) in preparing and isinstance(layer, _SCALING):
            return keras.layers.Identity(name=layer.name)
        if id(layer) in preparing and hasattr(layer, "value_range") and _has_range_of_images(type(layer)):
            return type(layer).from_config(layer.get_config() | {"value_range": _VALUE_RANGE})
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The object being serialized includes a `lambda`")  # nothing is saved
            try:
                replaced = None if layer is last else _replaced(layer, layers)
            except _NO_COPY:
                if _copied(layer, _same) is not None:  # so it is not the layer that cannot be described
                    raise
                replaced = None
            # Each copy draws the seeds of its initialisers, so none is made in vain.
            return replaced or _copied(layer, as_last if layer is last else _same) or _Calling(layer)

    clone = cloning(copy)
    if isinstance(keras_model, keras.Sequential):  # whose clone would have an input of its own
        logits = images
        for layer in keras_model.layers:
            logits = clone(layer)(logits)
    else:
        inputs = keras.tree.map_structure(lambda _: images, keras_model.input)
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


def _preparing(keras_model: keras.Model) -> Iterator[Any]:
    """Returns the layers that scale and augment images before any other layer, also those of a model in the model."""
    prepare = (keras.layers.InputLayer, _AUGMENTING, *_SCALING)
    return itertools.takewhile(lambda layer: isinstance(layer, prepare), _each(keras_model))


def _has_range_of_images(kind: type) -> bool:
    """Returns whether a layer of Keras clips to its range; RandomInvert subtracts from the upper end."""
    return _is_of_keras(kind) and kind.__name__ != "RandomInvert"


def _each(keras_model: Any) -> Iterator[Any]:
    for layer in getattr(keras_model, "operations", keras_model.layers):
        yield from _each(layer) if _is_graph(layer) else (layer,)


def _last(keras_model: keras.Model) -> Any:
    """Returns the layer that computes the output, also of a model in the model; None if it computes more than that."""
    last: Any = keras_model
    output = 0
    while _is_graph(last):
        last, output = last_operation(last, output)
    return last


def _as_logits(layer: Any, name: str | None) -> Any:
    """Returns the last layer or operation without its softmax; a dense layer gets the name, if there is one."""
    is_softmax = _is_softmax(layer)
    if is_softmax and not hasattr(layer, "activation"):
        return InFloat32(layer.name)
    if not isinstance(layer, keras.layers.Dense | keras.layers.Activation):
        return _same(layer)
    config = layer.get_config() | {"dtype": "float32"}
    if isinstance(layer, keras.layers.Dense) and name:
        config["name"] = name
    if is_softmax:
        config["activation"] = "linear"
    return type(layer).from_config(config)


def _is_softmax(layer: Any) -> bool:
    """Returns whether a layer or operation, or its activation, is Keras' or TensorFlow's softmax over the classes."""
    applied = getattr(layer, "activation", None) or layer
    code = applied if inspect.isfunction(applied) else type(applied)
    is_named = code.__name__.lower() in ("softmax", "softmax_v2")
    return is_named and _is_known(code) and getattr(applied, "axis", -1) in (-1, 1)


def _is_known(code: Any) -> bool:
    """Returns whether a function of Keras or TensorFlow, by its name, is that of `keras.activations`."""
    return code.__module__.partition(".")[0] in ("keras", "tensorflow") and code is not keras.ops.gelu  # approximates


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
        if not is_of_images or not layer.trainable or layer.renorm or layer.synchronized:
            return None
        names = ("name", "momentum", "epsilon", "center", "scale", *(f"{of}_initializer" for of in _NORM_VARIABLES))
        config = {name: value for name, value in layer.get_config().items() if name in names}
        return layers.batch_norm(data_format=layers.data_format, **config)
    if kind is keras.layers.Normalization:
        return Normalization.from_config(layer.get_config())
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
    if {*getattr(layer, "dilation_rate", ())} != {1} or not _keeps_activations(layer):
        return None
    if kind in _BY_CHANNEL:
        return _BY_CHANNEL[kind].from_config(layer.get_config())
    if kind is keras.layers.Conv2D:
        if layer.groups > 1:
            return GroupedConvolution.from_config(layer.get_config())
        if len({*layer.strides}) == 1:
            made = layers.kernels.layer(tuple(layer.kernel_size), layer.strides[0])
            return made.from_config(layer.get_config())
    return None


def _same(layer: Any) -> Any:
    return type(layer).from_config(layer.get_config())


def _copied(layer: Any, copy: Callable[[Any], Any]) -> Any:
    """Returns what `copy` makes of the layer's get_config(), or None if that does not describe the layer."""
    with contextlib.suppress(*_NO_COPY):
        if _is_copied(layer):
            made = copy(layer)
            return made if _is_of_keras(type(layer)) or _is_alike(layer, made) else None
    return None


def _is_alike(layer: Any, copy: Any) -> bool:
    """Returns whether plain attributes of a layer, and of the layers in it, are those of a copy that was not called."""
    arguments = inspect.signature(type(layer).__init__).parameters

    def is_same(name: str, value: Any) -> bool:
        other = vars(copy).get(name, value)
        return other == value or other is None and name.lstrip("_") not in arguments  # build() sets it

    plain = [(n, v) for n, v in vars(layer).items() if isinstance(v, bool | int | float | str) and n not in _OF_ONE]
    own = ((n, code) for n, code in _activations(layer) if not _is_known(code))
    keeps_own = all(getattr(vars(copy).get(n), "__code__", None) is code.__code__ for n, code in own)
    inner = (layers_in(each, at_any_depth=False) for each in (layer, copy))
    return keeps_own and all(itertools.starmap(is_same, plain)) and all(map(_is_alike, *inner))


def _activations(layer: Any) -> Iterator[tuple[str, Any]]:
    return ((n, code) for n, code in vars(layer).items() if n.endswith("activation") and inspect.isfunction(code))


def _keeps_activations(layer: Any) -> bool:
    """Returns whether get_config() describes the activations: it has names, and a user's relu() is none of Keras."""
    functions = [code for each in (layer, *layers_in(layer)) for _, code in _activations(each)]
    return all(
        _is_known(code) or keras.activations.get(keras.activations.serialize(code)) is code for code in functions
    )


def _is_copied(layer: Any) -> bool:
    """Returns whether get_config() may describe a layer: not if a class derived from its class has the constructor."""
    if _is_of_keras(type(layer)) and not _keeps_activations(layer):  # of others, the copy is compared
        return False
    if getattr(layer.get_config, "_is_default", False):  # Keras has kept the arguments of the constructor
        return True
    made, described = (
        next(base for base in type(layer).__mro__ if name in vars(base)) for name in ("__init__", "get_config")
    )
    return not _is_model(layer) and (_is_of_keras(made) or issubclass(described, made))


class _Calling(keras.layers.Layer):
    """Calls another layer, so that only this one has a place in our graph of layers."""

    def __init__(self, layer: Any) -> None:
        super().__init__(name=layer.name, dtype=getattr(layer, "dtype_policy", None), autocast=False)
        self.layer = layer

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the other layer with the same arguments."""
        return self.layer(*args, **kwargs)
