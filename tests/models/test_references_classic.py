"""The models of tf_cnn_benchmarks besides ResNet, VGG and DenseNet compute what their definitions, written here, do."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import tensorflow as tf

from tests.support import references
from tests.support.references import Values


def _flat(x: tf.Tensor) -> tf.Tensor:
    return tf.reshape(x, [x.shape[0], -1])


def _googlenet(values: Values, images: np.ndarray) -> tf.Tensor:
    conv = functools.partial(references.conv, values)

    def module(x: tf.Tensor, name: str) -> tf.Tensor:
        b3, b5 = (conv(conv(x, f"{name}_{size}_reduce"), f"{name}_{size}") for size in ("3x3", "5x5"))
        pooled = conv(tf.nn.max_pool2d(x, 3, 1, "SAME"), f"{name}_pool_1x1")
        return tf.concat([conv(x, f"{name}_1x1"), b3, b5, pooled], axis=-1)

    x = tf.nn.max_pool2d(conv(images, "conv1", 2), 3, 2, "SAME")
    x = tf.nn.max_pool2d(conv(conv(x, "conv2_reduce"), "conv2"), 3, 2, "SAME")
    for stage, letters in ((3, "ab"), (4, "abcde"), (5, "ab")):
        for letter in letters:
            x = module(x, f"inception{stage}{letter}")
        x = tf.nn.max_pool2d(x, 3, 2, "SAME") if stage < 5 else x
    return references.dense(values, tf.reduce_mean(x, axis=(1, 2)), "logits")


def _overfeat(values: Values, images: np.ndarray) -> tf.Tensor:
    conv = functools.partial(references.conv, values)
    x = tf.nn.max_pool2d(conv(images, "conv1", 4, "VALID"), 2, 2, "VALID")
    x = tf.nn.max_pool2d(conv(x, "conv2", 1, "VALID"), 2, 2, "VALID")
    x = _flat(tf.nn.max_pool2d(conv(conv(conv(x, "conv3"), "conv4"), "conv5"), 2, 2, "VALID"))
    x = tf.nn.relu(references.dense(values, tf.nn.relu(references.dense(values, x, "fc6")), "fc7"))
    return references.dense(values, x, "logits")


def _lenet(values: Values, images: np.ndarray) -> tf.Tensor:
    x = tf.nn.max_pool2d(references.conv(values, images, "conv1"), 2, 2, "VALID")
    x = tf.nn.max_pool2d(references.conv(values, x, "conv2"), 2, 2, "VALID")
    return references.dense(values, tf.nn.relu(references.dense(values, _flat(x), "fc3")), "logits")


def _alexnet_cifar10(values: Values, images: np.ndarray) -> tf.Tensor:
    def norm(x: tf.Tensor) -> tf.Tensor:
        channels = np.arange(64)
        near = np.abs(channels[:, np.newaxis] - channels) <= 4
        return x / (1 + 0.001 / 9 * tf.square(x) @ near.astype(np.float32)) ** 0.75

    x = norm(tf.nn.max_pool2d(references.conv(values, images, "conv1"), 3, 2, "SAME"))
    x = tf.nn.max_pool2d(norm(references.conv(values, x, "conv2")), 3, 2, "SAME")
    x = tf.nn.relu(references.dense(values, tf.nn.relu(references.dense(values, _flat(x), "fc3")), "fc4"))
    return references.dense(values, x, "logits")


def _inception4(values: Values, images: np.ndarray) -> tf.Tensor:
    """Figures 3 to 9 of the paper."""

    def conv(x: tf.Tensor, name: str, stride: int = 1, padding: str = "SAME") -> tf.Tensor:
        x = tf.nn.conv2d(x, values[f"{name}/kernel"], stride, padding)
        return tf.nn.relu(references.normal(values, x, name, 1e-3))

    def chain(x: tf.Tensor, *names: str) -> tf.Tensor:
        for name in names:
            x = conv(x, name)
        return x

    def halve(x: tf.Tensor) -> tf.Tensor:
        return tf.nn.max_pool2d(x, 3, 2, "VALID")

    def block(x: tf.Tensor, name: str, branches: Sequence[Sequence[str]]) -> tf.Tensor:
        made = [chain(x, *(f"{name}_{end}" for end in branch)) for branch in branches]
        return tf.concat([*made, conv(tf.nn.avg_pool2d(x, 3, 1, "SAME"), f"{name}_pool_1x1")], axis=-1)

    x = conv(conv(conv(images, "stem_conv1", 2, "VALID"), "stem_conv2", 1, "VALID"), "stem_conv3")
    x = tf.concat([halve(x), conv(x, "stem_conv4", 2, "VALID")], axis=-1)
    three = conv(conv(x, "stem_3x3_reduce"), "stem_3x3", 1, "VALID")
    seven = chain(x, "stem_7x7_reduce", "stem_7x7_a", "stem_7x7_b")
    x = tf.concat([three, conv(seven, "stem_7x7_3x3", 1, "VALID")], axis=-1)
    x = tf.concat([conv(x, "stem_conv5", 2, "VALID"), halve(x)], axis=-1)
    for number in range(1, 5):
        double = ("double_reduce", "double_a", "double_b")
        x = block(x, f"mixed35_{number}", [("1x1",), ("3x3_reduce", "3x3"), double])
    double = chain(x, "reduce35_double_reduce", "reduce35_double_a")
    double = conv(double, "reduce35_double_b", 2, "VALID")
    x = tf.concat([conv(x, "reduce35_3x3", 2, "VALID"), double, halve(x)], axis=-1)
    for number in range(1, 8):
        double = ("double_reduce", "double_a", "double_b", "double_c", "double_d")
        x = block(x, f"mixed17_{number}", [("1x1",), ("7x7_reduce", "7x7_a", "7x7_b"), double])
    three = conv(conv(x, "reduce17_3x3_reduce"), "reduce17_3x3", 2, "VALID")
    seven = conv(chain(x, "reduce17_7x7_reduce", "reduce17_7x7_a", "reduce17_7x7_b"), "reduce17_7x7_3x3", 2, "VALID")
    x = tf.concat([three, seven, halve(x)], axis=-1)
    for number in range(1, 4):
        double = ("double_reduce", "double_a", "double_b")
        split = [("3x3_reduce", "3x3_a"), ("3x3_reduce", "3x3_b"), (*double, "double_c"), (*double, "double_d")]
        x = block(x, f"mixed8_{number}", [("1x1",), *split])
    return references.dense(values, tf.reduce_mean(x, axis=(1, 2)), "logits")


def _project(values: Values, x: tf.Tensor, name: str, stride: int = 1, padding: str = "SAME") -> tf.Tensor:
    return references.normal(values, tf.nn.conv2d(x, values[f"{name}/kernel"], stride, padding), name, 1e-3)


def _separable(values: Values, x: tf.Tensor, name: str, stride: int = 1) -> tf.Tensor:
    for number, step in ((1, stride), (2, 1)):
        kernel = values[f"{name}_separable{number}_depthwise/kernel"]
        x = tf.nn.depthwise_conv2d(tf.nn.relu(x), kernel, [1, step, step, 1], "SAME")
        x = _project(values, x, f"{name}_separable{number}")
    return x


def _average(x: tf.Tensor, stride: int = 1) -> tf.Tensor:
    return tf.nn.avg_pool2d(x, 3, stride, "SAME")


def _adjust(values: Values, before: tf.Tensor, x: tf.Tensor, name: str) -> tf.Tensor:
    before = tf.nn.relu(before)
    if before.shape[1] == x.shape[1]:
        return _project(values, before, name)
    odd = tf.pad(before, [(0, 0), (0, 1), (0, 1), (0, 0)])[:, 1::2, 1::2]
    halves = _project(values, before[:, ::2, ::2], f"{name}_even"), _project(values, odd, f"{name}_odd")
    return tf.concat(halves, axis=-1)


def _normal_cell(values: Values, x: tf.Tensor, before: tf.Tensor, name: str) -> tf.Tensor:
    project, separable = functools.partial(_project, values), functools.partial(_separable, values)
    h = project(tf.nn.relu(x), f"{name}_last")
    pairs = [f"{name}_pair{number}" for number in range(6)]
    if before is x:  # the stem, which has other filters: as in tf_cnn_benchmarks
        p, identity = x, project(tf.nn.relu(x), f"{pairs[3]}_right")
        averages = project(_average(x), f"{pairs[4]}_left") + project(_average(x), f"{pairs[4]}_right")
        output = project(x, f"{name}_output0")
    else:
        p = identity = output = _adjust(values, before, x, f"{name}_before")
        averages = 2 * _average(p)
    one = separable(h, f"{pairs[1]}_left") + separable(p, f"{pairs[1]}_right")
    two = separable(p, f"{pairs[2]}_left") + separable(p, f"{pairs[2]}_right")
    five = separable(h, f"{pairs[5]}_left") + h
    return tf.concat([output, one, two, _average(h) + identity, averages, five], axis=-1)


def _reduction_cell(values: Values, x: tf.Tensor, before: tf.Tensor, name: str) -> tf.Tensor:
    separable = functools.partial(_separable, values)
    h = _project(values, tf.nn.relu(x), f"{name}_last")
    p = x if before is x else _adjust(values, before, x, f"{name}_before")
    pairs = [f"{name}_pair{number}" for number in range(6)]
    largest = tf.nn.max_pool2d(h, 3, 2, "SAME")
    one = separable(h, f"{pairs[1]}_left", 2) + separable(p, f"{pairs[1]}_right", 2)
    two = largest + separable(p, f"{pairs[2]}_right", 2)
    three = _average(h, 2) + separable(p, f"{pairs[3]}_right", 2)
    return tf.concat([two, three, two + _average(one), separable(one, f"{pairs[5]}_left") + largest], axis=-1)


def _nasnet(values: Values, images: np.ndarray, *, cells: int, is_large: bool = False) -> tf.Tensor:
    """Figures 2 and 4 of the paper; in the large model, the cell after a reduction cell has its second input, too."""
    is_small = images.shape[1] == 32
    x = before = _project(values, images, "stem") if is_small else _project(values, images, "stem", 2, "VALID")
    for number in () if is_small else (1, 2):
        before, x = x, _reduction_cell(values, x, before, f"stem_reduction{number}")
    for stage in (1, 2, 3):
        if stage > 1:
            reduced = _reduction_cell(values, x, before, f"stage{stage}_reduction")
            before, x = before if is_large else x, reduced
        for cell in range(1, cells + 1):
            before, x = x, _normal_cell(values, x, before, f"stage{stage}_cell{cell}")
    return references.dense(values, tf.reduce_mean(tf.nn.relu(x), axis=(1, 2)), "logits")


DEFINITIONS: dict[str, tuple[Callable[[Values, np.ndarray], tf.Tensor], int]] = {
    "alexnet_cifar10": (_alexnet_cifar10, 32),
    "googlenet": (_googlenet, 75),
    "inception4": (_inception4, 107),
    "lenet": (_lenet, 28),
    "nasnet": (functools.partial(_nasnet, cells=4), 64),
    "nasnet_cifar10": (functools.partial(_nasnet, cells=6), 32),
    "nasnetlarge": (functools.partial(_nasnet, cells=6, is_large=True), 96),
    "overfeat": (_overfeat, 127),
}
_MARKS = {"nasnet": pytest.mark.slow, "nasnetlarge": pytest.mark.rotates}


def _in_group(name: str) -> pytest.ParameterSet:
    """Returns the parameter; one worker of pytest-xdist has all tests of a model, since builds are kept per process."""
    marks = [_MARKS[name]] if name in _MARKS else []
    return pytest.param(name, marks=[pytest.mark.xdist_group(name), *marks])


@pytest.mark.parametrize("name", [_in_group(name) for name in DEFINITIONS])
def test_logits_are_those_of_the_definition(name: str) -> None:
    definition, image_size = DEFINITIONS[name]
    references.assert_defined(name, image_size, definition)
