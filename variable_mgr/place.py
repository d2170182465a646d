"""Where towers are and what surrounds them. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

Tensor = Any  # a tf.Tensor; this module does not import TensorFlow
HOST = "/cpu:0"  # the CPU of a process; where there are several, their job and task precede it


@dataclasses.dataclass(frozen=True)
class Place:
    """The devices of the towers and of what surrounds them.

    Attributes:
        towers: one device per tower of this process; of all workers where one client drives them.
        host: the CPU device of this process.
        virtual: whether several towers' devices share a physical one.
        ps: one device per parameter server; none in a single process.
        workers: the number of processes like this one that train together.
        worker: the index of this process among them.
        hosts: where one client drives the towers of several workers, the CPU of each tower's worker.
        group: keeps the collectives of several graphs in one cluster apart.
    """

    towers: tuple[str, ...]
    host: str
    virtual: bool = False
    ps: tuple[str, ...] = ()
    workers: int = 1
    worker: int = 0
    hosts: tuple[str, ...] = ()
    group: int = 1

    @property
    def towers_in_total(self) -> int:
        """Returns how many towers train together."""
        return self.workers * len(self.towers)

    def host_of(self, tower: int) -> str:
        """Returns the CPU of a tower's worker."""
        return self.hosts[tower] if self.hosts else self.host

    def by_worker(self) -> dict[str, list[str]]:
        """Returns the towers of each worker's host, in order."""
        workers: dict[str, list[str]] = {}
        for tower, host in zip(self.towers, self.hosts, strict=True):
            workers.setdefault(host, []).append(tower)
        return workers

    @property
    def in_cluster(self) -> bool:
        """Returns whether other processes take part."""
        return bool(self.ps or self.hosts) or self.workers > 1


@dataclasses.dataclass(frozen=True)
class Turn:
    """The turn of one tensor in a reduction: its number, unique in the graph, and the tower that adds it up.

    `last` is common to the turns of one reduction: by device, the last collective that the next one must follow.
    """

    number: int
    tower: int
    last: dict[str, Tensor] = dataclasses.field(default_factory=dict, compare=False, repr=False)


# From one value per tower, the place and the tensor's turn: one mean per tower.
MeanFunction = Callable[[Sequence[Tensor], Place, Turn], list[Tensor]]


_Device = TypeVar("_Device")


def balance_by_bytes(sizes_bytes: Sequence[int], devices: Sequence[_Device]) -> list[_Device]:
    """Spreads variables: each, in the order given, goes to the device that holds the fewest bytes so far.

    No device ends more than the largest variable above another one. With one device, all go there. Of devices that hold
    equally much, the first gets it.

    Returns:
        One device per variable.
    """
    load = dict.fromkeys(devices, 0)
    chosen = []
    for size in sizes_bytes:
        device = min(load, key=lambda candidate: load[candidate])
        load[device] += size
        chosen.append(device)
    return chosen


def group_small(sizes_bytes: Sequence[int], max_bytes: int, max_group: int) -> list[list[int]]:
    """Returns the indices in order, small ones that follow each other together, at most `max_group` in a group."""
    groups: list[list[int]] = []
    open_group = False
    for index, size in enumerate(sizes_bytes):
        small = size <= max_bytes
        if small and open_group and len(groups[-1]) < max_group:
            groups[-1].append(index)
        else:
            groups.append([index])
        open_group = small
    return groups


def even_parts(elements: int, parts: int) -> list[int]:
    """Divides a number of elements into parts that differ by one at most."""
    return [elements * (part + 1) // parts - elements * part // parts for part in range(parts)]
