"""The all-reduce algorithms: what they are called, where they can run, and how they are found. Imports no TensorFlow.

An algorithm turns one tensor's values, one per tower, into the mean of them for every tower. A new one is a function
and one entry here; it can then be named in `--all_reduce_spec` and is tested with all others.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Sequence

from variable_mgr.place import MeanFunction, Place, Tensor, Turn


def _anywhere(place: Place) -> str | None:
    return None


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """One way to all-reduce.

    Attributes:
        name: as in a spec.
        meaning: what it does, for a person.
        mean: does it.
        why_not: returns a sentence if it cannot run in a place, else None.
        sent: for a number of towers, each on a device of its own and none on the host: by what factor of a tensor's
            bytes all devices together send, until every tower has the mean; None: not known.
    """

    name: str
    meaning: str
    mean: MeanFunction
    why_not: Callable[[Place], str | None] = _anywhere
    sent: Callable[[int], float] | None = None


def find(name: str) -> Algorithm:
    """Returns the algorithm of that name; `a/b` is a inside each worker, then b across workers.

    Raises:
        KeyError: there is none.
    """
    if "/" not in name:
        return ALGORITHMS[name]
    inside, across = (ALGORITHMS[part] for part in name.split("/"))

    def mean(values: Sequence[Tensor], place: Place, turn: Turn) -> list[Tensor]:
        module = importlib.import_module("variable_mgr.reductions.kernels")
        means: list[Tensor] = module.in_two_levels(values, place, turn, inside.mean, across.mean)
        return means

    meaning = f"inside a worker {inside.meaning}, then across workers {across.meaning}"
    return Algorithm(name, meaning, mean, lambda place: _why_not_in_two_levels(inside, across, place))


def register(algorithm: Algorithm) -> None:
    """Makes an algorithm known under its name."""
    ALGORITHMS[algorithm.name] = algorithm


def _built_in(function: str) -> MeanFunction:
    """Returns a function of `variable_mgr.reductions.kernels`, which is imported when it is first called."""

    def mean(values: Sequence[Tensor], place: Place, turn: Turn) -> list[Tensor]:
        means: list[Tensor] = getattr(importlib.import_module("variable_mgr.reductions.kernels"), function)(
            values, place, turn
        )
        return means

    return mean


def _needs_power_of_two(place: Place) -> str | None:
    count = len(place.towers)
    if count & (count - 1) == 0:
        return None
    return f"rechd halves the towers again and again, so it needs 2, 4, 8 ... of them, not {count}; use xring instead."


def _needs_physical_gpus(place: Place) -> str | None:
    if place.virtual:
        return "nccl needs a physical GPU for each tower, and --virtual_gpus splits them: use collective or psgpu."
    if all("gpu" in device.lower() for device in place.towers):
        return None
    return "nccl moves data between NVIDIA GPUs only; on CPU devices say --variable_update=collective_all_reduce."


def _why_not_in_two_levels(inside: Algorithm, across: Algorithm, place: Place) -> str | None:
    """Asks each of the two about its own part of the towers."""
    if not place.hosts:
        return (
            f"{inside.name}/{across.name} works inside and across workers, which one client drives only under "
            "distributed_all_reduce: give the part before the slash."
        )
    groups = list(place.by_worker().values())
    heads = Place(tuple(group[0] for group in groups), place.host)
    first = Place(tuple(groups[0]), place.host, virtual=place.virtual)
    return inside.why_not(first) or across.why_not(heads)


def _to_one_and_back(towers: int) -> float:
    """The one that adds is a tower. A ring and its relatives send as much, but spread evenly over the towers."""
    return 2 * (towers - 1)


ALGORITHMS: dict[str, Algorithm] = {
    algorithm.name: algorithm
    for algorithm in (
        Algorithm(
            "pscpu", "copied to the host and averaged there", _built_in("copy_to_host"), sent=lambda towers: 2 * towers
        ),
        Algorithm(
            "psgpu",
            "copied to one tower's device, in turn by bytes, and averaged there",
            _built_in("copy_in_turn"),
            sent=_to_one_and_back,
        ),
        Algorithm(
            "xring",
            "reduce-scatter and all-gather around a ring of the towers",
            _built_in("ring"),
            sent=_to_one_and_back,
        ),
        Algorithm(
            "rechd",
            "recursive halving and doubling",
            _built_in("recursive_halving_doubling"),
            _needs_power_of_two,
            _to_one_and_back,
        ),
        Algorithm(
            "hierarchical",
            "averaged in two groups, then between them",
            _built_in("hierarchical"),
            # Into the two adders and back, and once each way between these.
            sent=lambda towers: 2 * (towers - 2) + 2,
        ),
        Algorithm("collective", "TensorFlow's own ring collective", _built_in("collective"), sent=_to_one_and_back),
        Algorithm("nccl", "NVIDIA's NCCL", _built_in("nccl"), _needs_physical_gpus, _to_one_and_back),
    )
}
