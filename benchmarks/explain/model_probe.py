"""A process that builds a model which other code makes, and writes its facts as JSON; see `config.outside_models`.

python -m benchmarks.explain.model_probe NAME NUM_CLASSES
"""

from __future__ import annotations

import dataclasses
import faulthandler
import hashlib
import json
import os
import signal
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from benchmarks.config.outside_models import AROUND_ANSWER, Facts, outside_spec
from benchmarks.devices.start_tensorflow import start
from benchmarks.process.tensorflow_setup import Runtime
from models.applications import APPLICATION
from models.model_spec import ModelSpec
from models.outside_code import UnusableModelError, contained

if TYPE_CHECKING:
    import keras

    from models.building import Model

_NEAR_ONE = 1e-3  # the sum of probabilities in float32
_INSTALLED = ("site-packages", "dist-packages")


def find_facts(name: str, num_classes: int) -> Facts:
    """Builds a model for so many classes, if that can be chosen, and returns its facts.

    Raises:
        UnusableModelError: it cannot be trained here.
    """
    from benchmarks.training import flop_count, model_facts
    from models import building, from_keras
    from models.layers import FusedBatchNorm

    loaded = set(sys.modules)
    with building.stateless_building(seed=0), building.keras_format("NHWC"):
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
    _check_variables(model)
    if not name.startswith(APPLICATION):
        _check_outputs(model, spec)
    layers = list(_layers(model.keras_model))
    convolutions = [layer for layer in layers if type(layer) is building.keras.layers.Conv2D]
    work = flop_count.of_built(model, spec, batch=1, data_format="NHWC", forward_only=True)
    return dataclasses.replace(
        facts,
        parameters=sum(model_facts.parameters_by_kind(model).values()),
        gflop_per_image=0.0 if work.uncounted else work.flops / 1e9,
        has_conv1x1=any(layer.kernel_size == (1, 1) for layer in convolutions),
        has_batch_norm=any(isinstance(layer, FusedBatchNorm) for layer in layers),
        has_larger_convolutions=any(layer.kernel_size != (1, 1) and layer.strides == (1, 1) for layer in convolutions),
        ignored=list(_ignored(raw)),
        nchw=_builds_in_nchw(spec, outputs, [variable.shape for variable in model.variables]),
        sources={} if name.startswith(APPLICATION) else _sources(name, set(sys.modules) - loaded),
    )


def _ignored(model: keras.Model) -> Iterator[str]:
    """Yields what the code asks for and training does not do: terms of the loss, and constraints of weights."""
    for variable in model.trainable_variables:
        yield from (f"{term} of {variable.path}" for term in ("regularizer", "constraint") if getattr(variable, term))
    yield from (f"activity_regularizer of {each.name}" for each in _layers(model) if each.activity_regularizer)


def _check_variables(model: Model) -> None:
    """Raises UnusableModelError if the managers and optimizers cannot train its variables."""
    types = {variable.dtype for variable in model.variables if variable.kind == "weight"}
    if not types:
        raise UnusableModelError("its model has no trainable variables.")
    others = sorted(types - {"float32"})
    if others:
        raise UnusableModelError(
            f"its model has trainable variables of type {', '.join(others)}: they must be float32. Give its layers no "
            "dtype; --precision chooses the type in which they compute."
        )


def _check_outputs(model: Model, spec: ModelSpec) -> None:
    """Raises UnusableModelError if outputs are probabilities: the code has a softmax that could not be left out.

    The loss applies another one, and training would go on without an error.
    """
    import tensorflow as tf

    # A graph, as in a run; but this kind may use tensors that layers made when they were built.
    @tf.function(autograph=False)
    def forward() -> tf.Tensor:
        images = tf.random.normal((2, spec.image_size, spec.image_size, spec.channels), seed=0)
        return model.call([variable.initial_value() for variable in model.variables], images, training=False)[0]

    try:
        with contained():  # it calls the user's layers
            found = forward().numpy()
    except tf.errors.OpError:  # such as an operation that only GPUs have
        return
    if (found >= 0).all() and (abs(found.sum(axis=-1) - 1) < _NEAR_ONE).all():
        raise UnusableModelError(
            "its outputs are probabilities: return logits, without the softmax, which the loss applies. Only that of "
            "a last layer of Keras is left out."
        )


def _layers(model: keras.Model) -> Iterator[keras.Layer]:
    for layer in model.layers:
        if hasattr(layer, "layers"):
            yield from _layers(layer)
        else:
            yield layer


def _builds_in_nchw(spec: ModelSpec, outputs: int, shapes: Sequence[tuple[int, ...]]) -> bool:
    """Returns whether a model with channels first has variables of the same shapes; some code ignores the layout."""
    from models import building, from_keras

    try:
        with building.stateless_building(seed=0), building.keras_format("NCHW"):
            raw = from_keras.keras_model(spec.name, outputs, (spec.channels, spec.image_size, spec.image_size))
        model = building.build(spec, data_format="NCHW", num_classes=outputs, seed=0)
    except Exception:  # of code that is not ours
        return False
    is_first = tuple(raw.inputs[0].shape[1:]) == (spec.channels, spec.image_size, spec.image_size)
    return is_first and [variable.shape for variable in model.variables] == shapes


def _sources(name: str, modules: set[str]) -> dict[str, str]:
    """Returns the digests of the user's files: that of the function, and what it imports that is not installed."""
    from models import from_keras

    defining, standard = from_keras.load(name).__module__, sysconfig.get_path("stdlib")
    digests = {}
    for module in {defining, *modules}:
        path = Path(getattr(sys.modules[module], "__file__", None) or "")
        is_own = module == defining or not ({*_INSTALLED} & {*path.parts} or path.is_relative_to(standard))
        if path.is_file() and is_own:
            digests[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
    return digests


def main(name: str, num_classes: str) -> NoReturn:
    """Writes `{"facts": ...}` between marks, or why there are none: `{"refused": ...}` or `{"error": ...}`.

    Then it ends at once: a thread, or what the code wants to do at the end, may take for ever.
    """
    answer = os.dup(1)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # it takes too long
    start(Runtime())
    try:
        with ThreadPoolExecutor(1) as thread:  # a run does not build in its main thread either
            facts = thread.submit(find_facts, name, int(num_classes)).result()
        result: dict[str, Any] = {"facts": dataclasses.asdict(facts)}
    except UnusableModelError as error:
        result = {"refused": str(error)}
    except Exception as error:
        traceback.print_exc()
        result = {"error": " ".join(traceback.format_exception_only(error)[-1].split())}
    sys.stderr.flush()
    with open(answer, "wb") as file:
        file.write(AROUND_ANSWER + json.dumps(result).encode() + AROUND_ANSWER)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
