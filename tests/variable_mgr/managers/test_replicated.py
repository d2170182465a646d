"""Copies on every tower start with the values of one of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.cluster.cluster_spec import place
from benchmarks.devices import device_plan
from benchmarks.process.tensorflow_setup import Devices
from tests.support.steps import variable
from variable_mgr.managers.replicated import Replicated


@pytest.mark.parametrize(
    ("dtype", "value"), [("uint8", 255), ("int8", -128), ("int16", -30_000), ("uint16", 65_535), ("bool", True)]
)
def test_small_integers_arrive_exactly_though_no_collective_sums_them(dtype: str, value: Any) -> None:
    with tf.Graph().as_default():
        spec = variable("state", np.array([value, 0, value], dtype), "statistic")
        manager = Replicated(place("cpu", 2), None)
        manager.create([spec])
        received = manager._of_worker_0(["state"], 1)
        with tf.compat.v1.Session(config=device_plan.session_config(Devices(num_devices=2))) as session:
            session.run(tf.compat.v1.global_variables_initializer())
            of_towers = session.run(received)
    for (got,) in of_towers:
        assert got.dtype == np.dtype(dtype) and (got == np.array([value, 0, value], dtype)).all()
