"""How many bytes each process sends to each other in a step, by formula. Imports no TensorFlow.

Payload only: what the protocol adds, and what keeps workers in step, is small beside it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Protocol

from variable_mgr.modifiers import Modifiers
from variable_mgr.place import Place
from variable_mgr.traffic import FLOAT32_BYTES

_PS = re.compile(r"/job:ps/replica:0/task:(\d+)")


class _Placed(Protocol):
    """Of `variable_mgr.manager.Placed`, what matters here."""

    @property
    def kind(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def size_bytes(self) -> int: ...


def links(manager: str, modifiers: Modifiers, place: Place, placed: Iterable[_Placed]) -> Mapping[str, int]:
    """Returns bytes per step by link, such as `worker 0 -> ps 1`; empty where they are not known.

    Args:
        manager: a key of `variable_mgr.catalog.MANAGERS`.
        modifiers: what is changed about it.
        place: of the towers of one worker.
        placed: what the manager has created, as one worker sees it.
    """
    wire = modifiers.wire_bytes / FLOAT32_BYTES
    if place.ps:
        return _over_servers(place, placed, wire)
    if place.workers > 1:
        weights = sum(entry.size_bytes for entry in placed if entry.kind == "weight") // len(place.towers)
        averaged = weights / (modifiers.local_sgd_steps or 1) if manager == "local_sgd" else weights * wire
        towers = place.towers_in_total
        # A ring of all towers: each sends 2 (n-1)/n of it to the next, and the last of a worker to another worker.
        each = round(2 * (towers - 1) / towers * averaged)
        return {f"worker {i} -> worker {(i + 1) % place.workers}": each for i in range(place.workers)}
    return {}


def _over_servers(place: Place, placed: Iterable[_Placed], wire: float) -> Mapping[str, int]:
    """Everything goes to every worker; a weight's gradient comes back from each, moving averages from worker 0."""
    sent: Counter[str] = Counter()
    for entry in placed:
        server = _PS.match(entry.device)
        if not server:
            continue
        for worker in range(place.workers):
            back = wire if entry.kind == "weight" else worker == 0
            sent[f"ps {server[1]} -> worker {worker}"] += entry.size_bytes
            sent[f"worker {worker} -> ps {server[1]}"] += round(entry.size_bytes * back)
    return dict(sent)


def fetched(place: Place, placed: Iterable[_Placed]) -> Mapping[str, int]:
    """Returns likewise what a forward pass fetches from parameter servers: everything, for every worker."""
    sent: Counter[str] = Counter()
    for entry in placed:
        server = _PS.match(entry.device)
        if not server:
            continue
        for worker in range(place.workers):
            sent[f"ps {server[1]} -> worker {worker}"] += entry.size_bytes
    return dict(sent)


def busiest_server(sent: Mapping[str, int]) -> int | None:
    """Returns the bytes per step, in and out, of the parameter server that has most of them; None without servers."""
    of_server: Counter[str] = Counter()
    for link, size in sent.items():
        for end in link.split(" -> "):
            if end.startswith("ps "):
                of_server[end] += size
    return max(of_server.values(), default=None)
