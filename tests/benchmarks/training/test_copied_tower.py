from __future__ import annotations

from typing import Any

import tensorflow as tf

from benchmarks.devices import device_plan
from benchmarks.process.tensorflow_setup import Devices
from benchmarks.training import objectives
from benchmarks.training.training_step import Tower
from models import building, specs
from tests.support.steps import on_cpus
from variable_mgr import variables
from variable_mgr.graph_copies import GraphCopies


def test_a_copied_tower_is_the_graph_that_the_model_would_build() -> None:
    def outline(*, copied: bool) -> list[tuple[Any, ...]]:
        with tf.Graph().as_default() as graph:
            model = building.build(specs.find_model("resnet20"), data_format="NHWC", num_classes=10, seed=1)
            values = [tf.compat.v1.placeholder(variable.dtype, variable.shape) for variable in model.variables]
            images = tf.compat.v1.placeholder(tf.float32, (2, 32, 32, 3))
            labels = tf.compat.v1.placeholder(tf.int32, (2,))
            tower = Tower(model, objectives.Objective(loss=objectives.cross_entropy, weight_decay=0.5), copied=copied)
            with tf.device("/device:CPU:1"), tf.name_scope("tower_0"):
                score, update = tower.train(values, images, labels)
            waiting = [tensor.op for tensor in tf.nest.flatten([score.loss, update.gradients, update.state])]
            needed = set()
            while waiting:
                needed.add(each := waiting.pop())
                waiting += {*each.control_inputs, *(tensor.op for tensor in each.inputs)} - needed
            # Operations in the name scope `gradients` repeat the outer scope if they are built in it.
            short = {each: each.name.replace("gradients/tower_0/", "gradients/") for each in graph.get_operations()}
            return [
                (short[each], each.type, each.device, [(short[tensor.op], str(tensor.shape)) for tensor in each.inputs])
                for each in graph.get_operations()
                if each in needed
            ]

    assert outline(copied=True) == outline(copied=False)


def test_a_function_is_built_once_per_shape_and_its_devices_are_completed() -> None:
    shapes = []

    def function(pair: list[tf.Tensor], factor: tf.Tensor | None, unused: tf.Tensor, _: tf.Tensor) -> dict[str, Any]:
        shapes.append((tuple(pair[0].shape), factor is None))
        with tf.device("/device:CPU:0"):
            total = tf.add_n(pair)
        return {"total": total if factor is None else factor * total, "same": (unused,)}

    copies = GraphCopies(function)
    with tf.Graph().as_default() as graph:
        two, long = tf.constant([2.0]), tf.constant([3.0, 4.0])
        again, other = copies([two, two], None, long, two), copies([long, long], None, long, two)
        with tf.compat.v1.Session(graph=graph) as session:
            assert session.run(again["total"]).tolist() == [4.0]
            assert session.run(other["total"]).tolist() == [6.0, 8.0]
            assert session.run(again["same"])[0].tolist() == [3.0, 4.0]
    with tf.Graph().as_default(), tf.device("/task:1/device:CPU:1"):
        one, two = tf.constant([1.0]), tf.constant([2.0])
        first, scaled = copies([one, two], None, two, two), copies([one, two], tf.constant(5.0), two, two)
    assert shapes == [((1,), True), ((2,), True), ((1,), True), ((1,), False)]
    assert first["total"].device == "/task:1/device:CPU:0"
    assert scaled["total"].device == "/task:1/device:CPU:1"
    assert again["total"].shape == (1,)


def test_gradients_of_loops_and_tables_are_copied_to_several_devices() -> None:
    def function(table: tf.Tensor) -> tf.Tensor:
        rows = tf.gather(table, [1, 0])
        _, product = tf.while_loop(lambda n, _: n < 2, lambda n, x: (n + 1, x * table), [tf.constant(0), rows])
        return tf.convert_to_tensor(tf.gradients(product, table)[0])

    copies, found = GraphCopies(function), []
    with tf.Graph().as_default() as graph:
        for number in range(2):
            with tf.device(f"/device:CPU:{number}"), tf.name_scope(f"tower_{number}"):
                found.append(copies(tf.constant([2.0, 3.0])))
        config = device_plan.session_config(Devices(num_devices=2))
        with tf.compat.v1.Session(graph=graph, config=config) as session:
            assert [gradient.tolist() for gradient in session.run(found)] == [[21.0, 16.0]] * 2


def test_copies_of_variables_leave_names_to_the_operations_of_towers() -> None:
    with tf.Graph().as_default() as graph:
        model = building.build(specs.find_model("mlp"), data_format="NHWC", num_classes=10, seed=1)
        variables.create_copies(model.variables, on_cpus(2).place)
        assert not [each.name for each in graph.get_operations() if each.name.startswith("tower_0/Identity")]
