"""Towers that each compute the features of their own images, and then the dense layers together.

Each tower holds some columns of a dense layer and computes them for the images of all towers, whose activations it
gathers. In VGG-16 the dense layers are nine tenths of the weights, and activations are far smaller than these weights'
gradients. The arithmetic equals data parallel training, except that dropout draws other units. Source: Krizhevsky 2014,
"One weird trick for parallelizing convolutional neural networks", arXiv:1404.5997.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import tensorflow as tf

from benchmarks.data.pipeline.tower_input import TowerInput
from benchmarks.devices.device_plan import DevicePlan
from benchmarks.training.objectives import Objective, Score
from models.parts import SplitModel, TailLayer
from variable_mgr.manager import TowerUpdate, VariableManager
from variable_mgr.reductions.kernels import on_each


def why_not(model: SplitModel, towers: int) -> str | None:
    """Returns a sentence if the dense layers cannot be divided over that many towers, else None."""
    if not model.tail:
        return (
            f"--fc_model_parallel: the model ends in '{model.trunk.layers[1]}', which is no dense layer of Keras that "
            "is called once, with an activation of each element: drop the flag."
        )
    narrow = [layer for layer in model.tail if layer.weights and layer.outputs < towers]
    if not narrow:
        return None
    return (
        f"--fc_model_parallel: {narrow[0].keras_layer.name} has {narrow[0].outputs} column(s), fewer than the {towers} "
        "towers: drop the flag, or use fewer devices."
    )


@dataclasses.dataclass
class _Tower:
    """One tower's variables and what it has computed so far."""

    device: str
    values: Mapping[str, tf.Tensor]
    features: tf.Tensor
    state: dict[str, tf.Tensor]


def train_towers(
    model: SplitModel, inputs: Sequence[TowerInput], devices: DevicePlan, manager: VariableManager, objective: Objective
) -> tuple[list[Score], list[TowerUpdate]]:
    """Returns each tower's score and update; gradients of its columns are those of the mean loss over all towers.

    All batches are of one size. The manager has created the variables; it gives each tower its columns of the divided
    ones.
    """
    towers = []
    for number, (device, tower_input) in enumerate(zip(devices.towers, inputs, strict=True)):
        with tf.device(device), tf.name_scope(f"tower_{number}"):
            names = (variable.name for variable in model.variables)
            values = dict(zip(names, manager.tower_values(number), strict=True))
            features, state = model.trunk.call(values, tower_input.images)
            towers.append(_Tower(device, values, features, state))
    labels = [tower_input.labels for tower_input in inputs]
    scores = on_each(devices.towers, objective.score, _logits(model.tail, towers), labels)
    gradients = _gradients(model, towers, [score.loss for score in scores])
    weights = [variable for variable in model.variables if variable.kind == "weight"]
    updates = []
    for tower, its_gradients in zip(towers, gradients, strict=True):
        with tf.device(tower.device):
            named = {v.name: objective.with_decay(v, tower.values[v.name], its_gradients[v.name]) for v in weights}
        updates.append(TowerUpdate(gradients=named, state=tower.state))
    return scores, updates


def _logits(tail: Sequence[TailLayer], towers: Sequence[_Tower]) -> list[tf.Tensor]:
    """Runs the layers after the cut on all towers, and returns to each the logits of its own images."""
    # Each tower first gathers the features of all images, then all columns of every dense layer.
    parts, axis = [tower.features for tower in towers], 0
    for layer in tail:
        if layer.weights:
            parts = _concat(towers, [parts] * len(towers), axis)
            axis = 1
        for number, tower in enumerate(towers):
            with tf.device(tower.device):
                parts[number], state = layer.call(parts[number], tower.values)
                tower.state.update(state)
    devices = [tower.device for tower in towers]
    pieces = on_each(devices, lambda columns: tf.split(columns, len(towers), axis=0), parts)
    return _concat(towers, list(zip(*pieces, strict=True)), 1)


def _concat(towers: Sequence[_Tower], parts: Sequence[Sequence[tf.Tensor]], axis: int) -> list[tf.Tensor]:
    return on_each((tower.device for tower in towers), lambda own: tf.concat(own, axis), parts)


def _gradients(
    model: SplitModel, towers: Sequence[_Tower], losses: Sequence[tf.Tensor]
) -> list[dict[str, tf.Tensor | None]]:
    """Returns each tower's gradients by name: of its columns, of the mean loss; of the others, of its own loss.

    All losses, each times 1 / towers, are differentiated at once down to the features. Before the cut the towers are
    independent, so from there each tower's gradients are taken alone.
    """
    divided = [name for layer in model.tail for name in layer.weights]
    features = [tower.features for tower in towers]
    shards = [tower.values[name] for tower in towers for name in divided]
    devices = (tower.device for tower in towers)
    each_counts = on_each(devices, lambda loss: tf.fill(loss.shape, 1.0 / len(towers)), losses)
    # After the cut, an operation's gradient belongs on the operation's own device.
    down_to_the_cut = tf.compat.v1.gradients(
        list(losses), [*features, *shards], grad_ys=each_counts, colocate_gradients_with_ops=True
    )
    of_shards = iter(down_to_the_cut[len(towers) :])
    gradients: list[dict[str, tf.Tensor | None]] = []
    for tower, of_features in zip(towers, down_to_the_cut, strict=False):
        names = [v.name for v in model.variables if v.kind == "weight" and v.name not in model.divided]
        with tf.device(tower.device):
            own_loss = tf.cast(len(towers), of_features.dtype) * of_features
            before = tf.gradients(tower.features, [tower.values[name] for name in names], grad_ys=own_loss)
        gradients.append(dict(zip(names, before, strict=True)) | {name: next(of_shards) for name in divided})
    return gradients
