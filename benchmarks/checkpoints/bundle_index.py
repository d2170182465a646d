"""Reads what the index of a checkpoint states. TensorFlow's reader ends the process for some that are damaged.

An index is a table of LevelDB: blocks of sorted entries, whose keys share prefixes, a block that says where the others
are, and a footer that says where that one is. Sources: tensorflow/core/protobuf/tensor_bundle.proto, and
https://github.com/google/leveldb/blob/main/doc/table_format.md.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator

import tensorflow as tf
from tensorflow.core.protobuf.tensor_bundle_pb2 import BundleEntryProto, BundleHeaderProto

_MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)
_FOOTER_BYTES, _COUNT_BYTES = 48, 4
_LONGEST_VARINT = 10
_MOST_DIMENSIONS = 254  # of a TensorShape


def stated_bytes(index: bytes) -> dict[str, int]:
    """Returns how many bytes each value has that a checkpoint of one data file states, by its name.

    Raises:
        ValueError: it is no such index, or states what no value can be: a type, a shape, or a part of a value.
    """
    if len(index) < _FOOTER_BYTES or not index.endswith(_MAGIC):
        raise ValueError("its index has no footer")
    footer = index[-_FOOTER_BYTES:]
    _, at = _handle(footer, 0)
    blocks = _entries(_block(index, _handle(footer, at)[0]))
    entries = [entry for _, handle in blocks for entry in _entries(_block(index, _handle(handle, 0)[0]))]
    names = [key for key, _ in entries]
    if names[:1] != [b""] or names != sorted(set(names)):
        raise ValueError("the names in its index are in no order")
    if BundleHeaderProto.FromString(entries[0][1]).num_shards != 1:
        raise ValueError("its index is of several data files, and this suite writes one")
    return {name.decode(): _size(BundleEntryProto.FromString(value)) for name, value in entries[1:]}


def _size(entry: BundleEntryProto) -> int:
    """Returns the bytes of a value, which are as many as its type and shape say, except of texts."""
    lengths = [dimension.size for dimension in entry.shape.dim]
    if entry.slices or entry.shard_id or entry.shape.unknown_rank or min([0, entry.offset, entry.size, *lengths]) < 0:
        raise ValueError("its index states parts of values, or negative sizes")
    kind = tf.dtypes.as_dtype(entry.dtype)
    wanted = math.prod(lengths) * kind.size
    if len(lengths) > _MOST_DIMENSIONS or (entry.size < wanted if kind == tf.string else entry.size != wanted):
        raise ValueError(f"its index states {entry.size} bytes for a value of {lengths} {kind.name}")
    return entry.size


def _block(index: bytes, handle: tuple[int, int]) -> bytes:
    """Returns the entries of the block with this offset and size."""
    offset, size = handle
    block = index[offset : offset + size]
    if len(block) != size or size < _COUNT_BYTES or index[offset + size : offset + size + 1] != b"\0":
        raise ValueError("its index has blocks that are cut off or compressed")
    (restarts,) = struct.unpack("<I", block[-_COUNT_BYTES:])
    return block[: max(0, size - _COUNT_BYTES * (restarts + 1))]


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields the keys and values of a block."""
    key, at = b"", 0
    while at < len(block):
        shared, at = _varint(block, at)
        more, at = _varint(block, at)
        size, at = _varint(block, at)
        end = at + more + size
        if shared > len(key) or end > len(block):
            raise ValueError("its index has entries that are cut off")
        key = key[:shared] + block[at : at + more]
        yield key, block[at + more : end]
        at = end


def _handle(text: bytes, at: int) -> tuple[tuple[int, int], int]:
    """Returns the offset and size of a block that stand there, and where they end."""
    offset, at = _varint(text, at)
    size, at = _varint(text, at)
    return (offset, size), at


def _varint(text: bytes, at: int) -> tuple[int, int]:
    """Returns the number that stands there, seven bits in a byte, and where it ends."""
    number = 0
    for place, byte in enumerate(text[at : at + _LONGEST_VARINT]):
        number |= (byte & 127) << 7 * place
        if byte < 128:
            return number, at + place + 1
    raise ValueError("its index has a number without an end")
