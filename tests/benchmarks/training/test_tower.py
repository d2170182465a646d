from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from benchmarks.training import objectives
from benchmarks.training.training_step import Tower
from models import building, specs

pytestmark = pytest.mark.xdist_group("tower")  # they share what has been computed


Results = dict[str, dict[str, np.ndarray]]


def _compute(*, xla: bool) -> Results:
    """Returns loss, gradients and state of a small network, by how they were computed."""
    with tf.Graph().as_default() as graph:
        model = building.build(specs.find_model("resnet20"), data_format="NHWC", num_classes=10, seed=1)
        values = [tf.constant(_initial(variable)) for variable in model.variables]
        images = tf.constant(np.random.default_rng(1).normal(size=(4, 32, 32, 3)).astype(np.float32))
        labels = tf.constant([1, 2, 3, 4])
        objective = objectives.Objective(loss=objectives.cross_entropy, weight_decay=0.25, with_accuracy=True)
        tower = Tower(model, objective, xla=xla)
        ways = {"plain": (tower, None), "scaled": (tower, tf.constant(64.0))}
        if not xla:
            ways["decayed later"] = (Tower(model, objective, decay_later=True), None)
        fetches = {}
        for way, (of_the_way, scale) in ways.items():
            score, update = of_the_way.train(values, images, labels, scale)
            fetches[way] = {"loss": score.loss, **score.observed, **update.gradients, **update.state}
            if update.decay:
                for name, value in zip([v.name for v in model.variables], values, strict=True):
                    if name in update.decay:
                        fetches[way][name] += update.decay[name] * value
        fetches["inferred"] = {"loss": tower.infer(values, images, labels).loss}
        with tf.compat.v1.Session(graph=graph) as session:
            return session.run(fetches)


@pytest.fixture(scope="module")
def computed() -> Results:
    return _compute(xla=False)


@pytest.fixture(scope="module")
def compiled() -> Results:
    return _compute(xla=True)


def _initial(variable: building.ModelVariable) -> np.ndarray:
    if variable.kind == "statistic":
        return np.ones(variable.shape, np.float32)
    return np.random.default_rng(len(variable.name)).normal(scale=0.1, size=variable.shape).astype(variable.dtype)


def _assert_equal(got: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(got[name], value, rtol=2e-3, atol=2e-5 * np.abs(value).max(), err_msg=name)


@pytest.mark.parametrize("way", ["scaled", "decayed later"])
def test_all_ways_compute_the_same(computed: Results, way: str) -> None:
    _assert_equal(computed[way], computed["plain"])


class _Looked(keras.layers.Layer):
    """Adds the rows of a table in reverse order, so that all of them have the table's shape."""

    def build(self, shape: tuple[int, ...]) -> None:
        self.table = self.add_weight(shape=shape[1:], name="table")

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return x + keras.ops.take(self.table, [2, 1, 0], axis=0)


@pytest.mark.parametrize("copied", [True, False])
def test_the_gradient_of_a_table_is_that_of_each_of_its_rows(copied: bool) -> None:
    with building.stateless_building(seed=0):
        images = keras.Input((3, 1))
        model = building.adapt(keras.Model(images, keras.layers.Flatten()(_Looked(name="looked")(images))))
    objective = objectives.Objective(loss=lambda outputs, _: tf.reduce_sum(outputs * [1.0, 2.0, 3.0]))
    with tf.Graph().as_default() as graph, tf.compat.v1.Session(graph=graph) as session:
        tower = Tower(model, objective, copied=copied)
        _, update = tower.train([tf.zeros((3, 1))], tf.zeros((1, 3, 1)), tf.constant([0]))
        (gradient,) = session.run(list(update.gradients.values()))
    assert gradient.tolist() == [[3.0], [2.0], [1.0]]


def test_inference_does_not_use_the_statistics_of_the_batch(computed: Results) -> None:
    assert computed["inferred"]["loss"] != pytest.approx(computed["plain"]["loss"], rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["plain", "scaled"])
def test_xla_computes_the_same(computed: Results, compiled: Results, way: str) -> None:
    _assert_equal(compiled[way], computed[way])


@pytest.mark.slow
def test_inference_can_be_compiled(computed: Results, compiled: Results) -> None:
    assert compiled["inferred"]["loss"] == pytest.approx(computed["inferred"]["loss"], rel=1e-4)
