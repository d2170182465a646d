"""What decides how a model scales: its parameters and operations by kind of layer. Imports TensorFlow only to count."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from benchmarks.errors import UsageError
from models.model_spec import ModelSpec
from variable_mgr.transfers import FLOAT32_BYTES

if TYPE_CHECKING:
    from models.building import Model

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
    from benchmarks.training import flop_count

    work = flop_count.of_built(model, batch=1, forward_only=False)
    if work.uncounted:
        raise UsageError(f"{spec.name} has operations that cannot be counted: {', '.join(work.uncounted)}.")
    flops = {"convolution": work.convolution_flops, "dense": work.flops - work.convolution_flops}
    return ModelFacts(parameters_by_kind=parameters_by_kind(model), flops_by_kind=flops)


def parameters_by_kind(model: Model) -> dict[str, int]:
    """Returns the number of trainable parameters by kind of layer.

    The layer's kernel decides: of rank 4 it is a convolution's, of rank 2 or 3 a dense layer's, also in attention.
    """
    weights = [variable for variable in model.variables if variable.kind == "weight"]
    ranks = {v.name.rpartition("/")[0]: len(v.shape) for v in weights if v.name.endswith("kernel")}
    counts = dict.fromkeys(KINDS, 0)
    for variable in weights:
        layer = variable.name.rpartition("/")[0]
        counts[_KIND_BY_RANK.get(ranks.get(layer, 0), "other")] += math.prod(variable.shape)
    return counts


_KIND_BY_RANK = {4: "convolution", 3: "dense", 2: "dense"}
