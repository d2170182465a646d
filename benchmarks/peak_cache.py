"""Peaks that were measured before, kept as JSON in the user's cache directory. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.display import warn
from benchmarks.roofline import Peak
from results.record import key_of

_FORMAT_VERSION = 1
_HARDWARE = ("cpu_model", "cpu_cores_usable", "memory_gib")


def path(environ: Mapping[str, str] | None = None) -> Path:
    """Returns where the cache is: `$XDG_CACHE_HOME/cnn_bench/peaks.json`, by default below `~/.cache`."""
    directory = (os.environ if environ is None else environ).get("XDG_CACHE_HOME")
    return Path(directory or Path("~/.cache").expanduser()) / "cnn_bench" / "peaks.json"


def key(hardware: Mapping[str, Any], tensorflow_version: str | None, precision: str) -> str:
    """Returns what a peak is kept under.

    Args:
        hardware: as of `benchmarks.hardware.describe_hardware`, or more. Of its GPUs the first counts, for that is
            whose peak is measured, however many there are.
        tensorflow_version: of the package.
        precision: of the arithmetic.
    """
    one_device = {**{name: hardware[name] for name in _HARDWARE}, "gpus": hardware["gpus"][:1]}
    return f"{key_of(one_device)} {tensorflow_version} {precision}"


def find(wanted: str) -> Peak | None:
    """Returns the peak that is kept under a key; None if there is none. A damaged cache is ignored with a sentence."""
    entry = _read().get(wanted)
    if entry is None:
        return None
    try:
        peak = Peak(flops_per_sec=float(entry["flops_per_sec"]), bytes_per_sec=float(entry["bytes_per_sec"]))
    except (KeyError, TypeError, ValueError) as error:
        _ignored(error)
        return None
    if not all(0 < value < math.inf for value in dataclasses.astuple(peak)):
        _ignored(ValueError("a peak is not a positive number"))
        return None
    return peak


def keep(wanted: str, peak: Peak) -> None:
    """Adds a peak to the cache, or says that it cannot be kept. The file is replaced at once, never half written."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    entries = {**_read(), wanted: {**dataclasses.asdict(peak), "time_utc": now}}
    target = path()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=target.parent, delete=False) as file:
            json.dump({"format_version": _FORMAT_VERSION, "peaks": entries}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(file.name, target)
    except OSError as error:
        warn(f"The measured peak cannot be kept in {target} ({error}); the next one will be measured again.")


def _read() -> dict[str, Any]:
    try:
        held = json.loads(path().read_text(encoding="utf-8"))
        if held["format_version"] != _FORMAT_VERSION or not isinstance(held["peaks"], dict):
            raise ValueError(f"it is not of format {_FORMAT_VERSION}")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        _ignored(error)
        return {}
    return held["peaks"]


def _ignored(error: Exception) -> None:
    problem = f"{type(error).__name__}: {error}"
    warn(f"The measured peaks in {path()} cannot be read ({problem}) and are ignored; the next measurement mends it.")
