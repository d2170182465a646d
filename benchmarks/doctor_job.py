"""The verb `doctor`: does every task of a cluster answer, and what is between them? Imports TensorFlow late.

Without a cluster it is about this machine: see `machine_doctor` and `ladder_job`.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchmarks import doctor_report, ladder_job, ladder_plan, machine_doctor
from benchmarks.config import config
from benchmarks.config.config import Config
from benchmarks.console import say, warn
from benchmarks.doctor_flags import DEFAULT_OUTPUT_DIR, OF_THE_LADDER
from benchmarks.doctor_report import Link, Member
from benchmarks.errors import ExitStatus, UsageError
from benchmarks.process import tensorflow_setup
from benchmarks.process.watchdog import Guard
from benchmarks.topology import discovery
from benchmarks.topology.cluster import Cluster


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is looked at: devices and cluster, and without one the ladder, None where only the machine is."""

    chosen: Config
    ladder: ladder_plan.Plan | None


def resolve(values: Mapping[str, Any], count_gpus: Callable[[], int]) -> Plan:
    """Turns flag values (None: not given) into a plan.

    Raises:
        UsageError: the flags name a cluster or devices that cannot be, or ask for a ladder where there is none.
    """
    cluster, _ = discovery.resolve(values, os.environ)
    climbs = cluster is None and values["ladder"] is not False
    if climbs:
        plan = ladder_plan.resolve({**values, "output_dir": values["output_dir"] or DEFAULT_OUTPUT_DIR}, count_gpus)
        return Plan(plan.chosen, plan)
    _refuse_what_has_no_effect(values, "with a cluster" if cluster else "with --noladder")
    manager = {"variable_update": discovery.manager_for(cluster)} if cluster else {}
    return Plan(config.resolve({**values, **manager}, count_gpus), None)


def _refuse_what_has_no_effect(values: Mapping[str, Any], where: str) -> None:
    given = [name for name in OF_THE_LADDER if values[name] is not None]
    if values["ladder"]:
        given.insert(0, "ladder")
    if given:
        raise UsageError(
            f"--{given[0]} is about the ladder of runs on this machine, and {where} doctor climbs none: leave it out."
        )


def run(plan: Plan, command: Sequence[str]) -> ExitStatus:
    """Does this task's part, and the leader prints what was found out; without a cluster, looks at this machine.

    Args:
        plan: what to look at.
        command: the words of the command line.

    Raises:
        UsageError: tasks differ in their addresses or software, or results of the ladder cannot be kept.
        ClusterError: tasks are missing, or one has gone.
    """
    chosen, ladder = plan.chosen, plan.ladder
    for notice in chosen.notices:
        warn(notice)
    cluster = chosen.cluster
    tensorflow_setup.prepare(
        device=chosen.own_device,
        visible_gpus=chosen.visible_gpus,
        onednn=chosen.onednn,
        peers=list(cluster.tasks.values()) if cluster else (),
    )
    if cluster is None:
        climb = functools.partial(ladder_job.run, ladder, command) if ladder else None
        return machine_doctor.run(chosen.output_format, climb=climb)
    tensorflow_setup.import_tensorflow()
    from benchmarks import cluster_doctor

    guard = Guard(lambda error: warn(str(error)))
    guard.start()
    show = _show_json if chosen.output_format == "json" else _show_text
    cluster_doctor.take_part(chosen, cluster, guard, lambda members, links: show(cluster, members, links))
    guard.stop()
    return ExitStatus.OK


def _show_text(cluster: Cluster, members: Sequence[Member], links: Iterable[Link]) -> None:
    """Prints tables, and sentences that doubt."""
    say(f"All {len(members)} tasks answer, with the same TensorFlow:\n")
    for line in doctor_report.member_table(members):
        say(line)
    if cluster.own != cluster.leader:
        say(f"\n{cluster.leader} measures and prints what is between them.")
        return
    if len(members) == 1:
        say("\nThere is one task only, so nothing is between tasks.")
        return
    width = max(len(member.task) for member in members)
    say("\nBetween host memories, through TensorFlow's gRPC; medians, GB are 1e9 bytes:\n")
    say(doctor_report.link_heading(width))
    measured = []
    for link in links:
        measured.append(link)
        say(doctor_report.link_row(link, width))
    say("")
    for sentence in doctor_report.doubts(measured, {member.task: member.host for member in members}):
        say(sentence)
    slowest = doctor_report.bottleneck(measured)
    if slowest:
        say(slowest.sentence())


def _show_json(cluster: Cluster, members: Sequence[Member], links: Iterable[Link]) -> None:
    """Prints one object, if this task is the leader."""
    if cluster.own == cluster.leader:
        say(json.dumps(doctor_report.to_dict(members, list(links))))
