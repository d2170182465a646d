"""Exchanges the losses of printed steps between workers that step together. Imports without TensorFlow.

A worker's step computes the loss of its own towers only: to reduce it in the step would be timed, and would lengthen
steps of small models. So a thread of each worker sends the losses of printed steps to the leader meanwhile, and the
leader prints a line once all have arrived, usually one step later. No step waits for that.
"""

from __future__ import annotations

import json
import queue
import statistics
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.cluster.rendezvous import Rendezvous
    from benchmarks.topology.cluster import Task

_LOOK_SECONDS = 0.02
_REST_SECONDS = 2.0


class StepLosses:
    """Sends this worker's losses to the leader, and receives all there, as long as its context lasts.

    Args:
        rendezvous: carries the messages.
        own: this worker.
        leader: the worker that gets all losses.
        workers: how many workers send.
        every: the first step is printed, and every so many; the leader's number.
    """

    def __init__(self, rendezvous: Rendezvous, own: Task, leader: Task, *, workers: int, every: int) -> None:
        self._rendezvous, self.own, self._workers, self._every = rendezvous, str(own), workers, every
        self.is_leader = own == leader
        self._own_steps: queue.SimpleQueue[tuple[int, list[float]] | None] = queue.SimpleQueue()
        self._arrived: dict[int, dict[str, list[float]]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._exchange, name="losses", daemon=True)

    def put(self, step: int, numbers: Sequence[float]) -> None:
        """Takes the loss, and perhaps more numbers, of a step that this worker has taken; returns at once."""
        if step == 1 or step % self._every == 0:
            self._own_steps.put((step, list(numbers)))

    def mean(self, step: int) -> list[float] | None:
        """Returns the numbers of a step as means over all workers, once; None until all have arrived at the leader."""
        of_workers = self._arrived.get(step, {})
        if len(of_workers) < self._workers:
            return None
        del self._arrived[step]
        return [statistics.fmean(values) for values in zip(*of_workers.values(), strict=True)]

    def __enter__(self) -> StepLosses:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._own_steps.put(None)
        if error is None:  # else others may send no more
            self._thread.join(_REST_SECONDS)
        self._over.set()
        self._thread.join(_REST_SECONDS)

    def _exchange(self) -> None:
        with self._rendezvous.stream("losses") as (send, receive):
            while (taken := self._own_steps.get()) is not None:
                step, numbers = taken
                if not self.is_leader:
                    send(json.dumps([self.own, step, numbers]))
                    continue
                self._arrived.setdefault(step, {})[self.own] = numbers
                # `mean` removes a step that is complete.
                while 0 < len(self._arrived.get(step, ())) < self._workers and not self._over.is_set():
                    for task, its_step, its_numbers in map(json.loads, receive()):
                        self._arrived.setdefault(its_step, {})[task] = its_numbers
                    time.sleep(_LOOK_SECONDS)
