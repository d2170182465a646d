"""`--local_cluster` and `--hosts`: starts the tasks of a cluster, again if one has died and that is requested.

Each attempt that fails leaves a record of its own, by its leader or, if that saved none, by this process.
"""

from __future__ import annotations

import datetime
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cluster import launch_plan, launcher
from benchmarks.cluster.cluster_spec import Cluster, Task
from benchmarks.cluster.restarts import Attempts
from benchmarks.config.config import Config
from benchmarks.config.output import Output
from benchmarks.console import say, warn
from benchmarks.data.sources.storage import is_address
from benchmarks.devices.options import Devices
from benchmarks.errors import ExitStatus, UsageError
from benchmarks.machine.provenance import of_this_run
from benchmarks.process import private_network, subprocesses
from benchmarks.process.signals import raise_on_termination
from benchmarks.record_files import open_store, save
from benchmarks.run.run_record import record_without_run
from benchmarks.trackers import handover
from results.record import Record, Status, recorded_command

# Of an attempt that may succeed when it is repeated.
_OF_LOST_TASKS = (ExitStatus.CLUSTER, ExitStatus.TIMEOUT)
# Before the next attempt. A host that ssh was cut off from kills its task within 30 s.
_PAUSE_SECONDS, _PAUSE_OVER_SSH_SECONDS = 1.0, 35.0


def launch_cluster(
    config: Config,
    values: Mapping[str, Any],
    command: Sequence[str],
    count_gpus: Callable[[], int],
    *,
    keeps_record: bool,
) -> ExitStatus:
    """Starts the cluster that a configuration plans, with the words of its command line, and waits for its end.

    After a task was lost it is started again, up to `max_restarts` times: not after an error that would come again,
    such as a training that diverges, nor after a signal to this process.

    `count_gpus` is called only if needed. With `keeps_record` a failed cluster leaves a record, even if its leader
    saved none.
    """
    cluster = config.processes.cluster
    assert cluster is not None, "there is a planned cluster"
    if cluster.local and not private_network.is_entered():
        if values["private_network"] is not False:
            _require_no_addresses(values)
            if config.output.trackers.named and keeps_record:
                return _run_and_send(config.output, command)
            launcher.enter_private_network(command)
        warn(f"--noprivate_network: {private_network.OPEN_PORTS}")
    if not cluster.local and shutil.which("ssh") is None:
        raise UsageError(
            "--hosts: the program ssh is missing on this host. Install OpenSSH's client (package openssh-client or "
            "openssh-clients), or start the tasks by hand: docs/howto/several-hosts.md#by-hand."
        )
    store, logs = open_store(config.output.output_dir), Path(config.output.output_dir) / "logs"
    attempts = Attempts(time.time())
    while True:
        before = store.size_bytes()
        started = launch_plan.with_free_ports(cluster) if cluster.local else cluster
        outcome = _start(started, config.devices, command, count_gpus, attempts, logs)
        status = outcome.status
        # The leader of another host may have saved its record there.
        reported_elsewhere = outcome.leader_reported and not cluster.local
        if keeps_record and status != ExitStatus.USAGE and not reported_elsewhere:
            if not any(_is_of(record, started) for record in store.load(before).records):
                provenance = of_this_run(command, on_gpus=config.devices.on_gpu, session_id=config.output.session_id)
                reason = f"The leader of the cluster, {started.leader}, left no record."
                if outcome.failures:
                    reason += f" {'; '.join(outcome.failures)}."
                save(store, record_without_run(config, provenance, Status.CRASH, reason))
                status = status or ExitStatus.CLUSTER
        if status not in _OF_LOST_TASKS or len(attempts.failures) == config.checkpoints.max_restarts:
            return status
        now = datetime.datetime.now().astimezone().isoformat(" ", "seconds")
        attempts = attempts.after(f"{now}: {'; '.join(outcome.failures) or 'the leader left no record'}.")
        pause = _PAUSE_SECONDS if cluster.local else _PAUSE_OVER_SSH_SECONDS
        warn(
            f"Restart {len(attempts.failures)} of {config.checkpoints.max_restarts} in {pause:g} s, from the newest "
            f"checkpoint of --train_dir={config.checkpoints.train_dir}."
        )
        time.sleep(pause)


def _require_no_addresses(values: Mapping[str, Any]) -> None:
    """Refuses paths of other storages, which are not in a private network."""
    for name in ("data_dir", "train_dir", "initial_weights"):
        if is_address(values.get(name) or ""):
            raise UsageError(
                f"--{name}={values[name]}: tasks of --local_cluster reach no other host. Pass --noprivate_network, or "
                "a path of this host."
            )


def _run_and_send(output: Output, command: Sequence[str]) -> ExitStatus:
    """Runs the command in a private network, which reaches no tracker, and sends its records from here."""
    store = open_store(output.output_dir)
    before, limit = store.size_bytes(), handover.STOPPED_SECONDS
    raise_on_termination()
    inside = subprocesses.Command(
        words=launcher.in_private_network(command), stdout=None, stderr=None, variables=handover.sent_by_parent()
    )
    try:
        (ended,) = subprocesses.supervise(inside, timeout_seconds=None)
        limit = handover.SEND_SECONDS
    finally:  # also of a run that was stopped
        written = recorded_command(command)
        announce = say if output.output_format == "text" else warn
        for record in (each for each in store.load(before).records if each.identity.command == written):
            handover.send_of_run(record, output.trackers, [store.jsonl_path], announce, limit)
    return ExitStatus(ended.returncode) if ended.returncode in set(ExitStatus) else ExitStatus.CLUSTER


def _start(
    cluster: Cluster,
    devices: Devices,
    command: Sequence[str],
    count_gpus: Callable[[], int],
    attempts: Attempts,
    logs: Path,
) -> launcher.Outcome:
    """Starts the cluster once, and waits for its end."""
    gpus = {}
    if cluster.local and devices.on_gpu and devices.virtual_gpus == 1:
        usable = devices.visible_gpus or tuple(range(count_gpus()))
        gpus = launcher.divide_gpus(cluster, devices.num_devices, usable)
    words_of = launcher.local_command(command, gpus)

    def here(task: Task, its_cluster: Cluster) -> Sequence[str]:
        return attempts.handed_over(words_of(task, its_cluster))

    def there(task: Task, its_cluster: Cluster) -> Sequence[str]:
        return launch_plan.over_ssh(task, its_cluster, here(task, its_cluster))

    return launcher.launch(cluster, here if cluster.local else there, logs)


def _is_of(record: Record, cluster: Cluster) -> bool:
    """Returns whether a record is of this cluster, and not of another that runs at the same time."""
    of = record.config.get("cluster")
    return isinstance(of, dict) and [of.get("ps"), of.get("workers")] == [list(cluster.ps), list(cluster.workers)]


def command_of_user(command: Sequence[str], values: Mapping[str, Any]) -> list[str]:
    """Returns the words that the user gave, from those of a task started by `--local_cluster` or `--hosts`."""
    words = list(command)
    # A started task gets more flags after the user's; this is the first of them.
    roles = [index for index, word in enumerate(words) if word.startswith("--job_name=")]
    return words[: roles[-1]] if roles and (values["local_cluster"] or values["hosts"]) else words
