"""The tasks of processes that a launcher such as srun or mpirun has numbered. Imports without TensorFlow.

Their environment has the ranks. TensorFlow's own resolver for Slurm counts GPUs and fails on nodes without them. No MPI
library is used: mpirun only starts the processes, which meet over TensorFlow's own servers.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Mapping, Sequence

from benchmarks.cluster import launch_plan
from benchmarks.cluster.cluster_spec import Hosts, Task, tasks_of
from benchmarks.errors import UsageError
from benchmarks.outside_text import whole_number
from results.text import counted

# What stands between two commas outside brackets.
_NODES = re.compile(r"(?:[^\[\],\s]|\[[0-9,-]++\])++")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_SLURM_NEEDS = "--cluster=slurm needs {} in the environment: start every task with srun."
NO_RANK = _SLURM_NEEDS.format("SLURM_PROCID")
_TASKS = re.compile(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?")
# Hosts, how many ranks each has, and the rank of this process, if it has one. Ranks fill the hosts in order.
Blocks = tuple[Sequence[str], Sequence[int], int | None]
# More than any system has: a list of so many would not end.
_MOST_TASKS = 100_000
# Rank, number of ranks, and the same on this host, of launchers whose ranks are not Slurm's even in a job of Slurm: of
# Open MPI, MVAPICH 2 and 3, Horovod and IBM's jsrun; of BytePS, which numbers hosts, and processes on each.
_OF_THEIR_OWN = (
    *(
        tuple(f"{launcher}_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))
        for launcher in ("OMPI_COMM_WORLD", "MV2_COMM_WORLD", "MVP_COMM_WORLD", "HOROVOD", "JSM_NAMESPACE")
    ),
    ("DMLC_WORKER_ID", "DMLC_NUM_WORKER", "BYTEPS_LOCAL_RANK", "BYTEPS_LOCAL_SIZE"),
    ("BYTEPS_LOCAL_RANK", "BYTEPS_LOCAL_SIZE", "BYTEPS_LOCAL_RANK", "BYTEPS_LOCAL_SIZE"),
)
_OF_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
# What numbers nodes, on which nothing need be started, and counts them, behind a platform's name: those of Kubeflow
# Trainer, SkyPilot, AWS Batch, LeaderWorkerSet, Volcano, dstack, RunPod, HTCondor, Lepton, and of scripts for torchrun.
_NODE_RANK = re.compile("(.+_|(?=NODE_RANK))(?:NODE_RANK|NODE_INDEX|WORKER_INDEX|TASK_INDEX|PROCNO)")
_NODE_COUNTS = ("NNODES", "NUM_NODES", "NODES_NUM", "GROUP_SIZE", "WORKER_NUM", "TOTAL_WORKERS", "NPROCS")
# Of PALS and Flux, which set PMI_RANK, too; of MPICH's and Intel MPI's Hydra, IBM's POE, torchrun, and PMIx alone. srun
# may set the same.
_PMIX = ("PMIX_RANK", "", "", "")
_VARIABLES = (
    *_OF_THEIR_OWN,
    ("PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE"),
    ("FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", ""),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("MP_CHILD", "MP_PROCS", "", ""),
    _OF_TORCHRUN,
    ("WORLD_RANK", *_OF_TORCHRUN[1:]),
)
# What may mean anything without the number of ranks.
_WITH_SIZE = re.compile(f"(?:WORLD_)?RANK|MP_CHILD|{_NODE_RANK.pattern}")
# What numbers copies, and the number of the first: in an indexed Job of Kubernetes, and by Cray's aprun, LSF's blaunch,
# pbsdsh, parallel-ssh, Nomad, GKE's nodes with TPUs, and platforms that do not count the nodes, such as Azure ML.
OF_COPIES = {"JOB_COMPLETION_INDEX": 0, "ALPS_APP_PE": 0, "LSF_PM_TASKID": 1, "PBS_VNODENUM": 0, "PBS_NODENUM": 0}
OF_COPIES |= {"PSSH_NODENUM": 0, "NOMAD_ALLOC_INDEX": 0, "TPU_WORKER_ID": 0, "NODE_RANK": 0}
_STEP = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "")
# The SLURM_STEP_ID of salloc's shell on a node: a step of one task (SLURM_INTERACTIVE_STEP in slurm.h).
_INTERACTIVE = "4294967290"


def read_slurm(environ: Mapping[str, str]) -> Blocks:
    """Reads the ranks of a job step from the environment that srun gives each of them.

    Outside srun, as in a shell of salloc, this process has none.

    Raises:
        UsageError: a variable is missing or contradicts another, or the ranks are those of another launcher.
    """
    _refuse_other_launcher(environ)
    if environ.get("SLURM_STEP_ID") == _INTERACTIVE:
        of_shell = ("SLURM_STEP_", "SLURM_PROCID")
        environ = {name: value for name, value in environ.items() if not name.startswith(of_shell)}
    rank = _slurm_number(environ, "SLURM_PROCID") if environ.get("SLURM_PROCID") else None
    count = _slurm_number(environ, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    if rank == 0 and count > 1 and not {"SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST"} & environ.keys():
        raise UsageError(
            f"--cluster=slurm: srun has not started this process, so it would wait for the others of the {count} "
            "tasks: write srun before the command in the batch script."
        )
    nodes = expand_nodes(_slurm_value(environ, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"))
    per_node = expand_tasks(_slurm_value(environ, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"))
    if len(per_node) != len(nodes) or sum(per_node) != count or (rank or 0) >= count:
        raise UsageError(
            f"Slurm's variables contradict each other: rank {rank or 0} of {count} tasks on {len(nodes)} nodes, of "
            f"which {len(per_node)} have {sum(per_node)} tasks. Start all tasks with one srun, and in one component of "
            "the job."
        )
    _require_possible(count)
    if rank is not None:
        places = [(node, position) for node, tasks in enumerate(per_node) for position in range(tasks)]
        _check_place(environ, rank, places[rank])
    return nodes, per_node, rank


def expand_nodes(text: str) -> list[str]:
    """Returns the names that a node list such as `node[01-03,7],gpu-a` stands for, in its order.

    Numbers keep their leading zeros. A name may have several brackets, of which the last counts fastest.

    Raises:
        UsageError: the text is no such list.
    """
    names: list[str] = []
    words = _NODES.findall(text)
    if not words or ",".join(words) != text.strip():
        raise UsageError(f"Slurm's node list '{text}' cannot be read.")
    for word in words:
        # Every second part stood in brackets.
        parts = re.split(r"[\[\]]", word)
        choices = [_numbers(part, text) if place % 2 else [part] for place, part in enumerate(parts)]
        _require_possible(len(names) + math.prod(map(len, choices)))
        names += map("".join, itertools.product(*choices))
    return names


def _numbers(text: str, node_list: str) -> list[str]:
    """Returns the numbers that `01-03,7` stands for."""
    numbers: list[str] = []
    for word in text.split(","):
        match = _RANGE.fullmatch(word)
        low, high = (match[1], match[2] or match[1]) if match else ("1", "0")
        if int(low) > int(high):
            raise UsageError(f"Slurm's node list '{node_list}' cannot be read at '{word}'.")
        _require_possible(len(numbers) + int(high) - int(low) + 1)
        numbers += [f"{number:0{len(low)}d}" for number in range(int(low), int(high) + 1)]
    return numbers


def expand_tasks(text: str) -> list[int]:
    """Returns the number of tasks on each node, from a text such as `2(x3),1`.

    Raises:
        UsageError: the text is no such list.
    """
    counts: list[int] = []
    for word in text.strip().split(","):
        match = _TASKS.fullmatch(word)
        if not match:
            raise UsageError(f"Slurm's tasks per node '{text}' cannot be read at '{word}'.")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _check_place(environ: Mapping[str, str], rank: int, place: tuple[int, int]) -> None:
    """Refuses a distribution that this process can see is not by blocks."""
    for name, expected in zip(("SLURM_NODEID", "SLURM_LOCALID"), place, strict=True):
        if name in environ and _slurm_number(environ, name) != expected:
            raise UsageError(
                f"Rank {rank} has {name}={environ[name]}, and {expected} was expected where ranks fill the nodes in "
                "order: start with srun --distribution=block."
            )


def _slurm_value(environ: Mapping[str, str], *names: str) -> str:
    for name in names:
        if environ.get(name):
            return environ[name]
    raise UsageError(_SLURM_NEEDS.format(" or ".join(names)))


def _slurm_number(environ: Mapping[str, str], *names: str) -> int:
    return _number(" or ".join(names), _slurm_value(environ, *names), "srun")


def _number(name: str, text: str, launcher: str) -> int:
    number = whole_number(text)
    if number is None:
        raise UsageError(f"{name} is '{text}' and should be a number: start every task with {launcher}.")
    return number


@dataclasses.dataclass(frozen=True)
class _Ranks:
    """The rank of this process and the number of ranks, over all hosts and on this one; None is unknown.

    `source` is the variable that has the rank.
    """

    source: str
    rank: int
    size: int | None
    local_rank: int | None
    local_size: int | None


def _ranks_of(environ: Mapping[str, str]) -> _Ranks | None:
    """Returns the ranks of the first launcher that has started several; else the only one, which may start another.

    What torchrun has started is its last: several tasks of srun or mpirun may each have started it.
    """
    first = None
    for names in (_OF_TORCHRUN,) if "TORCHELASTIC_RUN_ID" in environ else variables(environ):
        own = _ranks_in(environ, names)
        if own and (own.rank or (own.size or 1) > 1):
            return own
        first = first or own
    return first


def variables(environ: Mapping[str, str]) -> list[Sequence[str]]:
    """Returns the names of ranks, and of what belongs to them, in the order in which they count."""
    numbers = sorted(name for name, value in environ.items() if whole_number(value) is not None)
    nodes = filter(None, map(_NODE_RANK.fullmatch, numbers))
    return [*_VARIABLES, *((node[0], node[1] + count, "", "") for node in nodes for count in _NODE_COUNTS), _PMIX]


def _ranks_in(environ: Mapping[str, str], names: Sequence[str]) -> _Ranks | None:
    if not environ.get(names[0]) or (_WITH_SIZE.fullmatch(names[0]) and not environ.get(names[1])):
        return None
    source, size, *local = names
    # Programs set LOCAL_RANK=-1 for one that has none.
    on_host = [whole_number(environ.get(name, "")) for name in local]
    return _Ranks(source, int(_mpi_number(environ, source) or 0), _mpi_number(environ, size), *on_host)


def _refuse_other_launcher(environ: Mapping[str, str]) -> None:
    """Refuses Slurm's ranks where another launcher has started this process: all its ranks may have the same one."""
    own = _ranks_of(environ)
    step = _ranks_in(environ, _STEP) if own else None
    if own and step and not _is_by_srun(own, step) and (own.rank or own.size != 1):
        raise UsageError(
            f"--cluster=slurm: another launcher has started this process, as rank {own.rank} ({own.source}), and Slurm "
            f"calls it {step.rank}: use --cluster=mpi, or start every task with srun."
        )


def _is_by_srun(own: _Ranks | None, step: _Ranks) -> bool:
    """Returns whether a rank is Slurm's own, which srun may repeat in variables of MPI."""
    if own is None:
        return True
    has_own = own.source in [names[0] for names in _OF_THEIR_OWN]
    # In a batch script, outside of srun, there is a rank 0 without the size of a step.
    return not has_own and own.rank == step.rank and step.size is not None and own.size in (None, step.size)


def read_mpi(environ: Mapping[str, str], hosts: str | None) -> Blocks:
    """Reads the ranks of mpirun.

    `hosts` are names in the order of the ranks, with commas between; each has equally many ranks. None if all ranks are
    on this host.

    Raises:
        UsageError: there are no ranks, or they do not fit to the hosts.
    """
    own = _mpi_ranks(environ)
    if own.size is None:
        raise UsageError(
            f"--cluster=mpi: {own.source} is set, but not the number of ranks: under srun use --cluster=slurm, "
            "elsewhere name the tasks with --worker_hosts."
        )
    names = launch_plan.host_names(hosts) if hosts else ["127.0.0.1"]
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
    return names, [each] * len(names), own.rank


def task_of(environ: Mapping[str, str], hosts: Hosts) -> Task:
    """Returns the task of this process where flags name all addresses: first workers, then servers, then a controller.

    Raises:
        UsageError: there are no ranks, or not as many as tasks.
    """
    own = _mpi_ranks(environ)
    tasks = sorted(tasks_of(hosts), key=lambda task: task.job != "worker")
    if own.size not in (None, len(tasks)) or own.rank >= len(tasks):
        raise UsageError(
            f"--cluster=mpi: flags name {counted(len(tasks), 'task')}, and this is rank {own.rank} of "
            f"{own.size or 'an unknown number'}: start as many ranks as there are addresses."
        )
    return tasks[own.rank]


def refuse_copies(environ: Mapping[str, str], *, can_join: bool = True) -> tuple[str, ...]:
    """Refuses to be one of several ranks that would each run alone; `can_join`: --cluster makes them one run.

    Returns:
        A sentence if there may be others, since a variable numbers this process after a first one.

    Raises:
        UsageError: a launcher has started several.
    """
    own, step = _ranks_of(environ), _ranks_in(environ, _STEP)
    by_srun = step is not None and _is_by_srun(own, step)
    started = step if by_srun else own
    if not can_join and started and _NODE_RANK.fullmatch(started.source) and not started.rank:
        return ()  # scripts launch there, and on no other node
    if started and (started.rank or (started.size or 1) > 1 or (started.size is None and not by_srun)):
        join = f"add --cluster={'slurm' if by_srun else 'mpi'} for one run over all ranks"
        raise UsageError(
            f"This is rank {started.rank} of {started.size or 'an unknown number'} ({started.source}), and no cluster "
            "of the ranks is requested, so each would measure alone and disturb the others: "
            f"{join if can_join else 'start one process'}, or remove the variable (env -u {started.source}) for "
            "independent runs."
        )
    node, processes = (whole_number(environ.get(name, "")) for name in ("NODE_RANK", "WORLD_SIZE"))
    if node is not None and (processes or 1) > 1 and (node or can_join):  # as Lightning has it: no rank of a process
        raise UsageError(
            f"This is node {node} of {processes} processes (NODE_RANK, WORLD_SIZE), and each would measure alone: name "
            "all tasks with --worker_hosts, --job_name and --task_index, or remove the variable (env -u NODE_RANK)."
        )
    numbered = [name for name, first in OF_COPIES.items() if (whole_number(environ.get(name, "")) or first) > first]
    return tuple(
        f"{name}={environ[name]}: there may be others like this process, and each measures alone. For one run over all "
        "of them, name the tasks with --worker_hosts, --job_name and --task_index."
        for name in numbered[:1]
    )


def _require_possible(count: int) -> None:
    if count > _MOST_TASKS:
        raise UsageError(f"The launcher's variables name {count} tasks or hosts, and a run has at most {_MOST_TASKS}.")


def _mpi_ranks(environ: Mapping[str, str]) -> _Ranks:
    found = _ranks_of(environ)
    if found is None:
        names = ", ".join(names[0] for names in variables({}))
        raise UsageError(f"--cluster=mpi needs a rank in the environment ({names}): start every task with mpirun.")
    if found.size is not None and found.rank >= found.size:
        raise UsageError(
            f"--cluster=mpi: {found.source} is {found.rank} of {found.size}: start every task with mpirun."
        )
    return found


def _mpi_number(environ: Mapping[str, str], name: str) -> int | None:
    text = (environ.get(name) or "").rpartition(":")[2]  # torchrun's may be MIN:MAX
    return _number(name, text, "mpirun") if text else None


def by_blocks(
    hosts: Sequence[str], per_host: Sequence[int], rank: int | None, *, num_ps: int, base_port: int
) -> tuple[Hosts, Task | None]:
    """Names the tasks of ranks; see `Blocks`.

    Parameter servers take the last free rank of each host, host after host, as many rounds as needed; all other ranks
    are workers, in order. The first rank on each host has the `base_port`, and the others the next ones.

    Returns:
        The addresses by job, and the task that this process is.

    Raises:
        UsageError: no worker is left, or there are too many.
    """
    count = sum(per_host)
    _require_possible(count)
    servers = _choose_servers(per_host, num_ps)
    workers = sorted({*range(count)} - {*servers})
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
            f"--num_ps={num_ps} leaves no worker among {counted(sum(per_host), 'task')}: start more (srun --ntasks, "
            "mpirun -np), or ask for fewer parameter servers."
        )
    ends = itertools.accumulate(per_host)
    rounds = [(place, end - 1 - place) for end, count in zip(ends, per_host, strict=True) for place in range(count)]
    return [rank for _, rank in sorted(rounds)][:num_ps]
