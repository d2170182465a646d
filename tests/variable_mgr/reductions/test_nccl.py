"""NCCL's collectives in graphs: their order on each device, and their number.

No GPU is needed: graphs are only built, or run on CPU devices, where TensorFlow takes its ring for NCCL
(AssignCollectiveType in tensorflow/core/common_runtime/collective_param_resolver_local.cc).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.config import config
from benchmarks.devices import device_plan
from benchmarks.microbench import allreduce
from benchmarks.process.tensorflow_setup import Devices
from tests.support.settings import resolve
from variable_mgr import factory
from variable_mgr.manager import VariableManager
from variable_mgr.modifiers import Modifiers
from variable_mgr.place import HOST, Place
from variable_mgr.reductions import all_reduce_spec, wrappers
from variable_mgr.reductions.all_reduce import AllReduce

SHAPES = ((3, 3), (9,), (100,), (2,))
_PLAIN = Modifiers()
GPUS = tuple(f"/device:GPU:{tower}" for tower in range(4))


def _worker(worker: int) -> Place:
    prefix = f"/job:worker/replica:0/task:{worker}"
    return Place(tuple(prefix + gpu for gpu in GPUS[:2]), f"{prefix}/device:CPU:0", workers=2, worker=worker)


def _order(
    place: Place, spec: str, modifiers: Modifiers = _PLAIN, shapes: Sequence[tuple[int, ...]] = SHAPES
) -> dict[str, list[int]]:
    """Builds a reduction and returns the instance keys of each device's collectives in the order that the graph forces.

    Each must wait for the one before, directly.
    """
    with tf.Graph().as_default() as graph:
        towers = []
        for device in place.towers:
            with tf.device(device):
                towers.append([tf.compat.v1.placeholder(tf.float32, shape) for shape in shapes])
        wrappers.reduction(place, modifiers, spec).mean(towers)
        chains: dict[str, list[tf.Operation]] = {}
        for operation in graph.get_operations():
            if operation.type == "CollectiveReduceV2" and operation.get_attr("communication_hint") == b"nccl":
                chain = chains.setdefault(operation.device, [])
                assert [*operation.control_inputs] == chain[-1:], (
                    "each follows the last one of its device, and no other"
                )
                chain.append(operation)
    return {
        device: [int(tf.get_static_value(operation.inputs[3])) for operation in chain]
        for device, chain in chains.items()
    }


@pytest.mark.parametrize(
    ("spec", "modifiers", "keys"),
    [
        ("nccl", Modifiers(), [4, 3, 2, 1]),
        ("nccl#2", Modifiers(), [7, 8, 5, 6, 3, 4, 1, 2]),
        ("pscpu:5:nccl", Modifiers(), [3, 2, 1]),
        ("nccl:9:pscpu", Modifiers(), [4, 2, 1]),
        ("nccl", Modifiers(gradient_repacking=3), [3, 2, 1]),
        ("nccl", Modifiers(agg_small_grads_max_bytes=36), [3, 2, 1]),
        ("nccl", Modifiers(relaxed_consistency=True, compact_gradient_transfer=True), [4, 3, 2, 1]),
    ],
)
def test_nccl_takes_one_tensor_after_the_other_in_the_same_order_on_all_devices(
    spec: str, modifiers: Modifiers, keys: list[int]
) -> None:
    """The last layers come first, since their gradients are computed first."""
    assert _order(Place(GPUS, HOST), spec, modifiers) == dict.fromkeys(GPUS, keys)
    if "pscpu" not in spec:  # which averages within one process
        of_all = {**_order(_worker(0), spec, modifiers), **_order(_worker(1), spec, modifiers)}
        assert len(of_all) == 4 and all(order == keys for order in of_all.values())


@pytest.mark.parametrize("spec", ["nccl/nccl", "nccl/psgpu", "psgpu/nccl"])
def test_a_device_that_belongs_to_two_communicators_has_one_chain(spec: str) -> None:
    workers = (_worker(0), _worker(1))
    hosts = tuple(worker.host for worker in workers for _ in worker.towers)
    place = Place(tuple(tower for worker in workers for tower in worker.towers), HOST, hosts=hosts)
    found = _order(place, spec)
    first, second = found[workers[0].towers[0]], found[workers[1].towers[0]]
    assert first == second == sorted(first, reverse=True), "a tensor is reduced inside, then across"


def test_the_ring_is_not_ordered() -> None:
    place = Place(GPUS, HOST)
    with tf.Graph().as_default() as graph:
        values = [[tf.zeros(shape) for shape in SHAPES] for _ in GPUS]
        AllReduce(all_reduce_spec.parse("nccl:9:collective"), place).mean(values)
        rings = [one for one in graph.get_operations() if one.type.startswith("Collective")]
        rings = [one for one in rings if one.get_attr("communication_hint") == b"ring"]
    assert len(rings) == len(GPUS) and not any(one.control_inputs for one in rings)


def _on_cpus(build: Callable[[Sequence[Sequence[tf.Tensor]], Place], Sequence[Sequence[tf.Tensor]]]) -> None:
    """Runs what should be the means of three towers, several times, since a deadlock need not show at once."""
    place, generator = Place(("/cpu:0", "/cpu:1", "/cpu:2"), HOST), np.random.default_rng(2)
    values = [[generator.normal(size=shape).astype(np.float32) for shape in SHAPES] for _ in place.towers]
    session_config = device_plan.session_config(Devices(num_devices=3))
    session_config.operation_timeout_in_ms = 60_000
    with tf.Graph().as_default():
        towers = []
        for device, tensors in zip(place.towers, values, strict=True):
            with tf.device(device):
                towers.append([tf.Variable(tensor).read_value() for tensor in tensors])
        means = build(towers, place)
        with tf.compat.v1.Session(config=session_config) as session:
            session.run(tf.compat.v1.global_variables_initializer())
            for _ in range(20):
                for tower in session.run(means):
                    for got, tensors in zip(tower, zip(*values, strict=True), strict=True):
                        np.testing.assert_allclose(got, np.mean(tensors, axis=0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("spec", ["nccl", "nccl#3", "pscpu:5:nccl", "nccl:9:collective"])
def test_ordered_collectives_end_with_the_means(spec: str) -> None:
    _on_cpus(lambda towers, place: AllReduce(all_reduce_spec.parse(spec), place).mean(towers)[0])


def test_ordered_collectives_end_inside_a_conditional() -> None:
    """As the averages of local_sgd are."""

    def build(towers: Sequence[Sequence[tf.Tensor]], place: Place) -> Sequence[Sequence[tf.Tensor]]:
        due = tf.compat.v1.placeholder_with_default(True, [])
        reduction = AllReduce(all_reduce_spec.parse("nccl"), place)
        return tf.cond(due, lambda: reduction.mean(towers)[0], lambda: [list(tensors) for tensors in towers])

    _on_cpus(build)


def _resolve(*words: str, gpus: int = 8) -> config.Config:
    return resolve(*words, gpus=gpus)


def _manager(chosen: config.Config) -> VariableManager:
    place = chosen.place
    return factory.make(
        chosen.variables.variable_update, place, shared_devices=place.towers, modifiers=chosen.variables.modifiers
    )


@pytest.mark.parametrize(
    ("words", "described", "not_described"),
    [
        (("collective_all_reduce",), "groups of at most 10, reduced by nccl: NVIDIA's NCCL", "ring"),
        (("nccl",), "those of at most 4194304 bytes in groups of at most 10, reduced by nccl", "ring"),
        (("collective_all_reduce", "--agg_small_grads_max_bytes=0"), "reduced by nccl", "groups"),
        (("collective_all_reduce", "--gradient_repacking=0"), "reduced by nccl", "groups"),
        (("collective_all_reduce", "--gradient_repacking=2"), "packed into 2 equal chunks, reduced by nccl", "groups"),
        (("replicated", "--all_reduce_spec=pscpu:1K:nccl"), "reduced by pscpu:1K:nccl", "groups"),
        (("collective_all_reduce", "--all_reduce_spec=collective"), "reduced by collective", "groups"),
        (("collective_all_reduce", "--virtual_gpus=2"), "reduced by collective", "nccl"),
        (("collective_all_reduce", "--device=cpu"), "reduced by collective", "nccl"),
        (("local_sgd", "--local_cluster=worker:2"), "reduced by nccl", "ring"),
        (("local_sgd", "--local_cluster=worker:2", "--all_reduce_spec=collective"), "reduced by collective", "nccl"),
        (("local_sgd",), "reduced by psgpu", "nccl"),
        (("local_sgd", "--all_reduce_spec=nccl"), "reduced by nccl", "psgpu"),
    ],
)
def test_nccl_and_its_groups_are_chosen_where_each_tower_is_a_gpu(
    words: tuple[str, ...], described: str, not_described: str
) -> None:
    """The description is in the record and in the line `Variables` of a run."""
    manager = _manager(_resolve("--model=resnet50", "--num_gpus=2", "--variable_update=" + words[0], *words[1:]))
    assert described in manager.describe() and not_described not in manager.describe()


def test_by_default_a_step_of_resnet50_has_tens_of_collectives_instead_of_one_per_weight() -> None:
    chosen = _resolve("--num_gpus=8", "--variable_update=collective_all_reduce")
    counts = [
        set(map(len, _order(chosen.place, "nccl", modifiers, allreduce.of_model("resnet50").shapes).values()))
        for modifiers in (Modifiers(), chosen.variables.modifiers)
    ]
    assert counts == [{161}, {24}]
