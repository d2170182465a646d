"""The verb `run`: one run in this process, or a cluster that this command starts. It is here because a run may
first try batches (`--batch_size=auto`), which stands above a run. No TensorFlow before the run.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence

from benchmarks.cluster import launch_plan
from benchmarks.config import config
from benchmarks.config.config import Config
from benchmarks.config.flag import Parsed
from benchmarks.config.run_flags import RUN_FLAGS
from benchmarks.config.verb import Verb
from benchmarks.console import say, warn
from benchmarks.data.sources.data_sets import existing_directory
from benchmarks.errors import BenchError, ExitStatus
from benchmarks.machine.hardware import count_gpus
from benchmarks.process.requirements import require
from benchmarks.run import cluster_launch, runner
from benchmarks.trackers import tracker_list
from benchmarks.tune import batch_size


def run_benchmark(given: Parsed, command: Sequence[str]) -> ExitStatus:
    """Trains as the flags say, or prints the configuration that they resolve to.

    Raises:
        BenchError: it cannot be run.
    """
    values = given.values
    resolve: Callable[[Callable[[], int]], Config] = functools.partial(config.resolve, values)
    if values["batch_size"] == batch_size.AUTO:
        resolve = functools.partial(batch_size.resolve_batch_size, values, command)
    if values["print_config"]:
        return _print_config(resolve)
    resolved = resolve(count_gpus)
    require("tensorflow")  # a run would take its absence for a crash
    starts_tasks = launch_plan.is_asked_for(values)
    if starts_tasks or resolved.processes.leads:  # the leader sends the record
        tracker_list.require(resolved.output.trackers)
    if starts_tasks:
        return cluster_launch.launch_cluster(resolved, values, command, saves_record=True)
    return runner.run(resolved, cluster_launch.command_of_user(command, values))


def _print_config(resolve: Callable[[Callable[[], int]], Config]) -> ExitStatus:
    """Prints the configuration, on a machine without the devices or the data too, and what a run would miss here."""
    try:
        resolved = resolve(count_gpus)
    except BenchError as error:
        resolved = resolve(lambda: config.ANY_NUMBER_OF_GPUS)  # fails again if it is not the devices
        warn(f"A run here would fail: {error}")
    try:
        if resolved.data.data_dir is not None:
            existing_directory(resolved.data.data_name, resolved.data.data_dir)
    except BenchError as error:
        warn(f"A run here would fail: {error}")
    say(json.dumps(resolved.to_dict(), indent=2))
    return ExitStatus.OK


VERB = Verb(
    "run",
    RUN_FLAGS,
    run_benchmark,
    examples=(
        "--model=resnet50 --num_gpus=8 --variable_update=replicated",
        "--device=cpu --num_gpus=2 --model=resnet20 --num_batches=20",
        "--local_cluster=ps:1,worker:2 --variable_update=distributed_replicated",
    ),
)
