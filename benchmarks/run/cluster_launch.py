"""`--local_cluster` and `--hosts`: starts the tasks of a cluster, and saves a record if all of them fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cluster import launcher
from benchmarks.config.config import Config
from benchmarks.errors import ExitStatus
from benchmarks.record_files import keep, open_store
from benchmarks.run.runner import record_without_run
from benchmarks.system.provenance import of_this_run
from benchmarks.topology import launch_plan
from benchmarks.topology.cluster import Cluster, Task
from results.record import Status


def run(
    config: Config,
    values: Mapping[str, Any],
    command: Sequence[str],
    count_gpus: Callable[[], int],
    *,
    keeps_record: bool,
) -> ExitStatus:
    """Starts the cluster that a configuration plans, with the words of its command line, and waits for its end.

    `count_gpus` is called only if needed. With `keeps_record` a failed cluster leaves a record, even if its leader
    saved none.
    """
    cluster = config.cluster
    assert cluster is not None, "there is a planned cluster"
    if cluster.local and values["private_network"] is not False:
        launcher.enter_private_network(command)
    store = open_store(config.output_dir)
    before = store.size_bytes()
    gpus = {}
    if cluster.local and config.device == "gpu" and config.virtual_gpus == 1:
        usable = config.visible_gpus or tuple(range(count_gpus()))
        gpus = launcher.divide_gpus(cluster, config.num_devices, usable)
    words = [word for word in command if word != "--noprivate_network"]
    here = launcher.local_command(words, gpus)

    def there(task: Task, its_cluster: Cluster) -> Sequence[str]:
        return launch_plan.over_ssh(task, its_cluster, here(task, its_cluster))

    status = launcher.run(cluster, here if cluster.local else there, Path(config.output_dir) / "logs")
    failed = status not in (ExitStatus.OK, ExitStatus.USAGE)
    if keeps_record and failed and not store.load(before).records:
        provenance = of_this_run(command, on_gpus=config.device == "gpu", session_id=config.session_id)
        reason = "The leader of the cluster was killed before it could report its measurement."
        keep(store, record_without_run(config, provenance, Status.CRASH, reason))
    return status


def command_of_user(command: Sequence[str], values: Mapping[str, Any]) -> list[str]:
    """Returns the words that the user gave, from those of a task started by `--local_cluster` or `--hosts`."""
    words = list(command)
    # A started task gets more flags after the user's; this is the first of them.
    roles = [index for index, word in enumerate(words) if word.startswith("--job_name=")]
    return words[: roles[-1]] if roles and (values["local_cluster"] or values["hosts"]) else words
