"""What a training step of a model sends between devices or processes, by formula. Imports Keras."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from models import splitting
from models.building import Model
from variable_mgr import factory
from variable_mgr.manager import VariableManager
from variable_mgr.modifiers import Modifiers
from variable_mgr.place import Place
from variable_mgr.transfers import (
    NETWORK,
    DividedLayers,
    Transfer,
    busiest_server,
    by_kind,
    by_link,
    total_bytes,
    total_number,
)


@dataclasses.dataclass(frozen=True)
class DenseShare:
    """The dense layers that end a model: elements of their weights, of their kernels, and of all the model's weights.

    `layers` decides what is sent if they are divided over towers.
    """

    weights: int
    kernel_weights: int
    all_weights: int
    layers: DividedLayers


def dense_share(model: Model, batch_per_device: int) -> DenseShare:
    """Returns the share of the dense layers at the model's end."""
    split, sizes = splitting.split(model), _weights(model)
    return DenseShare(
        sum(sizes[name] for name in split.divided),
        sum(sizes[layer.weights[0]] for layer in split.tail if layer.weights),
        sum(sizes.values()),
        DividedLayers(
            batch_per_device,
            split.features,
            tuple(layer.outputs for layer in split.tail if layer.outputs),
            features_are_images=set(sizes) <= set(split.divided),
        ),
    )


def manager_on_real_devices(
    name: str, modifiers: Modifiers, *, device: str, towers: int, shared_on: str
) -> VariableManager:
    """Makes a manager of one process that creates no variables: no tower's device is the host, as formulas need.

    Shared variables are on the host (`shared_on` is `cpu`), or on the towers' devices (`gpu`).
    """
    place = Place(tuple(f"/{device}:{tower}" for tower in range(towers)), "the host")
    shared = (place.host,) if shared_on == "cpu" else place.towers
    return factory.make(name, place, shared_devices=shared, modifiers=modifiers)


def model_transfers(
    manager: VariableManager, model: Model, batch_per_device: int, *, divided_over: int = 0
) -> list[Transfer]:
    """Returns what the devices of one process send in a training step.

    The manager is one of `manager_on_real_devices`. The dense layers are divided over so many towers; 0: they are not.
    """
    if not divided_over:
        return manager.transfers(model.variables)
    divided = splitting.split(model).divided
    of_the_rest = manager.transfers([variable for variable in model.variables if variable.name not in divided])
    return of_the_rest + dense_share(model, batch_per_device).layers.transfers(divided_over)


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


def _weights(model: Model) -> dict[str, int]:
    return {variable.name: math.prod(variable.shape) for variable in model.variables if variable.kind == "weight"}
