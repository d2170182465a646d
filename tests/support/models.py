"""Models of `models.specs`, each built once per process: building takes up to a second, and a model does not change.

What costs more than a build per model is tested by default on the smallest models, in slow tests on the
representatives, the one of fewest operations of almost each file in `models/`, and on the others in tests that rotate;
on those with large graphs only in seldom ones.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from models import building, specs
from models.model_spec import ModelSpec
from tests.support import rotation

# Of a forward pass of one image: what every default test of a model can afford.
_FEW_GFLOP = 0.1
# Files of whose models none is a representative or rotates, since every training graph of theirs takes 10 to 40 s.
_LARGE_GRAPHS = ("models.nasnet",)


def build(name: str, *, image_size: int | None = None, **options: Any) -> building.Model:
    """Builds a model, by default for the images that it is for; otherwise as `build_spec`."""
    spec = specs.find_model(name)
    return build_spec(dataclasses.replace(spec, image_size=image_size or spec.image_size), **options)


def build_spec(spec: ModelSpec, **options: Any) -> building.Model:
    """Builds a model, by default in NHWC and with a class for background; `options` are those of `building.build`."""
    return _build(spec.name, spec.image_size, **{"data_format": "NHWC", "num_classes": spec.classes + 1} | options)


@functools.cache
def _build(name: str, image_size: int, **options: Any) -> building.Model:
    return building.build(dataclasses.replace(specs.find_model(name), image_size=image_size), seed=1, **options)


def small(spec: ModelSpec) -> ModelSpec:
    """Returns the model for images with sides of about two sevenths: 64 instead of 224 pixels, 96 instead of 299.

    The sides are a multiple of 32, which is what most models divide them by. Images of up to 64 pixels stay.
    """
    side = -(-spec.image_size * 2 // 7 // 32) * 32
    return dataclasses.replace(spec, image_size=min(spec.image_size, max(side, 64)))


def representatives() -> list[ModelSpec]:
    """Returns the smallest models and one of each kind, sorted by name."""
    files = [
        vars(module).get("SPECS", ())
        for name, module in sys.modules.items()
        if name.startswith("models.") and name not in _LARGE_GRAPHS
    ]
    fewest = {min(listed, key=lambda spec: spec.gflop_per_image).name for listed in files if listed}
    return [spec for spec in specs.MODELS if spec.name in fewest or spec in _SMALLEST]


def _parametrized(
    by_default: Iterable[ModelSpec], slow: Iterable[ModelSpec] = (), rotating: Iterable[ModelSpec] = ()
) -> Any:
    parameters = [
        *map(_parameter, by_default),
        *(_parameter(spec, pytest.mark.slow) for spec in slow),
        *(_parameter(spec, _now_and_then(spec)) for spec in rotating),
    ]
    return pytest.mark.parametrize("spec", parameters)


def _now_and_then(spec: ModelSpec) -> pytest.MarkDecorator:
    large = itertools.chain(*(vars(sys.modules[name])["SPECS"] for name in _LARGE_GRAPHS))
    is_large = spec.name in {each.name for each in large}
    return pytest.mark.seldom if is_large else pytest.mark.rotates(share=_SHARE[spec.name])


def _parameter(spec: ModelSpec, *marks: Any) -> Any:
    is_small = spec.image_size < specs.find_model(spec.name).image_size
    # One worker of pytest-xdist has all tests of a model, because each process builds its own.
    return pytest.param(
        spec,
        id=f"{spec.name}-{spec.image_size}px" if is_small else spec.name,
        marks=[pytest.mark.xdist_group(spec.name), *marks],
    )


# Models of about as many operations are in different shares, and all tests of a model are in one.
_SHARE = {
    spec.name: index % rotation.SHARES
    for index, spec in enumerate(sorted(specs.MODELS, key=lambda spec: spec.gflop_per_image))
}
_SMALLEST = [spec for spec in specs.MODELS if spec.gflop_per_image < _FEW_GFLOP]
_LARGER = [spec for spec in representatives() if spec not in _SMALLEST]
_OTHERS = [spec for spec in specs.MODELS if spec not in representatives()]

# For what costs at most a build.
every_model = _parametrized(representatives(), slow=_OTHERS)
# For what costs several builds, or graphs.
every_model_in_parts = _parametrized(_SMALLEST, slow=_LARGER, rotating=_OTHERS)
# For what a model computes, on small images; the representatives of the rotating tests also on whole ones.
small_and_whole_models = _parametrized(
    _SMALLEST,
    slow=map(small, _LARGER),
    rotating=[*map(small, _OTHERS), *(spec for spec in representatives() if small(spec) != spec)],
)
# For what other code makes of a model.
small_models = _parametrized(_SMALLEST, rotating=map(small, [*_LARGER, *_OTHERS]))


def twice(images: np.ndarray) -> np.ndarray:
    """Returns images, and after them the same with the last bit of each pixel changed.

    What a model makes of that bit is what rounding alone may change; deep models at initial values make much of it.
    """
    return np.concatenate([images, np.nextafter(images, np.float32(np.inf))])


def rounding(logits: np.ndarray) -> float:
    """Returns how far rounding may move the logits of images that are there `twice`."""
    largest = float(np.abs(logits).max())
    moved = float(np.abs(np.subtract(*np.split(logits, 2))).max())
    assert moved < 0.01 * largest, "an error could not be told from rounding"
    return 4 * moved + 1e-5 * largest


def drawn_at_run_time(graph: tf.Graph) -> list[bool]:
    """Returns of each operation that draws random numbers whether the graph's optimisation cannot run it."""
    drawing = [o for o in graph.get_operations() if o.type.startswith("StatelessRandom") and "KeyCounter" not in o.type]
    return [any(each.op.type == "PlaceholderWithDefault" for each in _inputs(operation)) for operation in drawing]


def _inputs(operation: tf.Operation) -> Iterator[tf.Tensor]:
    """Yields all that an operation depends on."""
    for tensor in operation.inputs:
        yield tensor
        yield from _inputs(tensor.op)
