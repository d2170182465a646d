"""The tasks of processes that a launcher such as srun or mpirun has numbered. Imports without TensorFlow."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from benchmarks.cluster.cluster_spec import LAST_PORT, Task
from benchmarks.errors import UsageError

# Above any cluster: the largest machines with GPUs have some 10,000 nodes with 45,000 GPUs.
MOST_TASKS = 100_000


def refuse_too_many(count: int, what: str, noun: str = "tasks") -> None:
    """Refuses more tasks or nodes than a cluster can have, before they are listed.

    Raises:
        UsageError: there are more than `MOST_TASKS`.
    """
    if count > MOST_TASKS:
        raise UsageError(f"{what} more than {MOST_TASKS:,} {noun}, and no cluster has so many.")


def by_blocks(
    hosts: Sequence[str], per_host: Sequence[int], rank: int | None, *, num_ps: int, base_port: int
) -> tuple[dict[str, tuple[str, ...]], Task | None]:
    """Names the tasks of ranks that fill the hosts in order.

    Parameter servers take the last free rank of each host, host after host, as many rounds as needed; all other ranks
    are workers, in order.

    Args:
        hosts: their names.
        per_host: how many ranks each has.
        rank: of this process; None if it has none.
        num_ps: how many of the ranks are parameter servers.
        base_port: the port of the first rank on each host; the others take the next ones.

    Returns:
        The addresses by job, and the task that this process is.

    Raises:
        UsageError: no worker or no port is left, or there are more than `MOST_TASKS`.
    """
    refuse_too_many(sum(per_host), "The launcher has started")
    _check_ports(base_port, hosts, per_host)
    servers = _choose_servers(per_host, num_ps)
    workers = sorted({*range(sum(per_host))} - {*servers})
    addresses = [
        f"{host}:{base_port + position}"
        for host, count in zip(hosts, per_host, strict=True)
        for position in range(count)
    ]
    chosen = {"ps": servers, "worker": workers}
    own = next((Task(job, members.index(rank)) for job, members in chosen.items() if rank in members), None)
    return {job: tuple(addresses[member] for member in members) for job, members in chosen.items() if members}, own


def _choose_servers(per_host: Sequence[int], num_ps: int) -> list[int]:
    """Returns the ranks of the parameter servers; a host without a free rank is skipped."""
    if num_ps >= sum(per_host):
        raise UsageError(
            f"--num_ps={num_ps} leaves no worker, since {sum(per_host)} task(s) were started: start more (srun "
            "--ntasks, mpirun -np), or ask for fewer parameter servers."
        )
    ends = itertools.accumulate(per_host)
    rounds = [(turn, end - 1 - turn) for end, count in zip(ends, per_host, strict=True) for turn in range(count)]
    return [rank for _, rank in sorted(rounds)][:num_ps]


def _check_ports(base_port: int, hosts: Sequence[str], per_host: Sequence[int]) -> None:
    count, host = max(zip(per_host, hosts, strict=True))
    last = base_port + count - 1
    if last > LAST_PORT:
        raise UsageError(
            f"--server_port={base_port}: {host} has {count} tasks, whose ports would go up to {last}: give at most "
            f"{LAST_PORT - count + 1}."
        )
