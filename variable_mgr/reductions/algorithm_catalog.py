"""The catalog of all-reduce algorithms. Imports no TensorFlow.

An algorithm turns one tensor's values, one per tower, into their mean for every tower. A new one is a function in
`kernels` and one entry here; then `--all_reduce_spec` accepts it, and all tests of algorithms include it.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import math
from collections.abc import Callable, Sequence

from variable_mgr.place import MeanFunction, Place, Tensor, Turn
from variable_mgr.transfers import DEVICE, HOST, UNKNOWN, Transfer

# From a number of towers, on devices other than the host, and the bytes of one tensor: what they send to reduce it.
Transfers = Callable[[int, float], list[Transfer]]


def _anywhere(place: Place) -> str | None:
    return None


def _unknown(towers: int, size_bytes: float) -> list[Transfer]:
    return [UNKNOWN]


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """One way to all-reduce.

    Attributes:
        name: as in a spec.
        meaning: what it does, for a person.
        mean: computes the means.
        why_not: returns a sentence if it cannot run in a place, else None.
        transfers: returns what it sends.
    """

    name: str
    meaning: str
    mean: MeanFunction
    why_not: Callable[[Place], str | None] = _anywhere
    transfers: Transfers = _unknown


def find_algorithm(name: str) -> Algorithm:
    """Returns the algorithm of that name; `a/b` is a inside each worker, then b across workers.

    Raises:
        KeyError: there is none.
    """
    if "/" not in name:
        return ALGORITHMS[name]
    inside, across = (ALGORITHMS[part] for part in name.split("/"))
    meaning = f"inside a worker {inside.meaning}, then across workers {across.meaning}"
    mean = functools.partial(_kernel, "in_two_levels", inside=inside.mean, across=across.mean)
    return Algorithm(name, meaning, mean, functools.partial(_why_not_in_two_levels, inside, across))


def _kernel(function: str, values: Sequence[Tensor], place: Place, turn: Turn, **options: MeanFunction) -> list[Tensor]:
    kernels = importlib.import_module("variable_mgr.reductions.kernels")
    means: list[Tensor] = getattr(kernels, function)(values, place, turn, **options)
    return means


def _needs_power_of_two(place: Place) -> str | None:
    count = len(place.towers)
    if count & (count - 1) == 0:
        return None
    return f"rechd halves the towers repeatedly, so it needs 2, 4, 8 ... of them, not {count}; use xring instead."


def _needs_physical_gpus(place: Place) -> str | None:
    if place.virtual:
        return "nccl needs a physical GPU for each tower, and --virtual_gpus splits them: use collective or psgpu."
    if all("gpu" in device.lower() for device in place.towers):
        return None
    return "nccl moves data between NVIDIA GPUs only; on CPU devices use --all_reduce_spec=collective or pscpu."


def _why_not_in_two_levels(inside: Algorithm, across: Algorithm, place: Place) -> str | None:
    if not place.hosts:
        return (
            f"{inside.name}/{across.name} works inside and across workers, which one client drives only under "
            "distributed_all_reduce: use the part before the slash."
        )
    groups = list(place.by_worker().values())
    heads = Place(tuple(group[0] for group in groups), place.host)
    first = Place(tuple(groups[0]), place.host, virtual=place.virtual)
    return inside.why_not(first) or across.why_not(heads)


def _through_host(towers: int, size_bytes: float) -> list[Transfer]:
    """Each tower sends its tensor to the host, which sends the mean to each."""
    return [Transfer(*link, towers * size_bytes, towers) for link in ((DEVICE, HOST), (HOST, DEVICE))]


def _to_one_and_back(towers: int, size_bytes: float) -> list[Transfer]:
    """A tower adds for all; or two add for a group each, and then one of these for the other."""
    return [Transfer(DEVICE, DEVICE, 2 * (towers - 1) * size_bytes, 2 * (towers - 1))]


def _around_ring(towers: int, size_bytes: float) -> list[Transfer]:
    """Each tower sends a chunk, 1/n, to its neighbour n-1 times to add it up, and n-1 times to pass the sum on."""
    return [Transfer(DEVICE, DEVICE, 2 * (towers - 1) * size_bytes, 2 * towers * (towers - 1))]


def _halving_and_doubling(towers: int, size_bytes: float) -> list[Transfer]:
    """Each tower sends a half, a quarter ... to add it up, and as much to pass the sum on."""
    return [Transfer(DEVICE, DEVICE, 2 * (towers - 1) * size_bytes, 2 * towers * math.log2(towers))]


def _built_in(
    name: str,
    meaning: str,
    function: str,
    transfers: Transfers = _to_one_and_back,
    why_not: Callable[[Place], str | None] = _anywhere,
) -> Algorithm:
    return Algorithm(name, meaning, functools.partial(_kernel, function), why_not, transfers)


ALGORITHMS: dict[str, Algorithm] = {
    algorithm.name: algorithm
    for algorithm in (
        _built_in("pscpu", "copied to the host and averaged there", "copy_to_host", _through_host),
        _built_in("psgpu", "copied to one tower's device, in turn by bytes, and averaged there", "copy_in_turn"),
        _built_in("xring", "reduce-scatter and all-gather around a ring of the towers", "ring", _around_ring),
        _built_in(
            "rechd",
            "recursive halving and doubling",
            "recursive_halving_doubling",
            _halving_and_doubling,
            _needs_power_of_two,
        ),
        _built_in("hierarchical", "averaged in two groups, then between them", "hierarchical"),
        _built_in("collective", "TensorFlow's own ring collective", "collective", _around_ring),
        _built_in("nccl", "NVIDIA's NCCL", "nccl", _around_ring, _needs_physical_gpus),
    )
}
