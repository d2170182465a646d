"""`--local_cluster` and `--hosts`: what is started for a configuration, and what is kept if all of it fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cluster import launcher
from benchmarks.config.config import Config
from benchmarks.errors import ExitStatus
from benchmarks.record_files import keep, open_store
from benchmarks.system.provenance import of_this_run
from benchmarks.topology import launch_plan
from benchmarks.topology.cluster import Cluster, Task
from models import specs
from results.measurement import Derived, Measurement
from results.record import Record, Status

# What a task is told beside the user's words; the first of it is where these end.
_FIRST_OF_ROLE = "--job_name="


def run(
    config: Config,
    values: Mapping[str, Any],
    command: Sequence[str],
    count_gpus: Callable[[], int],
    *,
    keeps_record: bool,
) -> ExitStatus:
    """Starts the cluster that a configuration plans, and sees it to its end.

    Args:
        config: of the run.
        values: the flags' values.
        command: the words of the command line.
        count_gpus: asks how many GPUs there are here; called only if that matters.
        keeps_record: whether there is to be a record, come what may.
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
    status = launcher.run(cluster, _how_to_start(words, cluster, gpus), Path(config.output_dir) / "logs")
    failed = status not in (ExitStatus.OK, ExitStatus.USAGE)
    if keeps_record and failed and not store.load(before).records:
        keep(store, _without_run(config, command))
    return status


def _how_to_start(words: Sequence[str], cluster: Cluster, gpus: Mapping[Task, str]) -> launcher.Command:
    here = launcher.local_command(words, gpus)
    if cluster.local:
        return here
    return lambda task, its_cluster: launch_plan.over_ssh(task, its_cluster, here(task, its_cluster))


def command_of_user(command: Sequence[str], values: Mapping[str, Any]) -> list[str]:
    """Returns the words that the user gave, of a task that `--local_cluster` or `--hosts` has started."""
    words = list(command)
    started = values["local_cluster"] or values["hosts"]
    roles = [index for index, word in enumerate(words) if word.startswith(_FIRST_OF_ROLE)]
    return words[: roles[-1]] if started and roles else words


def _without_run(config: Config, command: Sequence[str]) -> Record:
    """Returns what is known of a run whose leader could keep no record."""
    provenance = of_this_run(command, on_gpus=config.device == "gpu", session_id=config.session_id)
    return Record(
        identity=provenance.identity(config.key_fields()),
        config=config.to_dict(),
        config_aside=config.aside_fields(),
        environment=provenance.environment,
        model=specs.find(config.model).facts(),
        placement={},
        measurement=Measurement(images_per_step=config.batch_global),
        derived=Derived(),
        status=Status.CRASH,
        reason="The leader of the cluster was killed before it could say what it had measured.",
        warnings=list(config.notices),
    )
