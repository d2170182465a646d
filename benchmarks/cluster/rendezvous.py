"""Messages between the tasks of a cluster, by queues on the leader's server. Not part of what is timed."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from benchmarks.cluster.cluster_spec import Task

Messages = Mapping[str, Any]

_MESSAGE_SECONDS = 5.0
_MOST_MESSAGES = 1024


class Rendezvous:
    """Exchanges messages between the leader and all other tasks, through TensorFlow's servers.

    A session waits without limit, so a missing task is not noticed here; see `benchmarks.process.watchdog`.

    Args:
        target: of this task's own server.
        own: this task.
        leader: holds the queues.
        server_config: of the server; sessions are configured alike.
    """

    def __init__(self, target: str, own: Task, leader: Task, server_config: tf.compat.v1.ConfigProto) -> None:
        self._target, self._own, self._leader = target, own, leader
        self._lock, self._last = threading.Lock(), {}  # type: tuple[threading.Lock, dict[str, Any]]
        self._config = tf.compat.v1.ConfigProto()
        self._config.CopyFrom(server_config)
        del self._config.device_filters[:]  # or a session waits for every task of the cluster
        self._config.device_filters.extend(sorted({leader.device, own.device}))

    def exchange(self, what: str, message: Any, among: Sequence[Task]) -> Messages:
        """Sends a message and returns those of all tasks, by the task's name, once all have sent theirs.

        Args:
            what: names the exchange; a name can be used once.
            message: as JSON can hold it.
            among: the tasks that take part; the leader must be one of them.
        """
        others = [task for task in among if task != self._leader]
        if self._own != self._leader:
            with self._session() as session:
                session.run(self._inbox(what, len(others)).enqueue(json.dumps([str(self._own), message])))
                return dict(json.loads(session.run(self._outbox(what, self._own).dequeue())))
        with self._session() as session:
            incoming = self._inbox(what, len(others)).dequeue()
            own = json.loads(json.dumps(message))  # as it would arrive
            everyone = {str(self._own): own, **dict(json.loads(session.run(incoming)) for _ in others)}
            in_order = {str(task): everyone[str(task)] for task in among}
            text = tf.constant(json.dumps(in_order))
            session.run([self._outbox(what, task).enqueue(text) for task in others])
        return in_order

    def part(self, among: Sequence[Task]) -> None:
        """Lets the leader leave last: it waits until all others have reported that they leave."""
        others = [task for task in among if task != self._leader]
        with self._session() as session:
            if self._own == self._leader:
                leaving = self._inbox("parting", len(others)).dequeue()
                for _ in others:
                    session.run(leaving)
                return
            with contextlib.suppress(tf.errors.OpError):  # the leader may end before it has answered
                session.run(self._inbox("parting", len(others)).enqueue(str(self._own)))

    def leave_message(self, message: Any) -> None:
        """Sends the leader a message before this task ends, if the leader still runs."""
        with contextlib.suppress(tf.errors.OpError), self._session(_MESSAGE_SECONDS) as session:
            session.run(self._last_queue().enqueue(json.dumps([str(self._own), message])))

    def last_messages(self) -> Messages:
        """Returns what each task sent before it ended, by its name; for the leader alone.

        May be called by several threads, which all get all messages.
        """
        with self._lock, self._session(_MESSAGE_SECONDS) as session:
            taken = self._last_queue().dequeue()
            for _ in range(session.run(self._last_queue().size())):
                task, message = json.loads(session.run(taken))
                self._last[task] = message
            return dict(self._last)

    def announce_failure(self) -> None:
        """Lets the others know that this task has failed and looks for the reason, if the leader still runs."""
        with contextlib.suppress(tf.errors.OpError), self._session(_MESSAGE_SECONDS) as session:
            session.run(self._failures().enqueue(str(self._own)))

    def failures(self) -> int:
        """Returns how many tasks have announced a failure; 0 if the leader does not answer."""
        with contextlib.suppress(tf.errors.OpError), self._session(_MESSAGE_SECONDS) as session:
            return int(session.run(self._failures().size()))
        return 0

    def _failures(self) -> tf.queue.FIFOQueue:
        return tf.queue.FIFOQueue(_MOST_MESSAGES, [tf.string], shapes=[()], shared_name="rendezvous/failures")

    def _last_queue(self) -> tf.queue.FIFOQueue:
        return tf.queue.FIFOQueue(_MOST_MESSAGES, [tf.string], shapes=[()], shared_name="rendezvous/last")

    @contextlib.contextmanager
    def _session(self, limit_seconds: float = 0.0) -> Iterator[tf.compat.v1.Session]:
        """Opens a session on the leader's device; its calls take at most so many seconds, 0 for no limit."""
        config = tf.compat.v1.ConfigProto()
        config.CopyFrom(self._config)
        config.operation_timeout_in_ms = round(1000 * limit_seconds)
        with tf.Graph().as_default() as graph, tf.device(f"{self._leader.device}/cpu:0"):
            with tf.compat.v1.Session(self._target, graph=graph, config=config) as session:
                yield session

    def _inbox(self, what: str, capacity: int) -> tf.queue.FIFOQueue:
        return tf.queue.FIFOQueue(max(1, capacity), [tf.string], shapes=[()], shared_name=f"rendezvous/{what}")

    def _outbox(self, what: str, task: Task) -> tf.queue.FIFOQueue:
        return tf.queue.FIFOQueue(1, [tf.string], shapes=[()], shared_name=f"rendezvous/{what}/{task}")
