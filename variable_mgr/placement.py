"""Which variable goes to which device, and which tensors travel together. Imports without TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

_Device = TypeVar("_Device")


def balance_by_bytes(sizes_bytes: Sequence[int], devices: Sequence[_Device]) -> list[_Device]:
    """Spreads variables: each, in the order given, goes to the device that holds the fewest bytes so far.

    No device ends more than the largest variable above another one. With one device, all go there.

    Args:
        sizes_bytes: size of each variable.
        devices: at least one; the earlier wins a tie.

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
