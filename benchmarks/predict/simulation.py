"""A discrete-event simulation of tasks that wait for each other and for resources. Knows nothing of training."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import simpy


@dataclasses.dataclass(frozen=True)
class Task:
    """A piece of work that occupies one resource.

    Attributes:
        name: unique in a step.
        resource: such as `device`; a resource does one task at a time, in the order in which tasks become ready.
        seconds: for which it occupies the resource.
        after: the names of the tasks that must end before; they stand before this one in the list of tasks.
        latency_seconds: from when the resource is free again until the task has ended.
        size_bytes: that are moved; 0 of a computation.
    """

    name: str
    resource: str
    seconds: float
    after: tuple[str, ...] = ()
    latency_seconds: float = 0.0
    size_bytes: float = 0.0


@dataclasses.dataclass(frozen=True)
class Timeline:
    """When each task occupied its resource, in seconds from the start of the step.

    Attributes:
        tasks: all, in the order in which they started.
        begin: by name.
        end_seconds: of the last task.
    """

    tasks: Sequence[Task]
    begin: Mapping[str, float]
    end_seconds: float

    def busy_seconds(self) -> dict[str, float]:
        """Returns how long each resource is occupied."""
        busy: dict[str, float] = {}
        for task in self.tasks:
            busy[task.resource] = busy.get(task.resource, 0.0) + task.seconds
        return busy


def simulate(tasks: Sequence[Task]) -> Timeline:
    """Returns the time line of a step in which every task starts as soon as it can.

    Of tasks that are ready at the same time, the first of the list starts first.
    """
    environment = simpy.Environment()
    resources = {task.resource: simpy.Resource(environment) for task in tasks}
    begin: dict[str, float] = {}
    ended: dict[str, simpy.Process] = {}

    def carried_out(task: Task, before: Sequence[simpy.Process]) -> Iterator[simpy.Event]:
        if before:
            yield environment.all_of(before)
        with resources[task.resource].request() as granted:
            yield granted
            begin[task.name] = environment.now
            yield environment.timeout(task.seconds)
        if task.latency_seconds:
            yield environment.timeout(task.latency_seconds)

    for task in tasks:
        ended[task.name] = environment.process(carried_out(task, [ended[name] for name in task.after]))
    environment.run()
    return Timeline(sorted(tasks, key=lambda task: begin[task.name]), begin, environment.now)
