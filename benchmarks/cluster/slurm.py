"""Reads the cluster that Slurm has started from its variables. Imports without TensorFlow.

TensorFlow's own resolver counts GPUs and fails on nodes without them.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping

from benchmarks.cluster import ranks
from benchmarks.cluster.cluster_spec import Task
from benchmarks.errors import UsageError

# One word of a node list with the comma after it: at most 253 letters, as a host name has, or brackets.
_NODES = re.compile(r"((?:[^\[\],\s]|\[[0-9,-]++\]){1,253}+),")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_MISSING = "--cluster=slurm needs {} in the environment: start every task with srun."
NO_RANK = _MISSING.format("SLURM_PROCID")
_TASKS = re.compile(r"([0-9]{1,18})(?:\(x([0-9]{1,18})\))?")


def read_slurm(
    environ: Mapping[str, str], num_ps: int, base_port: int
) -> tuple[dict[str, tuple[str, ...]], Task | None]:
    """Names the tasks of a job step, from the environment that srun gives each of them; see `ranks.by_blocks`.

    Ranks fill the nodes in order (block distribution).

    Args:
        environ: the environment variables.
        num_ps: how many of the ranks are parameter servers.
        base_port: the port of the first rank on each node; the others take the next ones.

    Returns:
        The addresses by job, and the task that this process is; None outside srun, as in a shell of salloc.

    Raises:
        UsageError: a variable is missing or contradicts another, or the flags do not fit to what there is.
    """
    rank = _number(environ, "SLURM_PROCID") if environ.get("SLURM_PROCID") else None
    count = _number(environ, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    nodes = expand_nodes(_value(environ, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"))
    per_node = expand_tasks(_value(environ, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"))
    if len(per_node) != len(nodes) or sum(per_node) != count or (rank or 0) >= count:
        raise UsageError(
            f"Slurm's variables contradict each other: rank {rank or 0} of {count} tasks on {len(nodes)} nodes, of "
            f"which {len(per_node)} have {sum(per_node)} tasks. Start all tasks with one srun."
        )
    if rank is not None:
        places = [(node, position) for node, tasks in enumerate(per_node) for position in range(tasks)]
        _check_place(environ, rank, places[rank])
    return ranks.by_blocks(nodes, per_node, rank, num_ps=num_ps, base_port=base_port)


def expand_nodes(text: str) -> list[str]:
    """Returns the names that a node list such as `node[01-03,7],gpu-a` stands for, in its order.

    Numbers keep their leading zeros. A name may have several brackets, of which the last counts fastest.

    Raises:
        UsageError: the text is no such list, or has more than `ranks.MOST_TASKS` nodes.
    """
    names: list[str] = []
    for word in _words(text):
        # Every second part stood in brackets.
        parts = re.split(r"[\[\]]", word)
        ranges = [_ranges(part, text) for part in parts[1::2]]
        more = math.prod(sum(len(numbers) for numbers, _ in one) for one in ranges)
        ranks.refuse_too_many(len(names) + more, f"Slurm's node list '{text}' names", "nodes")
        choices = [[parts[0]]]
        for one, after in zip(ranges, parts[2::2], strict=True):
            choices.append([f"{number:0{digits}d}{after}" for numbers, digits in one for number in numbers])
        names += map("".join, itertools.product(*choices))
    return names


def _words(text: str) -> Iterator[str]:
    """Yields the parts of a node list between commas outside brackets."""
    listed, begin = f"{text.strip()},", 0
    while begin < len(listed):
        word = _NODES.match(listed, begin)
        if not word:
            raise UsageError(f"Slurm's node list '{text}' cannot be read at '{listed[begin:-1]}'.")
        yield word[1]
        begin = word.end()


def _ranges(text: str, node_list: str) -> list[tuple[range, int]]:
    """Returns the numbers that `01-03,7` stands for, each range with the digits that they have at least."""
    found = []
    for word in text.split(","):
        match = _RANGE.fullmatch(word)
        low, high = (match[1], match[2] or match[1]) if match else ("1", "0")
        if int(low) > int(high):
            raise UsageError(f"Slurm's node list '{node_list}' cannot be read at '{word}'.")
        found.append((range(int(low), int(high) + 1), len(low)))
    return found


def expand_tasks(text: str) -> list[int]:
    """Returns the number of tasks on each node, from a text such as `2(x3),1`.

    Raises:
        UsageError: the text is no such list, or has more than `ranks.MOST_TASKS` nodes or tasks.
    """
    counts: list[int] = []
    tasks = 0
    for word in text.strip().split(","):
        match = _TASKS.fullmatch(word)
        if not match:
            raise UsageError(f"Slurm's tasks per node '{text}' cannot be read at '{word}'.")
        count, nodes = int(match[1]), int(match[2] or 1)
        tasks += count * nodes
        ranks.refuse_too_many(max(tasks, len(counts) + nodes), f"Slurm's tasks per node '{text}' are", "nodes or tasks")
        counts += [count] * nodes
    return counts


def _check_place(environ: Mapping[str, str], rank: int, place: tuple[int, int]) -> None:
    """Refuses a distribution that this process can see is not by blocks."""
    for name, expected in zip(("SLURM_NODEID", "SLURM_LOCALID"), place, strict=True):
        if name in environ and _number(environ, name) != expected:
            raise UsageError(
                f"Rank {rank} has {name}={environ[name]}, and {expected} was expected where ranks fill the nodes in "
                "order: start with srun --distribution=block."
            )


def _value(environ: Mapping[str, str], *names: str) -> str:
    """Returns the first of these variables that is set."""
    for name in names:
        if environ.get(name):
            return environ[name]
    raise UsageError(_MISSING.format(" or ".join(names)))


def _number(environ: Mapping[str, str], *names: str) -> int:
    text = _value(environ, *names)
    if not re.fullmatch("[0-9]{1,18}", text):
        raise UsageError(f"{' or '.join(names)} is '{text}' and should be a number: start every task with srun.")
    return int(text)
