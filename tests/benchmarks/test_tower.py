from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import objectives
from benchmarks.tower import Tower
from models import building, specs


@pytest.fixture(scope="module")
def computed() -> dict[str, dict[str, np.ndarray]]:
    """Loss, gradients and state of a small network, by how they were computed."""
    found = {}
    with tf.Graph().as_default() as graph:
        model = building.build(specs.find("resnet20"), data_format="NHWC", num_classes=10, seed=1)
        values = [tf.constant(_initial(variable)) for variable in model.variables]
        images = tf.constant(np.random.default_rng(1).normal(size=(4, 32, 32, 3)).astype(np.float32))
        labels = tf.constant([1, 2, 3, 4])
        objective = objectives.Objective(loss=objectives.cross_entropy, weight_decay=0.25, with_accuracy=True)
        ways = {
            "plain": (Tower(model, objective), None),
            "xla": (Tower(model, objective, xla=True), None),
            "scaled": (Tower(model, objective), tf.constant(64.0)),
            "xla, scaled": (Tower(model, objective, xla=True), tf.constant(64.0)),
            "decayed later": (Tower(model, objective, decay_later=True), None),
        }
        fetches = {}
        for way, (tower, scale) in ways.items():
            score, update = tower.train(values, images, labels, scale)
            fetches[way] = {"loss": score.loss, **score.accuracy, **update.gradients, **update.state}
            if update.decay:
                for name, value in zip([v.name for v in model.variables], values, strict=True):
                    if name in update.decay:
                        fetches[way][name] += update.decay[name] * value
        fetches["inferred"] = {"loss": Tower(model, objective).infer(values, images, labels).loss}
        fetches["inferred by xla"] = {"loss": Tower(model, objective, xla=True).infer(values, images, labels).loss}
        with tf.compat.v1.Session(graph=graph) as session:
            found = session.run(fetches)
    return found


def _initial(variable: building.ModelVariable) -> np.ndarray:
    if variable.kind == "statistic":
        return np.ones(variable.shape, np.float32)
    return np.random.default_rng(len(variable.name)).normal(scale=0.1, size=variable.shape).astype(variable.dtype)


@pytest.mark.parametrize("way", ["xla", "scaled", "xla, scaled", "decayed later"])
def test_all_ways_compute_the_same(computed: dict[str, dict[str, np.ndarray]], way: str) -> None:
    assert computed[way].keys() == computed["plain"].keys()
    for name, plain in computed["plain"].items():
        np.testing.assert_allclose(computed[way][name], plain, rtol=2e-3, atol=2e-5 * np.abs(plain).max(), err_msg=name)


def test_inference_can_be_compiled(computed: dict[str, dict[str, np.ndarray]]) -> None:
    assert computed["inferred"]["loss"] != pytest.approx(computed["plain"]["loss"], rel=1e-3)
    assert computed["inferred by xla"]["loss"] == pytest.approx(computed["inferred"]["loss"], rel=1e-4)
