"""Trains under managers, reductions and modifiers, and compares with the references, in one process or in a cluster."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from benchmarks.cluster.cluster_spec import training_tasks
from benchmarks.cluster.member import Alone, ClusterTeam
from benchmarks.config.variable_update import Variables
from benchmarks.devices import device_plan
from benchmarks.errors import UsageError, failure_of
from benchmarks.graph import run_graph
from benchmarks.process.tensorflow_setup import Devices, Runtime
from benchmarks.verify import cases, oracle
from benchmarks.verify.cases import NO_CHANGE, WHOLE_BATCH, Case, CaseResult
from variable_mgr import expected
from variable_mgr.catalog import IN_GRAPH, MANAGERS, uses_servers
from variable_mgr.expected import Rule, Trajectory

# Managers of which one tower tests something: where variables live, or nothing that is exchanged.
_WITH_ONE_TOWER = [name for name, entry in MANAGERS.items() if entry.one_copy or not entry.modifiers]
Weights = dict[str, np.ndarray]


def results(
    devices: Devices,
    chosen: Sequence[Case] | None = None,
    rule: Rule | None = None,
    *,
    team: Alone | ClusterTeam | None = None,
) -> Iterator[CaseResult]:
    """Runs cases with one tower on each device and yields their results.

    Every worker of a cluster must call this, and gets the same cases in the same order.

    Args:
        devices: of each process.
        chosen: what to compare; None: everything.
        rule: see `cases.under`.
        team: the processes that train together; None: this one alone, without a time limit.
    """
    tf.config.experimental.enable_tensor_float_32_execution(False)  # as in a run: fp32 means fp32
    team = team or Alone()
    cluster = team.cluster if isinstance(team, ClusterTeam) else None

    @functools.cache  # trained when the first case needs it
    def weights_of_one_device(towers: int, rule: Rule) -> Weights:
        single = Devices() if cluster else dataclasses.replace(devices, num_devices=1)
        plan = device_plan.plan(single, shared_on="cpu")
        config = run_graph.session_config(single, Runtime(devices=single))
        alone = oracle.OracleSession(plan, config, Alone() if cluster else team)
        return oracle.convolutional_weights(
            alone, Variables(variable_update="replicated", shared_on="cpu"), towers, rule
        )

    options = run_graph.session_config(devices, Runtime(devices=devices))
    if chosen is None:
        everything = cases.cluster_cases() if cluster else cases.cases()
    for number, case in enumerate(cases.under(rule, everything if chosen is None else chosen), start=1):
        count = min(devices.num_devices, oracle.MOST_STAGES) if case.micro_batches else devices.num_devices
        plan = device_plan.plan(
            dataclasses.replace(devices, num_devices=count),
            shared_on=case.shared_on,
            cluster=cluster,
            manager=case.manager,
            group=100 * number,
        )
        if not uses_servers(case.manager):  # the same cluster may hold parameter servers for other cases
            plan = dataclasses.replace(plan, place=dataclasses.replace(plan.place, ps=()))
        reason = case.why_not(plan.place)
        if chosen is None and not cluster and devices.num_devices == 1 and case.manager not in _WITH_ONE_TOWER:
            reason = "one tower has nothing to exchange; use --num_gpus=2 (on one GPU with --virtual_gpus=2)."
        if reason:
            yield CaseResult(case, None, reason)
            continue
        if cluster and cluster.own not in training_tasks(cluster, case.manager):
            continue
        under = team.under(case.manager) if isinstance(team, ClusterTeam) else team
        training = oracle.OracleSession(plan, options, under)
        towers = devices.num_devices if case.micro_batches else plan.place.towers_in_total
        try:
            yield CaseResult(case, _error(case, training, towers, weights_of_one_device))
        except UsageError as problem:  # these devices are too many for it
            yield CaseResult(case, None, str(problem))
        except tf.errors.OpError as failure:
            if cluster:
                raise
            yield CaseResult(case, float("inf"), str(failure_of(failure)))


def _error(
    case: Case, training: oracle.OracleSession, towers: int, weights_of_one_device: Callable[[int, Rule], Weights]
) -> float:
    """Returns the error of a case; `towers` are those of all processes."""
    team, place = training.team, training.devices.place
    variables = case.variables(stages=len(training.devices.towers))
    if case.reference == WHOLE_BATCH:
        weights = oracle.convolutional_weights(training, variables, towers, case.rule)
        return largest_difference(weights, weights_of_one_device(towers, case.rule)) if team.is_leader else 0.0
    if case.reference == NO_CHANGE:
        change = oracle.changed_by_gradients(training, variables)
        return float(np.max([*team.meet(f"case {place.group}", change).values()]))
    mine = oracle.trained(training, variables, case.rule, in_turn=case.modifiers.asynchronous)
    everyone = team.meet(f"case {place.group}", dataclasses.asdict(mine)).values()
    together = Trajectory(
        a=[sum(parts, []) for parts in zip(*(own["a"] for own in everyone), strict=True)],
        b=[sum(parts, []) for parts in zip(*(own["b"] for own in everyone), strict=True)],
        loss=[float(np.mean(parts)) for parts in zip(*(own["loss"] for own in everyone), strict=True)],
        others=float(np.max([own["others"] for own in everyone])),
    )
    # One client runs the steps of all towers as one process does.
    workers = place.workers if isinstance(team, ClusterTeam) and case.manager not in IN_GRAPH else 0
    return together.error(
        expected.of_manager(case.manager, case.modifiers, case.rule, len(place.towers), workers=workers)
    )


def largest_difference(got: Weights, wanted: Weights) -> float:
    """Returns the largest relative difference of weights by name, absolute below 1."""
    if got.keys() != wanted.keys():
        return float("inf")
    return max(expected.relative_error(got[name], wanted[name]) for name in wanted)
