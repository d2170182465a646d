"""Finds the function of a user's that builds a model."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

from models.outside_code import UnusableModelError, contained


def load(reference: str) -> Callable[..., Any]:
    """Returns the function that `path/to/file.py:function` or `package.module:function` names.

    The directory of the file, and the working directory, are added to the end of Python's path.

    Raises:
        UnusableModelError: the module has no such function.
    """
    place, _, name = reference.rpartition(":")
    is_file = place.endswith(".py")
    directories = [str(Path(place).resolve().parent)] if is_file else []
    sys.path += [directory for directory in (*directories, os.getcwd()) if directory not in sys.path]
    with contained(), kept_precision(), _kept_seeds():
        module = _load_file(Path(place).resolve()) if is_file else importlib.import_module(place)
    function = getattr(module, name, None)
    if not callable(function) or isinstance(function, keras.Layer):
        own = (key for key, value in vars(module).items() if inspect.isfunction(value) and not key.startswith("_"))
        raise UnusableModelError(f"{place} has no function '{name}'. Its functions: {', '.join(own) or 'none'}.")
    return function


def module_name(path: Path) -> str:
    """Returns the name under which a user's file is imported, which no other module has."""
    return f"model of {path}".replace(".", " ")  # a dot would make it part of a package


def _load_file(path: Path) -> Any:
    """Imports a file once per process.

    Raises:
        UnusableModelError: the file belongs to a package.
    """
    name = module_name(path)
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None  # the name ends in .py
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException as error:
            del sys.modules[name]
            if isinstance(error, ImportError) and "no known parent package" in str(error):
                raise UnusableModelError(
                    f"{path.name} has relative imports: name its function as package.module:function, from the "
                    "directory that has the package."
                ) from error
            raise
    return sys.modules[name]


@contextlib.contextmanager
def _kept_seeds() -> Iterator[None]:
    """Restores the generators from which Keras draws seeds: a file that builds a model is imported once per process."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)


@contextlib.contextmanager
def kept_precision() -> Iterator[None]:
    """Restores Keras' types, and raises UnusableModelError if the code within has set them, or even an equal policy."""
    before, floatx = keras.config.dtype_policy(), keras.config.floatx()
    try:
        yield
        after, floatx_after = keras.config.dtype_policy(), keras.config.floatx()
    finally:
        keras.config.set_dtype_policy(before)
        keras.config.set_floatx(floatx)
    if after is not before or floatx_after != floatx:
        instead = f"--precision={after.name}" if after.name.startswith("mixed_") else "--precision"
        raise UnusableModelError(
            f"its code sets the dtype policy {after.name}, or floatx {floatx_after}, by keras.config.set_dtype_policy()"
            f", set_floatx() or clear_session(): leave that to {instead}."
        )
