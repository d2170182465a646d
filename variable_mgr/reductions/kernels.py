"""The built-in all-reduce algorithms as functions of one tensor's values; `algorithms` lists them.

Each takes one value per tower, all of one shape, and returns one mean per tower, on the tower's device or where the
runtime fetches it from. `turn` is different for every tensor.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from variable_mgr.place import MeanFunction, Place, Turn

_T = TypeVar("_T")

# A timeout costs a thread per operation, device and step, which sleeps until the timeout is over (TensorFlow 2.21): a
# ResNet-50 would have 64,000 of them after 100 steps on two devices.
_NO_TIMEOUT = 0.0


def on_each(devices: Iterable[str], function: Callable[..., _T], *values: Iterable[Any]) -> list[_T]:
    """Returns what a function returns on each device: of the first of the values on the first device, and so on."""
    results = []
    for device, *own in zip(devices, *values, strict=True):
        with tf.device(device):
            results.append(function(*own))
    return results


def mean(values: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the mean of tensors of one shape, on the current device; of one tensor, that tensor at no cost."""
    if len(values) == 1:
        return values[0]
    return tf.add_n(values) / len(values)


def copy_to_host(values: Sequence[tf.Tensor], place: Place, turn: Turn) -> list[tf.Tensor]:
    """Takes the mean on the host."""
    with tf.device(place.host):
        return [mean(values)] * len(values)


def copy_in_turn(values: Sequence[tf.Tensor], place: Place, turn: Turn) -> list[tf.Tensor]:
    """Takes the mean on one tower's device; the tensors take turns."""
    with tf.device(place.towers[turn.tower]):
        return [mean(values)] * len(values)


def ring(values: Sequence[tf.Tensor], place: Place, turn: Turn) -> list[tf.Tensor]:
    """Passes one chunk per tower around a ring, adding, then passes the sums around.

    Each tower sends 2 (n-1)/n of the tensor. Source: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms
    for clusters of workstations".
    """
    count = len(values)
    if count == 1:
        return list(values)
    pieces = on_each(place.towers, lambda value: tf.split(_flat_padded(value, count), count), values)
    gathered: list[list[tf.Tensor]] = [[] for _ in range(count)]
    for chunk in range(count):
        # From the tower after the chunk's owner all the way round to the owner, who then has the sum ...
        travelling = pieces[(chunk + 1) % count][chunk]
        for hop in range(2, count + 1):
            tower = (chunk + hop) % count
            with tf.device(place.towers[tower]):
                travelling = travelling + pieces[tower][chunk]
        with tf.device(place.towers[chunk]):
            travelling = travelling / count
        gathered[chunk].append(travelling)
        # ... and round again, so that every tower gets it from its neighbour.
        for hop in range(1, count):
            tower = (chunk + hop) % count
            with tf.device(place.towers[tower]):
                travelling = tf.identity(travelling)
            gathered[tower].append(travelling)
    return _joined(place, gathered, values)


def recursive_halving_doubling(values: Sequence[tf.Tensor], place: Place, turn: Turn) -> list[tf.Tensor]:
    """Exchanges halves with a partner at distance n/2, n/4, ... 1, adding; then gathers back the same way.

    Needs a power of two. Source: Thakur, Rabenseifner and Gropp 2005, "Optimization of collective communication
    operations in MPICH".
    """
    count = len(values)
    parts = on_each(place.towers, lambda value: _flat_padded(value, count), values)
    distance = count // 2
    while distance:
        halves = on_each(place.towers, lambda part: tf.split(part, 2), parts)
        kept = []
        for tower, device in enumerate(place.towers):
            half = 1 if tower & distance else 0
            with tf.device(device):
                kept.append(halves[tower][half] + halves[tower ^ distance][half])
        parts, distance = kept, distance // 2
    parts = on_each(place.towers, lambda part: part / count, parts)
    distance = 1
    while distance < count:
        joined = []
        for tower, device in enumerate(place.towers):
            low, high = sorted((tower, tower ^ distance))
            with tf.device(device):
                joined.append(tf.concat([parts[low], parts[high]], axis=0))
        parts, distance = joined, distance * 2
    return _joined(place, [[part] for part in parts], values)


def hierarchical(values: Sequence[tf.Tensor], place: Place, turn: Turn) -> list[tf.Tensor]:
    """Adds within each of two groups on one of its devices, then exchanges the two sums, then copies back.

    For machines whose GPUs form two groups with fast links inside. Members take turns as their group's adder.
    """
    count = len(values)
    if count == 1:
        return list(values)
    groups = (range(count // 2), range(count // 2, count))
    adders = [place.towers[group[turn.tower % len(group)]] for group in groups]
    sums = on_each(adders, lambda group: tf.add_n([values[tower] for tower in group]), groups)
    means = []
    for group, adder in zip(groups, adders, strict=True):
        with tf.device(adder):
            means += [tf.add_n(sums) / count] * len(group)
    return means


def nccl(values: Sequence[tf.Tensor], place: Place, turn: Turn) -> list[tf.Tensor]:
    """Uses TensorFlow's collective executor on NCCL, on each device one tensor after the other.

    All members of a communicator must launch its collectives in the same order, and TensorFlow keeps one between
    processes only if the graph has it (batch_all_reduce in tensorflow/python/distribute/cross_device_utils.py).
    """
    return collective(values, place, turn, hint="nccl")


def collective(values: Sequence[tf.Tensor], place: Place, turn: Turn, *, hint: str = "ring") -> list[tf.Tensor]:
    """Uses TensorFlow's collective executor, over the towers of all workers: each builds the same for its own."""
    count = place.towers_in_total
    if count == 1:
        return list(values)
    means, ordered = [], hint == "nccl"
    for value, device in zip(values, place.towers, strict=True):
        after = [turn.last[device]] if ordered and device in turn.last else []
        with tf.device(device):
            total = collective_sum(value, place, turn.number + 1, hint=hint, after=after)
            means.append(total / count)
        if ordered:
            turn.last[device] = total
    return means


def collective_sum(
    value: tf.Tensor, place: Place, key: int, *, hint: str = "ring", after: Sequence[tf.Tensor] = ()
) -> tf.Tensor:
    """Returns the sum of a tensor over all towers of all workers, on the current device, which must be a tower's.

    Args:
        value: of one tower; every tower must take part.
        place: all towers.
        key: equal for the towers' values of one tensor, different for every tensor.
        hint: `ring` or `nccl`.
        after: must have been computed before.
    """
    size, group, instance = (tf.constant(number) for number in (place.towers_in_total, place.group, key))
    with tf.control_dependencies(after):
        return tf.raw_ops.CollectiveReduceV2(
            input=value,
            group_size=size,
            group_key=group,
            instance_key=instance,
            ordering_token=[],
            merge_op="Add",
            final_op="Id",
            communication_hint=hint,
            timeout_seconds=_NO_TIMEOUT,
        )


def in_two_levels(
    values: Sequence[tf.Tensor], place: Place, turn: Turn, inside: MeanFunction, across: MeanFunction
) -> list[tf.Tensor]:
    """Takes the mean of each worker's towers by one algorithm, then the mean of these by another, for each tower."""
    workers = place.by_worker()
    remaining, within, heads = iter(values), [], []
    for number, (host, towers) in enumerate(workers.items(), start=1):
        part = Place(tuple(towers), host, place.virtual, group=place.group + number)
        head = turn.tower % len(towers)
        within.append(inside([next(remaining) for _ in towers], part, dataclasses.replace(turn, tower=head)))
        heads.append(head)
    # Heads take turns, and collectives of different devices are of different groups.
    group = place.group + len(workers) + 1 + heads[0]
    between = Place(tuple(t[head] for t, head in zip(workers.values(), heads, strict=True)), place.host, group=group)
    means = [means[head] for means, head in zip(within, heads, strict=True)]
    adder = turn.tower // len(within[0]) % len(heads)
    of_all = across(means, between, dataclasses.replace(turn, tower=adder))
    results = []
    for towers, means, mean_of_all in zip(workers.values(), within, of_all, strict=True):
        for device, own in zip(towers, means, strict=True):
            # Its own part is taken, too: a step leaves out what no operation uses, and a collective would wait for it.
            with tf.device(device), tf.control_dependencies([own]):
                results.append(tf.identity(mean_of_all))
    return results


def _flat_padded(value: tf.Tensor, multiple: int) -> tf.Tensor:
    elements = value.shape.num_elements()
    return tf.pad(tf.reshape(value, [-1]), [[0, -elements % multiple]])


def _joined(place: Place, parts: Sequence[Sequence[tf.Tensor]], values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the parts of each tower as one tensor, without the padding, in the shape of the tower's value."""

    def join(own: Sequence[tf.Tensor], like: tf.Tensor) -> tf.Tensor:
        joined = tf.concat(own, axis=0) if len(own) > 1 else own[0]
        return tf.reshape(joined[: like.shape.num_elements()], like.shape)

    return on_each(place.towers, join, parts, values)
