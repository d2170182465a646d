"""The tasks of a cluster, their addresses, and which of them this process is. Imports without TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from benchmarks.console import table

# The order in which tasks are listed.
JOBS = ("ps", "worker", "controller")

# The addresses (host:port) of each job's tasks, by the job's name.
Hosts = Mapping[str, tuple[str, ...]]


@dataclasses.dataclass(frozen=True, order=True)
class Task:
    """One process of a cluster: `job` is ps, worker or controller, `index` counts from 0 within the job."""

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
        """Whether it is given devices to train on; the others hold variables, or only ask."""
        return self.job == "worker"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cluster:
    """All tasks of a run, as each of them knows them.

    Attributes:
        ps: addresses (host:port) of the parameter servers; may be empty.
        workers: addresses of the workers; at least one.
        controller: address of a task that is only a client of the others, if there is one.
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
        """Every task's address: those of the parameter servers first, then the workers', then the controller's."""
        return {
            Task(job, index): address
            for job, addresses in self.signature().items()
            for index, address in enumerate(addresses)
        }

    @property
    def address(self) -> str:
        """The address of this process."""
        return self.tasks[self.own]

    @property
    def peers(self) -> dict[Task, str]:
        """The addresses of all tasks but this one."""
        return {task: address for task, address in self.tasks.items() if task != self.own}

    @property
    def leader(self) -> Task:
        """The task that decides and reports for all: the controller if there is one, else worker 0."""
        return Task("worker" if self.controller is None else "controller", 0)

    @property
    def num_ps(self) -> int:
        """How many parameter servers there are."""
        return len(self.ps)

    @property
    def num_workers(self) -> int:
        """How many workers there are."""
        return len(self.workers)

    @property
    def num_hosts(self) -> int:
        """How many hosts the tasks are on, as far as their addresses tell."""
        return self._hosts_of(self.tasks.values())

    @property
    def num_worker_hosts(self) -> int:
        """How many hosts the workers are on, likewise."""
        return self._hosts_of(self.workers)

    def _hosts_of(self, addresses: Iterable[str]) -> int:
        return 1 if self.local else len({address.rpartition(":")[0].lower() for address in addresses})

    @property
    def workers_on_this_host(self) -> int:
        """How many workers share this task's host, as far as their addresses tell."""
        own = self.address.rpartition(":")[0].lower()
        return sum(self.local or address.rpartition(":")[0].lower() == own for address in self.workers)

    def spec(self) -> dict[str, list[str]]:
        """Returns the jobs that have tasks, as `tf.train.ClusterSpec` takes them."""
        return {job: addresses for job, addresses in self.signature().items() if addresses}

    def signature(self) -> dict[str, list[str]]:
        """Returns every job's addresses as JSON can hold them: what all tasks must agree on."""
        controllers = [] if self.controller is None else [self.controller]
        return dict(zip(JOBS, (list(self.ps), list(self.workers), controllers), strict=True))

    def table(self, devices: Mapping[Task, str] | None = None) -> list[str]:
        """Returns the tasks as aligned lines of text under a header; a star marks this process.

        Args:
            devices: what to say of each task's devices; a dash stands for those left out.
        """
        rows = [(" ", "job", "task", "address", "devices")]
        for task, address in self.tasks.items():
            mark = "*" if task == self.own else " "
            rows.append((mark, task.job, str(task.index), address, (devices or {}).get(task, "-")))
        return table(rows)
