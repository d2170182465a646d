"""The verb `placement`: where each variable is, where each gradient is summed, and what a step sends."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.cluster import launch_plan
from benchmarks.config import config as config_rules
from benchmarks.config.config import Config
from benchmarks.config.flag import Parsed
from benchmarks.config.run_flags import RUN_FLAGS
from benchmarks.config.verb import Verb
from benchmarks.console import say, warn
from benchmarks.devices.start_tensorflow import start
from benchmarks.errors import ExitStatus, UsageError
from benchmarks.machine.hardware import count_gpus
from benchmarks.measure.display import Display
from benchmarks.option import Groups
from benchmarks.process.deadlines import Deadlines
from benchmarks.process.watchdog import watched
from benchmarks.run import cluster_launch
from benchmarks.run.run_record import empty_log
from results import placement_tables
from results.text import table
from variable_mgr.catalog import REFERENCE_LOOPS


def run_placement(config: Config) -> ExitStatus:
    """Takes a few steps, the last of them traced, and prints the placement; in a cluster the leader prints that of all.

    Raises:
        BenchError: the steps cannot be taken.
    """
    for notice in config.notices:
        warn(notice)
    # Asynchronous workers take turns as they like: so many steps of the fastest one are a step of all.
    length = dataclasses.replace(config.length, num_batches=config.processes.num_workers, num_warmup_batches=0)
    config, cluster = dataclasses.replace(config, length=length), config.processes.cluster
    log = empty_log(config)
    log.traced_always = True
    with watched() as watchdog:
        deadlines = Deadlines(watchdog, config.processes.step_timeout_seconds)
        deadlines.importing()
        start(config.runtime)
        deadlines.none()
        from benchmarks.cluster.member import Alone
        from benchmarks.run import cluster_run, train

        if cluster:
            cluster_run.carry_out_task(config, cluster, log, Display(), watchdog)
        else:
            train.carry_out(config, log, Display(), Alone(watchdog))
    if cluster is None or cluster.own == cluster.leader:
        found = log.placement_of_all()
        if config.output.output_format == "json":
            say(json.dumps(found))
        else:
            _print(found, placement_tables.transfer_notes(found, config.to_dict()))
    return ExitStatus.OK


def _print(found: Mapping[str, Any], notes: Sequence[str]) -> None:
    say(f"{found['manager']}\n")
    for title, columns, rows, empty in (
        ("Variables", placement_tables.VARIABLE_COLUMNS, placement_tables.variable_rows(found), "none"),
        (
            "Sums of gradients over towers",
            placement_tables.AGGREGATION_COLUMNS,
            placement_tables.aggregation_rows(found),
            "none: no operation adds gradients of several towers",
        ),
        ("Transfers per step", placement_tables.TRANSFER_COLUMNS, placement_tables.transfer_rows(found), "none"),
        ("Bytes per device", placement_tables.DEVICE_COLUMNS, placement_tables.device_rows(found), "none"),
    ):
        say(title)
        for line in table([columns, *rows], rule=True) if rows else [empty]:
            say(f"  {line}")
        say("")
    for note in notes:
        say(note)


def _resolve_and_run(given: Parsed, command: Sequence[str]) -> ExitStatus:
    resolved = config_rules.resolve(given.values, count_gpus)
    manager = resolved.variables.variable_update
    if manager in REFERENCE_LOOPS:
        raise UsageError(
            f"placement shows the graph of a variable manager, and {manager} is a reference training loop: pass "
            "another --variable_update."
        )
    if given.values["print_config"]:
        say(json.dumps(resolved.to_dict(), indent=2))
        return ExitStatus.OK
    if launch_plan.is_asked_for(given.values):
        return cluster_launch.launch_cluster(resolved, given.values, command, count_gpus, saves_record=False)
    return run_placement(resolved)


# A few steps are taken, and no record is kept.
_NOT_HERE = ("check_precision", "print_training_accuracy", "display_every", "session_id")
PLACEMENT_FLAGS: Groups = {
    title: [flag for flag in group if flag.name not in _NOT_HERE]
    for title, group in RUN_FLAGS.items()
    if title != "How long"
}
VERB = Verb(
    "placement",
    "where variables are and gradients are summed; what a step sends",
    PLACEMENT_FLAGS,
    _resolve_and_run,
    details="Takes a few steps and keeps no record. --output_format=json prints it as a record would have it.",
    examples=(
        "placement --model=vgg16 --device=cpu --num_gpus=2 --variable_update=parameter_server",
        "placement --model=mlp --device=cpu --local_cluster=ps:2,worker:2",
    ),
)
