"""Tensors pass between processes of one host through shared memory; a network connection carries only their address.

Sending over a network copies a tensor into the kernel, out of it, and into a tensor of the receiver. Here the sender
copies once, and the receiver uses that copy. The memory belongs to a worker: it is a file without a name (memfd), so
nothing remains of it when the processes end, however they do.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import mmap
import os

import numpy as np
import tensorflow as tf

# Smaller tensors are sent: two calls of Python cost more than their copies.
LEAST_BYTES = 2**20


@functools.cache
def _mapped(address: bytes, size_bytes: int) -> np.ndarray:
    """Returns the bytes at an address, such as `/proc/17/fd/5:4096`; mapped once per process."""
    path, _, offset = address.decode().rpartition(":")
    descriptor = os.open(path, os.O_RDWR)
    try:
        return np.frombuffer(mmap.mmap(descriptor, size_bytes, offset=int(offset)), np.uint8)
    finally:
        os.close(descriptor)


def _write(address: bytes, value: np.ndarray) -> bytes:
    np.copyto(_mapped(address, value.nbytes), value.reshape(-1).view(np.uint8))
    return address


def _read(address: bytes, dtype: bytes, shape: np.ndarray) -> np.ndarray:
    like = tf.as_dtype(dtype.decode()).as_numpy_dtype
    return _mapped(address, math.prod(shape.tolist()) * np.dtype(like).itemsize).view(like).reshape(shape)


@dataclasses.dataclass(frozen=True)
class Functions:
    """The names under which TensorFlow calls this process' functions, also for a graph that another process built."""

    write: str
    read: str
    graph: tf.Graph = dataclasses.field(compare=False, repr=False)  # keeps the functions alive


@functools.cache
def functions() -> Functions:
    """Registers this process' functions; equally named in processes that register no `tf.numpy_function` before."""
    with tf.Graph().as_default() as graph:
        write = tf.numpy_function(_write, ["", 0.0], tf.string).op
        read = tf.numpy_function(_read, ["", "", [0]], tf.float32).op
    return Functions(write.get_attr("token").decode(), read.get_attr("token").decode(), graph)


class SharedMemory:
    """One worker's memory that parameter servers on its host use, too.

    A slot must have been read before it is written again; a step that waits for all its reads ensures that.
    """

    def __init__(self) -> None:
        self._descriptor = os.memfd_create("exchanged tensors")
        self._size_bytes = 0

    @staticmethod
    def pays(shape: tf.TensorShape, dtype: tf.DType) -> bool:
        """Returns whether a tensor is large enough."""
        return int(shape.num_elements() * dtype.size) >= LEAST_BYTES

    def write(self, value: tf.Tensor) -> tf.Tensor:
        """Copies a tensor to a slot of its own, on the current device, a CPU; returns the slot's address, a string."""
        address = f"/proc/{os.getpid()}/fd/{self._descriptor}:{self._size_bytes}"
        pages = -(-value.shape.num_elements() * value.dtype.size // mmap.PAGESIZE)
        self._size_bytes += pages * mmap.PAGESIZE
        os.ftruncate(self._descriptor, self._size_bytes)
        (written,) = tf.raw_ops.PyFunc(input=[tf.constant(address), value], token=functions().write, Tout=[tf.string])
        written.set_shape([])
        return written

    @staticmethod
    def read(address: tf.Tensor, dtype: tf.DType, shape: tf.TensorShape, *, copy: bool = False) -> tf.Tensor:
        """Returns the tensor at an address, on the current device, a CPU.

        Args:
            address: of a slot.
            dtype: of the tensor.
            shape: of the tensor.
            copy: needed if the tensor is used after the end of the step, such as by a variable.
        """
        (value,) = tf.raw_ops.PyFunc(
            input=[address, tf.constant(dtype.name), tf.constant(shape.as_list(), tf.int64)],
            token=functions().read,
            Tout=[dtype],
        )
        value.set_shape(shape)
        return tf.raw_ops.DeepCopy(x=value) if copy else value
