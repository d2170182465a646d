"""A model as `predict` needs it: its variables, and the shares of its layers. Imports TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from benchmarks.errors import UsageError
from benchmarks.predict.step_graph import LayerShare, shares
from benchmarks.training import flop_count
from models import building, specs
from models.building import ModelVariable


@dataclasses.dataclass(frozen=True)
class ModelParts:
    """A model's variables, its parts, its operations per image forward and backward, and the bytes of its gradients."""

    variables: Sequence[ModelVariable]
    parts: Sequence[LayerShare]
    flops_per_image: float
    gradient_bytes: int


def model_parts(name: str, num_classes: int | None) -> ModelParts:
    """Builds a model for so many classes (None: as many as it usually has), and counts its layers.

    Raises:
        UsageError: an operation cannot be counted, or there is nothing to compute.
    """
    spec = specs.find_model(name)
    model = building.build(spec, data_format="NHWC", num_classes=num_classes or spec.usual_outputs, seed=0)
    try:
        layers = flop_count.by_layer(model, spec)
    except ValueError as error:
        raise UsageError(f"predict cannot divide the work of a step over layers: {error}") from error
    counted = [(layer.name, layer.forward_flops, layer.weight_bytes) for layer in layers]
    forward, gradients = sum(flops for _, flops, _ in counted), sum(size for *_, size in counted)
    if not forward:
        raise UsageError(f"{name} has no convolution or dense layer, so nothing is known of its time.")
    return ModelParts(model.variables, shares(counted), 3.0 * forward, gradients)
