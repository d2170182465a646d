"""Answers that took long to find, kept as JSON in the user's cache directory. Imports no TensorFlow."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.display import warn
from results import store
from results.record import Identity, key_of
from results.version import SUITE_VERSION

_FORMAT_VERSION = 1


def path(environ: Mapping[str, str] | None = None) -> Path:
    """Returns the file: `$XDG_CACHE_HOME/cnn_bench/recommendations.json`, by default below `~/.cache`."""
    directory = (os.environ if environ is None else environ).get("XDG_CACHE_HOME")
    return Path(directory or Path("~/.cache").expanduser()) / "cnn_bench" / "recommendations.json"


def key(identity: Identity, question: Mapping[str, Any]) -> str:
    """Returns what an answer is kept under: hardware, software and the question."""
    return f"{identity.hardware_key} {identity.software_key} {key_of({**question, 'suite': SUITE_VERSION})}"


def find(wanted: str) -> tuple[str, Mapping[str, Any]] | None:
    """Returns when an answer was found (UTC) and what it is; None if there is none, or the file is damaged."""
    entry = _read().get(wanted)
    try:
        return None if entry is None else (str(entry["time_utc"]), dict(entry["answer"]))
    except (KeyError, TypeError, ValueError) as error:
        ignore(error)
        return None


def keep(wanted: str, answer: Mapping[str, Any]) -> None:
    """Adds an answer, or says that it cannot be kept. A reader, or a crash, sees the old file or the new one."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    entries = {**_read(), wanted: {"time_utc": now, "answer": answer}}
    target = path()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        store.replace(target, json.dumps({"format_version": _FORMAT_VERSION, "answers": entries}, indent=1) + "\n")
    except OSError as error:
        warn(f"The answer cannot be kept in {target} ({error}): next time it is searched for again.")


def ignore(error: Exception) -> None:
    """Says that what is kept cannot be used."""
    problem = f"{type(error).__name__}: {error}"
    warn(f"What is kept in {path()} cannot be read ({problem}) and is ignored; the next answer mends it.")


def _read() -> dict[str, Any]:
    try:
        held = json.loads(path().read_text(encoding="utf-8"))
        if held["format_version"] != _FORMAT_VERSION or not isinstance(held["answers"], dict):
            raise ValueError(f"it is not of format {_FORMAT_VERSION}")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        ignore(error)
        return {}
    answers: dict[str, Any] = held["answers"]
    return answers
