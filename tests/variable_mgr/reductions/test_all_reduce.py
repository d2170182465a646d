"""Every all-reduce algorithm, and what is wrapped around one, against NumPy on random tensors."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks.config import flag, run_flags
from benchmarks.devices import device_plan
from benchmarks.microbench import allreduce_verb
from benchmarks.process.tensorflow_setup import Devices
from benchmarks.verify import cases
from tests.support.settings import resolve
from variable_mgr.place import HOST, Place, Turn, group_small
from variable_mgr.reductions import all_reduce_spec, wrappers
from variable_mgr.reductions.algorithm_catalog import ALGORITHMS, Algorithm
from variable_mgr.reductions.all_reduce import AllReduce, Reduction, TowerTensors

shapes = st.lists(st.lists(st.integers(1, 5), max_size=3).map(tuple), min_size=1, max_size=5)
on_examples = pytest.mark.parametrize("examples", [3, pytest.param(20, marks=pytest.mark.rotates)])
SHAPES = [(5,), (), (2, 3), (1,)]


def _place(towers: int) -> Place:
    return Place(tuple(f"/cpu:{i}" for i in range(towers)), HOST)


def _tensors(towers: int, of_shapes: Sequence[tuple[int, ...]], dtype: str = "float32") -> list[list[np.ndarray]]:
    """Small whole numbers: their sums are exact in every type and order."""
    generator = np.random.default_rng(11)
    return [[generator.integers(-9, 9, shape).astype(dtype) for shape in of_shapes] for _ in range(towers)]


def _reduced(reduction: Reduction, values: list[list[np.ndarray]], steps: int = 1) -> list[list[np.ndarray]]:
    """What each tower has after the last of some steps on the same values."""
    with tf.Graph().as_default():
        towers = []
        for tower, tensors in enumerate(values):
            with tf.device(f"/cpu:{tower}"):
                # A variable keeps graph optimisation from reducing constants ahead of time.
                towers.append([tf.Variable(tensor).read_value() for tensor in tensors])
        means, operations = reduction.mean(towers)
        with tf.compat.v1.Session(config=device_plan.session_config(Devices(num_devices=len(values)))) as session:
            session.run(tf.compat.v1.global_variables_initializer())
            return [session.run([means, operations])[0] for _ in range(steps)][-1]


def _assert_means(got: list[list[np.ndarray]], values: list[list[np.ndarray]], tolerance: float = 1e-6) -> None:
    expected = [np.mean([tensors[i].astype(np.float64) for tensors in values], axis=0) for i in range(len(values[0]))]
    for tensors in got:
        for tensor, mean, original in zip(tensors, expected, values[0], strict=True):
            assert tensor.shape == original.shape
            assert tensor.dtype == original.dtype
            np.testing.assert_allclose(tensor, mean, rtol=tolerance, atol=tolerance)
    for tensors in got[1:]:
        for tensor, first in zip(tensors, got[0], strict=True):
            np.testing.assert_array_equal(tensor, first, "all towers must receive the same bits")


@pytest.mark.row("G3.3")
@on_examples
@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if ALGORITHMS[name].why_not(_place(2)) is None])
def test_an_algorithm_is_the_mean(algorithm: str, examples: int) -> None:
    runs_on = [count for count in range(1, 6) if ALGORITHMS[algorithm].why_not(_place(count)) is None]

    @settings(max_examples=examples)
    @example(towers=4, of_shapes=SHAPES, shards=2, dtype="float32")
    @given(
        towers=st.sampled_from(runs_on),
        of_shapes=shapes,
        shards=st.integers(1, 3),
        dtype=st.sampled_from(["float32", "float64"]),
    )
    def check(towers: int, of_shapes: list[tuple[int, ...]], shards: int, dtype: str) -> None:
        reduction = AllReduce(all_reduce_spec.parse(f"{algorithm}#{shards}"), _place(towers))
        values = _tensors(towers, of_shapes, dtype)
        _assert_means(_reduced(reduction, values), values)

    check()


# Names of this process' CPU that differ, so that its devices look like those of several workers.
HOSTS = ("/cpu:0", "/device:CPU:0", "/job:localhost/cpu:0")
TWO_LEVELS = (
    "pscpu/pscpu",
    "psgpu/xring",
    "xring/rechd",
    "rechd/psgpu",
    "hierarchical/hierarchical",
    "xring/psgpu#3",
    "psgpu/pscpu:3:xring/xring#2:6:pscpu",
    "collective/xring",  # all of a group's devices take part in every step, and always the same ones
    "xring/collective",
    "collective:1:collective/collective",
)
# Workers, and towers of each; the first two have several of both.
CLUSTER_SHAPES = ((2, 2), (3, 2), (2, 1), (1, 3))


def _workers(workers: int, towers: int) -> Place:
    hosts = tuple(host for host in HOSTS[:workers] for _ in range(towers))
    return dataclasses.replace(_place(workers * towers), hosts=hosts)


@pytest.mark.parametrize(
    ("spec", "shape"),
    [
        pytest.param(spec, shape, id=f"{spec}-{shape[0]}x{shape[1]}", marks=[pytest.mark.rotates] * (1 in shape))
        for spec in TWO_LEVELS
        for shape in (CLUSTER_SHAPES[:1] if "collective" in spec else CLUSTER_SHAPES)
        if all_reduce_spec.why_not(all_reduce_spec.parse(spec), _workers(*shape)) is None
    ],
)
def test_two_levels_are_the_mean_of_all_towers(spec: str, shape: tuple[int, int]) -> None:
    values = _tensors(shape[0] * shape[1], [*SHAPES, (4,), (2, 2, 2)])
    _assert_means(_reduced(AllReduce(all_reduce_spec.parse(spec), _workers(*shape)), values), values)


def test_kernels_and_biases_that_alternate_are_added_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    added = {0: 0, 1: 0}

    def counting(values: Sequence[tf.Tensor], place: Place, turn: Turn) -> list[tf.Tensor]:
        added[turn.tower] += values[0].shape.num_elements()
        return list(values)

    monkeypatch.setitem(ALGORITHMS, "psgpu", Algorithm("psgpu", "", counting))
    with tf.Graph().as_default():
        tensors = [tf.zeros(shape) for _ in range(4) for shape in ((100,), (2,))]
        AllReduce(all_reduce_spec.parse("psgpu"), _place(2)).mean([tensors, tensors])
    assert abs(added[0] - added[1]) <= 100


@on_examples
@pytest.mark.parametrize(
    ("wrapper", "least"), [(wrappers.Repacked, (1,)), (wrappers.SmallAggregated, (20, 2))], ids=["repacked", "grouped"]
)
def test_packing_changes_nothing(wrapper: Callable[..., Reduction], least: tuple[int, ...], examples: int) -> None:
    @settings(max_examples=examples)
    @example(towers=3, of_shapes=SHAPES, more=3)
    @given(towers=st.integers(1, 3), of_shapes=shapes, more=st.integers(0, 200))
    def check(towers: int, of_shapes: list[tuple[int, ...]], more: int) -> None:
        place, numbers = _place(towers), (least[0] + more, *least[1:])
        values = _tensors(towers, of_shapes)
        inner = AllReduce(all_reduce_spec.parse("xring"), place)
        _assert_means(_reduced(wrapper(inner, place, *numbers), values), values)

    check()


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(0, 50), st.integers(1, 5))
def test_groups_keep_order_and_bounds(sizes: list[int], max_bytes: int, max_group: int) -> None:
    groups = group_small(sizes, max_bytes, max_group)
    assert [index for group in groups for index in group] == list(range(len(sizes)))
    for group in groups:
        assert len(group) <= max_group
        assert len(group) == 1 or all(sizes[index] <= max_bytes for index in group)
    for left, right in zip(groups, groups[1:], strict=False):
        assert len(left) == max_group or sizes[left[-1]] > max_bytes or sizes[right[0]] > max_bytes, "could be joined"


@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 1e-3), ("bfloat16", 8e-3)])
def test_compact_travels_in_16_bits_and_returns_as_it_came(dtype: str, tolerance: float) -> None:
    place = _place(2)
    values = _tensors(2, [(3,), (2, 2)])
    seen = []

    class Watched(AllReduce):
        def mean(self, towers: TowerTensors) -> wrappers.Result:
            seen.extend(tensor.dtype for tensor in towers[0])
            return super().mean(towers)

    inner = Watched(all_reduce_spec.parse("pscpu"), place)
    _assert_means(_reduced(wrappers.Compact(inner, place, dtype), values), values, tolerance)
    assert seen == [tf.as_dtype(dtype)] * 2


def test_deferring_hands_out_zeros_first() -> None:
    place = _place(2)
    values = _tensors(2, [(3,), (2, 2)])

    def deferred() -> Reduction:
        return wrappers.Deferred(AllReduce(all_reduce_spec.parse("pscpu"), place), place)

    zeros = [[np.zeros_like(tensor) for tensor in tensors] for tensors in values]
    _assert_means(_reduced(deferred(), values, steps=1), zeros)
    _assert_means(_reduced(deferred(), values, steps=2), values)


def test_a_new_algorithm_is_one_function_and_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """It can be named in a spec, and `verify` and `allreduce` have it, with no other change."""

    def last_tower(values: Sequence[tf.Tensor], place: Place, turn: Turn) -> list[tf.Tensor]:
        with tf.device(place.towers[-1]):
            return [tf.reduce_mean(tf.stack(values), axis=0)] * len(values)

    monkeypatch.setitem(ALGORITHMS, "last_tower", Algorithm("last_tower", "averaged on the last tower", last_tower))
    values = _tensors(3, [(4,), (2, 3)])
    _assert_means(_reduced(AllReduce(all_reduce_spec.parse("last_tower#2"), _place(3)), values), values)
    in_verify = [case for case in cases.cases() if case.modifiers.all_reduce_spec == "last_tower"]
    assert {case.reference for case in in_verify} == {"sgd", "whole batch"}
    given = flag.parse(["--device=cpu", "--num_gpus=2"], allreduce_verb.ALLREDUCE_FLAGS).values
    assert "last_tower" in allreduce_verb.allreduce_options(run_flags.unset(given), lambda: 0).specs
    resolve("--variable_update=replicated", "--all_reduce_spec=last_tower")


def test_only_two_levels_that_need_powers_of_two_do_not_run() -> None:
    refused = {
        (spec, shape)
        for spec, shape in itertools.product(TWO_LEVELS, CLUSTER_SHAPES)
        if all_reduce_spec.why_not(all_reduce_spec.parse(spec), _workers(*shape))
    }
    assert refused == {("xring/rechd", (3, 2)), ("rechd/psgpu", (1, 3))}
