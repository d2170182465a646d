"""Finds the cluster that this process is part of, from flags and the environment. Imports without TensorFlow.

Explicit flags come first, then TF_CONFIG, then Slurm or MPI; without any of them there is one process.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from benchmarks.cluster import cluster_spec, launch_plan, ranks
from benchmarks.cluster.cluster_spec import JOBS, Cluster, Hosts, Task, host_and_port, tasks_of
from benchmarks.errors import UsageError, did_you_mean

DEFAULT_SERVER_PORT = 50000
FLAG_OF_JOB = {"ps": "ps_hosts", "worker": "worker_hosts", "controller": "controller_host"}
_SPEC_FORM = "ps|h1:2222;h2:2222,worker|h3:2222"
_JOB = re.compile("[A-Za-z][A-Za-z0-9_]*")
_CHIEFS = ("chief", "master")
# What TensorFlow and its operators set; only the first two are used.
_TF_CONFIG_KEYS = (
    "cluster", "task", "environment", "job", "rpc_layer", "master", "session_master", "eval_session_master", "service",
    "service_type", "model_dir",
)  # fmt: skip
_TF_CONFIG_FORM = '{"cluster": {"worker": ["h1:2222", "h2:2222"]}, "task": {"type": "worker", "index": 0}}'
# How a task looks in SageMaker's list of hosts, in what Vertex AI and TonY set, and in KungFu's list.
_OF_SM_HOSTS = re.compile(r'[\[,]\s*"[^"\s]+"')
_OF_CLUSTER_SPEC = re.compile(r'"[^"\s]+:[0-9]+"')
_OF_KUNGFU_PEERS = re.compile(r"(?<![^,\s])[^,\s:]++:[0-9]+")
_LISTS_OF_TASKS = {
    "SM_HOSTS": _OF_SM_HOSTS.findall,
    "CLUSTER_SPEC": _OF_CLUSTER_SPEC.findall,
    "KUNGFU_INIT_PEERS": _OF_KUNGFU_PEERS.findall,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
    """The tasks that flags or the environment name.

    Attributes:
        hosts: the addresses by job.
        own: the task that this process is; None if nothing names it.
        own_is_missing: in that case a sentence, for a process that has to be one of them.
        is_explicit: flags name the tasks; in the environment of a single process, one task is no cluster.
        is_launcher: this process starts all tasks, and is none of them.
        notices: sentences on what was ignored.
    """

    hosts: Hosts
    own: Task | None = None
    own_is_missing: str = ""
    is_explicit: bool = False
    is_launcher: bool = False
    notices: tuple[str, ...] = ()


class _OwnTask(msgspec.Struct):
    """A task in TF_CONFIG, whose index may be a number or its digits, as TensorFlow takes both."""

    type: str = ""
    index: int | None = None


def resolve_cluster(given: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[Cluster | None, tuple[str, ...]]:
    """Decides which tasks a run has and which of them this process is.

    Args:
        given: flag values by name; None is not given.
        environ: the environment variables.

    Returns:
        The cluster (None: this is the only process), and sentences on what was ignored.

    Raises:
        UsageError: the cluster is impossible, or flags contradict it or each other.
    """
    found = find_cluster(given, environ, of_run=True)
    if found is None:
        for name in ("job_name", "task_index"):
            if given[name]:  # the first task is a single process anyway
                raise UsageError(
                    f"--{name}={given[name]} chooses a task of a cluster, and there is none: name it with "
                    "--worker_hosts (and --ps_hosts), --cluster_spec, TF_CONFIG, --cluster=slurm or --cluster=mpi."
                )
        notices = ranks.refuse_copies(environ)
        for name, tasks_in in _LISTS_OF_TASKS.items():
            if len(tasks_in(environ.get(name, ""))) > 1:
                raise UsageError(
                    f"{name}={environ[name]}: each task would measure alone, since only TF_CONFIG is read: set it to "
                    f"{_TF_CONFIG_FORM}, or unset {name}."
                )
        return None, notices
    is_alone = found.is_launcher or not found.is_explicit and len(tasks_of(found.hosts)) == 1
    notices = (*found.notices, *(ranks.refuse_copies(environ, can_join=False) if is_alone else ()))
    if found.own is None and not found.is_launcher:
        raise UsageError(found.own_is_missing)
    cluster = Cluster(
        ps=found.hosts.get("ps", ()),
        workers=found.hosts["worker"],
        controller=found.hosts["controller"][0] if "controller" in found.hosts else None,
        own=found.own or Task("worker", 0),
        local=bool(given["local_cluster"]),
    )
    return cluster if found.is_explicit or len(cluster.tasks) > 1 else None, notices


def find_cluster(given: Mapping[str, Any], environ: Mapping[str, str], *, of_run: bool = False) -> Found | None:
    """Finds the tasks and which of them this process is, if anything names that; None if nothing names tasks.

    `of_run`: the jobs must be those of a run. For other arguments and errors, see `resolve_cluster`.
    """
    if given["num_ps"] is not None and not given["cluster"]:
        raise UsageError(
            f"--num_ps={given['num_ps']} is for --cluster=slurm or mpi; elsewhere --local_cluster or --ps_hosts names "
            "the parameter servers."
        )
    if given["hosts"]:
        launch_plan.host_names(given["hosts"])  # also where they are not used, since they may become words of ssh
    hosts, flags = _hosts_of_flags(given)
    if launch_plan.is_asked_for(given) and not hosts:
        if given["task_index"] is not None:
            raise UsageError(
                f"--task_index={given['task_index']}: --local_cluster and --hosts start all tasks: drop it."
            )
        planned = launch_plan.planned(given, DEFAULT_SERVER_PORT).spec()
        hosts = {job: tuple(addresses) for job, addresses in planned.items()}
        ignored = _ignored("this command starts all tasks itself", given["cluster"])
        return Found(hosts=hosts, is_explicit=True, is_launcher=True, notices=ignored)
    if hosts:
        _check_hosts(hosts, flags, of_run=of_run)
        own = _own_of_flags(given, hosts)
        by_rank = own is None and given["cluster"] == "mpi"
        if by_rank:
            own = ranks.task_of(environ, hosts)
            _refuse_other_task(given, own, "mpirun")
        return Found(
            hosts=hosts,
            own=own,
            own_is_missing=f"A cluster is given ({flags}), but not which of its tasks this is: add --job_name and "
            "--task_index.",
            is_explicit=True,
            notices=_ignored("flags name the hosts", None if by_rank else given["cluster"], environ.get("TF_CONFIG")),
        )
    found, source = _read_tf_config(environ.get("TF_CONFIG", "")), "TF_CONFIG"
    if found and given["cluster"]:
        found = dataclasses.replace(found, notices=_ignored("TF_CONFIG names the cluster", given["cluster"]))
    elif given["cluster"]:
        by_srun, port = given["cluster"] == "slurm", given["server_port"] or DEFAULT_SERVER_PORT
        blocks = ranks.read_slurm(environ) if by_srun else ranks.read_mpi(environ, given["hosts"])
        hosts, own = ranks.by_blocks(*blocks, num_ps=given["num_ps"] or 0, base_port=port)
        found, source = Found(hosts=hosts, own=own, own_is_missing=ranks.NO_RANK), "Slurm" if by_srun else "mpirun"
    if not found:
        return None
    _check_hosts(found.hosts, source, of_run=of_run)
    if found.own:
        _refuse_other_task(given, found.own, source)
    return found


def _refuse_other_task(given: Mapping[str, Any], own: Task, source: str) -> None:
    for name, value in (("job_name", own.job), ("task_index", own.index)):
        if given[name] not in (None, "", value):
            raise UsageError(
                f"--{name}={given[name]}, and {source} makes this process {own}: leave --job_name and --task_index out."
            )


def _hosts_of_flags(given: Mapping[str, Any]) -> tuple[Hosts, str]:
    """Returns each job's addresses, and the flags that name them; an empty text counts as not given."""
    listed = {
        job: _split(given[flag], ",", f"--{flag}={given[flag]}") for job, flag in FLAG_OF_JOB.items() if given[flag]
    }
    flags = ", ".join(f"--{FLAG_OF_JOB[job]}" for job in listed)
    if not given["cluster_spec"]:
        return listed, flags
    if listed:
        raise UsageError(f"--cluster_spec names all tasks: leave {flags} out.")
    return _read_spec(given["cluster_spec"]), "--cluster_spec"


def _read_spec(text: str) -> Hosts:
    """Reads `ps|h1:2222;h2:2222,worker|h3:2222`."""
    hosts: dict[str, tuple[str, ...]] = {}
    for part in text.split(","):
        job, bar, addresses = part.strip().partition("|")
        if not bar or not _JOB.fullmatch(job):
            raise UsageError(
                f"--cluster_spec={text} cannot be read at '{part}'. Write it in quotes as '{_SPEC_FORM}', with a "
                "semicolon between addresses and a comma between jobs."
            )
        if job in hosts:
            raise UsageError(f"--cluster_spec={text} has {job} twice: give all its addresses at once, as {_SPEC_FORM}.")
        hosts[job] = _split(addresses, ";", f"--cluster_spec={text}")
    return hosts


def _split(text: str, separator: str, asked: str) -> tuple[str, ...]:
    addresses = tuple(word.strip() for word in text.split(separator))
    if not all(addresses):
        raise UsageError(f"{asked} has an empty entry: give an address (host:port) there, or drop the '{separator}'.")
    return addresses


def _check_hosts(hosts: Hosts, source: str, *, of_run: bool) -> None:
    """Refuses an impossible cluster; `source` is what has named its addresses."""
    others = [job for job in hosts if job not in JOBS]
    if others and of_run:
        raise UsageError(
            f"{source} has the job '{others[0]}', and a run knows only {', '.join(JOBS)}."
            f"{did_you_mean(others[0], JOBS)} Rename it, or start servers for sessions of your own with `server`."
        )
    taken: dict[tuple[str, int], Task] = {}
    for job, addresses in hosts.items():
        for index, address in enumerate(addresses):
            task = Task(job, index)
            first = taken.setdefault(host_and_port(address, f"{source}, {task}"), task)
            if first != task:
                same = " = ".join(dict.fromkeys((hosts[first.job][first.index], address)))
                raise UsageError(
                    f"{source}: {first} and {task} have the same address {same}. Give each task a port of its own."
                )
    names = [address.rpartition(":")[0] for address in tasks_of(hosts).values()]
    cluster_spec.require_common_names(names, source)
    if of_run and not hosts.get("worker"):
        raise UsageError(f"{source}: there is no worker: add at least one (host:port), as with --worker_hosts.")
    if of_run and len(hosts.get("controller", ())) > 1:
        raise UsageError(f"{source}: the controller has {len(hosts['controller'])} addresses: give one.")


def _own_of_flags(given: Mapping[str, Any], hosts: Hosts) -> Task | None:
    if not given["job_name"]:
        return None
    job = next((name for name in hosts if name.lower() == given["job_name"].lower()), given["job_name"])
    if job not in hosts:
        raise UsageError(
            f"--job_name={job}, and the cluster has no {job}: add its address, or name one of its jobs "
            f"({', '.join(hosts)})."
        )
    return Task(job, _index(given["task_index"], job, len(hosts[job]), (f"--job_name={job}", "--task_index")))


def _index(index: int | None, job: str, count: int, asked: tuple[str, str]) -> int:
    """Returns the index of one of the `count` tasks of a job; if there is only one, it may be left out."""
    there = f"there is only {job} 0" if count == 1 else f"there are {job} 0 to {count - 1}"
    if index is None and count > 1:
        raise UsageError(f"{asked[0]} without {asked[1]}: {there}. Give the index of this process.")
    if index is not None and not 0 <= index < count:
        raise UsageError(f"{asked[0]} {asked[1]}={index}: {there}.")
    return index or 0


def _ignored(why: str, cluster: str | None, tf_config: str | None = None) -> tuple[str, ...]:
    """Returns sentences on sources of a cluster that are given and ignored."""
    sources = [f"--cluster={cluster}"] * bool(cluster) + ["TF_CONFIG"] * bool(tf_config)
    return tuple(f"{source} is ignored, since {why}." for source in sources)


def _read_tf_config(text: str) -> Found | None:
    """Reads the variable as TensorFlow's own tools set it. A chief is worker 0, and the workers follow it."""
    try:
        sections = msgspec.json.decode(text or "{}", type=dict[str, Any])
        read = msgspec.convert(sections.get("cluster") or {}, dict[str, list[str] | dict[int, str]], str_keys=True)
        task = msgspec.convert(sections.get("task") or {}, _OwnTask, strict=False)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UsageError(
            f"TF_CONFIG={text} cannot be read ({error}): unset it, or set it to {_TF_CONFIG_FORM}."
        ) from error
    if "sparseCluster" in sections:  # its tasks know only themselves and the parameter servers
        raise UsageError(
            "TF_CONFIG has 'sparseCluster', and every task needs the lists of all tasks: name them in 'cluster' (in a "
            "TFJob, without enableDynamicWorker)."
        )
    if unknown := [name for name in sections if name not in _TF_CONFIG_KEYS]:
        raise UsageError(
            f"TF_CONFIG has '{unknown[0]}', which is not understood: unset it, or set it to {_TF_CONFIG_FORM}."
        )
    jobs = {
        name: addresses if isinstance(addresses, list) else _in_order(name, addresses)
        for name, addresses in read.items()
    }
    if not any(jobs.values()):
        if task.type not in ("", "worker", *_CHIEFS) or task.index:
            raise UsageError(
                f"TF_CONFIG makes this process {task.type or 'worker'} {task.index or 0} and names no cluster: set it "
                f"to {_TF_CONFIG_FORM}."
            )
        return None
    return _tasks_of(jobs, task)


def _in_order(job: str, addresses: Mapping[int, str]) -> list[str]:
    """Returns the addresses of a job that has them by index, as TensorFlow's `ClusterSpec` takes them, too."""
    for index in range(len(addresses)):
        if index not in addresses:
            raise UsageError(
                f"TF_CONFIG has no address of {job} {index}, and has one of {job} {max(addresses)}: every task needs "
                "the addresses of all tasks, with indices from 0."
            )
    return [addresses[index] for index in range(len(addresses))]


def _tasks_of(jobs: Mapping[str, list[str]], task: _OwnTask) -> Found:
    known = (*_CHIEFS, *JOBS)
    for name in jobs:
        if name not in (*known, "evaluator"):
            raise UsageError(
                f"TF_CONFIG: there is no job '{name}'.{did_you_mean(name, known)} Jobs: {', '.join(known)}."
            )
    chiefs = [address for name in _CHIEFS for address in jobs.get(name, [])]
    if len(chiefs) > 1:
        raise UsageError(f"TF_CONFIG has {len(chiefs)} chiefs ({', '.join(chiefs)}): at most one is allowed.")
    merged = {**jobs, "worker": [*chiefs, *jobs.get("worker", [])]}
    listed = {name: jobs[name] for name in known if jobs.get(name)}
    own = _own_of_tf_config(task, listed)
    if own and own.job in ("worker", *_CHIEFS):
        own = Task("worker", own.index + (len(chiefs) if own.job == "worker" else 0))
    return Found(
        hosts={name: tuple(merged[name]) for name in JOBS if merged.get(name)},
        own=own,
        own_is_missing=f"TF_CONFIG has type '' for this process's task: set it to one of {', '.join(listed)}.",
    )


def _own_of_tf_config(task: _OwnTask, jobs: Mapping[str, list[str]]) -> Task | None:
    """Returns the task as the variable counts it; it may be left out if there is only one."""
    only = next(iter(jobs), "") if sum(map(len, jobs.values())) == 1 else ""
    job = task.type or only
    if not job:
        return None
    if job not in jobs:
        raise UsageError(
            f"TF_CONFIG has type '{job}' for this process's task: set it to one of {', '.join(jobs)}, or leave this "
            "process out."
        )
    return Task(job, _index(task.index, job, len(jobs[job]), (f"TF_CONFIG, type {job}", "index")))


def manager_for(cluster: Cluster) -> str:
    """Returns a variable manager that such a cluster can have, for verbs that train nothing."""
    return "parameter_server" if cluster.ps else "collective_all_reduce"
