"""Checks which of a cluster's other tasks still answer. Imports without TensorFlow.

TensorFlow does not always report a lost task: a step that waits for a stopped process waits for ever.
"""

from __future__ import annotations

import dataclasses
import enum
import threading
import time
from collections.abc import Callable, Container, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.cluster.cluster_spec import Task
from benchmarks.errors import ClusterError


class Sign(enum.Enum):
    """The outcome of a probe."""

    ALIVE = "what listens there is no task of this suite's run: it does not say with which addresses it was started"
    BUSY = "it runs, but is too busy to answer"
    REFUSED = "nothing listens there"
    SILENT = "no answer came"


@dataclasses.dataclass(frozen=True)
class Answer:
    """The answer to one probe.

    Attributes:
        sign: whether it answered.
        reply: its answer: equal bytes come from the same process, other bytes from another one.
        reason: why no answer came, if more is known.
    """

    sign: Sign
    reply: bytes = b""
    reason: str = ""


_REFUSED = Answer(Sign.REFUSED)
_TIMED_OUT = Answer(Sign.SILENT)
_UNKNOWN = Answer(Sign.SILENT, reason="what listens there is no server of TensorFlow")
# Probes the task at an address, within so many seconds.
Probe = Callable[[str, float], Answer]


class How(enum.Enum):
    """How a task was lost: what happened, what it means, and what to do."""

    ENDED = "has ended", "nothing listens at its address any more", "Its own output should say why"
    MUTE = "does not answer", "its process may be stopped, or its host or the network down", "Look there"
    RESTARTED = "was restarted", "the process at its address knows nothing of this run", "Start all tasks anew"


@dataclasses.dataclass(frozen=True)
class Lost:
    """A task that is lost.

    Attributes:
        task: which.
        address: its host:port.
        how: what happened to it.
        last_heard_seconds: since its last answer.
    """

    task: Task
    address: str
    how: How
    last_heard_seconds: float

    def sentence(self) -> str:
        """Returns what happened, what it means, and what to do."""
        what, meaning, advice = self.how.value
        heard = f"it was last heard {self.last_heard_seconds:.0f} s ago"
        return f"{self.task} ({self.address}) {what}: {heard}, and {meaning}. {advice}."


class MissingTasksError(ClusterError):
    """Not all tasks of the cluster answer."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """How often a task is probed, and when it counts as lost.

    Probes are counted, not seconds: if this process was stopped, or its host slept, its peers have missed one probe.

    Attributes:
        interval_seconds: from the start of one probe to the next, unless it took longer.
        timeout_seconds: how long a probe waits for an answer.
        refused: a task has ended after so many refused probes in a row.
        unanswered: it is lost after so many unanswered ones in a row, and has ended if the last one was refused.
    """

    interval_seconds: float
    timeout_seconds: float
    refused: int
    unanswered: int

    @property
    def detection_seconds(self) -> float:
        """The longest time until a loss is noticed."""
        return self.interval_seconds + self.unanswered * max(self.interval_seconds, self.timeout_seconds)


# While a cluster starts, tasks are probed more often, and lost after more probes: 6 s if they refuse, 18 s or more if
# they are silent.
WHILE_WAITING = Limits(interval_seconds=0.5, timeout_seconds=1.5, refused=12, unanswered=12)
WHILE_RUNNING = Limits(interval_seconds=2.0, timeout_seconds=4.0, refused=3, unanswered=4)


class _Pulse:
    """The state of one task: its last reply, when that came, and how many probes were unanswered since."""

    def __init__(self, limits: Limits, reply: bytes | None, now: float) -> None:
        self.reply, self.heard_at = reply, now
        self._limits = limits
        self._refused = self._unanswered = 0

    def hear(self, answer: Answer, now: float) -> How | None:
        """Counts the answer to a probe, and returns how the task is lost, if it is."""
        if answer.sign in (Sign.ALIVE, Sign.BUSY):
            before = self.reply
            self.reply = answer.reply if answer.sign is Sign.ALIVE else before
            self.heard_at, self._refused, self._unanswered = now, 0, 0
            return None if before in (None, self.reply) else How.RESTARTED
        self._unanswered += 1
        self._refused = self._refused + 1 if answer.sign is Sign.REFUSED else 0
        if self._refused < self._limits.refused and self._unanswered < self._limits.unanswered:
            return None
        return How.ENDED if self._refused else How.MUTE  # the first answer after an end is often a broken connection


def wait_for_all(
    peers: Mapping[Task, str],
    *,
    deadline_seconds: float,
    probe: Probe,
    on_wait: Callable[[Mapping[Task, str], float], None],
    on_answers: Callable[[Mapping[Task, bytes]], Container[Task]] = lambda replies: (),
    lists: str = "",
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[Task, bytes]:
    """Waits until every task has answered once, and returns their last replies; a task may have been restarted.

    Several threads call `probe` at once. After each round `on_answers`, which may raise, gets the replies of those that
    have answered in it, and returns tasks to wait for although they have answered; `on_wait` gets the tasks to wait
    for, with their addresses and reasons, and the seconds left. The message when the time is over has this task's
    `lists` of addresses.

    Raises:
        MissingTasksError: the time is over, or a task that had answered is gone.
    """
    begin = clock()
    pulses = {task: _Pulse(WHILE_WAITING, None, begin) for task in peers}
    with ThreadPoolExecutor(max(1, len(peers))) as pool:
        while True:
            each = pool.map(lambda address: probe(address, WHILE_WAITING.timeout_seconds), peers.values())
            answers = dict(zip(peers, each, strict=True))
            replies = {task: answer.reply for task, answer in answers.items() if answer.sign is Sign.ALIVE}
            awaited = on_answers(replies)
            now = clock()
            for task, pulse in pulses.items():
                how = pulse.hear(answers[task], now)
                if how in (How.ENDED, How.MUTE) and pulse.reply is not None:
                    raise MissingTasksError(Lost(task, peers[task], how, now - pulse.heard_at).sentence())
            missing = {task: peers[task] for task, pulse in pulses.items() if pulse.reply is None or task in awaited}
            if not missing:
                return {task: pulse.reply for task, pulse in pulses.items() if pulse.reply is not None}
            seconds_left = begin + deadline_seconds - now
            if seconds_left <= 0:
                raise MissingTasksError(_never_heard(missing, answers, deadline_seconds, lists))
            on_wait({task: f"{at}: {answers[task].reason}".rstrip(": ") for task, at in missing.items()}, seconds_left)
            sleep(min(WHILE_WAITING.interval_seconds, seconds_left))


def _never_heard(missing: Mapping[Task, str], answers: Mapping[Task, Answer], seconds: float, lists: str) -> str:
    each = (f"{task} ({missing[task]}): {answers[task].reason or answers[task].sign.value}" for task in missing)
    return (
        f"{len(missing)} of the {len(answers)} other tasks did not answer within {seconds:g} s. {'; '.join(each)}. "
        "Start every task, with the same lists of addresses, and check that no firewall blocks them."
        + (f" The lists of this task: {lists}." if lists else "")
    )


class Watcher:
    """Probes all tasks, a thread for each, until one is lost, and reports that one.

    `on_lost` is called once at most, by a thread of the watcher; a `stop` does not wait for it. A task that was
    restarted since `wait_for_all` is noticed by its `replies`.
    """

    def __init__(
        self,
        peers: Mapping[Task, str],
        on_lost: Callable[[Lost], None],
        *,
        probe: Probe,
        replies: Mapping[Task, bytes],
        limits: Limits = WHILE_RUNNING,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_lost, self._probe, self._limits, self._clock = on_lost, probe, limits, clock
        self._lost: Lost | None = None
        self._lock = threading.Lock()
        self._over = threading.Event()
        # Daemons: a thread that waits for an answer must not delay the end of the process.
        self._threads = [
            threading.Thread(
                target=self._watch, args=(*peer, replies.get(peer[0])), name=f"watch {peer[0]}", daemon=True
            )
            for peer in peers.items()
        ]

    def wait_for_verdict(self, seconds: float) -> Lost | None:
        """Returns the first lost task as soon as there is one, or None if there is none in that time.

        A step often fails before the watcher knows which task was lost; `limits.detection_seconds` is long enough.
        """
        self._over.wait(seconds)
        return self._lost

    def stop(self) -> None:
        """Stops probing: tasks may end from now on."""
        with self._lock:
            self._over.set()

    def __enter__(self) -> Watcher:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def _watch(self, task: Task, address: str, reply: bytes | None) -> None:
        pulse = _Pulse(self._limits, reply, self._clock())
        while not self._over.is_set():
            begin = self._clock()
            answer = self._probe(address, self._limits.timeout_seconds)
            now = self._clock()
            last_heard_seconds = now - pulse.heard_at
            how = pulse.hear(answer, now)
            if how is not None:
                self._report(Lost(task, address, how, last_heard_seconds))
            self._over.wait(max(0.0, begin + self._limits.interval_seconds - now))

    def _report(self, lost: Lost) -> None:
        with self._lock:
            if self._over.is_set():
                return
            self._lost = lost
            self._over.set()
        self._on_lost(lost)


class GrpcProbe:
    """Asks TensorFlow servers for their status, over connections that stay open: new ones cost three times as much.

    A failed connection is tried again within half a second, so that later probes are really sent. May be called by
    several threads. Forks during a probe make gRPC print warnings, unless GRPC_ENABLE_FORK_SUPPORT=0 is set.
    """

    _OPTIONS = (
        ("grpc.enable_http_proxy", 0),  # TensorFlow's servers talk to each other without one
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 500),
    )

    def __init__(self) -> None:
        self._channels: dict[str, Any] = {}

    def __call__(self, address: str, timeout_seconds: float) -> Answer:
        """Asks once.

        A server answers from its inter-op threads. If there is only one, no answer comes before its step ends, which
        on a CPU can be too late (measured: a step of 3.0 s, an answer after 3.0 s). An unknown method is refused by
        other threads at once, unless the process is stopped: so that is tried if no answer comes in half the time.
        """
        answer = self._call("GetStatus", address, timeout_seconds / 2)
        if answer == _TIMED_OUT and self._call("NoSuchMethod", address, timeout_seconds / 2) == _UNKNOWN:
            return Answer(Sign.BUSY)
        return answer

    def _call(self, method: str, address: str, timeout_seconds: float) -> Answer:
        """Makes the one call that is not TensorFlow's Python API but its wire protocol (`worker_service.proto`).

        An idle server answers `GetStatus` in 2 ms; the reply lists its devices, each with a random number drawn at
        start. A session or an operation would be the public way, but neither has a time limit, and both share state
        with the training. If a later TensorFlow drops the call, no task answers, and the run ends at its start.
        """
        import grpc  # here, since most commands need none

        if address not in self._channels:  # only one thread at a time asks at an address
            self._channels[address] = grpc.insecure_channel(address, options=self._OPTIONS)
        try:
            call = self._channels[address].unary_unary(f"/tensorflow.WorkerService/{method}")
            return Answer(Sign.ALIVE, reply=call(b"", timeout=timeout_seconds))
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                return _TIMED_OUT
            if error.code() == grpc.StatusCode.UNIMPLEMENTED:
                return _UNKNOWN
            details = error.details() or ""
            return _REFUSED if "Connection refused" in details else Answer(Sign.SILENT, reason=details)
