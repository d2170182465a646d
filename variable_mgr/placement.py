"""Which variable goes to which device. Imports without TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence


def balance_by_bytes(sizes_bytes: Sequence[int], devices: Sequence[str]) -> list[str]:
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
