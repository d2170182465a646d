"""One task among others: starts its server, waits for the others, and agrees with them on what to run."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import psutil
import tensorflow as tf

from benchmarks.cluster import agreement, liveness
from benchmarks.cluster.cluster_spec import Cluster, Task, in_words, training_tasks
from benchmarks.cluster.liveness import GrpcProbe
from benchmarks.cluster.rendezvous import Rendezvous, TaskLists
from benchmarks.console import on_terminal, progress, warn
from benchmarks.errors import BenchError, ClusterError, ExitStatus, UsageError, headline
from benchmarks.process.deadlines import Deadlines
from benchmarks.process.signals import signals_held_back
from results.record import Status
from variable_mgr.catalog import IN_GRAPH

_AGREEING_SECONDS = 60.0
_EXCHANGE_SECONDS = 600.0
_PARTING_SECONDS = 30.0
_REMIND_SECONDS = 30.0
# How long the others wait for a task that has failed: it looks for a lost task for 18 s, and then for a damaged record
# for up to 600 s.
_EXPLAINING_SECONDS = 660.0
_ANSWER_SECONDS = 6.0
# What the end of another task, or of its step, raises here; or any error with these words.
_OF_OTHER_TASKS = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
_ABORTED = "Collective ops is aborted"
# Connections of other programs may have a port, too: Linux gives them those from 32768 to 60999.
_IN_USE = (psutil.CONN_LISTEN, psutil.CONN_ESTABLISHED)


class Alone:
    """The team of a single process.

    Attributes:
        deadlines: of what this process does.
        target: session to open; empty for one in this process.
        device: default device of the graph; empty for this process.
        is_leader: whether this process initialises what is shared, and reports for all.
        collective_key: equal in all processes whose collectives meet; 0 if none do.
    """

    target = device = ""
    is_leader = True
    collective_key = 0

    def __init__(self, deadlines: Deadlines | None = None) -> None:
        self.deadlines = deadlines or Deadlines().silent()

    def configured(self, session_config: tf.compat.v1.ConfigProto) -> tf.compat.v1.ConfigProto:
        """Returns the configuration of a session of the team: the same."""
        return session_config

    def meet(self, what: str, message: Any = None, *, patient: bool = False) -> Mapping[str, Any]:
        """Waits for all processes that train, and returns everyone's message by the name of its task: the own one.

        `patient`: without a limit, since the others may have work and limits of their own before.
        """
        return {"": message}

    def explain(self, error: tf.errors.OpError) -> BenchError | None:
        """Returns the cause of an error if another process brought it about: None, since there is no other."""
        self.deadlines.none()  # explaining the error may take longer than the limit
        return None


@dataclasses.dataclass
class ClusterTeam:
    """One task among others. Made by `joined`.

    Attributes:
        cluster: the tasks.
        manager: the variable manager, which decides which tasks train and which only serve.
        target: of this task's server.
        rendezvous: exchanges messages.
        watcher: notices that a task is lost.
        deadlines: of what this task does.
        doubts: sentences for the record on how the tasks differ, once they have agreed.
    """

    cluster: Cluster
    manager: str
    _: dataclasses.KW_ONLY
    target: str
    rendezvous: Rendezvous
    watcher: liveness.Watcher
    deadlines: Deadlines
    doubts: Sequence[str] = ()

    def __post_init__(self) -> None:
        self._in_graph = self.manager in IN_GRAPH
        self._known_failures = 0
        self.deadlines.watchdog.extension = self._extension
        self.device = self.cluster.own.device
        self.is_leader = self.cluster.own == self.cluster.leader
        # With a key, steps of all workers have equal numbers, and a parameter server would take them for one step.
        self.collective_key = 0 if self._in_graph or self.cluster.num_ps else 1

    def under(self, manager: str) -> ClusterTeam:
        """Returns the same team under another manager."""
        return dataclasses.replace(self, manager=manager)

    def configured(self, session_config: tf.compat.v1.ConfigProto) -> tf.compat.v1.ConfigProto:
        """Limits a session to this task and the parameter servers; else it would wait for every task."""
        config = with_collectives(session_config)
        if not self._in_graph:
            servers = (Task("ps", index).device for index in range(self.cluster.num_ps))
            config.device_filters.extend([*servers, self.cluster.own.device])
        return config

    def meet(self, what: str, message: Any = None, *, patient: bool = False) -> Mapping[str, Any]:
        """Waits until all tasks that train have come to this point; returns their messages."""
        if patient:
            self.deadlines.none()
        else:
            self.deadlines.within(_EXCHANGE_SECONDS, f"Waiting for the other tasks ({what})")
        messages = self.rendezvous.exchange(what, message, training_tasks(self.cluster, self.manager))
        self.deadlines.none()
        return messages

    def agree(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """Exchanges what all tasks must have in common, and compares it.

        Raises:
            UsageError: tasks differ.
        """
        all_tasks = f"the other tasks, all of which {self.cluster.leader} must reach,"
        self.deadlines.within(_AGREEING_SECONDS, f"Agreeing with {all_tasks}")
        messages = self.rendezvous.exchange("hello", message, list(self.cluster.tasks))
        self.deadlines.none()
        problem = agreement.disagreement(messages, str(self.cluster.leader))
        if problem:
            self.watcher.stop()
            raise UsageError(problem)
        self.doubts = agreement.doubts(messages, self.cluster)
        return messages

    def serve(self) -> None:
        """Lets the other tasks use this task's server until the leader ends the run."""
        with signals_held_back():  # or the leader, which has its result, would wait in vain for this task to part
            self.rendezvous.exchange("end", None, list(self.cluster.tasks))
            self.watcher.stop()
            self.deadlines.within(_PARTING_SECONDS, "Ending together with the other tasks")
            self.rendezvous.part(list(self.cluster.tasks))
            self.deadlines.none()

    def end(self) -> None:
        """Ends together with all tasks, so that none ends while another needs it."""
        self.deadlines.within(_PARTING_SECONDS, "Ending together with the other tasks")
        if self.is_leader:
            self.watcher.stop()
        self.serve()

    def leave_message(self, error: BenchError) -> None:
        """Sends the leader the reason why this task ends, for the record."""
        if not self.is_leader and not isinstance(error, ClusterError | UsageError):
            self.rendezvous.report_failure([int(error.exit_status), str(error.record_status), str(error)])

    def explain(self, error: tf.errors.OpError) -> BenchError | None:
        """Returns the cluster error behind a TensorFlow error: a lost task, or a broken connection; None if neither.

        Where another task has failed, this waits for its reason, so that the leader can report it.
        """
        self.deadlines.none()
        from_others = isinstance(error, _OF_OTHER_TASKS) or _ABORTED in str(error.message)
        if not from_others:
            self.rendezvous.report_failure()
        lost = self.watcher.wait_for_verdict(liveness.WHILE_RUNNING.detection_seconds)
        if not lost and from_others and self._count_failures():
            lost = self.watcher.wait_for_verdict(_EXPLAINING_SECONDS)
        if lost:
            return cause(lost, self.rendezvous, leads=self.is_leader)
        if from_others:
            return ClusterError(f"The connection to another task broke, though all tasks answer: {headline(error)}")
        return None

    def _extension(self) -> float:
        """Returns for how much longer than its deadline to wait, since a task has failed and looks for the reason."""
        known = self._known_failures
        return _EXPLAINING_SECONDS if self._count_failures() > known else 0.0

    def _count_failures(self) -> int:
        """Asks the leader how many tasks have failed; it may not answer."""
        answers: list[int] = []
        asking = threading.Thread(target=lambda: answers.append(len(self.rendezvous.failures())), daemon=True)
        asking.start()
        asking.join(_ANSWER_SECONDS)
        self._known_failures = max([self._known_failures, *answers])
        return self._known_failures


# The processes that train together, as one of them sees them. None of its calls is timed.
Team = Alone | ClusterTeam


def cause(lost: liveness.Lost, rendezvous: Rendezvous, *, leads: bool) -> BenchError:
    """Returns why a task was lost: the reason that it sent to the leader, or else what its peers saw."""
    message = rendezvous.failures().get(str(lost.task)) if leads else None
    if message is None:
        return ClusterError(lost.sentence())
    exit_status, status, sentence = message
    error = BenchError(f"{lost.task} ({lost.address}): {sentence}")
    error.exit_status, error.record_status = ExitStatus(exit_status), Status(status)
    return error


@contextlib.contextmanager
def joined(
    cluster: Cluster,
    manager: str,
    deadlines: Deadlines,
    server_config: tf.compat.v1.ConfigProto,
    start_timeout_seconds: float,
) -> Iterator[ClusterTeam]:
    """Starts this task's server, waits until all tasks answer, and watches them as long as the context lasts.

    Raises:
        ClusterError: the port is taken, tasks are missing, or what was raised in the context comes from another task.
        UsageError: tasks were started with unlike lists of addresses.
    """
    server = start_server(cluster.spec(), cluster.own, with_collectives(server_config))
    probe = GrpcProbe()
    lists = TaskLists(cluster, server.target)
    with waiting_lines() as show_missing:
        try:
            replies = liveness.wait_for_all(
                cluster.peers,
                deadline_seconds=start_timeout_seconds,
                probe=probe,
                on_wait=show_missing,
                on_answers=lists.compare,
                lists=in_words(cluster.spec()),
            )
        except liveness.MissingTasksError as error:  # others may have ended because of the difference
            raise UsageError(lists.problem) if lists.problem else error from None
    rendezvous = Rendezvous(server.target, cluster.own, cluster.leader)
    leads = cluster.own == cluster.leader

    def report(lost: liveness.Lost) -> None:
        deadlines.watchdog.report(cause(lost, rendezvous, leads=leads))

    with liveness.Watcher(cluster.peers, report, probe=probe, replies=replies) as watcher:
        team = ClusterTeam(
            cluster, manager, target=server.target, rendezvous=rendezvous, watcher=watcher, deadlines=deadlines
        )
        try:
            yield team
        except tf.errors.OpError as error:
            raise team.explain(error) or error from error
        except BenchError as error:
            team.leave_message(error)
            raise


def start_server(
    hosts: Mapping[str, Sequence[str]], own: Task, server_config: tf.compat.v1.ConfigProto
) -> tf.distribute.Server:
    """Starts the server of the task `own`, which other tasks can use from now on.

    Raises:
        ClusterError: the port is taken.
    """
    address = hosts[own.job][own.index]
    require_port(own, address)
    try:
        spec = tf.train.ClusterSpec(dict(hosts))
        return tf.distribute.Server(spec, job_name=own.job, task_index=own.index, config=server_config)
    except tf.errors.UnknownError as error:  # another process was faster
        raise _port_is_taken(own, address, headline(error)) from error


def with_collectives(session_config: tf.compat.v1.ConfigProto) -> tf.compat.v1.ConfigProto:
    """Returns a copy in which worker 0 leads the collectives of all workers."""
    config = tf.compat.v1.ConfigProto()
    config.CopyFrom(session_config)
    config.experimental.collective_group_leader = Task("worker", 0).device
    return config


def require_port(own: Task, address: str) -> None:
    """Checks that this task's port is free.

    Raises:
        ClusterError: it is taken; the message names the process.
    """
    port = int(address.rpartition(":")[2])
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("0.0.0.0", port))
        except OSError as error:
            raise _port_is_taken(own, address, error.strerror or str(error)) from error


def _port_is_taken(own: Task, address: str, reason: str) -> ClusterError:
    port = int(address.rpartition(":")[2])
    return ClusterError(
        f"{own} cannot listen on port {port} ({reason}){_holder(port)}. End what uses it, or give this "
        "task another port, in the lists of all tasks."
    )


def _holder(port: int) -> str:
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            if connection.laddr and connection.laddr[1] == port and connection.status in _IN_USE:
                if not connection.pid:
                    return ": another user's process has it"
                return f": process {connection.pid} ({psutil.Process(connection.pid).name()}) has it"
    return ""


@contextlib.contextmanager
def waiting_lines() -> Iterator[Callable[[Mapping[Task, str], float], None]]:
    """Yields what shows missing tasks and the seconds left: a countdown on a terminal, elsewhere a line every 30 s."""
    shown: float | None = None

    def show(missing: Mapping[Task, str], seconds_left: float) -> None:
        nonlocal shown
        names = ", ".join(f"{task} ({address})" for task, address in missing.items())
        if on_terminal():
            progress.begin(f"waiting for {names}, {seconds_left:.0f} s left", measured=True)
        elif shown is None or shown - seconds_left > _REMIND_SECONDS:
            shown = seconds_left
            warn(f"Waiting for {names}, up to {seconds_left:.0f} s.")

    try:
        yield show
    finally:
        progress.end()
