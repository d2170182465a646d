"""Finds the cluster that this process is part of, from flags and the environment. Imports without TensorFlow.

Explicit flags come first, then TF_CONFIG, then Slurm; without any of them there is one process.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.errors import UsageError, did_you_mean
from benchmarks.topology import launch_plan, slurm
from benchmarks.topology.addresses import LAST_PORT, host_and_port
from benchmarks.topology.cluster import JOBS, Cluster, Hosts, Task

# The addresses by job, and the task that this process is.
Found = tuple[Hosts, Task]

DEFAULT_SERVER_PORT = 50000
_FLAG_OF_JOB = {"ps": "ps_hosts", "worker": "worker_hosts", "controller": "controller_host"}
_SPEC_FORM = "ps|h1:2222;h2:2222,worker|h3:2222"
_CHIEFS = ("chief", "master")
_TF_CONFIG_FORM = '{"cluster": {"worker": ["h1:2222", "h2:2222"]}, "task": {"type": "worker", "index": 0}}'


def resolve(given: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[Cluster | None, tuple[str, ...]]:
    """Decides which tasks there are and which of them this process is.

    Args:
        given: flag values by name; None is not given.
        environ: the environment variables.

    Returns:
        The cluster (None: this is the only process), and sentences on what was ignored.

    Raises:
        UsageError: the cluster is impossible, or flags contradict it or each other.
    """
    _check_numbers(given)
    if given["hosts"]:
        launch_plan.host_names(given["hosts"])  # also where they are not used, since they may become words of ssh
    hosts, where = _hosts_of_flags(given)
    if launch_plan.is_asked_for(given) and not hosts:
        _refuse_task(given)
        ignored = f"--cluster={given['cluster']} is ignored, since this command starts all tasks itself."
        return launch_plan.planned(given, DEFAULT_SERVER_PORT), (ignored,) if given["cluster"] else ()
    if hosts:
        _check_hosts(hosts, where)
        return _cluster(hosts, _own_of_flags(given, hosts, where), given), _ignored(given, environ, hosts)
    found = _read_tf_config(environ.get("TF_CONFIG", ""))
    notices: tuple[str, ...] = ()
    source = "TF_CONFIG" if found else "Slurm"
    if found and given["cluster"]:
        notices = (f"--cluster={given['cluster']} is ignored, since TF_CONFIG names the cluster.",)
    elif not found and given["cluster"] == "slurm":
        port = DEFAULT_SERVER_PORT if given["server_port"] is None else given["server_port"]
        found = slurm.read(environ, given["num_ps"] or 0, port)
    if not found:
        _refuse_task(given)
        return None, ()
    hosts, own = found
    _check_hosts(hosts, dict.fromkeys(JOBS, source))
    for name, value in (("job_name", own.job), ("task_index", own.index)):
        if given[name] not in (None, "", value):
            raise UsageError(
                f"--{name}={given[name]}, and {source} makes this process {own}: leave --job_name and --task_index out."
            )
    return (_cluster(hosts, own, given) if sum(map(len, hosts.values())) > 1 else None), notices


def _cluster(hosts: Hosts, own: Task, given: Mapping[str, Any]) -> Cluster:
    return Cluster(
        ps=hosts.get("ps", ()),
        workers=hosts["worker"],
        controller=hosts["controller"][0] if "controller" in hosts else None,
        own=own,
        local=bool(given["local_cluster"]),
    )


def _check_numbers(given: Mapping[str, Any]) -> None:
    for name, what in (("task_index", "tasks are numbered from 0"), ("num_ps", "give 0 or more")):
        if given[name] is not None and given[name] < 0:
            raise UsageError(f"--{name}={given[name]}: {what}.")
    if given["num_ps"] is not None and given["cluster"] != "slurm":
        raise UsageError(
            f"--num_ps={given['num_ps']} is for --cluster=slurm; elsewhere --ps_hosts names the parameter servers."
        )
    if given["server_port"] is not None and not 1 <= given["server_port"] <= LAST_PORT:
        raise UsageError(f"--server_port={given['server_port']}: a port is a number from 1 to {LAST_PORT}.")


def _hosts_of_flags(given: Mapping[str, Any]) -> tuple[Hosts, Mapping[str, str]]:
    """Returns each job's addresses and the flag that names them; an empty text counts as not given."""
    listed = {
        job: _split(given[flag], ",", f"--{flag}={given[flag]}") for job, flag in _FLAG_OF_JOB.items() if given[flag]
    }
    if not given["cluster_spec"]:
        return listed, {job: f"--{flag}" for job, flag in _FLAG_OF_JOB.items()}
    hosts = _read_spec(given["cluster_spec"])
    for job, addresses in listed.items():
        if hosts.get(job, ()) != addresses:
            raise UsageError(
                f"--cluster_spec has {', '.join(hosts.get(job, ())) or 'nothing'} for {job}, and "
                f"--{_FLAG_OF_JOB[job]} has {', '.join(addresses)}: drop one of the flags."
            )
    return hosts, dict.fromkeys(JOBS, "--cluster_spec")


def _read_spec(text: str) -> Hosts:
    """Reads `ps|h1:2222;h2:2222,worker|h3:2222`."""
    hosts: dict[str, tuple[str, ...]] = {}
    for part in text.split(","):
        job, bar, addresses = part.strip().partition("|")
        if not bar:
            raise UsageError(
                f"--cluster_spec={text} cannot be read at '{part}'. Write it as {_SPEC_FORM}, with a semicolon "
                "between addresses and a comma between jobs."
            )
        if job not in JOBS:
            raise UsageError(f"--cluster_spec: there is no job '{job}'.{did_you_mean(job, JOBS)} Jobs: {_names(JOBS)}.")
        if job in hosts:
            raise UsageError(f"--cluster_spec={text} has {job} twice: give all its addresses at once, as {_SPEC_FORM}.")
        hosts[job] = _split(addresses, ";", f"--cluster_spec={text}")
    return hosts


def _split(text: str, separator: str, asked: str) -> tuple[str, ...]:
    addresses = tuple(word.strip() for word in text.split(separator))
    if not all(addresses):
        raise UsageError(f"{asked} has an empty entry: give an address (host:port) there, or drop the '{separator}'.")
    return addresses


def _check_hosts(hosts: Hosts, where: Mapping[str, str]) -> None:
    """Refuses an impossible cluster; `where` is the source of each job's addresses."""
    taken: dict[tuple[str, int], Task] = {}
    for job, addresses in hosts.items():
        for index, address in enumerate(addresses):
            task = Task(job, index)
            first = taken.setdefault(host_and_port(address, f"{where[job]}, {task}"), task)
            if first != task:
                raise UsageError(
                    f"{_names(dict.fromkeys((where[first.job], where[job])))}: {first} and {task} have the same "
                    f"address {address}. Give each task a port of its own."
                )
    if not hosts.get("worker"):
        raise UsageError(f"There is no worker: name at least one (host:port) with {where['worker']}.")
    if len(hosts.get("controller", ())) > 1:
        raise UsageError(
            f"{where['controller']} has {len(hosts['controller'])} addresses for the controller: give one."
        )


def _own_of_flags(given: Mapping[str, Any], hosts: Hosts, where: Mapping[str, str]) -> Task:
    job = given["job_name"]
    if not job:
        flags = _names(dict.fromkeys(where[job] for job in hosts))
        raise UsageError(
            f"A cluster is given ({flags}), but not which of its tasks this is: add --job_name and --task_index."
        )
    if not hosts.get(job):
        raise UsageError(f"--job_name={job}, and the cluster has no {job}: add its address with {where[job]}.")
    return Task(job, _index(given["task_index"], job, len(hosts[job]), (f"--job_name={job}", "--task_index")))


def _index(index: int | None, job: str, count: int, asked: tuple[str, str]) -> int:
    """Returns the index of one of the `count` tasks of a job; if there is only one, it may be left out."""
    there = f"there is only {job} 0" if count == 1 else f"there are {job} 0 to {count - 1}"
    if index is None and count > 1:
        raise UsageError(f"{asked[0]} without {asked[1]}: {there}. Give the index of this process.")
    if index is not None and not 0 <= index < count:
        raise UsageError(f"{asked[0]} {asked[1]}={index}: {there}.")
    return index or 0


def _refuse_task(given: Mapping[str, Any]) -> None:
    """Refuses flags that choose a task where there is no cluster; the first task is a single process anyway."""
    for name in ("job_name", "task_index"):
        if given[name]:
            raise UsageError(
                f"--{name}={given[name]} chooses a task of a cluster, and there is none: name it with --worker_hosts "
                "(and --ps_hosts), --cluster_spec, TF_CONFIG or --cluster=slurm."
            )


def _ignored(given: Mapping[str, Any], environ: Mapping[str, str], hosts: Hosts) -> tuple[str, ...]:
    """Returns sentences on other sources than the flags, which are ignored."""
    notices = []
    if given["cluster"]:
        notices.append(f"--cluster={given['cluster']} is ignored, since flags name the hosts.")
    try:
        found = _read_tf_config(environ.get("TF_CONFIG", ""))
    except UsageError as error:
        notices.append(f"TF_CONFIG is ignored, since flags name the hosts. It is also invalid: {error}")
    else:
        if found and dict(found[0]) != dict(hosts):
            others = "; ".join(f"{job} {', '.join(addresses)}" for job, addresses in found[0].items())
            notices.append(f"TF_CONFIG is ignored, since flags name the hosts. It names others: {others}.")
    return tuple(notices)


def _read_tf_config(text: str) -> Found | None:
    """Reads the variable as TensorFlow's own tools set it. A chief is worker 0, and the workers follow it."""
    try:
        config = json.loads(text or "{}")
    except ValueError as error:
        raise UsageError(f"TF_CONFIG is no JSON ({error}): unset it, or set it to {_TF_CONFIG_FORM}.") from error
    sections: dict[str, Any] = config if isinstance(config, dict) else {"cluster": config}
    jobs, task = sections.get("cluster") or {}, sections.get("task") or {}
    if not _is_cluster(jobs) or not _is_task(task):
        raise UsageError(f"TF_CONFIG={text} cannot be understood: unset it, or set it to {_TF_CONFIG_FORM}.")
    if task.get("type") == "evaluator":
        raise UsageError(
            "TF_CONFIG makes this process an evaluator, and none is used here: start only the other tasks."
        )
    return _tasks_of(jobs, task) if any(jobs.values()) else None


def _is_cluster(value: Any) -> bool:
    lists = value.values() if isinstance(value, dict) else [None]
    return all(isinstance(addresses, list) and all(isinstance(a, str) for a in addresses) for addresses in lists)


def _is_task(value: Any) -> bool:
    """Whether this is a task; its index may be a number or its digits, as TensorFlow takes both."""
    if not isinstance(value, dict) or not isinstance(value.get("type", ""), str):
        return False
    return re.fullmatch("-?[0-9]+", str(value.get("index", 0))) is not None


def _tasks_of(jobs: Mapping[str, list[str]], task: Mapping[str, Any]) -> Found:
    known = (*_CHIEFS, *JOBS)
    for name in jobs:
        if name not in (*known, "evaluator"):
            raise UsageError(f"TF_CONFIG: there is no job '{name}'.{did_you_mean(name, known)} Jobs: {_names(known)}.")
    chiefs = [address for name in _CHIEFS for address in jobs.get(name, [])]
    if len(chiefs) > 1:
        raise UsageError(f"TF_CONFIG has {len(chiefs)} chiefs ({_names(chiefs)}): at most one is allowed.")
    merged = {**jobs, "worker": [*chiefs, *jobs.get("worker", [])]}
    hosts = {name: tuple(merged[name]) for name in JOBS if merged.get(name)}
    own = _own_of_tf_config(task, {name: jobs[name] for name in known if jobs.get(name)})
    if own.job in _CHIEFS:
        return hosts, Task("worker", 0)
    return hosts, Task(own.job, own.index + len(chiefs)) if own.job == "worker" else own


def _own_of_tf_config(task: Mapping[str, Any], jobs: Mapping[str, list[str]]) -> Task:
    """Returns the task as the variable counts it; it may be left out if there is only one."""
    only = next(iter(jobs), "") if sum(map(len, jobs.values())) == 1 else ""
    job = task.get("type") or only
    if job not in jobs:
        raise UsageError(f"TF_CONFIG has type '{job}' for this process's task: set it to one of {_names(jobs)}.")
    index = int(task["index"]) if "index" in task else None
    return Task(job, _index(index, job, len(jobs[job]), (f"TF_CONFIG, type {job}", "index")))


def _names(words: Iterable[str]) -> str:
    return ", ".join(words)


def manager_for(cluster: Cluster) -> str:
    """Returns a variable manager that such a cluster can have, for verbs that train nothing."""
    return "parameter_server" if cluster.ps else "collective_all_reduce"
