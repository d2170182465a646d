"""Tensors that pass through shared memory: what arrives, and who may write it."""

from __future__ import annotations

import pytest
import tensorflow as tf

from variable_mgr.shared_memory import LEAST_BYTES, SharedMemory


@pytest.mark.parametrize("dtype", [tf.float32, tf.float16, tf.bfloat16, tf.int32])
@pytest.mark.parametrize("copy", [False, True])
def test_what_is_read_is_what_was_written(dtype: tf.DType, copy: bool) -> None:
    memory, shapes = SharedMemory(), [[3, 5], [], [4097]]
    with tf.Graph().as_default():
        values = [tf.cast(tf.random.uniform(shape, -9, 9), dtype) for shape in shapes]
        read = [memory.read(memory.write(value), dtype, value.shape, copy=copy) for value in values]
        assert [value.shape.as_list() for value in read] == shapes
        with tf.compat.v1.Session() as session:
            for _ in range(2):
                sent, received = session.run([values, read])
                assert [x.tolist() for x in sent] == [x.tolist() for x in received]


def test_an_operation_does_not_compute_its_result_in_a_slot() -> None:
    memory = SharedMemory()
    with tf.Graph().as_default():
        address = memory.write(tf.ones([100]))
        first = -memory.read(address, tf.float32, tf.TensorShape([100]))  # could reuse what nobody else needs
        with tf.control_dependencies([first]):
            again = memory.read(address, tf.float32, tf.TensorShape([100]))
        with tf.compat.v1.Session() as session:
            assert session.run([first, again])[1].tolist() == [1.0] * 100


def test_a_variable_keeps_a_copy() -> None:
    memory = SharedMemory()
    with tf.Graph().as_default():
        value = tf.compat.v1.placeholder(tf.float32, [2])
        address = memory.write(value)
        variable = tf.Variable(tf.zeros([2]), trainable=False)
        stored = variable.assign(memory.read(address, tf.float32, value.shape, copy=True), read_value=False)
        with tf.compat.v1.Session() as session:
            session.run(variable.initializer)
            session.run(stored, {value: [1, 2]})
            session.run(address, {value: [3, 4]})
            assert session.run(variable).tolist() == [1, 2]


def test_small_tensors_are_sent() -> None:
    assert SharedMemory.pays(tf.TensorShape([LEAST_BYTES // 4]), tf.float32)
    assert not SharedMemory.pays(tf.TensorShape([LEAST_BYTES // 4]), tf.float16)
