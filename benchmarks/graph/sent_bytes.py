"""What a training step of a model sends between devices or processes, by formula. Imports Keras."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.config.variable_update import Variables
from benchmarks.process.tensorflow_setup import Devices
from models import parts
from models.building import Model
from models.parts import SplitModel
from variable_mgr import factory
from variable_mgr.manager import VariableManager
from variable_mgr.place import Place
from variable_mgr.transfers import (
    DEVICE,
    FLOAT32_BYTES,
    NETWORK,
    Transfer,
    busiest_server,
    by_kind,
    by_link,
    total_bytes,
    total_number,
)


def sent_by_divided_layers(split: SplitModel, towers: int, batch_per_device: int) -> list[Transfer]:
    """Returns what all towers together send in a step if each computes some columns of the dense layers for all images.

    Each tower sends its features and then its columns of each layer, for all images, to all others. Of the logits it
    sends only those of the other tower's own images. Backward it sends as much, unless the features are images:
    nothing before the first layer is then trained, so they need no gradient.
    """
    trained = {variable.name for variable in split.variables if variable.kind == "weight"}
    ways = 1 if trained <= split.divided else 2
    images = towers * batch_per_device
    *hidden, logits = (layer.outputs for layer in split.tail if layer.outputs)
    elements = ways * images * split.features + 2 * (images * sum(hidden) + batch_per_device * logits)
    number = towers * (towers - 1) * (ways + 2 * (len(hidden) + 1))
    return [Transfer(DEVICE, DEVICE, FLOAT32_BYTES * (towers - 1) * elements, number, "activation")]


def manager_on_real_devices(devices: Devices, variables: Variables) -> VariableManager:
    """Makes a manager of one process that creates no variables: no tower's device is the host, as formulas need."""
    towers = tuple(f"/{devices.device}:{tower}" for tower in range(devices.num_devices))
    place = Place(towers, "the host")
    shared = (place.host,) if variables.shared_on == "cpu" else towers
    return factory.make(variables.variable_update, place, shared_devices=shared, modifiers=variables.modifiers)


def sent_in_one_process(devices: Devices, variables: Variables, model: Model, batch_per_device: int) -> list[Transfer]:
    """Returns what the devices of one process send in a training step, if none of them is the host."""
    manager = manager_on_real_devices(devices, variables)
    if not variables.modifiers.fc_model_parallel:
        return manager.transfers(model.variables)
    split = parts.split(model)
    of_the_rest = manager.transfers([variable for variable in model.variables if variable.name not in split.divided])
    return of_the_rest + sent_by_divided_layers(split, devices.num_devices, batch_per_device)


def between_devices(sent: Sequence[Transfer]) -> dict[str, Any]:
    """Returns for the record what the devices of one process send; what is unknown is None."""
    return {
        "read_bytes": total_bytes(sent, "read"),
        "gradient_bytes": total_bytes(sent, "gradient"),
        "weight_bytes": total_bytes(sent, "weight"),
        "activation_bytes": total_bytes(sent, "activation"),
        "by_kind": by_kind(sent),
        "total_bytes": total_bytes(sent),
    }


def between_processes(sent: Sequence[Transfer]) -> dict[str, Any]:
    """Returns for the record what processes of a cluster send each other; what is unknown is None."""
    links = by_link(sent)
    if not links:
        return {"links": {}, "total_bytes": None, "busiest_ps_bytes": None}
    size = sum(links.values())
    of_network = {NETWORK: (total_number(sent), size)}
    return {"links": links, "total_bytes": size, "busiest_ps_bytes": busiest_server(links), "by_kind": of_network}
