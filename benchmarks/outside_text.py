"""Reads numbers, JSON and TOML from flags, variables and files of the user: whatever is wrong is a ValueError."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from typing import Any

# Numbers of more digits do not fit in 64 bits; Python itself refuses some thousands.
_MOST_DIGITS = 18
_MOST_LETTERS = 100


def whole_number(text: str) -> int | None:
    """Returns the number that ASCII digits stand for, ignoring blanks around them; None for anything else."""
    digits = text.strip()
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) <= _MOST_DIGITS else None


def counts(text: str) -> list[int] | None:
    """Returns different numbers from 1 on, in order, of a list such as `4,1,2`; None for anything else."""
    numbers = {whole_number(word) or 0 for word in text.split(",")}
    return None if 0 in numbers else sorted(numbers)


def parse_json(text: str | bytes) -> Any:
    """Returns what a JSON text holds.

    Raises:
        ValueError: it is no JSON, or has a number or a depth that Python does not read.
    """
    return _parsed(json.loads, text)


def parse_toml(text: str) -> dict[str, Any]:
    """Returns what a TOML text holds; raises as `parse_json` does."""
    table: dict[str, Any] = _parsed(tomllib.loads, text)
    return table


def shortened(text: str) -> str:
    """Returns text for a message; the middle of a long one is left out."""
    half = _MOST_LETTERS // 2
    return text if len(text) <= _MOST_LETTERS else f"{text[:half]}...{text[-half:]}"


def _parsed(parse: Callable[[Any], Any], text: str | bytes) -> Any:
    try:
        return parse(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
