"""All models. Imports without TensorFlow."""

from __future__ import annotations

import difflib
import importlib
import re

from models.model_spec import ModelSpec

# The files of models; each lists its own in `SPECS`.
_FILES = (
    "alexnet",
    "applications",
    "densenet",
    "inception",
    "lenet",
    "nasnet",
    "resnet",
    "trivial",
    "vgg",
    "vit",
)
_FOUND: list[ModelSpec] = [spec for name in _FILES for spec in importlib.import_module(f"models.{name}").SPECS]
MODELS = tuple(sorted(_FOUND, key=lambda spec: re.sub(r"\d+", lambda number: number[0].zfill(3), spec.name)))
_REGISTERED: dict[str, ModelSpec] = {}

# Other spellings of their names, of which only letters and digits count.
_ALIASES = {
    "inceptionv3": "inception3",
    "inceptionv4": "inception4",
    "lenet5": "lenet",
    "mobilenetv2": "mobilenet",
    "nasnetmobile": "nasnet",
}


class UnknownModelError(ValueError):
    """No model has this name."""


def names() -> list[str]:
    """Returns the names of all models."""
    return [spec.name for spec in MODELS]


def register(spec: ModelSpec) -> None:
    """Lets `find_model` know a model that is not part of this suite, until the process ends."""
    _REGISTERED[spec.name] = spec


def find_model(name: str, data_name: str | None = None) -> ModelSpec:
    """Returns the spec of a model; case and punctuation do not matter.

    The model may have a variant for a data set.

    Raises:
        UnknownModelError: no model has this name.
    """
    if name in _REGISTERED:
        return _REGISTERED[name]
    plain = plain_name(name)
    sought = _ALIASES.get(plain, plain)
    for spec in MODELS:
        if data_name and (plain_name(spec.variant_of), spec.data_name) == (sought, data_name):
            return spec
    for spec in MODELS:
        if plain_name(spec.name) == sought:
            return spec
    near = difflib.get_close_matches(name.lower(), names(), n=5, cutoff=0.7)
    near.sort(key=lambda other: sorted(other) != sorted(name.lower()))  # `vgg61` is as near to `vgg19`
    known = f"Models: {', '.join(names())}."
    if near:
        known = f"Did you mean '{near[0]}'? See `run_bench.py explain --list_models`."
    raise UnknownModelError(f"There is no model '{name[:100]}'. {known}")


def plain_name(name: str) -> str:
    """Returns the letters and digits of a name, in lower case."""
    return re.sub("[^a-z0-9]", "", name.lower())
