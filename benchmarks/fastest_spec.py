"""Which `--all_reduce_spec` is the fastest, from times of single reductions by size. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

from variable_mgr import all_reduce_spec

# Two reductions by size are proposed only if the second gains so much where it is used: less is noise.
_WORTH_A_RANGE = 1.05


def fastest_spec(seconds: Mapping[int, Mapping[str, float]], *, by_size: bool = True) -> str | None:
    """Returns the spec that is the fastest over all sizes, each size counting alike.

    Args:
        seconds: by elements, then by spec, how long a reduction of one such tensor took. Only specs that are one
            algorithm, and that every size has, are considered.
        by_size: whether two by size may be proposed.

    Returns:
        One algorithm; or two by size, if using the second gains 5 % at least, as geometric mean over the sizes that it
        is used for. None if there is nothing to choose from.
    """
    sizes = sorted(seconds)
    usable = [
        spec
        for spec in (seconds[sizes[0]] if sizes else ())
        if ":" not in spec and all(spec in seconds[size] for size in sizes)
    ]
    if not usable:
        return None

    def cost(spec: str, of: Sequence[int]) -> float:
        return sum(math.log(seconds[size][spec]) for size in of)

    alone = min(usable, key=lambda spec: cost(spec, sizes))
    best, spec = 0.0, alone
    if not by_size:
        return alone
    for cut, (small, large) in itertools.product(range(1, len(sizes)), itertools.permutations(usable, 2)):
        gain = cost(alone, sizes) - cost(small, sizes[:cut]) - cost(large, sizes[cut:])
        others = len(sizes) - (cut if small == alone else len(sizes) - cut if large == alone else 0)
        if gain > best and gain / others > math.log(_WORTH_A_RANGE):
            best, spec = gain, _by_size(small, sizes[cut - 1], large)
    return spec


def _by_size(small: str, limit_elements: int, large: str) -> str:
    (first,), (rest,) = all_reduce_spec.parse(small), all_reduce_spec.parse(large)
    return all_reduce_spec.describe([dataclasses.replace(first, limit_elements=limit_elements), rest])
