"""The tasks of a cluster, their addresses, and which of them this process is. Imports without TensorFlow."""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from collections.abc import Collection, Mapping, Sequence

from benchmarks.errors import UsageError
from results.text import Table
from variable_mgr.catalog import IN_GRAPH
from variable_mgr.place import HOST, Place

# The jobs of a run, in the order in which tasks are listed. Other jobs have servers only.
JOBS = ("ps", "worker", "controller")

# The addresses (host:port) of each job's tasks, by the job's name.
Hosts = Mapping[str, tuple[str, ...]]


@dataclasses.dataclass(frozen=True)
class Task:
    """One process of a cluster; `index` counts from 0 within the job."""

    job: str
    index: int

    def __str__(self) -> str:
        return f"{self.job} {self.index}"

    @property
    def device(self) -> str:
        """The task as TensorFlow names it in a device."""
        return f"/job:{self.job}/replica:0/task:{self.index}"

    @property
    def has_towers(self) -> bool:
        """Whether it has devices to train on; other tasks hold variables, or are clients."""
        return self.job == "worker"


def tasks_of(hosts: Mapping[str, Sequence[str]]) -> dict[Task, str]:
    """Returns every task with its address, in the order of `hosts`."""
    return {Task(job, index): address for job in hosts for index, address in enumerate(hosts[job])}


def task_table(tasks: Mapping[Task, str], own: Task | None, devices: Mapping[Task, str] | None = None) -> list[str]:
    """Returns the tasks as aligned lines of text under a header; a star marks this process.

    A dash stands for a task without `devices`, which are in words. Without any, the last column has the names of the
    tasks in TensorFlow instead.
    """
    title = "name in TensorFlow" if devices is None else "devices"
    rows = [
        ("*" if task == own else " ", task.job, str(task.index), address)
        + (task.device if devices is None else devices.get(task, "-"),)
        for task, address in tasks.items()
    ]
    return Table((" ", "job", "task", "address", title), rows).text(rule=False)


def in_words(hosts: Mapping[str, Sequence[str]]) -> str:
    """Returns the addresses of each job that has any, such as `ps = a:1; worker = b:1, c:1`."""
    return "; ".join(f"{job} = {', '.join(addresses)}" for job, addresses in hosts.items() if addresses)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cluster:
    """All tasks of a run.

    Attributes:
        ps: addresses (host:port) of the parameter servers; may be empty.
        workers: addresses of the workers; at least one.
        controller: address of a task that is only a client of the other tasks; None if there is none.
        own: the task that this process is.
        local: one command started all tasks on this host.
    """

    ps: tuple[str, ...]
    workers: tuple[str, ...]
    controller: str | None = None
    own: Task
    local: bool = False

    @property
    def tasks(self) -> dict[Task, str]:
        """Every task's address: first parameter servers, then workers, then the controller."""
        return tasks_of(self.spec())

    @property
    def address(self) -> str:
        """The address of this process."""
        return self.tasks[self.own]

    @property
    def peers(self) -> dict[Task, str]:
        """The addresses of all tasks but this one."""
        return {task: address for task, address in self.tasks.items() if task != self.own}

    @property
    def is_alone_on_this_host(self) -> bool:
        """Whether no other task has an address of this task's host."""
        return self._number_on_this_host([*self.tasks.values()]) == 1

    @property
    def leader(self) -> Task:
        """The task that decides and reports for all: the controller if there is one, else worker 0."""
        return Task("worker" if self.controller is None else "controller", 0)

    @property
    def num_ps(self) -> int:
        """Number of parameter servers."""
        return len(self.ps)

    @property
    def num_workers(self) -> int:
        """Number of workers."""
        return len(self.workers)

    @property
    def num_hosts(self) -> int:
        """Number of hosts of all tasks, by their addresses."""
        return 1 if self.local else len(set(map(_host, self.tasks.values())))

    @property
    def num_worker_hosts(self) -> int:
        """Number of hosts of the workers, by their addresses."""
        return 1 if self.local else len(set(map(_host, self.workers)))

    @property
    def workers_on_this_host(self) -> int:
        """Number of workers on this task's host, by their addresses."""
        return self._number_on_this_host(self.workers)

    @property
    def number_on_this_host(self) -> int:
        """Number of this worker among those of its host, from 0, by their addresses."""
        return self._number_on_this_host(self.workers[: self.own.index])

    def _number_on_this_host(self, addresses: Sequence[str]) -> int:
        return sum(self.local or _host(address) == _host(self.address) for address in addresses)

    def spec(self) -> dict[str, list[str]]:
        """Returns the addresses of the jobs that have tasks, as `tf.train.ClusterSpec` takes them.

        All tasks must agree on them.
        """
        jobs = zip(JOBS, (self.ps, self.workers, filter(None, [self.controller])), strict=True)
        return {job: addresses for job, given in jobs if (addresses := list(given))}


def _host(address: str) -> str:
    return one_spelling(address.rpartition(":")[0])


def place(
    kind: str, count: int, *, virtual: bool = False, cluster: Cluster | None = None, manager: str = "", group: int = 1
) -> Place:
    """Names the towers that one process drives, and the devices around them.

    A worker has `count` towers of a kind (`cpu` or `gpu`), which share physical devices if they are `virtual`. The
    variable manager decides which task drives which towers. For `group` see `Place`.
    """
    own = [f"/{kind}:{index}" for index in range(count)]
    if cluster is None:
        return Place(tuple(own), HOST, virtual, group=group)
    servers = tuple(Task("ps", index).device + HOST for index in range(cluster.num_ps))
    if manager in IN_GRAPH:
        workers = [Task("worker", index).device for index in range(cluster.num_workers)]
        return Place(
            tuple(worker + device for worker in workers for device in own),
            workers[0] + HOST if cluster.controller is None else cluster.leader.device + HOST,
            virtual,
            ps=servers,
            hosts=tuple(worker + HOST for worker in workers for _ in own),
            group=group,
        )
    prefix = cluster.own.device
    return Place(
        tuple(prefix + device for device in own),
        prefix + HOST,
        virtual,
        ps=servers,
        workers=cluster.num_workers,
        worker=cluster.own.index if cluster.own.has_towers else 0,
        group=group,
    )


def training_tasks(cluster: Cluster, manager: str) -> list[Task]:
    """Returns the tasks that take steps of their own; the others only serve."""
    return [cluster.leader] if manager in IN_GRAPH else [task for task in cluster.tasks if task.has_towers]


LAST_PORT = 65535
_LABEL = "[A-Za-z0-9_](?:[A-Za-z0-9_-]*[A-Za-z0-9_])?"
_NAME = re.compile(rf"(?:{_LABEL}\.)*{_LABEL}\.?")
_MOST_CHARACTERS = 253
_LOOPBACK = re.compile(r"(?:ip6-)?localhost[46]?(?:\.localdomain[46]?)?|ip6-loopback|127(?:\.[0-9]+){3}|\[::1\]")
_ALL_INTERFACES = ("0.0.0.0", "[::]")
_IN_BRACKETS = re.compile(r"\[([0-9A-Fa-f:.]+)(%[A-Za-z0-9_.-]+)?\]")
_ADDRESS = re.compile(r"(\[[^\[\]]+\]|[^\[\]:]+):([0-9]{1,5})")


def why_no_host(text: str) -> str | None:
    """Returns why a text is neither a host name nor an IP address, IPv6 in brackets; None if it is one."""
    if text in _ALL_INTERFACES:
        return "it stands for all interfaces, on which servers listen anyway: name the host as other tasks know it"
    brackets = _IN_BRACKETS.fullmatch(text)
    try:
        if brackets:
            ipaddress.IPv6Address(brackets[1])
        elif text.startswith("["):
            return "it has no IPv6 address in its brackets"
        elif not text.strip("0123456789."):
            ipaddress.IPv4Address(text)
    except ValueError as error:
        return f"it is no IP address ({error})"
    if not brackets and (not _NAME.fullmatch(text) or len(text) > _MOST_CHARACTERS):
        return (
            "a host name has letters, digits, '-', '_' and '.', and begins and ends with a letter or digit; an IPv6 "
            "address stands in brackets"
        )
    return None


def one_spelling(host: str) -> str:
    """Returns one name for all spellings of a host, as far as they can be known without asking a name server."""
    name = host.lower().rstrip(".")
    if brackets := _IN_BRACKETS.fullmatch(name):
        name = f"[{ipaddress.IPv6Address(brackets[1]).compressed}{brackets[2] or ''}]"
    return "localhost" if _LOOPBACK.fullmatch(name) else name


def require_common_names(hosts: Collection[str], source: str) -> None:
    """Checks that hosts have the names by which all of them know each other.

    Raises:
        UsageError: one is the name of every host for itself, and there are others.
    """
    own = [host for host in hosts if one_spelling(host) == "localhost"]
    others = [host for host in hosts if host not in own]
    if own and others:
        raise UsageError(
            f"{source}: {own[0]} is another host for {others[0]} than for its own tasks: name all hosts as the others "
            "know them."
        )


def host_and_port(address: str, source: str) -> tuple[str, int]:
    """Returns the parts of an address, the host in one spelling; `source` is what named it.

    Raises:
        UsageError: it is no address.
    """
    match = _ADDRESS.fullmatch(address)
    if not match:
        raise UsageError(f"{source}: {address!r} is no address. Write host:port, such as node1:2222 or [::1]:2222.")
    host, port = match[1], int(match[2])
    why_not = why_no_host(host)
    if why_not:
        raise UsageError(f"{source}: {address!r} is no address: {why_not}.")
    if not 1 <= port <= LAST_PORT:
        raise UsageError(f"{source}: {address!r} has port {port}; a port is a number from 1 to {LAST_PORT}.")
    return one_spelling(host), port
