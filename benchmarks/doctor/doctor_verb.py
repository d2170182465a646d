"""The verb `doctor`: is this machine quiet, and where does a step's time go? Of a cluster: how fast is its network?"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.cluster import discovery, launch_plan
from benchmarks.config import config
from benchmarks.config.config import Config
from benchmarks.config.flag import Parsed
from benchmarks.config.run_flags import FLAGS, RUN_FLAGS
from benchmarks.config.verb import Verb
from benchmarks.console import say, warn
from benchmarks.devices.start_tensorflow import start
from benchmarks.doctor import breakdown_run, machine_checks
from benchmarks.doctor.breakdown_run import BreakdownPlan
from benchmarks.errors import ExitStatus, UsageError
from benchmarks.machine import hardware
from benchmarks.option import Flag, Groups, only
from benchmarks.process import tensorflow_setup
from benchmarks.run import cluster_launch


def doctor_options(values: Mapping[str, Any], count_gpus: Callable[[], int]) -> tuple[Config, BreakdownPlan | None]:
    """Turns flag values (None: not given) into the devices or the cluster to examine, and the breakdown, if any.

    Raises:
        UsageError: no such cluster or devices are possible, or flags of the breakdown are set where there is none.
    """
    cluster, _ = discovery.resolve_cluster(values, os.environ)
    output_dir = {"output_dir": values["output_dir"] or DEFAULT_OUTPUT_DIR}
    if cluster is None and values["breakdown"] is not False:
        return breakdown_run.breakdown_setting({**values, **output_dir}, count_gpus)
    given = ["breakdown"] if values["breakdown"] else []
    given += [flag.name for flag in _OF_THE_BREAKDOWN if values[flag.name] is not None]
    if values["local_cluster"] or values["hosts"]:
        given = [name for name in given if name != "output_dir"]  # gets the logs of the tasks
    if given:
        where = "with a cluster" if cluster else "with --nobreakdown"
        raise UsageError(f"--{given[0]} belongs to the step-time breakdown, and {where} there is none: leave it out.")
    manager = {"variable_update": discovery.manager_for(cluster)} if cluster else {}
    return config.resolve({**values, **manager, **output_dir}, count_gpus), None


def run_doctor(chosen: Config, breakdown: BreakdownPlan | None, command: Sequence[str]) -> ExitStatus:
    """Examines this machine, or takes this task's part in examining a cluster, of which the leader prints the results.

    Returns:
        On a machine, the breakdown's exit status unless it is OK; else UNDECIDED if something disturbs measurements.

    Raises:
        UsageError: tasks differ in their addresses or software, or results of the breakdown cannot be saved.
        ClusterError: tasks are missing, or one has gone.
    """
    warn(*chosen.notices)
    cluster, output_format = chosen.processes.cluster, chosen.output.output_format
    if cluster is None:
        tensorflow_setup.prepare(chosen.runtime)
        observations = machine_checks.look()
        disturbing = [check.name for check in observations if check.is_disturbing]
        if output_format == "text":
            say("\n".join(machine_checks.report(observations)))
        numbers, status = (
            breakdown_run.measure_breakdown(breakdown, command, disturbing) if breakdown else ({}, ExitStatus.OK)
        )
        if output_format == "json":
            checks = [dataclasses.asdict(check) for check in observations]
            say(json.dumps({"is_quiet": not disturbing, "observations": checks, **numbers}))
        return status or (ExitStatus.UNDECIDED if disturbing else ExitStatus.OK)
    devices, session_config = start(chosen.runtime)
    from benchmarks.cluster import network
    from benchmarks.devices import device_plan

    seconds = chosen.processes.start_timeout_seconds
    named = device_plan.with_hardware(devices.description, chosen.runtime.devices)
    network.take_part(cluster, named, session_config, output_format, start_timeout_seconds=seconds)
    return ExitStatus.OK


DEFAULT_OUTPUT_DIR = "out/doctor"
_OF_RUN = ("model", "batch_size", "precision", "variable_update", "data_dir")
_OF_THE_BREAKDOWN = (
    *(flag for name, flag in FLAGS.items() if name in _OF_RUN),
    Flag(
        "budget_seconds",
        float,
        "time budget of the breakdown; each stage takes at least eight steps",
        default=breakdown_run.DEFAULT_BUDGET_SECONDS,
        above=0,
    ),
    Flag(
        "output_dir",
        str,
        "directory of the breakdown's records and logs; of a cluster that is started here, the logs of its tasks",
        default=DEFAULT_OUTPUT_DIR,
        path="directory",
    ),
)
_DEVICES = Flag(
    "num_gpus",
    int,
    "number of devices",
    default="for the breakdown, all GPUs or two logical CPU devices; else 1",
    at_least=1,
)
DOCTOR_FLAGS: Groups = {
    "The step-time breakdown, without a cluster: stages that do more and more, and what each adds to a step": (
        Flag(
            "breakdown",
            bool,
            "measure the step-time breakdown; --nobreakdown only checks whether the machine is quiet",
            default=True,
        ),
        *_OF_THE_BREAKDOWN,
    ),
    "Devices": [_DEVICES if flag.name == "num_gpus" else flag for flag in RUN_FLAGS["Devices"]],
    "Several processes": RUN_FLAGS["Several processes"],
    "Output": only(RUN_FLAGS["Output"], "output_format"),
}


def _resolve_and_run(given: Parsed, command: Sequence[str]) -> ExitStatus:
    chosen, breakdown = doctor_options(given.values, hardware.count_gpus)
    if launch_plan.is_asked_for(given.values):
        return cluster_launch.launch_cluster(chosen, given.values, command, saves_record=False)
    return run_doctor(chosen, breakdown, command)


VERB = Verb(
    "doctor",
    DOCTOR_FLAGS,
    _resolve_and_run,
    details="With a cluster: does every task answer, and how fast is the network between two?",
    examples=("doctor --model=resnet50", "doctor --nobreakdown", "doctor --hosts=host_0,host_1 --ssh"),
)
