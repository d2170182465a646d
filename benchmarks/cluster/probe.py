"""Asks a task of a cluster whether it is there. Imports without TensorFlow."""

from __future__ import annotations

import dataclasses
import enum
import threading
from collections.abc import Callable
from typing import Any


class Sign(enum.Enum):
    """What a task gives of itself when it is asked."""

    ALIVE = "it answered"
    BUSY = "it is there, but has no time to answer"
    REFUSED = "nothing listens there"
    SILENT = "no answer came"


@dataclasses.dataclass(frozen=True)
class Answer:
    """What came of asking a task once.

    Attributes:
        sign: whether it answered.
        reply: what it answered: equal bytes come from the same process, other bytes from another one.
        reason: why no answer came, if more is known than the sign says.
    """

    sign: Sign
    reply: bytes = b""
    reason: str = ""


_REFUSED = Answer(Sign.REFUSED)
_TIMED_OUT = Answer(Sign.SILENT)
_UNKNOWN = Answer(Sign.SILENT, reason="what listens there is no server of TensorFlow")
# Asks the task at an address; takes at most so many seconds.
Probe = Callable[[str, float], Answer]


class GrpcProbe:
    """Asks TensorFlow servers for their status, over connections that are kept: that costs a third of new ones.

    One that failed is tried again after half a second at most, lest later probes fail without being sent. Connections
    last as long as the object; it may be called by several threads.

    Forks while a probe is under way make gRPC write warnings, unless the environment has GRPC_ENABLE_FORK_SUPPORT=0.
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

        A server has its inter-op threads answer. If there is but one, no answer comes before the step that it runs is
        over, which on a CPU can take longer than our patience lasts (measured: a step of 3.0 s, an answer after 3.0 s).
        A call that nobody implements is refused by other threads at once, unless the process is stopped: so if no
        answer comes in half the time, that is tried.
        """
        answer = self._call("GetStatus", address, timeout_seconds / 2)
        if answer == _TIMED_OUT and self._call("NoSuchMethod", address, timeout_seconds / 2) == _UNKNOWN:
            return Answer(Sign.BUSY)
        return answer

    def _call(self, method: str, address: str, timeout_seconds: float) -> Answer:
        """Makes the one call that is not TensorFlow's Python API but its wire protocol (`worker_service.proto`).

        An idle server answers `GetStatus` in 2 ms; the reply lists its devices, each with a number that was drawn at
        random when it started. The public way would be to open a session or to run an operation, but neither has a
        bounded time, and both share state with the training that they would watch over. Should a later TensorFlow
        drop the call, no task is ever heard, and the run ends before it began.
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
