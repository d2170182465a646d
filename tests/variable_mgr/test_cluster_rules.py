"""Which manager goes with which processes, and reductions in two levels: inside workers, then across them."""

from __future__ import annotations

import pytest

from benchmarks.cluster import cluster_spec
from benchmarks.cluster.cluster_spec import Cluster, Task
from variable_mgr import factory
from variable_mgr.catalog import MANAGERS
from variable_mgr.modifiers import Modifiers, why_not
from variable_mgr.place import Place

WITH_PS = Cluster(ps=("h:1",), workers=("h:2", "h:3"), own=Task("worker", 1))
WITHOUT_PS = Cluster(ps=(), workers=("h:2", "h:3"), own=Task("worker", 1))
PROCESSES = {"one": None, "with ps": WITH_PS, "without ps": WITHOUT_PS}
# Where each manager runs; elsewhere, a word of the sentence that refuses it.
RUNS_IN = {
    "collective_all_reduce": ({"one", "without ps"}, "no use for parameter servers"),
    "distributed_all_reduce": ({"without ps"}, "several processes|no use for parameter servers"),
    "distributed_replicated": ({"with ps"}, "several processes|this cluster has none"),
    "in_graph_parameter_server": ({"with ps"}, "several processes|this cluster has none"),
    "independent": ({"one"}, "one process only"),
    "local_sgd": ({"one", "without ps"}, "no use for parameter servers"),
    "parameter_server": ({"one", "with ps"}, "this cluster has none: use --variable_update=collective_all_reduce"),
    "replicated": ({"one"}, "one process only"),
}
IN_GRAPH = "distributed_all_reduce"


def _place(processes: str, manager: str, count: int = 2) -> Place:
    return cluster_spec.place("cpu", count, cluster=PROCESSES[processes], manager=manager)


@pytest.mark.parametrize("processes", PROCESSES)
@pytest.mark.parametrize("manager", MANAGERS)
def test_a_manager_says_where_it_cannot_run(manager: str, processes: str) -> None:
    runs_in, words = RUNS_IN[manager]
    place = _place(processes, manager)
    sentence = why_not(manager, Modifiers(), place)
    if processes in runs_in:
        assert sentence is None
        assert factory.make(manager, place, shared_devices=(place.host,), modifiers=Modifiers())
    else:
        assert sentence is not None and sentence.startswith(manager) and sentence.endswith(".")
        with pytest.raises(ValueError, match=words):
            factory.make(manager, place, shared_devices=(place.host,), modifiers=Modifiers())


@pytest.mark.parametrize(
    ("manager", "modifiers", "runs_in", "refused_in", "words"),
    [
        ("parameter_server", {"fc_model_parallel": True}, "one", "with ps", "towers of one process"),
        ("collective_all_reduce", {"fc_model_parallel": True}, "one", "without ps", "towers of one process"),
        ("parameter_server", {"compact_gradient_transfer": True}, "with ps", "one", "do not travel"),
    ],
)
def test_some_modifiers_need_one_process_and_some_several(
    manager: str, modifiers: dict[str, bool], runs_in: str, refused_in: str, words: str
) -> None:
    assert why_not(manager, Modifiers(**modifiers), _place(runs_in, manager)) is None
    assert words in str(why_not(manager, Modifiers(**modifiers), _place(refused_in, manager)))


def test_two_levels_are_for_one_client_that_drives_several_workers() -> None:
    modifiers = Modifiers(all_reduce_spec="pscpu/xring")
    assert "only under distributed_all_reduce" in str(why_not("replicated", modifiers, _place("one", "replicated")))
    assert why_not(IN_GRAPH, modifiers, _place("without ps", IN_GRAPH)) is None


@pytest.mark.parametrize(
    ("spec", "workers", "towers", "words"),
    [
        ("nccl/xring", 2, 2, "nccl moves data between NVIDIA GPUs only"),
        ("pscpu/nccl", 2, 2, "nccl moves data between NVIDIA GPUs only"),
        ("rechd/xring", 2, 3, "not 3"),
        ("rechd/xring", 3, 2, None),
        ("xring/rechd", 3, 2, "not 3"),
        ("xring/rechd", 2, 3, None),
        ("rechd", 3, 2, "not 6"),
        ("xring:1K:xring/rechd", 3, 1, "not 3"),
    ],
)
def test_each_level_is_asked_about_its_own_towers(spec: str, workers: int, towers: int, words: str | None) -> None:
    cluster = Cluster(ps=(), workers=tuple(f"h:{n}" for n in range(workers)), own=Task("worker", 0))
    place = cluster_spec.place("cpu", towers, cluster=cluster, manager=IN_GRAPH)
    refused = why_not(IN_GRAPH, Modifiers(all_reduce_spec=spec), place)
    assert refused is None if words is None else words in str(refused)
