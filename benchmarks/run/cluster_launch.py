"""`--local_cluster` and `--hosts`: starts the tasks of a cluster, again if one has died and that is requested.

Each attempt that fails leaves a record of its own, by its leader or, if that saved none, by this process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import math
import shutil
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cluster import launch_plan
from benchmarks.cluster.cluster_spec import Cluster, Task
from benchmarks.cluster.restarts import Attempts
from benchmarks.config.config import Config
from benchmarks.config.output import Output
from benchmarks.console import say, warn
from benchmarks.data.sources.storage import is_address
from benchmarks.errors import ClusterError, ExitStatus, UsageError
from benchmarks.machine import contention, hardware
from benchmarks.machine.provenance import of_this_run
from benchmarks.process import private_network, subprocesses
from benchmarks.process.signals import raise_on_termination
from benchmarks.process.tensorflow_setup import Devices
from benchmarks.record_files import open_store, save
from benchmarks.run.run_record import base_record
from benchmarks.trackers import handover
from results.record import Record, Status, recorded_command
from results.text import counted, one_line

# How long the others may take to notice that a task has failed, and to report it: they need 40 s at most.
_NOTICE_SECONDS = 50.0
# After the first has reported that another is lost: the others notice it within seconds, and then have 15 s to end.
_VERDICT_SECONDS = 25.0
# After a task was stopped: the others notice that after 18 s at most, and then have 15 s to end.
_STOPPED_SECONDS = 40.0
# A leader that cannot handle signals ends by itself after 7 s, and then writes its record. The process that has
# started us, such as a sweep, waits for 30 s.
_GRACE_SECONDS = 25.0
# With these a run ends by itself, after its leader has saved its record.
_REPORTS = set(ExitStatus) - {ExitStatus.REGRESSED, ExitStatus.UNDECIDED}
# In place of the status of an ssh that ended well and ran nothing; no process has it.
_NOT_RUN = 256
_SSH_FAILED = 255
# Of an attempt that may succeed when it is repeated.
_OF_LOST_TASKS = (ExitStatus.CLUSTER, ExitStatus.TIMEOUT)
# Before the next attempt. A host that ssh was cut off from kills its task within 30 s.
_PAUSE_SECONDS, _PAUSE_OVER_SSH_SECONDS = 1.0, 35.0


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a cluster ended.

    Attributes:
        status: OK if all tasks ended so, else the leader's; cluster failure where it did not fail, or was killed.
        leader_reported: whether the leader ended by itself, so that it has saved a record where it runs.
        failures: which tasks failed, and how, in words.
        leader_succeeded: whether the leader ended with status 0, so that the run is whole even if another task failed.
    """

    status: ExitStatus
    leader_reported: bool
    failures: list[str]
    leader_succeeded: bool = False


def launch_cluster(
    config: Config, values: Mapping[str, Any], command: Sequence[str], *, saves_record: bool
) -> ExitStatus:
    """Starts the cluster that a configuration plans, with the words of its command line, and waits for its end.

    After a task was lost it is started again, up to `max_restarts` times: not after an error that would come again,
    such as a training that diverges, nor after a signal to this process, nor if the run is whole.

    With `saves_record` a failed cluster leaves a record, even if its leader saved none.
    """
    cluster = config.processes.cluster
    assert cluster is not None, "there is a planned cluster"
    if cluster.local and not private_network.is_entered():
        if values["private_network"] is not False:
            _require_no_addresses(values)
            if config.output.trackers and saves_record:
                return _run_and_send(config.output, command)
            subprocesses.replace_by(_in_private_network(command))
        warn(f"--noprivate_network: {private_network.OPEN_PORTS}")
    if not cluster.local and shutil.which("ssh") is None:
        raise UsageError(
            "--hosts: the program ssh is missing on this host. Install OpenSSH's client (package openssh-client or "
            "openssh-clients), or start the tasks by hand: docs/howto/several-hosts.md#by-hand."
        )
    used = contention.used_before_run()
    store, logs = open_store(config.output.output_dir), Path(config.output.output_dir) / "logs"
    attempts = Attempts(uuid.uuid4().hex)
    while True:
        before = store.size_bytes()
        started = launch_plan.with_free_ports(cluster) if cluster.local else cluster
        gpus = _gpus_of_tasks(started, config.devices)
        variables = attempts.handed_over() | (contention.handed_over(used) if cluster.local else {})
        outcome = launch(started, words_of_tasks(started, command, gpus, variables), logs)
        status = outcome.status
        # The leader of another host may have saved its record there.
        reported_elsewhere = outcome.leader_reported and not cluster.local
        if saves_record and status != ExitStatus.USAGE and not reported_elsewhere:
            if not any(_is_of(record, started) for record in store.load(before).records):
                session, on_gpus = config.output.session_id, config.devices.on_gpu
                provenance = of_this_run(command, on_gpus=on_gpus, session_id=session, starts_alone=False)
                provenance = dataclasses.replace(provenance, cores_used_by_others_before=used)
                reason = f"The leader of the cluster, {started.leader}, left no record."
                if outcome.failures:
                    reason += f" {'; '.join(outcome.failures)}."
                save(store, base_record(config, provenance, Status.CRASH, reason))
                status = status or ExitStatus.CLUSTER
        may_retry = status in _OF_LOST_TASKS and not outcome.leader_succeeded
        if not may_retry or len(attempts.failures) == config.checkpoints.max_restarts:
            return status
        now = datetime.datetime.now().astimezone().isoformat(" ", "seconds")
        failure = f"{now}: {'; '.join(outcome.failures) or 'the leader left no record'}."
        attempts = dataclasses.replace(attempts, failures=(*attempts.failures, failure))
        pause = _PAUSE_SECONDS if cluster.local else _PAUSE_OVER_SSH_SECONDS
        warn(
            f"Restart {len(attempts.failures)} of {config.checkpoints.max_restarts} in {pause:g} s, from the newest "
            f"checkpoint of --train_dir={config.checkpoints.train_dir}."
        )
        time.sleep(pause)


def _in_private_network(command: Sequence[str]) -> list[str]:
    return [sys.executable, private_network.__file__, str(subprocesses.RUN_BENCH), *command]


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
        words=_in_private_network(command), stdout=None, stderr=None, variables=handover.SENT_BY_PARENT
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


def words_of_tasks(
    cluster: Cluster, command: Sequence[str], gpus: Mapping[Task, str], variables: Mapping[str, str]
) -> dict[Task, list[str]]:
    """Returns program and arguments of each task, which ssh runs unless the cluster is local.

    The role of the task follows the words of the user. `gpus` are those of each worker, as `--gpus` has them, if any;
    `variables` are those of the environment on any host, besides its own.
    """
    environment = ["/usr/bin/env", *(f"{name}={value}" for name, value in variables.items())]
    program = [*environment, sys.executable, str(subprocesses.RUN_BENCH), *command]
    hosts = [f"--worker_hosts={','.join(cluster.workers)}"]
    hosts += [f"--ps_hosts={','.join(cluster.ps)}"] if cluster.ps else []
    words = {}
    for task in cluster.tasks:
        its_gpus = [f"--gpus={gpus[task]}"] if task in gpus else []
        role = [f"--job_name={task.job}", f"--task_index={task.index}", *hosts, *its_gpus]
        here = [*program, *role]
        words[task] = here if cluster.local else launch_plan.over_ssh(task, cluster, here)
    return words


def _gpus_of_tasks(cluster: Cluster, devices: Devices) -> Mapping[Task, str]:
    if not cluster.local or not devices.on_gpu or devices.virtual_gpus > 1:
        return {}
    return divide_gpus(cluster, devices.num_devices, devices.visible_gpus or tuple(range(hardware.count_gpus())))


def divide_gpus(cluster: Cluster, per_worker: int, usable: Sequence[int]) -> dict[Task, str]:
    """Gives each worker GPUs of its own.

    Raises:
        UsageError: there are too few.
    """
    needed = per_worker * cluster.num_workers
    if needed > len(usable):
        raise UsageError(
            f"{counted(cluster.num_workers, 'worker')} with {counted(per_worker, 'GPU')} each need {needed}, and "
            f"{len(usable)} may be used here. Ask for fewer, or use --device=cpu."
        )
    return {
        Task("worker", index): ",".join(map(str, usable[index * per_worker : (index + 1) * per_worker]))
        for index in range(cluster.num_workers)
    }


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


def launch(cluster: Cluster, words: Mapping[Task, Sequence[str]], logs: Path) -> Outcome:
    """Runs all tasks of a cluster to their end.

    The leader's output is ours; each other task writes a log. When one fails, the others get time to notice and to
    report it, and what is left then is killed. A signal goes to the leader alone, which may have a record to save.

    Args:
        cluster: its tasks and their addresses.
        words: program and arguments of each task; those of ssh, unless the cluster is local.
        logs: the directory of the logs.

    Raises:
        ClusterError: a task cannot be started.
    """
    raise_on_termination()
    name = uuid.uuid4().hex[:8]
    paths = {task: logs / f"{name}-{task.job}-{task.index}.log" for task in cluster.tasks if task != cluster.leader}
    try:
        logs.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            files = {task: stack.enter_context(path.open("wb")) for task, path in paths.items()}
            commands = [
                subprocesses.Command(
                    words=words[task],
                    stdout=files.get(task),
                    stderr=files.get(task),
                    ends_in_order=task == cluster.leader,
                    signals_by_stdin=not cluster.local,
                    patience=functools.partial(_patience, cluster, task),
                    stopped_seconds=_STOPPED_SECONDS,
                )
                for task in cluster.tasks
            ]
            ended = subprocesses.supervise(*commands, timeout_seconds=None, grace_seconds=_GRACE_SECONDS)
    except OSError as error:
        raise ClusterError(f"The tasks of the cluster cannot be started: {error}.") from error
    failures, of_leader = [], None
    for task, exit_info in zip(cluster.tasks, ended, strict=True):
        status = None if exit_info.was_killed else _status(cluster, exit_info.returncode)
        of_leader = status if task == cluster.leader else of_leader
        if status == 0:
            continue
        is_unreached = status == _SSH_FAILED and not cluster.local
        how = dataclasses.replace(exit_info, returncode=status or 0).in_words()
        if is_unreached:
            reason = _last_line(paths[task]) if task in paths else "ssh printed why"
            how = f"could not be reached, or the connection to it broke ({reason or 'ssh gave no reason'})"
        elif status == launch_plan.NOT_FOUND_OVER_SSH and not cluster.local:
            how = f"has no {Path.cwd()} or no {sys.executable}, which every host needs"
        elif status == _NOT_RUN:
            how = "was not run, though ssh ended with status 0"
        elif status == ExitStatus.USAGE and task in paths:  # its own check, of a host that may differ from the others
            how += f": {_last_line(paths[task]).removeprefix('run_bench: ').rstrip('.')}"
        failures.append(f"{task} {how}")
        if task in paths or status not in _REPORTS:  # else the leader has printed its reason
            warn(failures[-1] + (f"; its output: {paths[task]}" if task in paths and not is_unreached else ""))
    reported = of_leader in _REPORTS
    status = ExitStatus(of_leader) if of_leader and reported else ExitStatus.CLUSTER if failures else ExitStatus.OK
    return Outcome(status, reported, failures, leader_succeeded=of_leader == 0)


def _status(cluster: Cluster, returncode: int) -> int:
    """Returns a task's exit status, negative for a signal, from that of its process, which may be an ssh."""
    if cluster.local:
        return returncode
    if returncode in (0, launch_plan.SUCCEEDED_OVER_SSH):
        return _NOT_RUN if returncode == 0 else 0
    # A shell adds 128 to the number of a signal.
    return 128 - returncode if returncode not in _REPORTS and 128 < returncode < _SSH_FAILED else returncode


def _patience(cluster: Cluster, task: Task, returncode: int) -> float:
    """Returns for how many seconds the other tasks may go on after one has ended so."""
    status = _status(cluster, returncode)
    if status == 0 and task != cluster.leader:
        return math.inf
    return _VERDICT_SECONDS if status == ExitStatus.CLUSTER else _NOTICE_SECONDS


def _last_line(output: Path) -> str:
    """Returns the last line of the output of a task, which has the reason of an ssh that failed."""
    with contextlib.suppress(OSError):
        with output.open("rb") as file:
            lines = subprocesses.tail(file).split("\n")
        return next((one_line(line) for line in reversed(lines) if line.strip()), "")
    return ""
