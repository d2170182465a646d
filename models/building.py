"""Builds a model and calls it as a pure function inside a TensorFlow graph.

Keras holds the architecture; the caller holds the variables. `build` builds and calls a model inside a
`keras.StatelessScope` that leaves its variables uninitialised. So building takes milliseconds, needs no memory, and
needs no eager runtime, which would reserve a GPU's memory a second time. Only reference loops get a model that owns its
variables.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import keras
import tensorflow as tf

from models.convolutions import USUAL_KERNELS, Kernels
from models.keras_private import layers_in
from models.layers import KERAS_FORMATS, DataFormat, Layers
from models.model_spec import ModelSpec

# Weight decay usually leaves these out: they are few, and smaller values do not make the function smaller.
_OF_NORMALISATION = ("gamma", "beta")
_NOT_DECAYED = ("bias", *_OF_NORMALISATION, "class_token", "positions")
_SEED = "seed_generator_state"  # Keras' name of the state of any seed

VariableKind = Literal["weight", "statistic", "tower_state"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelVariable:
    """The description of one variable of a model.

    Attributes:
        name: Keras' path, for example `stem/kernel`; the same for every manager and in every checkpoint.
        shape: static shape.
        dtype: name of the type.
        kind: `weight` is trained; `statistic` is a moving average, a counter or a table; `tower_state` belongs to one
            tower and is never shared (the state of a dropout seed).
        decayed: whether weight decay applies.
        initial_value: makes the initial value, in the default graph, on the current device.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: VariableKind
    decayed: bool
    initial_value: Callable[[], tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Model:
    """A Keras model as a pure function of its variables, which are listed in the order of `call`."""

    keras_model: keras.Model
    variables: Sequence[ModelVariable]

    @property
    def image_shape(self) -> tuple[int, ...]:
        """The shape of one image, in the data format that it was built for."""
        return tuple(self.keras_model.inputs[0].shape[1:])

    def descriptions_of(self, variables: Iterable[keras.Variable]) -> list[ModelVariable]:
        """Returns the descriptions of some of the Keras model's variables, in their order."""
        return [self._described[id(variable)] for variable in variables]

    @functools.cached_property
    def _described(self) -> dict[int, ModelVariable]:
        return {id(own): each for own, each in zip(ordered(self.keras_model), self.variables, strict=True)}

    def call(
        self, values: Sequence[tf.Tensor], images: tf.Tensor, *, training: bool
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Runs the model on the values of its variables.

        Args:
            values: one tensor per variable.
            images: [batch, height, width, channels], or [batch, channels, height, width] for a model in NCHW.
            training: use batch statistics and dropout.

        Returns:
            The logits, [batch, classes] float32; and the new values of statistics and tower states, by name.
        """
        count = len(self.keras_model.trainable_variables)
        with calling(self.keras_model):
            logits, state = self.keras_model.stateless_call(
                list(values[:count]), list(values[count:]), images, training=training
            )
        return logits, {v.name: value for v, value in zip(self.variables[count:], state, strict=True)}


def build(
    spec: ModelSpec,
    *,
    data_format: DataFormat,
    num_classes: int,
    seed: int,
    precision: str = "fp32",
    kernels: Kernels = USUAL_KERNELS,
    fused_bn: bool = True,
    owning: bool = False,
) -> Model:
    """Builds a model; equal seeds give equal initial values.

    Args:
        spec: the model.
        data_format: layout of images.
        num_classes: number of logits.
        seed: of the initial values.
        precision: with `bf16` and `fp16`, layers compute in 16 bits; variables, batch-norm statistics and logits stay
            in float32.
        kernels: what computes convolutions and pools; matrix products are for NHWC only.
        fused_bn: batch normalisation is TensorFlow's fused kernel, not separate operations.
        owning: Keras allocates and owns the variables, for a reference loop such as `fit`. It needs the eager runtime.
    """
    scope = _seeded_building if owning else stateless_building

    def built() -> Model:
        with scope(seed, _POLICIES[precision]):
            layers = Layers(data_format, kernels=kernels, fused_bn=fused_bn)
            size = (spec.image_size, spec.image_size)
            images = keras.Input(
                (spec.channels, *size) if data_format == "NCHW" else (*size, spec.channels), name="images"
            )
            logits = spec.build(images, layers, num_classes)
            return adapt(keras.Model(images, logits, name=re.sub(r"\W+", "_", spec.name, flags=re.ASCII).strip("_")))

    if not owning:
        return _with_names_of_its_own(built)
    model = built()
    if spec.ignored:  # such as weights that its code loads
        options: dict[str, Any] = {"precision": precision, "kernels": kernels, "fused_bn": fused_bn}
        initial = build(spec, data_format=data_format, num_classes=num_classes, seed=seed, **options).variables
        for variable, described in zip(ordered(model.keras_model), initial, strict=True):
            variable.assign(described.initial_value())
    return model


def decaying(model: Model, decayed: str) -> Model:
    """Returns the model with weight decay on other weights.

    `decayed` is `kernels`, as it was built; `kernels_and_biases`: all but those of normalisation; or `all`.
    """
    if decayed == "kernels":
        return model
    left_out = () if decayed == "all" else _OF_NORMALISATION
    variables = [
        dataclasses.replace(variable, decayed=variable.kind == "weight" and leaf not in left_out)
        for variable, leaf in ((variable, variable.name.rsplit("/", 1)[-1]) for variable in model.variables)
    ]
    return dataclasses.replace(model, variables=variables)


def _with_names_of_its_own(build_model: Callable[[], Model]) -> Model:
    """Calls a function in a new thread, where Keras numbers layers without a name from the start."""
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()

    def built() -> Model:
        if graph is None:
            return build_model()
        with graph.as_default(), tf.name_scope("building"):  # names in a graph's root may not begin with an underscore
            return build_model()

    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        return thread.submit(built).result()


def build_application(*, data_format: DataFormat, num_classes: int, seed: int, precision: str = "fp32") -> Model:
    """Builds `keras.applications.ResNet50` with random weights and with logits; Keras owns the variables."""
    with _seeded_building(seed, _POLICIES[precision]), keras_format(data_format):
        return adapt(keras.applications.ResNet50(weights=None, classes=num_classes, classifier_activation=None))


@contextlib.contextmanager
def keras_format(data_format: DataFormat) -> Iterator[None]:
    """Inside it, Keras builds models for images in this layout unless they name one."""
    before = keras.config.image_data_format()
    keras.config.set_image_data_format(KERAS_FORMATS[data_format])
    try:
        yield
    finally:
        keras.config.set_image_data_format(before)


_POLICIES = {"fp32": "float32", "tf32": "float32", "bf16": "mixed_bfloat16", "fp16": "mixed_float16"}


@contextlib.contextmanager
def stateless_building(seed: int, policy: str = "float32") -> Iterator[keras.StatelessScope]:
    """Inside it, Keras builds models with seeded initialisers and a dtype policy, without allocating variables."""
    with _seeded_building(seed, policy), no_own_variables() as scope:
        yield scope


@contextlib.contextmanager
def _seeded_building(seed: int, policy: str) -> Iterator[None]:
    keras.utils.set_random_seed(seed)
    keras.config.set_floatx("float32")  # the user's keras.json may set another
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def adapt(keras_model: keras.Model) -> Model:
    """Makes a Keras model a pure function. The model must have been built inside `stateless_building`."""
    for layer in layers_in(keras_model):
        layer.activity_regularizer = None  # no loss takes it, and it may keep a tensor of the graph that builds it
    variables: dict[str, ModelVariable] = {}
    for number, variable in enumerate(ordered(keras_model)):
        described = _describe(variable, number)
        layer, _, leaf = described.name.rpartition("/")
        repeats = itertools.count(1)
        while described.name in variables:  # layers of models in the model may have equal names
            described = dataclasses.replace(described, name=f"{layer}.{next(repeats)}/{leaf}")
        variables[described.name] = described
    return Model(keras_model, list(variables.values()))


def ordered(keras_model: keras.Model) -> list[keras.Variable]:
    """Returns the variables in the order of `Model.variables`."""
    return [*keras_model.trainable_variables, *keras_model.non_trainable_variables]


def no_own_variables() -> keras.StatelessScope:
    """Inside it, Keras uses variables without allocating them."""
    return keras.StatelessScope(initialize_variables=False)


@contextlib.contextmanager
def calling(keras_model: keras.Model) -> Iterator[None]:
    """As `no_own_variables`, for a call. Names of layers may begin with an underscore, names in a graph's root not."""
    is_odd = any(layer.name.startswith("_") for layer in keras_model.layers)
    with no_own_variables(), tf.name_scope("model") if is_odd else contextlib.nullcontext():
        yield


def _describe(variable: keras.Variable, number: int) -> ModelVariable:
    kind: VariableKind = "weight"
    if not variable.trainable:
        kind = "tower_state" if variable.name == _SEED else "statistic"

    def initial_value() -> tf.Tensor:
        with no_own_variables():
            value: Any = variable.value  # the initialiser's output: the variable is never initialised
        if isinstance(value, tf.Variable):
            raise RuntimeError(f"Keras allocated {variable.path}: build the model inside stateless_building().")
        return value

    return ModelVariable(
        # Keras numbers seed generators over the whole process; a name must not depend on earlier models.
        # A name in a graph's root may not begin with an underscore, as that of a layer may.
        name=f"seed_{number}" if kind == "tower_state" else variable.path.lstrip("_"),
        shape=tuple(variable.shape),
        dtype=variable.dtype,
        kind=kind,
        decayed=variable.trainable
        and len(variable.shape) != 1
        and variable.path.rsplit("/", 1)[-1] not in _NOT_DECAYED,
        initial_value=initial_value,
    )
