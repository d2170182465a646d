"""Staging: towers compute with weights fetched during the step before, so that fetching overlaps with computation."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import tensorflow as tf

from variable_mgr import staging
from variable_mgr.manager import (
    EARLIER_WEIGHTS,
    Explanation,
    InitOp,
    Optimizer,
    StagedValue,
    TowerUpdate,
    UpdateOp,
    VariableManager,
    WrappingManager,
)


class Staged(WrappingManager):
    """Wraps a manager whose weights live elsewhere.

    In one step, in any order: (a) the weights are read and staged for the next step; (b) each tower computes with the
    weights staged in the step before, and stages its gradients; (c) the gradients staged in the step before are
    applied. So the gradient that is applied at step t was computed at t-1 from weights read at t-2: this is not plain
    SGD. Weights are read before they are updated, so what is staged is deterministic.

    Only weights are staged. Moving averages and seeds are read and written in the step itself; otherwise updates would
    be lost. A staging area for weights and one for gradients is on each tower's device.
    """

    def __init__(self, inner: VariableManager, tower_devices: Sequence[str]) -> None:
        super().__init__(inner, tower_devices)
        self._weight_reads: list[tf.Tensor] = []
        self._stage_weights: list[tf.Operation] = []
        self._stage_gradients: list[tf.Operation] = []

    def tower_values(self, tower: int) -> list[tf.Tensor]:
        """Returns the weights staged in the step before, and everything else as it is now."""
        values = self._inner.tower_values(tower)
        is_weight = [spec.kind == "weight" for spec in self._specs]
        weights = list(itertools.compress(values, is_weight))
        self._weight_reads += weights
        stage, staged = staging.area(self._devices[tower], weights)
        self._stage_weights.append(stage)
        remaining = iter(staged)
        return [next(remaining) if weight else value for value, weight in zip(values, is_weight, strict=True)]

    def apply(self, updates: Sequence[TowerUpdate], optimizer: Optimizer) -> list[UpdateOp]:
        """Applies the gradients staged in the step before, and stages this step's."""
        earlier = []
        for device, update in zip(self._devices, updates, strict=True):
            stage, staged = staging.area(device, list(update.gradients.values()))
            self._stage_gradients.append(stage)
            gradients = dict(zip(update.gradients, staged, strict=True))
            earlier.append(dataclasses.replace(update, gradients=gradients))
        with tf.device(self._devices[0]):
            all_read = tf.group(*self._weight_reads)  # by way of one operation on each device of the weights
        with tf.control_dependencies([all_read]):
            (applied,) = self._inner.apply(earlier, optimizer)
        return [UpdateOp(tf.group(applied.operation, *self._stage_weights, *self._stage_gradients))]

    def init_ops(self) -> list[InitOp]:
        """Fills the stages: weights first, then weights again and the first gradients."""
        fill_weights = InitOp(tf.group(*self._stage_weights))
        fill_both = InitOp(tf.group(*self._stage_weights, *self._stage_gradients), computes=True)
        return [*self._inner.init_ops(), fill_weights, fill_both]

    def staged_values(self) -> dict[str, StagedValue]:
        """Returns what is staged, numbered in the order of the areas."""
        return {
            f"stage_{number}_{index}": StagedValue(value, tensor)
            for number, put in enumerate([*self._stage_weights, *self._stage_gradients])
            for index, (value, tensor) in enumerate(zip(staging.peek(put), put.inputs, strict=True))
        }

    def resume_ops(self) -> list[InitOp]:
        """Stages the weights and gradients that are fed; no tower computes."""
        both = InitOp(tf.group(*self._stage_weights, *self._stage_gradients))
        return [*self._inner.init_ops(), both]

    def explain(self, optimizer: str = "sgd") -> Explanation:
        """Returns how data flows."""
        inner = self._inner.explain(optimizer)
        return dataclasses.replace(
            inner,
            gradients=f"{inner.gradients}; weights are staged two steps, gradients one step before they are applied",
            applied="computed in step t-1 from weights read in step t-2",
            deviation=EARLIER_WEIGHTS,
        )
