"""A grid of runs: flags with several values, and the configuration of each combination. No TensorFlow."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cluster import launch_plan
from benchmarks.config import config, flag, peer_flags, run_flags
from benchmarks.config.config import Config
from benchmarks.console import progress, warn
from benchmarks.errors import UsageError, did_you_mean
from benchmarks.option import Flag, Groups
from benchmarks.outside_text import parse_toml, shortened
from benchmarks.trackers import tracker_list
from models import specs
from results.loading import read_small

# The values of these flags contain commas; several values of the second group are separated by semicolons.
_NO_LISTS = (
    *("gpus", "ps_hosts", "worker_hosts", "hosts", "cluster_spec", *peer_flags.SINGLE),
    *("eval_during_training_at_specified_steps", "eval_during_training_at_specified_epochs"),
    *tracker_list.FLAGS,
)
_SEMICOLONS = ("local_cluster",)
_ALL_MODELS = "all"
SUITE_FLAG = Flag("suite", str, "TOML file of grids: a table [[grid]] of flags for each", path="file")
# Runs of one command. Checking so many combinations takes two minutes; running them would take days.
MOST_RUNS = 100_000
# These apply to all runs together.
_NOT_HERE = ("print_config", "output_dir", "output_format", "session_id")
_RUN_FLAGS = {title: [f for f in group if f.name not in _NOT_HERE] for title, group in run_flags.RUN_FLAGS.items()}
_PARSED = peer_flags.groups_to_parse(_RUN_FLAGS)
_FLAGS = {flag.name: flag for group in _PARSED.values() for flag in group}


@dataclasses.dataclass(frozen=True)
class Cell:
    """One combination of values.

    Attributes:
        arguments: as flags.
        config: the resulting configuration; None if the values do not go together.
        why_not: in that case the reason.
        same_as_before: whether an earlier cell has the same configuration.
    """

    arguments: tuple[str, ...]
    config: Config | None
    why_not: str = ""
    same_as_before: bool = False

    @property
    def runs(self) -> bool:
        """Returns whether the cell is to be run."""
        return self.config is not None and not self.same_as_before


def help_groups(own: Groups) -> Groups:
    """Returns the flags of a sweep for its help: its own and those of `run`."""
    return {**own, **_RUN_FLAGS}


def sweep_groups(own: Groups) -> Groups:
    """Returns the flags of a sweep for its parser: its own, and those of `run` as texts, which may be lists."""

    def as_text(flag: Flag) -> Flag:
        boolean = ("true", "false") if flag.kind is bool else flag.boolean
        return dataclasses.replace(flag, kind=str, choices=(), same_as="", boolean=boolean)

    return {**own, **{title: [*map(as_text, group)] for title, group in _PARSED.items()}}


def of_flags(values: Mapping[str, str | None]) -> dict[str, list[str]]:
    """Returns the values of each given flag, split at commas or semicolons, in the order of `run`'s help."""
    lists = {}
    for name, text in [(name, text) for name in _FLAGS if (text := values.get(name)) is not None]:
        separator, separators = (";", "semicolons") if name in _SEMICOLONS else (",", "commas")
        items = text.split(separator)
        if not all(item.strip() for item in items):
            raise UsageError(f"--{name}={text}: there is an empty value between the {separators}.")
        lists[name] = [text] if name in _NO_LISTS else items
    return lists


def of_suite(path: Path) -> list[dict[str, list[str]]]:
    """Reads a suite: a TOML file with a table `[[grid]]` per grid, whose keys are flags, with a value or a list.

    Raises:
        UsageError: it cannot be read, or contains something else.
    """
    try:
        tables = parse_toml(read_small(path).decode("utf-8-sig"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        instead = "A suite is a TOML file with a table [[grid]] per grid."
        raise UsageError(f"--suite={path} cannot be read: {reason}. {instead}") from error
    grids = tables.pop("grid", None)
    if tables or not isinstance(grids, list) or not all(isinstance(grid, dict) for grid in grids):
        raise UsageError(f"--suite={path}: a suite contains only tables [[grid]], with flags as keys.")
    return [{name.replace("-", "_"): _texts(path, name, value) for name, value in grid.items()} for grid in grids]


def _texts(path: Path, key: str, value: Any) -> list[str]:
    """Returns the values of a key of a suite, as on a command line."""
    name, values = key.replace("-", "_"), value if isinstance(value, list) else [value]
    problem = ""
    if name in _NOT_HERE:
        problem = "is for all runs together: set it on the command line."
    elif name not in _FLAGS:
        problem = f"is no flag of a run.{did_you_mean(name, _FLAGS)}"
    elif not values or any(isinstance(one, list | dict) for one in values):
        problem = "needs a value, or a list with at least one value and no other lists."
    if problem:
        raise UsageError(f"--suite={path}: {shortened(key)} {problem}")
    return [str(one).lower() if isinstance(one, bool) else str(one) for one in values]


def _has_all_models(grid: Mapping[str, Sequence[str]]) -> bool:
    return _ALL_MODELS in (name.strip().lower() for name in grid.get("model", ()))


def cells(grids: Sequence[Mapping[str, Sequence[str]]], count_gpus: Callable[[], int]) -> list[Cell]:
    """Returns every combination of each grid, including impossible ones with the reason.

    The model `all` stands for every model.

    Raises:
        UsageError: a flag does not exist, or never takes a value; there are too many combinations.
    """
    full = [{**grid, "model": specs.names()} if _has_all_models(grid) else grid for grid in grids]
    total = sum(math.prod(map(len, each.values())) for each in full)
    refuse_too_many(total)
    combinations: list[Cell] = []
    seen: set[str] = set()
    with progress.counted("checking combinations of flags", total):
        for each, values in ((own, values) for own in full for values in itertools.product(*own.values())):
            progress.advance()
            arguments = tuple(f"--{name}={value}" for name, value in zip(each, values, strict=True))
            try:
                values_of_run = _values(arguments)
            except flag.ContradictionError as error:
                combinations.append(Cell(arguments, None, str(error)))
                continue
            try:
                chosen = config.resolve(values_of_run, count_gpus)
            except UsageError as error:
                combinations.append(Cell(arguments, None, str(error)))
                continue
            identity = repr(dataclasses.replace(chosen, reasons={}, notices=()))
            combinations.append(Cell(arguments, chosen, same_as_before=identity in seen))
            seen.add(identity)
    return combinations


def _values(arguments: Sequence[str]) -> Mapping[str, Any]:
    return flag.parse(arguments, peer_flags.groups_to_parse(run_flags.RUN_FLAGS)).values


def refuse_too_many(runs: int) -> None:
    """Raises a `UsageError` if one command would be more than `MOST_RUNS` runs."""
    if runs > MOST_RUNS:
        raise UsageError(
            f"These are {shortened(f'{runs:,}')} runs, and one command makes at most {MOST_RUNS:,}: pass fewer values "
            "or flags, or divide them among several commands."
        )


def refuse_shared_trainings(cells: Sequence[Cell], runs_of_each: int) -> None:
    """Checks that no two runs continue one training.

    Raises:
        UsageError: they do.
    """
    trained = [cell.config for cell in cells if cell.config and cell.runs and not cell.config.workload.eval_only]
    directories = [directory for each in trained if (directory := each.checkpoints.train_dir)] * runs_of_each
    if twice := [directory for directory, runs in Counter(directories).items() if runs > 1]:
        raise UsageError(
            f"--train_dir={twice[0]}: each run would continue the training of the one before: leave it out."
        )


def doublings(most: int) -> list[int]:
    """Returns 1, 2, 4 ... and the largest number."""
    return [*(2**power for power in range((most - 1).bit_length())), most]


def own_flags(cells: Sequence[Cell]) -> tuple[str, list[str]]:
    """Returns the flags that all of several cells have, and for each cell the others; a single one keeps its own."""
    common = set.intersection(*(set(cell.arguments) for cell in cells)) if len(cells) > 1 else set()
    shared = [word for word in cells[0].arguments if word in common] if cells else []
    return " ".join(shared), [" ".join(word for word in cell.arguments if word not in common) for cell in cells]


def grids_of(values: Mapping[str, Any]) -> list[dict[str, list[str]]]:
    """Returns the grid of the flags, or each of the suite that they name with the flags added.

    Values of the suite take precedence.

    Raises:
        UsageError: a value is empty, or the suite cannot be read.
    """
    common = of_flags(values)
    if not values["suite"]:
        return [common]
    grids = of_suite(Path(values["suite"]))
    if both := common.keys() & {name for grid in grids for name in grid}:
        warn(f"Grids of the suite that set --{', --'.join(sorted(both))} keep their values.")
    return [{**common, **own} for own in grids]


def wanted(values: Mapping[str, Any], count_gpus: Callable[[], int]) -> list[Cell]:
    """Returns every combination of the flags, and of the suite that they name; raises as `runnable` does."""
    return runnable(grids_of(values), count_gpus)


def require_own_tasks(cell: Cell) -> None:
    """Raises a `UsageError` if a cell would be one task of a cluster that others start."""
    if cell.config and cell.config.processes.cluster and not launch_plan.is_asked_for(_values(cell.arguments)):
        raise UsageError(
            "A run that is started here cannot be one task of a cluster that others start, by --cluster, other flags "
            "or TF_CONFIG: start all tasks with local_cluster or hosts, or unset TF_CONFIG."
        )


def runnable(grids: Sequence[Mapping[str, Sequence[str]]], count_gpus: Callable[[], int]) -> list[Cell]:
    """Returns every combination of each grid, of which some can be run.

    Raises:
        UsageError: a value is out of range, or nothing can be run.
    """
    combinations = cells(grids, count_gpus)
    for cell in combinations:
        require_own_tasks(cell)
    if not any(cell.runs for cell in combinations):
        raise UsageError(f"Nothing can be run. {next((cell.why_not for cell in combinations), 'The suite is empty.')}")
    return combinations
