"""Models between this suite and Keras: a model with its values as Keras' own, and values from Keras' files."""

from __future__ import annotations

import itertools
import zipfile
from collections.abc import Mapping
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from benchmarks.checkpoints.training_state import of_other_classes
from benchmarks.errors import DataError, UsageError, headline
from models import building, to_keras
from models.building import Model
from models.from_keras import operations_in
from models.model_spec import ModelSpec
from models.outside_code import UnusableModelError
from results.loading import IS_LFS_POINTER, LFS_POINTER

KERAS_FILES = (".keras", ".h5", ".hdf5")
_ZIP, _HDF5 = b"PK", b"\x89HDF"  # how a .keras file begins, and one of the other endings
_ROUNDING = 1e-2  # relative to the largest logit


def to_model(spec: ModelSpec, num_classes: int, values: Mapping[str, np.ndarray]) -> keras.Model:
    """Returns a model of Keras with these values, for images in NHWC and in float32; Keras owns its variables.

    The values, by canonical name, are at least those of all weights and statistics.

    Raises:
        UsageError: the model has a layer that Keras cannot save, or saves without all that it is made of.
        DataError: a value is missing, or has another shape.
    """
    with tf.Graph().as_default():
        model = building.build(spec, data_format="NHWC", num_classes=num_classes, seed=0)
    try:
        made = to_keras.plain(model.keras_model)
    except UnusableModelError as error:
        raise UsageError(f"--model={spec.name}: {error}") from error
    for described, variable in zip(model.variables, building.ordered(made), strict=True):
        if described.kind == "tower_state":
            continue
        value = values.get(described.name)
        if value is None or value.shape != described.shape:
            found = "no value" if value is None else f"a value of shape {value.shape}"
            raise DataError(
                f"The checkpoint has {found} for {described.name}, which has the shape {described.shape} in "
                f"{spec.name}: the model has changed since it was saved."
            )
        variable.assign(value)
    images = np.random.default_rng(0).normal(size=(2, *made.input_shape[1:])).astype(np.float32)
    wanted, _ = model.call([tf.constant(variable) for variable in building.ordered(made)], images, training=False)
    tolerance = _ROUNDING * np.abs(np.nan_to_num(wanted)).max()
    if not np.allclose(made(images, training=False), wanted, rtol=0, atol=tolerance, equal_nan=True):
        raise UsageError(
            f"--model={spec.name}: Keras would save another function: the get_config() of one of its layers leaves out "
            "arguments of its constructor. Let it return all of them."
        )
    return made


def in_inference(model: keras.Model) -> keras.Model:
    """Returns a model that never trains: where nothing says so, Keras' augmentation does, and all layers behind it."""
    return keras.Model(model.input, model(model.input, training=False))


def require_keras_file(path: str) -> None:
    """Looks at how the file of `--initial_weights` begins, before anything is built to read it.

    Raises:
        DataError: it cannot be opened, or is not of the format that its ending names.
    """
    try:
        problem = _format_problem(Path(path))
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}"
    if problem:
        raise DataError(f"--initial_weights={path} {problem}.")


def _format_problem(path: Path) -> str:
    """Returns what is wrong with a file of Keras, to follow its name; nothing if only reading all of it can tell."""
    another = "pass one that Model.save() or Model.save_weights() of Keras has written"
    if not path.is_file():
        return f"is no file on this host: {another}"
    with path.open("rb") as file:
        start = file.read(len(LFS_POINTER))
        is_archive = zipfile.is_zipfile(file)
    if not start:
        return f"is empty: {another}"
    if start == LFS_POINTER:
        return IS_LFS_POINTER
    if path.suffix.lower() != ".keras":
        if start.startswith(_ZIP):
            return "is an archive and no HDF5: if Model.save() has written it, let its name end in .keras"
        return "" if start.startswith(_HDF5) else f"is no HDF5: {another}"
    if start.startswith(_HDF5):
        return (
            "is HDF5 and no archive: let its name end in .weights.h5 if Model.save_weights() has written it, otherwise "
            "in .h5"
        )
    if start.startswith(_ZIP) and not is_archive:
        return "is an archive that is cut off: copy it again"
    return "" if is_archive else f"is no archive: {another}"


def read_keras_weights(path: str | Path, model: Model) -> dict[str, np.ndarray]:
    """Returns values for all weights and statistics of a model, by canonical name, from a file of Keras.

    Variables are found by name, except those of the last layer. If another name differs, all are taken in their order.
    A last layer for another number of classes keeps its shape, see `of_other_classes`.

    Args:
        path: `.keras`, a whole model; `.weights.h5`, the weights of one; or `.h5` of Keras 2, either.
        model: of the same architecture; its data format and precision do not matter.

    Raises:
        DataError: the file cannot be read, or is of another model.
    """
    wanted = model.descriptions_of(model.keras_model.weights)
    try:
        found = _read(Path(path), model)
    except Exception as error:  # a file can be damaged in any way
        advice = ""
        if isinstance(error, OSError):
            advice = " If it is cut off, copy it again."
        elif "shape" in str(error).lower() and Path(path).suffix != ".keras":
            advice = " If it is for other classes, load it into a model of Keras, and save that as a .keras file."
        reason = headline(error).rstrip(".:")
        raise DataError(f"{path} cannot be read into {model.keras_model.name}: {reason}.{advice}") from error
    place = {described.name: number for number, described in enumerate(wanted)}
    last_layer = f"{wanted[-1].name.rpartition('/')[0]}/"
    if {name for name in place if not name.startswith(last_layer)} <= {name for name, _ in found}:
        found.sort(key=lambda named: place.get(named[0], len(place)))
    values = {described.name: value for described, (_, value) in zip(wanted, found, strict=False)}
    other_head = of_other_classes(values, wanted)
    for described, named in itertools.zip_longest(wanted, found):
        if described and described.name in other_head:
            continue
        ours = f"{described.name} {described.shape}" if described else "nothing more"
        theirs = f"{named[0]} {named[1].shape}" if named else "nothing more"
        if not described or not named or described.shape != named[1].shape:
            raise DataError(
                f"{path} is of another model than {model.keras_model.name}: where the model has {ours}, the file has "
                f"{theirs}. Pass weights of the same architecture, with as many classes (--num_classes)."
            )
    return {described.name: values[described.name].astype(described.dtype) for described in wanted}


def _read(path: Path, model: Model) -> list[tuple[str, np.ndarray]]:
    """Returns what the layers of a file hold, in their order. No memory is allocated on devices."""
    with tf.Graph().as_default(), building.no_own_variables() as scope:
        if path.suffix == ".keras":
            held = keras.models.load_model(path, compile=False)
        else:
            held = to_keras.plain(model.keras_model)
            held.load_weights(path)  # of a whole model in the format of Keras 2, too, whose code is not run
        left_out = {id(variable) for layer in _leading_normalization(held) for variable in layer.weights}
        if any(isinstance(layer, keras.layers.Normalization) for layer in operations_in(model.keras_model)):
            left_out = set()
        variables = [variable for variable in held.weights if id(variable) not in left_out]
        return [(variable.path, tf.get_static_value(scope.get_current_value(variable))) for variable in variables]


def _leading_normalization(keras_model: keras.Model) -> list[keras.layers.Normalization]:
    """Returns the layers that normalise images before any layer with other weights."""
    first = itertools.takewhile(
        lambda layer: isinstance(layer, keras.layers.Normalization) or not getattr(layer, "weights", ()),
        operations_in(keras_model),
    )
    return [layer for layer in first if isinstance(layer, keras.layers.Normalization)]
