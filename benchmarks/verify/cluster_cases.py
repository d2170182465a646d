"""Compares every manager that works across processes with the references, in a cluster of real ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from benchmarks.cluster.member import ClusterTeam
from benchmarks.config.config import Config
from benchmarks.topology import devices as device_planning
from benchmarks.topology.cluster import Cluster
from benchmarks.topology.placement import trains
from benchmarks.verify import cases as verify
from benchmarks.verify import oracle
from benchmarks.verify.cases import Case, Verdict
from variable_mgr import expected
from variable_mgr.modifiers import Modifiers, why_not

_GATHERING = ("parameter_server", "distributed_replicated")
_REDUCING = ("collective_all_reduce", "distributed_all_reduce")
_EXCHANGING = (*_GATHERING, *_REDUCING)


def cases() -> Iterator[Case]:
    """Yields everything that there is to compare between processes."""
    for optimizer in ("sgd", "momentum"):
        for manager in _EXCHANGING:
            yield Case(manager, Modifiers(), "cpu", optimizer, manager)
        staged = Modifiers(staged_vars=True)
        yield Case("parameter_server", staged, "cpu", optimizer, "parameter_server staged")
        apart = Modifiers(asynchronous=True)
        yield Case("parameter_server", apart, "cpu", optimizer, "parameter_server asynchronous, workers in turn")
        for steps in (1, 2):
            modifiers = Modifiers(local_sgd_steps=steps)
            yield Case("local_sgd", modifiers, "cpu", optimizer, f"local_sgd every {steps} steps")
    for transfer, fields in verify.TRANSFERS.items():
        managers = {"": (), "compact": _EXCHANGING, "compact bfloat16": _EXCHANGING}.get(transfer, _REDUCING)
        for manager in managers:
            yield Case(manager, Modifiers(**fields), "cpu", "sgd", f"{manager} {transfer}")
    for spec in ("xring", "psgpu", "pscpu/pscpu", "pscpu/xring", "xring/rechd", "hierarchical"):
        modifiers = Modifiers(all_reduce_spec=spec)
        yield Case("distributed_all_reduce", modifiers, "cpu", "sgd", f"distributed_all_reduce {spec}")
    for manager in _EXCHANGING:
        yield Case(manager, Modifiers(), "cpu", "whole batch", manager)


def verdicts(config: Config, cluster: Cluster, team: ClusterTeam) -> Iterator[Verdict]:
    """Runs all cases; every worker must call this, and sees the same.

    Args:
        config: says which devices workers have.
        cluster: the tasks.
        team: this task among them.
    """
    tf.config.experimental.enable_tensor_float_32_execution(False)  # as in a run: fp32 means fp32
    for number, case in enumerate(cases(), start=1):
        plan = _plan(config, cluster, case, group=100 * number)
        reason = why_not(case.manager, case.modifiers, plan.place)
        if reason:
            yield Verdict(case, None, reason)
        elif trains(cluster, cluster.own, case.manager):
            yield Verdict(case, _error(case, plan, config, team.under(case.manager), number))


def _plan(config: Config, cluster: Cluster, case: Case, group: int) -> device_planning.Devices:
    plan = device_planning.plan(
        config.device,
        config.num_devices,
        virtual_gpus=config.virtual_gpus,
        shared_on=case.shared_on,
        cluster=cluster,
        manager=case.manager,
        group=group,
    )
    if case.manager in _GATHERING:
        return plan
    # The same cluster may hold parameter servers for other cases.
    return dataclasses.replace(plan, place=dataclasses.replace(plan.place, ps=()))


def _session_config(config: Config) -> tf.compat.v1.ConfigProto:
    return device_planning.session_config(config.device, config.num_devices, **config.runtime.session_options())


def _error(case: Case, plan: device_planning.Devices, config: Config, team: ClusterTeam, number: int) -> float:
    towers = plan.place.towers_in_total
    make = verify.maker(case.manager, plan, case.modifiers)
    if case.reference == "whole batch":
        weights = oracle.convolutional_weights(make, plan, towers, _session_config(config), team)
        return verify.largest_difference(weights, _weights_of_one_device(towers)) if team.is_leader else 0.0
    mine = oracle.trained(
        make, plan, case.reference, _session_config(config), team, in_turn=case.modifiers.asynchronous
    )
    everyone = team.meet(f"case {number}", dataclasses.asdict(mine)).values()
    together = expected.Trajectory(
        a=[sum(parts, []) for parts in zip(*(seen["a"] for seen in everyone), strict=True)],
        b=[sum(parts, []) for parts in zip(*(seen["b"] for seen in everyone), strict=True)],
        loss=[float(np.mean(parts)) for parts in zip(*(seen["loss"] for seen in everyone), strict=True)],
    )
    return together.error(_wanted(case, plan))


def _wanted(case: Case, plan: device_planning.Devices) -> expected.Trajectory:
    place = plan.place
    if case.modifiers.asynchronous:
        return expected.expected_workers_in_turn(place.workers, len(place.towers), case.reference)
    wanted = verify.wanted_of(case.manager, case.modifiers, place.towers_in_total, case.reference)
    # What each worker sees: one copy; or a master and its copies; or, like all it drives, its copies.
    seen = {"parameter_server": 1, "distributed_replicated": 1 + len(place.towers)}.get(case.manager)
    if seen is None:
        return wanted
    return dataclasses.replace(
        wanted,
        a=[step[:1] * (seen * place.workers) for step in wanted.a],
        b=[step[:1] * (seen * place.workers) for step in wanted.b],
    )


def _weights_of_one_device(towers: int) -> dict[str, np.ndarray]:
    alone = device_planning.plan("cpu", 1, virtual_gpus=1, shared_on="cpu")
    make = verify.maker("replicated", alone, Modifiers())
    return oracle.convolutional_weights(make, alone, towers, device_planning.session_config("cpu", 1))
