from __future__ import annotations

from collections.abc import Callable

import pytest
import tensorflow as tf

from benchmarks.data.pipeline import tower_input
from benchmarks.graph import run_graph
from benchmarks.training import flop_count
from benchmarks.training.flop_count import Work, count
from models import specs
from models.model_spec import ModelSpec
from tests.support import models
from tests.support.models import every_model_in_parts
from tests.support.rotation import rotating
from tests.support.settings import resolve
from tests.support.steps import on_cpus, step_of
from variable_mgr.modifiers import Modifiers


def _given(*shape: int, dtype: tf.DType = tf.float32) -> tf.Tensor:
    return tf.compat.v1.placeholder(dtype, shape)


@every_model_in_parts
def test_forward_passes_are_those_of_the_literature(spec: ModelSpec) -> None:
    """Without what the class for background adds."""
    model = models.build_spec(spec)
    (kernel,) = (variable for variable in model.variables if variable.name == "logits/kernel")
    work = flop_count.of_built(model, batch=2, forward_only=True)
    assert work.flops / 2e9 - 2e-9 * kernel.shape[0] == pytest.approx(spec.gflop_per_image, rel=0.02)
    assert work.uncounted == ()


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
@pytest.mark.parametrize(
    ("padding", "strides", "dilations", "side"),
    [("SAME", 1, 1, 9), ("SAME", 2, 1, 5), ("VALID", 1, 1, 7), ("VALID", 2, 1, 4), ("VALID", 1, 3, 3)],
)
def test_a_convolution_by_hand(data_format: str, padding: str, strides: int, dilations: int, side: int) -> None:
    """A 3x3 kernel, 4 to 6 channels, on two images of 9x9: the result's sides are those of the table."""
    with tf.Graph().as_default():
        kernel = _given(3, 3, 4, 6)
        images = _given(2, 4, 9, 9) if data_format == "NCHW" else _given(2, 9, 9, 4)
        result = tf.nn.conv2d(images, kernel, strides, padding, data_format, dilations)
        to_kernel, to_images = tf.gradients(result, [kernel, images])
        forward = count([result])
        assert forward.flops == 2 * (2 * side * side * 6) * (3 * 3 * 4)
        sizes = 2 * 9 * 9 * 4, 3 * 3 * 4 * 6, 2 * side * side * 6
        assert forward.moved_bytes == 4 * sum(sizes)
        assert count([to_kernel]) == count([to_images]) == forward, "nothing else is needed for them"
        assert count([result, to_kernel, to_images]) == forward + forward + forward


def test_grouped_and_depthwise_convolutions_by_hand() -> None:
    with tf.Graph().as_default():
        images = _given(2, 8, 8, 4)
        grouped = tf.nn.conv2d(images, _given(3, 3, 2, 6), 1, "SAME")
        assert count([grouped]).flops == 2 * (2 * 8 * 8 * 6) * (3 * 3 * 2)
        kernel = _given(3, 3, 4, 5)
        depthwise = tf.nn.depthwise_conv2d(images, kernel, [1, 2, 2, 1], "SAME")
        assert count([depthwise]).flops == 2 * (2 * 4 * 4 * 20) * (3 * 3)
        assert count(tf.gradients(depthwise, [kernel, images])).flops == 2 * count([depthwise]).flops


@pytest.mark.parametrize(("transpose_a", "transpose_b"), [(False, False), (False, True), (True, False), (True, True)])
def test_a_matrix_product_by_hand(transpose_a: bool, transpose_b: bool) -> None:
    with tf.Graph().as_default():
        left = _given(*((5, 3) if transpose_a else (3, 5)), dtype=tf.bfloat16)
        right = _given(*((7, 5) if transpose_b else (5, 7)), dtype=tf.bfloat16)
        product = tf.matmul(left, right, transpose_a=transpose_a, transpose_b=transpose_b)
        assert count([product]) == Work(2 * 3 * 5 * 7, 2 * (3 * 5 + 5 * 7 + 3 * 7))
        assert count(tf.gradients(product, [left, right])).flops == 2 * count([product]).flops
        batch = tf.matmul(_given(4, *left.shape), _given(4, *right.shape), transpose_a, transpose_b)
        assert count([batch]).flops == 4 * count([product]).flops


def test_an_einstein_sum_by_hand() -> None:
    """Attention's scores: 2 images, 3 heads, 5 queries, 7 keys, 4 channels; the diagonal of a matrix is no product."""
    with tf.Graph().as_default():
        queries, keys = _given(2, 5, 3, 4), _given(2, 7, 3, 4)
        scores = tf.einsum("bqhc,bkhc->bhqk", queries, keys)
        assert count([scores]) == Work(2 * 2 * 3 * 5 * 7 * 4, 4 * (2 * 5 * 3 * 4 + 2 * 7 * 3 * 4 + 2 * 3 * 5 * 7))
        assert count(tf.gradients(scores, [queries, keys])).flops == 2 * count([scores]).flops
        assert count([tf.einsum("bqhc->bhqc", queries)]).flops == 0
        assert count([tf.einsum("ii,ij->j", _given(4, 4), _given(4, 4))]).uncounted == ("Einsum",)


def _tiny_net(images: tf.Tensor, kernel: tf.Tensor, dense: tf.Tensor) -> tf.Tensor:
    convolved = tf.nn.relu(tf.nn.conv2d(images, kernel, 2, "SAME"))
    return tf.matmul(tf.reduce_mean(convolved, [1, 2]), dense)


def _tiny_step(images: tf.Tensor, kernel: tf.Tensor, dense: tf.Tensor) -> list[tf.Tensor]:
    return tf.gradients(tf.reduce_sum(_tiny_net(images, kernel, dense) ** 2), [kernel, dense])


CONVOLUTION, DENSE = 2 * (4 * 4 * 4 * 5) * (3 * 3 * 3), 2 * 4 * 5 * 7


def _tiny_inputs() -> list[tf.Tensor]:
    return [_given(4, 8, 8, 3), _given(3, 3, 3, 5), _given(5, 7)]


def test_a_step_is_counted() -> None:
    with tf.Graph().as_default():
        assert count(_tiny_step(*_tiny_inputs())).flops == 2 * CONVOLUTION + 3 * DENSE


@pytest.mark.parametrize(
    "wrap",
    [tf.function, lambda step: tf.function(tf.function(step), jit_compile=True)],
    ids=["function", "function in function"],
)
def test_a_function_that_works_cannot_be_counted(wrap: Callable) -> None:
    with tf.Graph().as_default():
        assert count(wrap(_tiny_step)(*_tiny_inputs())).uncounted == ("PartitionedCall",)
        assert count([wrap(tf.nn.relu)(_given(4, 4))]) == Work()


def test_what_a_function_does_besides_returning_cannot_be_counted() -> None:
    with tf.Graph().as_default() as graph:
        variable = tf.Variable(tf.zeros((5, 7)), trainable=False)

        @tf.function
        def act(left: tf.Tensor) -> None:
            variable.assign_add(tf.matmul(tf.matmul(variable, left), variable))

        act(_given(7, 5))
        (call,) = (operation for operation in graph.get_operations() if operation.type == "StatefulPartitionedCall")
        assert count([call]).uncounted == ("StatefulPartitionedCall",)


def test_what_cannot_be_counted_is_named_and_gives_no_figure() -> None:
    with tf.Graph().as_default():
        square, anything = _given(3, 3), tf.compat.v1.placeholder(tf.float32, (None, 3))
        branch = tf.cond(tf.reduce_sum(square) > 0, lambda: square @ square, lambda: square)
        assert count([branch]).uncounted == ("StatelessIf",)
        plain = tf.cond(tf.reduce_sum(square) > 0, lambda: square + square, lambda: square)
        assert count([plain]) == Work()
        unknown = count([anything @ square, tf.einsum("...j,jk->...k", square, square)])
        assert unknown.uncounted == ("Einsum", "MatMul")
        assert unknown.per_image(2) == {"flops_per_image": None, "bytes_per_image": None}
    assert Work(30, 40).per_image(10) == {"flops_per_image": 3, "bytes_per_image": 4}


@pytest.mark.parametrize(
    ("manager", "modifiers"),
    [("replicated", Modifiers()), ("parameter_server", Modifiers(asynchronous=True))],
    ids=["replicated", "asynchronous"],
)
def test_a_step_of_two_towers_does_twice_the_work_of_the_model(manager: str, modifiers: Modifiers) -> None:
    spec, plan = specs.find_model("alexnet"), on_cpus(2)
    model = models.build_spec(spec, num_classes=10)
    alone = flop_count.of_built(model, batch=3, forward_only=False)
    assert alone.flops > 0 and alone.uncounted == ()
    with tf.Graph().as_default():
        wanted = tower_input.InputSpec(
            batch_per_device=3, image_size=spec.image_size, data_format="NHWC", num_classes=10, seed=1
        )
        inputs = tower_input.synthetic(plan.towers, wanted)
        step, _ = step_of(model, inputs, plan, manager, modifiers, weight_decay=4e-5)
        assert count(loop.operation for loop in step.loops) == alone + alone


@rotating(
    "flags", [(), ("--forward_only",), ("--filter_gradients_as_matmul", "--precision=bf16")], first=1, ids=" ".join
)
def test_a_compiled_run_counts_what_the_same_run_without_xla_counts(flags: tuple[str, ...]) -> None:
    counted = []
    for xla in ((), ("--xla=jit",)):
        words = ["--device=cpu", "--num_gpus=2", "--model=resnet20", "--batch_size=2", *flags, *xla]
        chosen = resolve(*words)
        with tf.Graph().as_default():
            placement = run_graph.build(chosen, on_cpus(2)).placement
        counted.append((placement["flops_per_image"], placement["bytes_per_image"]))
    assert counted[0] == counted[1] and counted[0][0] > 0
