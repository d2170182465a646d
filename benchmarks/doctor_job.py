"""The verb `doctor`: does every task of a cluster answer, and what is between them? Imports TensorFlow late.

Without a cluster it is about this machine: see `machine_doctor`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchmarks import cluster_options, config, doctor_report, machine_doctor, process_environment
from benchmarks.cluster import Cluster
from benchmarks.config import Config
from benchmarks.display import say, warn
from benchmarks.doctor_report import Link, Member
from benchmarks.errors import ExitStatus
from benchmarks.guard import Guard


def resolve(values: Mapping[str, Any], count_gpus: Callable[[], int]) -> Config:
    """Turns flag values (None: not given) into a configuration.

    Raises:
        UsageError: the flags name a cluster or devices that cannot be.
    """
    cluster, _ = cluster_options.resolve(values, os.environ)
    manager = {"variable_update": cluster_options.manager_for(cluster)} if cluster else {}
    return config.resolve({**values, **manager}, count_gpus)


def run(config: Config) -> ExitStatus:
    """Does this task's part, and the leader prints what was found out; without a cluster, looks at this machine.

    Raises:
        UsageError: tasks differ in their addresses or software.
        ClusterError: tasks are missing, or one has gone.
    """
    for notice in config.notices:
        warn(notice)
    cluster = config.cluster
    process_environment.prepare(
        device=config.device if cluster is None or cluster.own.job == "worker" else "cpu",
        visible_gpus=config.visible_gpus,
        peers=list(cluster.tasks.values()) if cluster else (),
    )
    if cluster is None:
        return machine_doctor.run(config.output_format)
    process_environment.import_tensorflow()
    from benchmarks import cluster_doctor

    guard = Guard(lambda error: warn(str(error)))
    guard.start()
    show = _show_json if config.output_format == "json" else _show_text
    cluster_doctor.take_part(config, cluster, guard, lambda members, links: show(cluster, members, links))
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
