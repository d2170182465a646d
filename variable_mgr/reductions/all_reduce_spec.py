"""The syntax of `--all_reduce_spec`: an algorithm for each range of tensor sizes. Imports no TensorFlow.

    spec  ::= range | range ':' size ':' spec
    range ::= algorithm ['/' algorithm] ['#' shards], at most 9999
    size  ::= number [K|M|G]

A range takes the tensors of at most its size, in elements; the last takes the rest. `a/b` is a inside each worker,
then b across workers. `xring#2` splits each tensor into two shards that are reduced on their own. Example:
`pscpu:32K:xring#2`. K, M and G are 2^10, 2^20 and 2^30.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Sequence

from variable_mgr.place import Place
from variable_mgr.reductions.algorithm_catalog import ALGORITHMS, find_algorithm

_RANGE = re.compile(r"(?P<algorithm>[a-z_]+(?:/[a-z_]+)?)(?:#(?P<shards>[1-9][0-9]{0,3}))?", re.IGNORECASE)
_SIZE = re.compile(r"(?P<number>[1-9][0-9]{0,17})(?P<unit>[kmg]?)", re.IGNORECASE)
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


class SpecError(ValueError):
    """The text is not a valid spec."""


@dataclasses.dataclass(frozen=True)
class Range:
    """Tensors of at most `limit_elements` (None: all the rest) are reduced by `algorithm`, in `shards` pieces."""

    algorithm: str
    shards: int = 1
    limit_elements: int | None = None


def parse(text: str) -> tuple[Range, ...]:
    """Reads a spec.

    Raises:
        SpecError: a part is not valid.
    """
    parts = text.split(":")
    if len(parts) % 2 == 0:
        raise SpecError(f"'{text}' must end with an algorithm: algorithm, or algorithm:size:algorithm and so on.")
    ranges = []
    for index in range(0, len(parts), 2):
        algorithm, shards = _parse_range(parts[index])
        limit = parse_size(parts[index + 1]) if index + 1 < len(parts) else None
        ranges.append(Range(algorithm, shards, limit))
    limits = [r.limit_elements for r in ranges if r.limit_elements is not None]
    if limits != sorted(set(limits)):
        raise SpecError(f"The sizes in '{text}' must grow from left to right, or a range would never be used.")
    return tuple(ranges)


def canonical(text: str) -> str:
    """Returns the one spelling of a spec, as `PSCPU#1` is `pscpu`; what is no spec is returned as it is."""
    try:
        return describe(parse(text))
    except SpecError:
        return text


def describe(ranges: Sequence[Range]) -> str:
    """Returns the text that `parse` reads as these ranges."""
    words = []
    for item in ranges:
        words.append(item.algorithm + (f"#{item.shards}" if item.shards > 1 else ""))
        if item.limit_elements is not None:
            words.append(describe_size(item.limit_elements))
    return ":".join(words)


def choose(ranges: Sequence[Range], elements: int) -> Range:
    """Returns the range that takes a tensor of that many elements."""
    return next(r for r in ranges if r.limit_elements is None or elements <= r.limit_elements)


def why_not(ranges: Sequence[Range], place: Place) -> str | None:
    """Returns a sentence if one of the algorithms cannot run in this place, else None."""
    sentences = (find_algorithm(item.algorithm).why_not(place) for item in ranges)
    return next((sentence for sentence in sentences if sentence), None)


def _parse_range(text: str) -> tuple[str, int]:
    match = _RANGE.fullmatch(text)
    if not match:
        raise SpecError(f"'{text}' is no range: give an algorithm, with #1 to #9999 shards if wanted, such as xring#2.")
    name = match["algorithm"].lower()
    for part in name.split("/"):
        if part not in ALGORITHMS:
            near = difflib.get_close_matches(part, ALGORITHMS, n=1, cutoff=0.7)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            raise SpecError(f"There is no algorithm '{part}'.{hint} Algorithms: {', '.join(ALGORITHMS)}.")
    return name, int(match["shards"] or 1)


def parse_size(text: str) -> int:
    """Returns a size; raises SpecError if the text is none."""
    match = _SIZE.fullmatch(text)
    if not match:
        raise SpecError(f"'{text}' is no size: give a number, such as 1000 or 32K.")
    return int(match["number"]) * UNITS[match["unit"].upper()]


def describe_size(elements: int) -> str:
    """Returns a number with the largest unit that it is a multiple of, as `--all_reduce_spec` has it: 32K."""
    for unit, factor in reversed(UNITS.items()):
        if elements % factor == 0:
            return f"{elements // factor}{unit}"
    raise AssertionError("every number is a multiple of 1")
