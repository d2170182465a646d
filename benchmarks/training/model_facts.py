"""What decides how a model scales: its parameters and operations by kind of layer. Imports Keras."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import keras

from benchmarks.errors import UsageError
from benchmarks.training import flop_count
from models.building import Model
from models.specs import ModelSpec
from variable_mgr.traffic import FLOAT32_BYTES

KINDS = ("convolution", "dense", "other")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """Trainable parameters, and operations of a training step per image, by kind of layer (`KINDS`).

    Operations are forward and backward, 2 per multiply-add. Those of other layers are not counted: see `flop_count`.
    """

    parameters_by_kind: Mapping[str, int]
    flops_by_kind: Mapping[str, int]

    @property
    def parameters(self) -> int:
        """Returns their number."""
        return sum(self.parameters_by_kind.values())

    @property
    def gradient_bytes(self) -> int:
        """Returns the size of one device's gradients, which are float32."""
        return FLOAT32_BYTES * self.parameters

    @property
    def flops_per_image(self) -> int:
        """Returns the operations of all layers."""
        return sum(self.flops_by_kind.values())


def of(model: Model, spec: ModelSpec) -> ModelFacts:
    """Counts a model that was built in NHWC.

    Raises:
        UsageError: it has operations that cannot be counted.
    """
    parameters = dict.fromkeys(KINDS, 0)
    for layer in model.keras_model.layers:
        parameters[_kind(layer)] += sum(math.prod(variable.shape) for variable in layer.trainable_variables)
    work = flop_count.of_built(model, spec, batch=1, data_format="NHWC", forward_only=False)
    if work.uncounted:
        raise UsageError(f"{spec.name} has operations that cannot be counted: {', '.join(work.uncounted)}.")
    flops = {"convolution": work.convolution_flops, "dense": work.flops - work.convolution_flops}
    return ModelFacts(parameters_by_kind=parameters, flops_by_kind=flops)


def _kind(layer: keras.Layer) -> str:
    if isinstance(layer, keras.layers.Dense):
        return "dense"
    is_convolution = isinstance(layer, keras.layers.Conv2D | keras.layers.DepthwiseConv2D)
    return "convolution" if is_convolution else "other"
