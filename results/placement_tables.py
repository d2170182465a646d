"""The placement of a run: variables and aggregations by device, and what crosses between devices, as tables."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from results.text import Table, in_bytes

_KINDS = ("host to device", "device to host", "device to device", "network")
_PER_DEVICE = ("variable", "slot", "gradient", "staged")


def grouped(variables: Iterable[tuple[str, str, Sequence[int], int, Sequence[str]]]) -> list[dict[str, Any]]:
    """Returns variables for the record, grouped by kind and devices.

    Each is given as its name, kind, shape, bytes of a copy, and the devices of its copies.
    """
    groups: dict[tuple[str, tuple[str, ...]], list[Any]] = {}
    for name, kind, shape, size, devices in variables:
        groups.setdefault((kind, tuple(devices)), []).append([name, list(shape), size])
    return [{"kind": kind, "devices": list(on), "variables": members} for (kind, on), members in groups.items()]


def merged(placements: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Returns the placement of a cluster from those that its workers see: each sees the servers and its own devices."""
    if len(placements) == 1:
        return placements[0]
    first = placements[0]
    whole: dict[str, Any] = {
        **first,
        "tower_devices": [device for placement in placements for device in placement.get("tower_devices", ())],
    }
    for name in (f"{what}_bytes_per_device" for what in _PER_DEVICE):
        whole[name] = {}
        for placement in placements:
            for device, size in placement.get(name, {}).items():
                whole[name][device] = max(size, whole[name].get(device, 0))
    variables: dict[tuple[str, str, int], tuple[Sequence[int], dict[str, None]]] = {}
    for group in itertools.chain.from_iterable(placement.get("variable_groups", ()) for placement in placements):
        for name, shape, size in group["variables"]:
            _, devices = variables.setdefault((name, group["kind"], size), (shape, {}))
            devices.update(dict.fromkeys(group["devices"]))
    copies = [(name, kind, shape, size, list(on)) for (name, kind, size), (shape, on) in variables.items()]
    whole["variable_groups"] = grouped(copies)
    whole["variables"] = sum(len(on) for *_, on in copies)
    whole["weights"] = sum(len(on) for _, kind, _, _, on in copies if kind == "weight")
    summed: dict[str, dict[tuple[str, ...], None]] = {}
    for group in itertools.chain.from_iterable(placement.get("aggregations", ()) for placement in placements):
        for gradient in group["gradients"]:
            summed.setdefault(gradient, {}).update(dict.fromkeys(map(tuple, group["operations"])))
    whole["aggregations"] = aggregated({name: list(operations) for name, operations in summed.items()})
    measured = [placement["measured_per_step"] for placement in placements if placement.get("measured_per_step")]
    if len(measured) == len(placements):
        whole["measured_per_step"] = added(measured)
    return whole


def aggregated(summed: Mapping[str, Sequence[Sequence[str]]]) -> list[dict[str, Any]]:
    """Returns aggregations for the record: gradients that the same operations, each with its device, sum."""
    groups: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for gradient, operations in summed.items():
        groups.setdefault(tuple(map(tuple, operations)), []).append(gradient)
    return [{"operations": list(map(list, done)), "gradients": names} for done, names in groups.items()]


def added(values: Sequence[Any]) -> Any:
    """Returns the sum of numbers, or of mappings and lists of numbers, entry by entry."""
    if isinstance(values[0], Mapping):
        names = dict.fromkeys(name for value in values for name in value)
        return {name: added([value[name] for value in values if name in value]) for name in names}
    if isinstance(values[0], Sequence):
        return [added(entries) for entries in zip(*values, strict=True)]
    return sum(values)


def variable_table(placement: Mapping[str, Any]) -> Table:
    """Returns a row per variable, the copies of one together."""
    rows = [
        [
            name,
            group["kind"],
            " x ".join(map(str, shape)) or "scalar",
            in_bytes(size),
            str(len(group["devices"])),
            devices(group["devices"]),
        ]
        for group in placement.get("variable_groups") or ()
        for name, shape, size in group["variables"]
    ]
    return Table(("variable", "kind", "shape", "size", "copies", "on"), rows, ("size", "copies"))


def device_table(placement: Mapping[str, Any]) -> Table:
    """Returns a row per device with bytes."""
    sizes = [placement.get(f"{what}_bytes_per_device") or {} for what in _PER_DEVICE]
    names = dict.fromkeys(name for of_one in sizes for name in of_one)
    rows = [[devices([name]), *(in_bytes(of_one.get(name, 0)) for of_one in sizes)] for name in names]
    numbers = ("variables", "optimizer's state", "gradients", "staged")
    return Table(("device", *numbers), rows, numbers)


def aggregation_table(placement: Mapping[str, Any]) -> Table:
    """Returns a row per gradient that towers sum."""
    rows = [
        [
            gradient,
            ", ".join(dict.fromkeys(operation for operation, _ in group["operations"])),
            devices(list(dict.fromkeys(device for _, device in group["operations"]))),
        ]
        for group in placement.get("aggregations") or ()
        for gradient in group["gradients"]
    ]
    return Table(("gradient", "summed by", "on"), rows)


def transfer_table(placement: Mapping[str, Any]) -> Table:
    """Returns a row per kind of link, by formula and measured."""
    by_formula = (placement.get("sent_per_step") or {}).get("by_kind")
    measured = placement.get("measured_per_step") or {}
    traced = measured.get("by_kind")
    rows = []
    for kind in _KINDS:
        if any(side and kind in side for side in (by_formula, traced)):
            rows.append([kind, *_cells(by_formula, kind), *_cells(traced, kind)])
    if measured:
        rows.append(["scalars and control", "", "", str(measured["scalars"][0]), in_bytes(measured["scalars"][1])])
    numbers = ("transfers by formula", "sent by formula", "transfers measured", "sent measured")
    return Table(("link", *numbers), rows, numbers)


def transfer_notes(placement: Mapping[str, Any]) -> list[str]:
    """Returns sentences on what was measured, and why it may differ from the formula."""
    measured = placement.get("measured_per_step")
    if not measured:
        return ["No step was traced: it has one tower, or tracing failed."]
    notes = []
    if measured["by_kind"] and placement.get("sent_per_step"):
        notes.append("Why what is measured may differ from the formula: docs/howto/placement.md.")
    if measured["collectives"]:
        notes.append(
            f"{measured['collectives']} collective operations send by themselves: counted is what a ring sends of the "
            "tensors that the traced step gave them."
        )
    if measured["unknown"]:
        notes.append(f"The trace has no size of {measured['unknown']} of the tensors; they count as 0 bytes.")
    if measured["copies"]:
        copies = ", ".join(f"{n} {kind} of {in_bytes(size)}" for kind, (n, size) in measured["copies"].items())
        notes.append(f"The GPUs' driver reports these copies, with images and copies inside a device: {copies}.")
    return notes


def devices(names: Sequence[str]) -> str:
    """Returns names of devices in short, such as `worker 0 CPU:0, CPU:1`; tasks of one process have no name."""
    by_task: dict[str, list[str]] = {}
    for name in names:
        parts = dict(part.split(":", 1) for part in name.strip("/").split("/") if ":" in part)
        kind = parts.get("device") or next((f"{k.upper()}:{v}" for k, v in parts.items() if k in ("cpu", "gpu")), name)
        task = f"{parts['job']} {parts.get('task', 0)} " if parts.get("job", "localhost") != "localhost" else ""
        by_task.setdefault(task, []).append(kind)
    return "; ".join(task + ", ".join(kinds) for task, kinds in by_task.items())


def _cells(side: Mapping[str, Sequence[float | None]] | None, kind: str) -> list[str]:
    sent = (None, None) if side is None else side.get(kind, (0, 0))
    number, size = sent
    return ["unknown" if number is None else f"{number:.12g}", "unknown" if size is None else in_bytes(size)]
