"""A discrete-event simulation of tasks that wait for each other and for resources. Knows nothing of training."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

import simpy

_SLICES = 64  # that a resource takes in all, if its tasks take turns


@dataclasses.dataclass(frozen=True)
class Task:
    """A piece of work that occupies one resource.

    Attributes:
        name: unique in a step.
        resource: such as `device`; a resource does one task at a time, in the order in which tasks become ready.
        seconds: for which it occupies the resource.
        after: the names of the tasks that must end before; they stand before this one in the list of tasks.
        latency_seconds: from when the resource is free again until the task has ended.
        is_sliced: it shares the resource in slices with others, as messages do a network; else nothing interrupts it.
    """

    name: str
    resource: str
    seconds: float
    after: tuple[str, ...] = ()
    latency_seconds: float = 0.0
    is_sliced: bool = False


@dataclasses.dataclass(frozen=True)
class Span:
    """A time in which a task occupied its resource: all of the task, or a part of it. Seconds from the step's start."""

    task: Task
    begin_seconds: float
    seconds: float


@dataclasses.dataclass(frozen=True)
class Timeline:
    """When each task occupied its resource, in the order in which they began, and when the last one ended."""

    spans: Sequence[Span]
    end_seconds: float

    def busy_seconds(self) -> dict[str, float]:
        """Returns how long each resource is occupied."""
        busy: dict[str, float] = {}
        for span in self.spans:
            busy[span.task.resource] = busy.get(span.task.resource, 0.0) + span.seconds
        return busy


def simulate(tasks: Sequence[Task]) -> Timeline:
    """Returns the time line of a step in which every task starts as soon as it can.

    Of tasks that are ready at the same time, the first of the list starts first.
    """
    environment = simpy.Environment()
    resources = {task.resource: simpy.Resource(environment) for task in tasks}
    a_slice = {name: sum(task.seconds for task in tasks if task.resource == name) / _SLICES for name in resources}
    spans: list[Span] = []
    ended: dict[str, simpy.Process] = {}

    def carried_out(task: Task, before: Sequence[simpy.Process]) -> Iterator[simpy.Event]:
        if before:
            yield environment.all_of(before)
        count = math.ceil(task.seconds / a_slice[task.resource]) if task.is_sliced and task.seconds else 1
        for _ in range(count):
            with resources[task.resource].request() as granted:
                yield granted
                spans.append(Span(task, environment.now, task.seconds / count))
                yield environment.timeout(task.seconds / count)
        if task.latency_seconds:
            yield environment.timeout(task.latency_seconds)

    for task in tasks:
        ended[task.name] = environment.process(carried_out(task, [ended[name] for name in task.after]))
    environment.run()
    return Timeline(spans, environment.now)
