"""The facts of a model which other code makes, and what a run cannot train of it; see `config.outside_models`."""

from __future__ import annotations

import dataclasses
import itertools
import re
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

from benchmarks.config.outside_models import Facts, digest_of, is_code, outside_spec
from benchmarks.machine.provenance import is_recorded
from benchmarks.training import flop_count, model_facts
from models import building, from_keras, outside_functions
from models.applications import APPLICATION
from models.building import Model
from models.keras_private import is_rematerialized, layers_in
from models.layers import DataFormat, FusedBatchNorm
from models.model_spec import ModelSpec
from models.outside_code import UnusableModelError, contained

_HEAD_FACTOR = -1e3
_OF_SCALED_IMAGES = (0.2, 50.0)  # they span about 8, from -4 to 4; a scaling divides by 58 to 255, or subtracts 100
_NEAR_ONE = 1e-3  # the sum of probabilities in float32
_UNLIKE = 1e-2  # what differs by a larger share of the largest value does so by more than rounding
_IGNORED = ("activity_regularizer", "synchronized")  # attributes of layers
_OF_FIT = ("train_step", "compute_loss")  # which Keras' fit() calls
_INSTALLED = ("site-packages", "dist-packages")
_VARIABLE = re.compile(rb"""(?:environ(?:\.get\(|\[)|getenv\()\s*['"](\w+)""")  # of the environment, in code

# Variables of the environment that tell processes, users and jobs apart.
_OF_A_PROCESS = re.compile(
    r"(?:\w*_)?(?:RANK|PROCID|LOCALID|NODEID|JOB_?ID|SIZE|HOSTNAME|HOME|USER|TMPDIR|PATH|PYTHONPATH)"
)


def find_facts(name: str, num_classes: int) -> Facts:
    """Builds a model for so many classes, if that can be chosen, and returns its facts.

    Raises:
        UnusableModelError: it cannot be trained here.
    """
    loaded = set(sys.modules)
    in_graph = tf.Graph().as_default()  # as in a run: what needs values of weights fails
    with in_graph, building.stateless_building(seed=0) as scope, building.keras_format("NHWC"):
        raw = from_keras.keras_model(name, num_classes)
        takes_classes = from_keras.takes_num_classes(name)
    height, width, channels = raw.inputs[0].shape[1:]
    if height != width:
        raise UnusableModelError(
            f"its images have the shape {(height, width, channels)}: they must be square, with channels last."
        )
    outputs = raw.outputs[0].shape[-1]
    facts = Facts(image_size=height, channels=channels, outputs=outputs, takes_classes=takes_classes)
    spec = outside_spec(name, facts)
    model = building.build(spec, data_format="NHWC", num_classes=outputs, seed=0)
    _check_variables(model, raw)
    logits = None if name.startswith(APPLICATION) else _logits(model, spec)
    if logits is not None:
        _check_outputs(logits, _logits(model, spec, head_factor=_HEAD_FACTOR))
        _check_scaling(model)
    layers = list(from_keras.operations_in(model.keras_model))
    convolutions = [layer for layer in layers if type(layer) is keras.layers.Conv2D]
    try:
        work = flop_count.of_built(model, batch=1, forward_only=True)
    except RuntimeError as error:
        if "EagerTensor" not in str(error):
            raise
        raise UnusableModelError(
            "one of its layers keeps a tensor, or a tf.Variable, that its call() has not made, and a run calls it in "
            "several graphs: keep a NumPy array, or use add_weight()."
        ) from error
    losses = _losses(model) if is_code(name) else []
    return dataclasses.replace(
        facts,
        parameters=sum(model_facts.parameters_by_kind(model).values()),
        is_checked=name.startswith(APPLICATION) or logits is not None,
        gflop_per_image=0.0 if work.uncounted else work.flops / 1e9,
        has_conv1x1=any(layer.kernel_size == (1, 1) for layer in convolutions),
        has_batch_norm=any(isinstance(layer, FusedBatchNorm) for layer in layers),
        has_larger_convolutions=any(layer.kernel_size != (1, 1) and layer.strides == (1, 1) for layer in convolutions),
        ignored=[*_ignored(raw, scope), *losses],
        nchw=_builds_in_nchw(spec, outputs, [variable.shape for variable in model.variables], logits),
        sources={} if name.startswith(APPLICATION) else _sources(name, set(sys.modules) - loaded),
    )


def _ignored(model: keras.Model, scope: keras.StatelessScope) -> Iterator[str]:
    """Yields what the code asks for and training does not do: values of weights, terms of the loss, its own steps.

    The model was built in the scope.
    """
    if any(scope.get_current_value(variable) is not None for variable in model.weights):
        yield "the weights that it loads"
    if model.compiled:
        yield f"compile() of {model.name}"
    for method in (getattr(type(model), name) for name in _OF_FIT):
        if method.__module__.partition(".")[0] != "keras":
            yield f"{method.__name__}() of {model.name}"
    for variable in model.trainable_variables:
        yield from (f"{term} of {variable.path}" for term in ("regularizer", "constraint") if getattr(variable, term))
    for each in layers_in(model):
        yield from (f"{name} of {each.name}" for name in _IGNORED if getattr(each, name, None))
        if is_rematerialized(each):
            yield f"rematerialization of {each.name}"
        if isinstance(each, keras.layers.MixUp | keras.layers.CutMix):
            yield f"mixed labels of {each.name}"


def _check_variables(model: Model, raw: keras.Model) -> None:
    """Raises UnusableModelError if the managers and optimizers cannot train them, or if the user's model has others."""
    types = {variable.dtype for variable in model.variables if variable.kind == "weight"}
    if not types:
        raise UnusableModelError("its model has no trainable variables.")
    computing = {layer.compute_dtype for layer in layers_in(raw)} & {"float16", "bfloat16", "float64"}
    others = sorted(computing | types - {"float32"})
    if others:
        raise UnusableModelError(
            f"its model has layers or trainable variables of type {', '.join(others)}: they must be float32. Give its "
            "layers no dtype; --precision chooses the type in which they compute."
        )
    models = (raw, model.keras_model)
    shapes = [sorted(tuple(variable.shape) for variable in each.trainable_variables) for each in models]
    if shapes[0] != shapes[1]:
        raise UnusableModelError(
            "the suite's kernels would have other weights: one of its layers uses the weights of a layer that they "
            "replace, or such a layer has weights that were frozen one by one."
        )


def _logits(
    model: Model, spec: ModelSpec, data_format: DataFormat = "NHWC", *, head_factor: float = 1.0
) -> np.ndarray | None:
    """Returns what a model with its initial values computes from two images; None if no CPU can.

    The last weight that is no vector is multiplied with `head_factor`.
    """
    # A graph, as in a run; but this kind may use tensors that layers made when they were built. Values are arguments:
    # TensorFlow would fold constants, and fails to fold x / 127.5 into a convolution.
    forward = tf.function(lambda values, images: model.call(values, images, training=False)[0], autograph=False)
    images = tf.random.stateless_normal((2, spec.image_size, spec.image_size, spec.channels), (0, 0))
    images = tf.transpose(images, [0, 3, 1, 2]) if data_format == "NCHW" else images
    kernels = (n for n, each in enumerate(model.variables) if each.kind == "weight" and len(each.shape) > 1)
    try:
        with contained():  # it calls the user's layers
            values = [variable.initial_value() for variable in model.variables]
            values[max(kernels, default=0)] *= head_factor
            return forward(values, images).numpy()
    except tf.errors.OpError:  # such as an operation that only GPUs have
        return None


def _check_outputs(logits: np.ndarray, of_other_head: np.ndarray | None) -> None:
    """Raises UnusableModelError if outputs are probabilities: the code has a softmax that could not be left out.

    The loss applies another one, and training would go on without an error. A sigmoid is told from logits that happen
    to be small by a head with large weights of the other sign: its outputs change, and stay between 0 and 1.
    """
    if (logits >= 0).all() and (abs(logits.sum(axis=-1) - 1) < _NEAR_ONE).all():
        raise UnusableModelError(
            "its outputs are probabilities: return logits, without the softmax, which the loss applies. Only that of "
            "a last layer of Keras is left out."
        )
    both = np.stack([logits, logits if of_other_head is None else of_other_head])
    if (both >= 0).all() and (both <= 1).all() and (both[0] != both[1]).any():
        raise UnusableModelError(
            "its outputs are always between 0 and 1, as after a sigmoid: return logits, without the sigmoid. The loss "
            "is the cross-entropy of one class per image."
        )


def _check_scaling(model: Model) -> None:
    """Raises UnusableModelError if the first operations scale the images, as if these were numbers from 0 to 255."""
    (images,) = model.keras_model.inputs
    operations = model.keras_model.operations[1:]  # the first is the input

    def has_weights(operation: Any) -> bool:  # also frozen ones, but no seeds
        return any(each.trainable or len(each.shape) > 1 for each in getattr(operation, "variables", ()))

    first = itertools.takewhile(lambda operation: not has_weights(operation), operations)
    shapes = [(operation, getattr(operation.output, "shape", ())) for operation in first]
    # Not such as a mean over pixels, which is small.
    found = [operation for operation, shape in shapes if len(shape) == 4 and 1 not in shape[1:3]]
    if not found:
        return
    with building.no_own_variables(), contained():
        scaled = keras.Model(images, [operation.output for operation in found])

        @tf.function(autograph=False)
        def outputs() -> list[tf.Tensor]:
            drawn = tf.random.stateless_normal((2, *model.image_shape), (0, 0))
            return [tf.cast(each, tf.float32) for each in keras.tree.flatten(scaled(drawn))]

        computed = [value.numpy() for value in outputs()]
    for operation, values in zip(found, computed, strict=True):
        if (values[:1] == values[-1:]).all():  # such as coordinates, which are joined with images
            continue
        if np.ptp(values) < _OF_SCALED_IMAGES[0] or abs(values).max() > _OF_SCALED_IMAGES[1]:
            raise UnusableModelError(
                f"its operation '{operation.name}' scales the images, which are scaled already: leave it out, or use "
                "keras.layers.Rescaling as the first layer, which is left out here."
            )


def _losses(model: Model) -> list[str]:
    """Returns the terms of the loss that layers add in training, such as `add_loss() of dense`.

    Raises:
        UnusableModelError: training draws from a generator whose state no run keeps, such as Keras' own, or a layer
            assigns a value to a weight, which only the optimizer changes in a run.
    """
    drawn, next_seed, assign = [], keras.random.SeedGenerator.next, keras.Variable.assign
    losses: list[str] = []
    assigned: list[str] = []

    def noting(generator: keras.random.SeedGenerator, ordered: bool = True) -> Any:
        drawn.append(generator.state)
        return next_seed(generator, ordered)

    def noting_weights(variable: keras.Variable, value: Any) -> Any:
        assigned.extend([variable.path] if variable.trainable else [])
        return assign(variable, value)

    noting_losses = mock.patch.object(
        keras.Layer, "add_loss", lambda layer, loss: losses.append(f"add_loss() of {layer.name}")
    )
    noting_seeds = mock.patch.object(keras.random.SeedGenerator, "next", noting)
    noting_assigned = mock.patch.object(keras.Variable, "assign", noting_weights)
    with noting_losses, noting_seeds, noting_assigned, tf.Graph().as_default(), contained():
        images = tf.zeros((2, *model.image_shape))
        model.call([variable.initial_value() for variable in model.variables], images, training=True)
    if assigned:
        raise UnusableModelError(
            f"one of its layers assigns a value to the weight {assigned[0]} in its call(), as SpectralNormalization "
            "does, and a run would lose it: only the optimizer changes weights. Leave the layer out, or freeze it."
        )
    kept = {id(variable) for variable in model.keras_model.variables}
    if any(id(state) not in kept for state in drawn):
        raise UnusableModelError(
            "one of its layers calls keras.random without a seed, which would draw the same numbers in every step: set "
            "self.seed_generator = keras.random.SeedGenerator() in its constructor, and pass seed=self.seed_generator."
        )
    return list(dict.fromkeys(losses))


def _builds_in_nchw(
    spec: ModelSpec, outputs: int, shapes: Sequence[tuple[int, ...]], logits: np.ndarray | None
) -> bool:
    """Returns whether a model with channels first has variables of the same shapes, and computes these logits if any.

    Some code ignores the layout, or names axes.
    """
    try:
        with building.stateless_building(seed=0), building.keras_format("NCHW"):
            raw = from_keras.keras_model(spec.name, outputs, (spec.channels, spec.image_size, spec.image_size))
        model = building.build(spec, data_format="NCHW", num_classes=outputs, seed=0)
        is_first = tuple(raw.inputs[0].shape[1:]) == (spec.channels, spec.image_size, spec.image_size)
        if not (is_first and [variable.shape for variable in model.variables] == shapes):
            return False
        found = None if logits is None else _logits(model, spec, data_format="NCHW")
    except Exception:  # of code that is not ours
        return False
    return logits is None or found is None or not np.max(abs(found - logits)) > _UNLIKE * np.max(abs(logits))


def _sources(name: str, modules: set[str]) -> dict[str, str]:
    """Returns the digests of the user's files: that of the function, and what it imports that is not installed.

    Beside them are those of the environment variables that the files name, as `$NAME`, which may change the model.
    """
    defining, standard = outside_functions.load(name).__module__, sysconfig.get_path("stdlib")
    found = set()
    for module in {defining, *modules}:
        path = Path(getattr(sys.modules[module], "__file__", None) or "")
        is_own = module == defining or not ({*_INSTALLED} & {*path.parts} or path.is_relative_to(standard))
        if path.is_file() and is_own:
            named = {variable.decode() for variable in _VARIABLE.findall(path.read_bytes())}
            named = {name for name in named if not is_recorded(name) and not _OF_A_PROCESS.fullmatch(name)}
            found |= {str(path), *(f"${variable}" for variable in named)}
    return {source: digest_of(source) or "" for source in found}
