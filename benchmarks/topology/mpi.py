"""Reads the ranks that mpirun has given its processes from their environment. Imports without TensorFlow.

No MPI library is used: mpirun only starts the processes, which meet over TensorFlow's own servers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from benchmarks.errors import UsageError
from benchmarks.topology import launch_plan, ranks
from benchmarks.topology.cluster import Hosts, Task, tasks_of

# Rank, number of ranks, and the same on this host: of Open MPI, of MPICH's and Intel MPI's Hydra, and of PMIx alone.
_VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("PMIX_RANK", "", "", ""),
)
_LOCALHOST = "127.0.0.1"


@dataclasses.dataclass(frozen=True)
class Ranks:
    """The rank of this process and the number of ranks, over all hosts and on this one; None is unknown.

    `source` is the variable that has the rank.
    """

    source: str
    rank: int
    size: int | None
    local_rank: int | None
    local_size: int | None


def ranks_of(environ: Mapping[str, str]) -> Ranks | None:
    """Returns what mpirun has set; None outside mpirun.

    Raises:
        UsageError: a variable is no number.
    """
    for names in _VARIABLES:
        if environ.get(names[0]):
            return Ranks(
                names[0], int(_number(environ, names[0]) or 0), *(_number(environ, name) for name in names[1:])
            )
    return None


def read(
    environ: Mapping[str, str], hosts: str | None, num_ps: int, base_port: int
) -> tuple[dict[str, tuple[str, ...]], Task | None]:
    """Names the tasks of all ranks; see `ranks.by_blocks`.

    Args:
        environ: the environment variables.
        hosts: names of the hosts in the order of the ranks, with commas between; each has equally many ranks. None if
            all ranks are on this host.
        num_ps: how many of the ranks are parameter servers.
        base_port: the port of the first rank on each host.

    Raises:
        UsageError: there are no ranks, or they do not fit to the hosts.
    """
    own = _ranks(environ)
    if own.size is None:
        raise UsageError(
            f"--cluster=mpi: {own.source} is set, but not the number of ranks: under srun use --cluster=slurm, "
            "elsewhere name the tasks with --worker_hosts."
        )
    names = launch_plan.host_names(hosts) if hosts else [_LOCALHOST]
    if not hosts and own.size not in (1, own.local_size):
        raise UsageError(
            f"--cluster=mpi: {own.local_size or 'not all'} of {own.size} ranks are on this host, and mpirun does not "
            "tell them the other hosts: add --hosts=host_0,host_1 in the order of the ranks, or --worker_hosts with an "
            "address (host:port) per rank."
        )
    each, rest = divmod(own.size, len(names))
    if rest or not each:
        raise UsageError(
            f"--hosts={hosts}: {own.size} ranks cannot be divided evenly over {len(names)} hosts: start as many on "
            "each host, or give --worker_hosts with an address (host:port) per rank."
        )
    if own.local_size not in (None, each) or own.local_rank not in (None, own.rank % each):
        raise UsageError(
            f"--hosts={hosts}: rank {own.rank} is number {own.local_rank} of {own.local_size} on its host, and would "
            f"be number {own.rank % each} of {each} if ranks filled the hosts in order: start them so, for example "
            f"with mpirun --map-by slot -H {','.join(f'{name}:{each}' for name in names)}."
        )
    return ranks.by_blocks(names, [each] * len(names), own.rank, num_ps=num_ps, base_port=base_port)


def task_of(environ: Mapping[str, str], hosts: Hosts) -> Task:
    """Returns the task of this process where flags name all addresses: first workers, then servers, then a controller.

    Raises:
        UsageError: there are no ranks, or not as many as tasks.
    """
    own = _ranks(environ)
    tasks = sorted(tasks_of(hosts), key=lambda task: task.job != "worker")
    if own.size not in (None, len(tasks)) or own.rank >= len(tasks):
        raise UsageError(
            f"--cluster=mpi: flags name {len(tasks)} tasks, and this is rank {own.rank} of "
            f"{own.size or 'an unknown number'}: start as many ranks as there are addresses."
        )
    return tasks[own.rank]


def refuse_copies(environ: Mapping[str, str]) -> None:
    """Refuses to be one of several ranks that would each run alone.

    Raises:
        UsageError: mpirun has started several.
    """
    own = ranks_of(environ)
    if own and (own.size or 1) > 1:
        raise UsageError(
            f"This is rank {own.rank} of {own.size} ({own.source}), and no cluster is requested, so each rank would "
            "measure alone and disturb the others: add --cluster=mpi (under srun --cluster=slurm) for one run over all "
            f"ranks, or remove the variable (env -u {own.source}) for independent runs."
        )


def _ranks(environ: Mapping[str, str]) -> Ranks:
    found = ranks_of(environ)
    if found is None:
        names = ", ".join(names[0] for names in _VARIABLES)
        raise UsageError(f"--cluster=mpi needs a rank in the environment ({names}): start every task with mpirun.")
    if found.size is not None and found.rank >= found.size:
        raise UsageError(
            f"--cluster=mpi: {found.source} is {found.rank} of {found.size}: start every task with mpirun."
        )
    return found


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name)
    if text and not (text.isascii() and text.isdecimal()):
        raise UsageError(f"{name} is '{text}' and should be a number: start every task with mpirun.")
    return int(text) if text else None
