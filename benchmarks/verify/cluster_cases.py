"""Compares every manager that works across processes with the references, in a cluster of real processes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.cluster.cluster_spec import trains
from benchmarks.cluster.member import ClusterTeam
from benchmarks.devices import device_plan as device_planning
from benchmarks.process.tensorflow_setup import Devices
from benchmarks.verify import oracle
from benchmarks.verify.cases import (
    NO_CHANGE,
    TRANSFERS,
    Case,
    CaseResult,
    largest_difference,
    maker,
    under,
    why_not_under,
    without_applying,
)
from variable_mgr import expected
from variable_mgr.catalog import IN_GRAPH, MANAGERS, Processes, uses_servers
from variable_mgr.modifiers import Modifiers, why_not

_OF_ONE_CLIENT = ("xring", "psgpu", "pscpu/pscpu", "pscpu/xring", "xring/rechd", "hierarchical")


def cases() -> Iterator[Case]:
    """Yields every comparison between processes; it follows from the catalog of managers."""
    managers = {name: entry for name, entry in MANAGERS.items() if entry.processes != Processes.ONE}
    for manager, entry in managers.items():
        for optimizer in ("sgd", "momentum"):
            if "local_sgd_steps" not in entry.modifiers:
                yield Case(manager, Modifiers(), "cpu", optimizer, manager)
            if "staged_vars" in entry.modifiers:
                yield Case(manager, Modifiers(staged_vars=True), "cpu", optimizer, f"{manager} staged")
            if "asynchronous" in entry.modifiers:
                title = f"{manager} asynchronous, {'towers' if manager in IN_GRAPH else 'workers'} in turn"
                yield Case(manager, Modifiers(asynchronous=True), "cpu", optimizer, title)
            for steps in (1, 2) if "local_sgd_steps" in entry.modifiers else ():
                modifiers = Modifiers(local_sgd_steps=steps)
                yield Case(manager, modifiers, "cpu", optimizer, f"{manager} every {steps} steps")
        for transfer, fields in TRANSFERS.items():
            if transfer and not set(fields) - {*entry.modifiers, "compact_gradient_dtype"}:
                yield Case(manager, Modifiers(**fields), "cpu", "sgd", f"{manager} {transfer}")
        if entry.exchanges_gradients and "all_reduce_spec" in entry.modifiers:
            for spec in ("nccl",) if entry.reductions else _OF_ONE_CLIENT:
                yield Case(manager, Modifiers(all_reduce_spec=spec), "cpu", "sgd", f"{manager} {spec}")
        if entry.exchanges_gradients:
            yield Case(manager, Modifiers(), "cpu", "whole batch", manager)
        yield without_applying(manager)


def results(
    devices: Devices,
    team: ClusterTeam,
    chosen: Sequence[Case] | None = None,
    rule: expected.Rule | None = None,
    *,
    step_timeout_seconds: float = 600.0,
) -> Iterator[CaseResult]:
    """Runs cases; every worker must call this, and gets the same cases in the same order.

    Args:
        devices: of each worker.
        team: this task among all.
        chosen: what to compare; None: everything.
        rule: see `cases.under`.
        step_timeout_seconds: how long a step may take.
    """
    cluster = team.cluster
    tf.config.experimental.enable_tensor_float_32_execution(False)  # as in a run: fp32 means fp32
    for number, case in enumerate(under(rule, cases() if chosen is None else chosen), start=1):
        plan = device_planning.plan(
            devices, shared_on=case.shared_on, cluster=cluster, manager=case.manager, group=100 * number
        )
        if not uses_servers(case.manager):  # the same cluster may hold parameter servers for other cases
            plan = dataclasses.replace(plan, place=dataclasses.replace(plan.place, ps=()))
        reason = why_not(case.manager, case.modifiers, plan.place) or why_not_under(case)
        if reason:
            yield CaseResult(case, None, reason)
        elif trains(cluster, cluster.own, case.manager):
            options = device_planning.session_config(devices)
            yield CaseResult(case, _error(case, plan, options, team.under(case.manager), number, step_timeout_seconds))


def _error(
    case: Case,
    plan: device_planning.DevicePlan,
    session_config: tf.compat.v1.ConfigProto,
    team: ClusterTeam,
    number: int,
    step_timeout_seconds: float,
) -> float:
    limited: dict[str, Any] = {"team": team, "step_timeout_seconds": step_timeout_seconds}
    place = plan.place
    make = maker(case.manager, plan, case.modifiers)
    if case.reference == "whole batch":
        weights = oracle.convolutional_weights(
            make, plan, place.towers_in_total, session_config, rule=case.rule, **limited
        )
        return (
            largest_difference(weights, _weights_of_one_device(place.towers_in_total, case.rule))
            if team.is_leader
            else 0.0
        )
    if case.reference == NO_CHANGE:
        change = oracle.changed_by_gradients(make, plan, session_config, **limited)
        return float(np.max([*team.meet(f"case {number}", change).values()]))
    mine = oracle.trained(make, plan, case.rule, session_config, in_turn=case.modifiers.asynchronous, **limited)
    everyone = team.meet(f"case {number}", dataclasses.asdict(mine)).values()
    together = expected.Trajectory(
        a=[sum(parts, []) for parts in zip(*(seen["a"] for seen in everyone), strict=True)],
        b=[sum(parts, []) for parts in zip(*(seen["b"] for seen in everyone), strict=True)],
        loss=[float(np.mean(parts)) for parts in zip(*(seen["loss"] for seen in everyone), strict=True)],
        others=float(np.max([seen["others"] for seen in everyone])),
    )
    # One client runs the steps of all towers as one process does.
    workers = 0 if case.manager in IN_GRAPH else place.workers
    return together.error(
        expected.of_manager(case.manager, case.modifiers, case.rule, len(place.towers), workers=workers)
    )


def _weights_of_one_device(towers: int, rule: expected.Rule) -> dict[str, np.ndarray]:
    alone = device_planning.plan(Devices(), shared_on="cpu")
    make = maker("replicated", alone, Modifiers())
    return oracle.convolutional_weights(make, alone, towers, device_planning.session_config(Devices()), rule=rule)
