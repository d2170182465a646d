"""What the steps of staged variables wait for."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from benchmarks.training import optimizers
from benchmarks.training.options import Training
from tests.support.steps import variable
from variable_mgr import factory
from variable_mgr.manager import TowerUpdate
from variable_mgr.modifiers import Modifiers
from variable_mgr.place import HOST, Place


def _waits(count: int, *, staged: bool) -> int:
    """Returns how many control edges between devices a step of 4 towers with so many weights has."""
    place = Place(tuple(f"/device:CPU:{tower}" for tower in range(4)), HOST)
    weights = [variable(f"weight{number}", np.zeros(3, np.float32)) for number in range(count)]
    with tf.Graph().as_default() as graph:
        modifiers = Modifiers(staged_vars=staged)
        manager = factory.make("parameter_server", place, shared_devices=place.towers, modifiers=modifiers)
        manager.create(weights)
        updates = []
        for tower, device in enumerate(place.towers):
            values = manager.tower_values(tower)
            with tf.device(device):
                updates.append(TowerUpdate({w.name: 2 * v for w, v in zip(weights, values, strict=True)}, {}))
        manager.apply(updates, optimizers.make(Training(learning_rate=1.0), 1.0))
        edges = {
            (before.name, after.device)
            for after in graph.get_operations()
            for before in after.control_inputs
            if before.device != after.device and "Initializer" not in after.name
        }
    return len(edges)


def test_updates_wait_for_one_operation_instead_of_every_read() -> None:
    assert _waits(8, staged=False) == _waits(40, staged=False) == 12
    assert _waits(8, staged=True) == _waits(40, staged=True) == 23
