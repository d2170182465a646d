"""What a configuration sends between its devices in a step of its model, by formula. Imports Keras."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from benchmarks.config.config import Config
from models import splitting
from models.building import Model
from variable_mgr import network_traffic
from variable_mgr.manager import VariableManager
from variable_mgr.place import Place
from variable_mgr.traffic import DividedLayers, Traffic, traffic


@dataclasses.dataclass(frozen=True)
class DenseShare:
    """What the dense layers that end a model are of the whole.

    Attributes:
        weights: their elements.
        kernel_weights: those that are multiplied, without biases.
        all_weights: of the whole model.
        layers: what dividing them over towers would send.
    """

    weights: int
    kernel_weights: int
    all_weights: int
    layers: DividedLayers


def dense_share(model: Model, batch_per_device: int) -> DenseShare:
    """Returns what the dense layers at the model's end are."""
    split = splitting.split(model)
    sizes = _weights(model)
    return DenseShare(
        sum(sizes[name] for name in split.divided),
        sum(sizes[layer.weights[0]] for layer in split.tail if layer.weights),
        sum(sizes.values()),
        _layers(split, batch_per_device),
    )


def model_traffic(config: Config, model: Model) -> Traffic:
    """Returns how many bytes the devices send in a training step."""
    sizes = _weights(model)
    divided = None
    if config.modifiers.fc_model_parallel:
        split = splitting.split(model)
        divided = _layers(split, config.batch_per_device)
        for name in split.divided:
            del sizes[name]
    return traffic(
        config.variable_update,
        config.modifiers,
        config.num_devices,
        list(sizes.values()),
        shared_on_host=config.shared_on == "cpu",
        divided=divided,
    )


def sent_per_step(config: Config, model: Model, place: Place, manager: VariableManager) -> dict[str, Any]:
    """Returns for the record what is sent in a step: in a process between devices, in a cluster between processes.

    A forward pass sends nothing but what it fetches from parameter servers.
    """
    if config.forward_only and not (place.ps and config.variable_update == "parameter_server"):
        return {}
    if config.cluster is None:
        by_formula = model_traffic(config, model)
        return {**dataclasses.asdict(by_formula), "total_bytes": by_formula.total_bytes}
    if config.forward_only:
        sent = network_traffic.fetched(place, manager.placed())
    else:
        sent = network_traffic.links(config.variable_update, config.modifiers, place, manager.placed())
    return {
        "links": dict(sent),
        "total_bytes": sum(sent.values()) if sent else None,
        "busiest_ps_bytes": network_traffic.busiest_server(sent),
    }


def _layers(split: splitting.SplitModel, batch_per_device: int) -> DividedLayers:
    outputs = tuple(layer.outputs for layer in split.tail if layer.outputs)
    return DividedLayers(batch_per_device, split.features, outputs)


def _weights(model: Model) -> dict[str, int]:
    """Returns the elements of each weight by name."""
    return {variable.name: math.prod(variable.shape) for variable in model.variables if variable.kind == "weight"}
