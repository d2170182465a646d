"""Models of `models.specs`, each built once per process: building takes up to a second, and a model does not change."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from models import building, specs


@functools.cache
def build(
    name: str,
    *,
    data_format: str = "NHWC",
    num_classes: int | None = None,
    image_size: int | None = None,
    seed: int = 1,
    **options: Any,
) -> building.Model:
    """Builds a model; by default for the images that it is for, and with one class more than it has for background."""
    spec = specs.find(name)
    return building.build(
        dataclasses.replace(spec, image_size=image_size or spec.image_size),
        data_format=data_format,
        num_classes=num_classes or spec.classes + 1,
        seed=seed,
        **options,
    )
