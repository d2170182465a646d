"""Managers that work across processes against the references: a cluster of which every task is a thread of this one.

Three servers, of one parameter server and two workers of two towers, exchange everything through their ports, as those
of three processes do. `slow` tests run all comparisons, in real processes.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest
import tensorflow as tf

from benchmarks.cluster.cluster_spec import Cluster, Task
from benchmarks.cluster.liveness import GrpcProbe, Watcher
from benchmarks.cluster.member import ClusterTeam, start_server, with_collectives
from benchmarks.cluster.rendezvous import Rendezvous
from benchmarks.config import config, flag, run_flags
from benchmarks.devices import device_plan
from benchmarks.process.tensorflow_setup import Devices
from benchmarks.process.watchdog import Watchdog
from benchmarks.verify import cases, comparisons, verify_verb
from benchmarks.verify.cases import Case, CaseResult
from models import building
from tests.support.clusters import free_addresses

TOWERS = 2
STEP_SECONDS, ALL_SECONDS = 30, 110
OTHERS = {
    ("parameter_server", "whole batch"),
    ("distributed_replicated", "whole batch"),
    ("parameter_server compact", "sgd"),
    ("distributed_replicated compact", "sgd"),
    ("distributed_all_reduce pscpu/xring", "sgd"),
    ("in_graph_parameter_server", "whole batch"),
    ("in_graph_parameter_server compact", "sgd"),
    ("in_graph_parameter_server computing gradients without applying them", "no change"),
    ("distributed_replicated computing gradients without applying them", "no change"),
}
CASES = [
    case for case in cases.cluster_cases() if case.reference == "momentum" or (case.title, case.reference) in OTHERS
]

pytestmark = pytest.mark.xdist_group("cluster_arithmetic")  # they share one cluster


class _Team(ClusterTeam):
    """A step that waits for what another worker never sends ends with an error."""

    def configured(self, session_config: tf.compat.v1.ConfigProto) -> tf.compat.v1.ConfigProto:
        config = super().configured(session_config)
        config.operation_timeout_in_ms = 1000 * STEP_SECONDS
        return config


def _team(cluster: Cluster, server_config: tf.compat.v1.ConfigProto, target: str) -> ClusterTeam:
    return _Team(
        cluster,
        "parameter_server",
        target=target,
        rendezvous=Rendezvous(target, cluster.own, cluster.leader),
        watcher=Watcher({}, lambda lost: None, probe=GrpcProbe(), replies={}),
        watchdog=Watchdog(show=lambda error: None),
    )


@pytest.fixture(scope="module")
def results() -> Iterator[dict[Case, CaseResult]]:
    """What the leader finds, by case; of the cases before the first that fails with an error."""
    ps, *workers = free_addresses(3)
    values = flag.parse(["--device=cpu", f"--num_gpus={TOWERS}"], verify_verb.VERIFY_FLAGS).values
    chosen = config.resolve(run_flags.unset(values), lambda: 0)
    server_config = with_collectives(device_plan.session_config(Devices(num_devices=TOWERS)))
    tasks = (Task("ps", 0), Task("worker", 0), Task("worker", 1))
    clusters = [Cluster(ps=(ps,), workers=tuple(workers), own=task) for task in tasks]
    servers = [start_server(cluster.spec(), cluster.own, server_config) for cluster in clusters]
    found: dict[Case, CaseResult] = {}
    errors = []
    build, lock = building.stateless_building, threading.Lock()

    @contextlib.contextmanager
    def one_builds_at_a_time(seed: int) -> Iterator[None]:
        with lock, build(seed):  # processes draw from generators of their own, threads from the same one
            yield

    def work(cluster: Cluster, target: str) -> None:
        team = _team(cluster, server_config, target)
        try:
            for result in comparisons.results(chosen.devices, team=team):
                if team.is_leader:
                    found[result.case] = result
        except Exception as error:
            errors.append(error)

    threads = [
        threading.Thread(target=work, args=(cluster, server.target), daemon=True)
        for cluster, server in zip(clusters, servers, strict=True)
        if cluster.own.has_towers
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cases, "cluster_cases", lambda: iter(CASES))
        patch.setattr(building, "stateless_building", one_builds_at_a_time)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(ALL_SECONDS / len(threads))
    yield found
    if errors:
        raise errors[0]


@pytest.mark.row("G3.4")
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.title}, {case.reference}")
def test_the_arithmetic_across_tasks(results: dict[Case, CaseResult], case: Case) -> None:
    assert case in results, "the comparison was not finished"
    assert results[case].error is not None, results[case].reason
    assert results[case].passed
