"""Probes a task of a cluster: does it answer? Imports without TensorFlow."""

from __future__ import annotations

import dataclasses
import enum
import threading
from collections.abc import Callable
from typing import Any


class Sign(enum.Enum):
    """The outcome of a probe."""

    ALIVE = "it answered"
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
        self._lock = threading.Lock()

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

        try:
            call = self._channel(address).unary_unary(f"/tensorflow.WorkerService/{method}")
            return Answer(Sign.ALIVE, reply=call(b"", timeout=timeout_seconds))
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                return _TIMED_OUT
            if error.code() == grpc.StatusCode.UNIMPLEMENTED:
                return _UNKNOWN
            details = error.details() or ""
            return _REFUSED if "Connection refused" in details else Answer(Sign.SILENT, reason=details)

    def _channel(self, address: str) -> Any:
        import grpc

        with self._lock:
            if address not in self._channels:
                self._channels[address] = grpc.insecure_channel(address, options=self._OPTIONS)
            return self._channels[address]
