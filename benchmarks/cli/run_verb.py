"""The verb `run`: one run in this process, or a cluster that this command starts. It is here because a run whose batch
size is `auto` first tries batches, which stands above a run. No TensorFlow before the run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from benchmarks.config import config
from benchmarks.config.flag import Parsed
from benchmarks.config.run_flags import RUN_FLAGS
from benchmarks.config.verb import Verb
from benchmarks.console import say
from benchmarks.errors import ExitStatus
from benchmarks.run import cluster_launch, runner
from benchmarks.system.hardware import count_gpus
from benchmarks.topology import launch_plan
from benchmarks.tune import batch_size


def run(given: Parsed, command: Sequence[str]) -> ExitStatus:
    """Trains as the flags say, or prints the configuration that they resolve to.

    Raises:
        BenchError: it cannot be run.
    """
    values = given.values
    find_batch = values["batch_size"] == batch_size.AUTO
    resolved = batch_size.resolve(values, command, count_gpus) if find_batch else config.resolve(values, count_gpus)
    if values["print_config"]:
        say(json.dumps(resolved.to_dict(), indent=2))
        return ExitStatus.OK
    if launch_plan.is_asked_for(values):
        return cluster_launch.run(resolved, values, command, count_gpus, keeps_record=True)
    return runner.run(resolved, cluster_launch.command_of_user(command, values))


VERB = Verb("run", "train (or, with --forward_only, infer) and report images/sec; the default", RUN_FLAGS, run)
