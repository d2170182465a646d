"""Models of `models.specs`, each built once per process: building takes up to a second, and a model does not change.

What costs more than a build per model is tested by default on the representatives, and on the other models in slow
or seldom tests. Representatives are the models of few operations, and the one of fewest of almost each file in
`models/`.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Iterable
from typing import Any

import pytest

from models import building, specs
from models.model_spec import ModelSpec

# Of a forward pass of one image: what every default test of a model can afford.
_FEW_GFLOP = 0.1
# The same, for small images.
_FEW_GFLOP_SMALL = 0.5
# Files of whose models none is a representative, since every training graph of theirs takes about 10 s.
_LARGE_GRAPHS = ("models.nasnet",)


def build(name: str, *, image_size: int | None = None, **options: Any) -> building.Model:
    """Builds a model, by default for the images that it is for; otherwise as `build_spec`."""
    spec = specs.find(name)
    return build_spec(dataclasses.replace(spec, image_size=image_size or spec.image_size), **options)


def build_spec(spec: ModelSpec, **options: Any) -> building.Model:
    """Builds a model, by default in NHWC and with a class for background; `options` are those of `building.build`."""
    return _build(spec.name, spec.image_size, **{"data_format": "NHWC", "num_classes": spec.classes + 1} | options)


@functools.cache
def _build(name: str, image_size: int, **options: Any) -> building.Model:
    return building.build(dataclasses.replace(specs.find(name), image_size=image_size), seed=1, **options)


def small(spec: ModelSpec) -> ModelSpec:
    """Returns the model for images with sides of about two sevenths: 64 instead of 224 pixels, 96 instead of 299.

    The sides are a multiple of 32, which is what most models divide them by. Images of up to 64 pixels stay.
    """
    side = -(-spec.image_size * 2 // 7 // 32) * 32
    return dataclasses.replace(spec, image_size=min(spec.image_size, max(side, 64)))


def representatives() -> list[ModelSpec]:
    """Returns the models of the default tests, sorted by name."""
    files = [
        vars(module).get("SPECS", ())
        for name, module in sys.modules.items()
        if name.startswith("models.") and name not in _LARGE_GRAPHS
    ]
    fewest = {min(listed, key=lambda spec: spec.gflop_per_image).name for listed in files if listed}
    return [spec for spec in specs.MODELS if spec.name in fewest or spec.gflop_per_image < _FEW_GFLOP]


def _parametrized(
    by_default: Iterable[ModelSpec], slow: Iterable[ModelSpec] = (), seldom: Iterable[ModelSpec] = ()
) -> Any:
    parameters = [
        *map(_parameter, by_default),
        *(_parameter(spec, pytest.mark.slow) for spec in slow),
        *(_parameter(spec, pytest.mark.seldom) for spec in seldom),
    ]
    return pytest.mark.parametrize("spec", parameters)


def _parameter(spec: ModelSpec, *marks: Any) -> Any:
    is_small = spec.image_size < specs.find(spec.name).image_size
    # One worker of pytest-xdist has all tests of a model, because each process builds its own.
    return pytest.param(
        spec,
        id=f"{spec.name}-{spec.image_size}px" if is_small else spec.name,
        marks=[pytest.mark.xdist_group(spec.name), *marks],
    )


def _has_few_operations(spec: ModelSpec) -> bool:
    share = (small(spec).image_size / spec.image_size) ** 2
    return spec.gflop_per_image * share < _FEW_GFLOP_SMALL


_BY_DEFAULT = representatives()
_OTHERS = [spec for spec in specs.MODELS if spec not in _BY_DEFAULT]
_FEW = [small(spec) for spec in _BY_DEFAULT if _has_few_operations(spec)]
_SMALL = [small(spec) for spec in specs.MODELS]

# For what costs at most a build.
every_model = _parametrized(specs.MODELS)
# For what costs several builds, or graphs.
every_model_in_parts = _parametrized(_BY_DEFAULT, slow=_OTHERS)
# For what a model computes, on small images; the representatives in slow tests also on whole ones.
small_and_whole_models = _parametrized(
    map(small, _BY_DEFAULT), slow=(spec for spec in _BY_DEFAULT if small(spec) != spec), seldom=map(small, _OTHERS)
)
# For what other code makes of a model.
small_models_in_parts = _parametrized(_FEW, seldom=(spec for spec in _SMALL if spec not in _FEW))
# For tests that are slow as a whole.
small_models = _parametrized(_SMALL)
