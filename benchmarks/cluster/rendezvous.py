"""Messages between the tasks of a cluster, through their TensorFlow servers. Not part of what is timed.

A session waits without limit, so a missing task is not noticed here; see `benchmarks.process.watchdog`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from benchmarks.cluster.cluster_spec import JOBS, Cluster, Task
from benchmarks.cluster.discovery import FLAG_OF_JOB
from benchmarks.errors import UsageError

# By the task's name; as JSON can hold them.
Messages = Mapping[str, Any]
# The lists of a task: `task` and `address` say which it is, `tasks` are the addresses by job.
ListsMessage = Mapping[str, Any]

_MESSAGE_SECONDS = 5.0
# How long a task that has found a difference waits for those that have not started yet, so that they learn of it.
_TELLING_SECONDS = 20.0
# To publish its lists right after its server has started, when a task may be short of cores.
_PUBLISHING_SECONDS = 30.0
_MOST_MESSAGES = 4096
# In a reply to `GetStatus` (see `benchmarks.cluster.liveness`), the name that a server has given itself.
_OWN_DEVICE = re.compile(rb"/job:(\w+)/replica:0/task:(\d+)/device:CPU:0")


class Rendezvous:
    """Exchanges messages between the leader and all other tasks, by queues and a table on the leader's server.

    `target` is that of this task's own server.
    """

    def __init__(self, target: str, own: Task, leader: Task) -> None:
        self._own, self._leader = own, leader
        self._session = functools.partial(_session, target, [leader.device, own.device])

    def exchange(self, what: str, message: Any, among: Sequence[Task]) -> Messages:
        """Sends a message and returns those of all tasks, by the task's name, once all have sent theirs.

        Args:
            what: names the exchange; a name can be used once.
            message: as JSON can hold it.
            among: the tasks that take part; the leader must be one of them.
        """
        others = [task for task in among if task != self._leader]
        with self._session(limit_seconds=0.0) as session:
            inbox = _queue(what, len(others))
            if self._own != self._leader:
                session.run(inbox.enqueue(json.dumps([str(self._own), message])))
                return dict(json.loads(session.run(_queue(f"{what}/{self._own}", 1).dequeue())))
            incoming = inbox.dequeue()
            own = json.loads(json.dumps(message))  # as it would arrive
            everyone = {str(self._own): own, **dict(json.loads(session.run(incoming)) for _ in others)}
            in_order = {str(task): everyone[str(task)] for task in among}
            text = tf.constant(json.dumps(in_order))
            session.run([_queue(f"{what}/{task}", 1).enqueue(text) for task in others])
        return in_order

    def part(self, among: Sequence[Task]) -> None:
        """Lets the leader leave last: it waits until all others have reported that they leave."""
        others = [task for task in among if task != self._leader]
        with self._session(limit_seconds=0.0) as session:
            inbox = _queue("parting", len(others))
            if self._own == self._leader:
                leaving = inbox.dequeue()
                for _ in others:
                    session.run(leaving)
                return
            with contextlib.suppress(tf.errors.OpError):  # the leader may end before it has answered
                session.run(inbox.enqueue(str(self._own)))

    def report_failure(self, message: Any = None) -> None:
        """Lets all know that this task has failed, if the leader still runs.

        `message` is the reason; None: this task looks for it.
        """
        text = json.dumps([str(self._own), message])
        with contextlib.suppress(tf.errors.OpError), self._session() as session:
            # TensorFlow has no tables from text to text.
            key = tf.constant([len(JOBS) * self._own.index + JOBS.index(self._own.job)], tf.int64)
            session.run(tf.raw_ops.LookupTableInsertV2(table_handle=_failures(), keys=key, values=[text]))

    def failures(self) -> Messages:
        """Returns what the tasks that have failed have reported; nothing if the leader does not answer."""
        with contextlib.suppress(tf.errors.OpError), self._session() as session:
            table = tf.raw_ops.LookupTableExportV2(table_handle=_failures(), Tkeys=tf.int64, Tvalues=tf.string)
            return dict(json.loads(text) for text in session.run(table.values))
        return {}


def difference(own: ListsMessage, other: ListsMessage, asked: Task | None = None) -> str | None:
    """Returns a sentence if two tasks do not have the same lists, or if another task answered than the one asked."""
    jobs = [job for job in JOBS if own["tasks"].get(job) != other["tasks"].get(job)]
    if jobs:
        has = (
            f"{message['task']} ({message['address']}) has "
            + ", ".join(f"{job} = {', '.join(message['tasks'].get(job) or ['nothing'])}" for job in jobs)
            for message in (other, own)
        )
        flags = " and ".join(f"--{FLAG_OF_JOB[job]}" for job in jobs)
        return f"{'; '.join(has)}. Start all tasks with the same {flags} (or --cluster_spec, or TF_CONFIG)."
    if asked is not None and other["task"] != str(asked):
        address = own["tasks"][asked.job][asked.index]
        return (
            f"In the lists of all tasks {address} is {asked}, and the process there was started as {other['task']}: "
            f"give it --job_name={asked.job} --task_index={asked.index}, or list its host under one name only."
        )
    return None


class TaskLists:
    """Compares this task's lists of addresses with those of all others, while they start.

    TensorFlow's servers do not compare them, and a session over unlike lists fails in ways that name no address. So
    every task publishes its lists on its own server, reads those of each task that it reaches, and leaves its own
    there: a task learns of a difference even from one that it cannot reach itself. A session on `grpc://ADDRESS` needs
    no common list.
    """

    def __init__(self, cluster: Cluster, target: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._own: ListsMessage = {"task": str(cluster.own), "address": cluster.address, "tasks": cluster.spec()}
        self._cluster, self._target, self._clock = cluster, target, clock
        self._compared: set[Task] = set()
        self._told: set[Task] = set()
        self._differing: ListsMessage | None = None
        self._found_at = 0.0
        self.problem: str | None = None
        with _session(target, [cluster.own.device], _PUBLISHING_SECONDS) as session:
            session.run(_published(json.dumps(self._own)).initializer)

    def compare(self, replies: Mapping[Task, bytes]) -> set[Task]:
        """Exchanges lists with the tasks that have answered, of which `replies` has what each has answered last.

        Returns the tasks whose lists are not known yet or, once there is a difference, that were not told of it.

        Raises:
            UsageError: lists differ, and all tasks were told, or had time enough to start.
        """
        for message in self._received():
            if problem := difference(self._own, message):
                self._note(message, problem)
                # It has read the lists of this task, or of one that agrees with this task.
                self._told |= {task for task in self._cluster.peers if str(task) == message["task"]}
        for task, reply in replies.items():
            if task not in self._compared or (self.problem and task not in self._told):
                self._exchange(task, reply)
        if self.problem and (
            len(self._told) == len(self._cluster.peers) or self._clock() > self._found_at + _TELLING_SECONDS
        ):
            raise UsageError(self.problem)
        return self._cluster.peers.keys() - (self._told if self.problem else self._compared)

    def _note(self, message: ListsMessage, problem: str | None) -> None:
        if problem and self.problem is None:
            self.problem, self._differing, self._found_at = problem, message, self._clock()

    def _exchange(self, task: Task, reply: bytes) -> None:
        """Reads the lists of a task that has answered, and leaves the own ones there, and those that differ."""
        name = _OWN_DEVICE.search(reply)
        if name is None:  # it was too busy to give its name
            return
        leave = [json.dumps(message) for message in (self._own, self._differing) if message]
        device, address = Task(name[1].decode(), int(name[2])).device, self._cluster.peers[task]
        with contextlib.suppress(tf.errors.OpError), _session(f"grpc://{address}", [device]) as session:
            session.run(_queue("task_lists", _MOST_MESSAGES).enqueue_many([leave]))
            if self._differing:
                self._told.add(task)
            message = json.loads(session.run(_published().read_value()))
            self._compared.add(task)
            self._note(message, difference(self._own, message, task))

    def _received(self) -> list[ListsMessage]:
        """Returns what others have left at this task's server since the last call."""
        with contextlib.suppress(tf.errors.OpError), _session(self._target, [self._cluster.own.device]) as session:
            inbox = _queue("task_lists", _MOST_MESSAGES)
            return [json.loads(text) for text in session.run(inbox.dequeue_many(inbox.size()))]
        return []  # this host is busy: the next round takes them


@contextlib.contextmanager
def _session(
    target: str, devices: Sequence[str], limit_seconds: float = _MESSAGE_SECONDS
) -> Iterator[tf.compat.v1.Session]:
    """Opens a session that sees only some tasks, for a graph on the CPU of the first.

    Its calls take at most so many seconds, 0 for no limit.
    """
    config = tf.compat.v1.ConfigProto(
        device_filters=sorted({*devices}),  # or a session waits for every task of the cluster
        operation_timeout_in_ms=round(1000 * limit_seconds),
        device_count={"GPU": 0},
    )
    with tf.Graph().as_default() as graph, tf.device(f"{devices[0]}/cpu:0"):
        session = tf.compat.v1.Session(target, graph=graph, config=config)
        try:
            yield session
        finally:  # the session's own context closes it in a thread, where Python prints the traceback of an error
            with contextlib.suppress(tf.errors.OpError):
                session.close()


def _queue(name: str, capacity: int) -> tf.queue.FIFOQueue:
    return tf.queue.FIFOQueue(max(1, capacity), [tf.string], shapes=[()], shared_name=f"rendezvous/{name}")


def _failures() -> tf.Tensor:
    return tf.raw_ops.MutableHashTableV2(key_dtype=tf.int64, value_dtype=tf.string, shared_name="rendezvous/failures")


def _published(text: str = "") -> tf.Variable:
    """Returns the variable of a task's own lists, which its initializer publishes; until then it cannot be read."""
    return tf.compat.v1.get_variable("task_lists/own", initializer=tf.constant(text), use_resource=True)
