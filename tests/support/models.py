"""Models of `models.specs`, each built once per process: building takes up to a second, and a model does not change."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import pytest

from models import building, specs
from models.specs import ModelSpec


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


def _small(name: str, image_size: int) -> Any:
    return pytest.param(dataclasses.replace(specs.find(name), image_size=image_size), id=f"{name}-{image_size}px")


# For what a model computes: a part of them, on smaller images, by default, and the other and whole ones in slow tests.
small_and_whole_models = pytest.mark.parametrize(
    "spec",
    [
        *(pytest.param(specs.find(name), id=name) for name in ("mlp", "resnet20", "trivial")),
        *(_small("alexnet", 67), _small("resnet50", 64)),
        *(
            pytest.param(specs.find(name), id=name, marks=pytest.mark.slow)
            for name in ("alexnet", "inception3", "resnet50", "resnet50_v1.5", "vgg16")
        ),
    ],
)
