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

from benchmarks.config import config
from benchmarks.config.config import Config
from benchmarks.config.flag import Flag, Groups, Parsed
from benchmarks.config.run_flags import RUN_FLAGS
from benchmarks.config.verb import Verb
from benchmarks.console import say, warn
from benchmarks.doctor import breakdown_plan, breakdown_run, machine, network_report
from benchmarks.doctor.network_report import Link, Member
from benchmarks.errors import ExitStatus, UsageError
from benchmarks.process import tensorflow_setup
from benchmarks.process.watchdog import Watchdog
from benchmarks.run import cluster_launch
from benchmarks.system import hardware
from benchmarks.topology import discovery, launch_plan
from benchmarks.topology.cluster import Cluster
from benchmarks.topology.start import start


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is looked at: devices and cluster, and without one the ladder, None where only the machine is."""

    chosen: Config
    ladder: breakdown_plan.Plan | None


def resolve(values: Mapping[str, Any], count_gpus: Callable[[], int]) -> Plan:
    """Turns flag values (None: not given) into a plan.

    Raises:
        UsageError: the flags name a cluster or devices that cannot be, or ask for a ladder where there is none.
    """
    cluster, _ = discovery.resolve(values, os.environ)
    climbs = cluster is None and values["ladder"] is not False
    if climbs:
        plan = breakdown_plan.resolve({**values, "output_dir": values["output_dir"] or DEFAULT_OUTPUT_DIR}, count_gpus)
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
    if cluster is None:
        tensorflow_setup.prepare(chosen.runtime)
        climb = functools.partial(breakdown_run.run, ladder, command) if ladder else None
        return machine.run(chosen.output_format, climb=climb)
    devices, session_config = start(chosen.runtime)
    from benchmarks.doctor import network

    watchdog = Watchdog(lambda error: warn(str(error)))
    watchdog.start()
    show = _show_json if chosen.output_format == "json" else _show_text
    network.take_part(
        chosen, cluster, devices, session_config, watchdog, lambda members, links: show(cluster, members, links)
    )
    watchdog.stop()
    return ExitStatus.OK


def _show_text(cluster: Cluster, members: Sequence[Member], links: Iterable[Link]) -> None:
    """Prints tables, and sentences that doubt."""
    say(f"All {len(members)} tasks answer, with the same TensorFlow:\n")
    for line in network_report.member_table(members):
        say(line)
    if cluster.own != cluster.leader:
        say(f"\n{cluster.leader} measures and prints what is between them.")
        return
    if len(members) == 1:
        say("\nThere is one task only, so nothing is between tasks.")
        return
    width = max(len(member.task) for member in members)
    say("\nBetween host memories, through TensorFlow's gRPC; medians, GB are 1e9 bytes:\n")
    say(network_report.link_heading(width))
    measured = []
    for link in links:
        measured.append(link)
        say(network_report.link_row(link, width))
    say("")
    for sentence in network_report.doubts(measured, {member.task: member.host for member in members}):
        say(sentence)
    slowest = network_report.bottleneck(measured)
    if slowest:
        say(slowest.sentence())


def _show_json(cluster: Cluster, members: Sequence[Member], links: Iterable[Link]) -> None:
    """Prints one object, if this task is the leader."""
    if cluster.own == cluster.leader:
        say(json.dumps(network_report.to_dict(members, list(links))))


DEFAULT_OUTPUT_DIR = "out/doctor"
_OF_RUN = ("model", "batch_size", "precision", "variable_update", "data_dir")
_OF_THE_LADDER = (
    *(flag for group in RUN_FLAGS.values() for flag in group if flag.name in _OF_RUN),
    Flag(
        "time_limit_seconds",
        float,
        "all rungs of the ladder share it (default 180); each gets what five steps need, at least",
    ),
    Flag("output_dir", str, f"records and logs of the ladder's runs are kept there (default {DEFAULT_OUTPUT_DIR})"),
)
OF_THE_LADDER = tuple(flag.name for flag in _OF_THE_LADDER)
_DEVICES = Flag("num_gpus", int, "devices (default of the ladder: all GPUs, or two logical CPU devices; else 1)")
DOCTOR_FLAGS: Groups = {
    "The ladder, without a cluster: runs that do more and more, and where the time goes": (
        Flag("ladder", bool, "climb it (default); --noladder only looks whether the machine is quiet"),
        *_OF_THE_LADDER,
    ),
    "Devices": [_DEVICES if flag.name == "num_gpus" else flag for flag in RUN_FLAGS["Devices"]],
    "Several processes": RUN_FLAGS["Several processes"],
    "Output": [flag for flag in RUN_FLAGS["Output"] if flag.name == "output_format"],
}


def _resolve_and_run(given: Parsed, command: Sequence[str]) -> ExitStatus:
    plan = resolve(given.values, hardware.count_gpus)
    if launch_plan.is_asked_for(given.values):
        return cluster_launch.run(plan.chosen, given.values, command, hardware.count_gpus, keeps_record=False)
    return run(plan, command)


VERB = Verb(
    "doctor",
    "is this machine quiet, and where does the time go? With a cluster: does every task answer, how fast is the "
    "network between two?",
    DOCTOR_FLAGS,
    _resolve_and_run,
)
