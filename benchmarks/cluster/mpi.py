"""Reads the ranks that mpirun has given its processes from their environment. Imports without TensorFlow.

No MPI library is used: mpirun only starts the processes, which meet over TensorFlow's own servers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from benchmarks.cluster import launch_plan, ranks
from benchmarks.cluster.cluster_spec import Hosts, Task, tasks_of
from benchmarks.errors import UsageError
from benchmarks.outside_text import whole_number

# Rank, number of ranks, and the same on this host, of launchers whose ranks are not Slurm's even in a job of Slurm: of
# Open MPI, MVAPICH2, Horovod and IBM's jsrun.
_OF_THEIR_OWN = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
    ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE"),
)
# Of PALS and Flux, which set PMI_RANK, too; of MPICH's and Intel MPI's Hydra, torchrun and PMIx alone. srun may set the
# same.
_VARIABLES = (
    *_OF_THEIR_OWN,
    ("PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE"),
    ("FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", ""),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("PMIX_RANK", "", "", ""),
)
_STEP = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "")
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
    """Returns what mpirun, or a launcher like it, has set; None outside of such.

    Raises:
        UsageError: a variable is no number.
    """
    return next((found for names in _VARIABLES if (found := _ranks_in(environ, names))), None)


def _ranks_in(environ: Mapping[str, str], names: tuple[str, str, str, str]) -> Ranks | None:
    # RANK may mean anything where there is no WORLD_SIZE.
    if not environ.get(names[0]) or (names[0] == "RANK" and not environ.get(names[1])):
        return None
    source, size, *local = names
    # Programs set LOCAL_RANK=-1 for one that has none.
    on_host = [whole_number(environ.get(name, "")) for name in local]
    return Ranks(source, int(_number(environ, source) or 0), _number(environ, size), *on_host)


def refuse_other_launcher(environ: Mapping[str, str]) -> None:
    """Refuses Slurm's ranks where another launcher has started this process: all its ranks may have the same one.

    Raises:
        UsageError: the ranks are those of mpirun, or another launcher.
    """
    own, step = ranks_of(environ), _ranks_in(environ, _STEP)
    if own and step and not _is_by_srun(own, step) and (own.rank or own.size != 1):
        raise UsageError(
            f"--cluster=slurm: another launcher has started this process, as rank {own.rank} ({own.source}), and Slurm "
            f"calls it {step.rank}: use --cluster=mpi, or start every task with srun."
        )


def _is_by_srun(own: Ranks | None, step: Ranks) -> bool:
    """Returns whether a rank is Slurm's own, which srun may repeat in variables of MPI."""
    if own is None:
        return True
    has_own = own.source in [names[0] for names in _OF_THEIR_OWN]
    # In a batch script, outside of srun, there is a rank 0 without the size of a step.
    return not has_own and own.rank == step.rank and step.size is not None and own.size in (None, step.size)


def read_mpi(
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
        UsageError: a launcher has started several.
    """
    own, step = ranks_of(environ), _ranks_in(environ, _STEP)
    by_srun = step is not None and _is_by_srun(own, step)
    started = step if by_srun else own
    if started and (started.rank or (started.size or 1) > 1 or (started.size is None and not by_srun)):
        raise UsageError(
            f"This is rank {started.rank} of {started.size or 'an unknown number'} ({started.source}), and no cluster "
            "is requested, so each rank would measure alone and disturb the others: add "
            f"--cluster={'slurm' if by_srun else 'mpi'} for one run over all ranks, or remove the variable "
            f"(env -u {started.source}) for independent runs."
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
    if text and whole_number(text) is None:
        raise UsageError(f"{name} is '{text}' and should be a number: start every task with mpirun.")
    return int(text) if text else None
