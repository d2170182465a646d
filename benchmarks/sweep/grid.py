"""A grid of runs: flags that take several values, and what each combination of them would be. No TensorFlow."""

from __future__ import annotations

import dataclasses
import itertools
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.config import config, flag, run_flags
from benchmarks.config.config import Config
from benchmarks.errors import UsageError
from benchmarks.topology import launch_plan

# Their values have commas of their own; of some, several are told apart by semicolons.
_NO_LISTS = ("gpus", "ps_hosts", "worker_hosts", "hosts", "cluster_spec")
_SEMICOLONS = ("local_cluster",)
# What is decided for all runs together.
_NOT_HERE = ("print_config", "output_dir", "output_format", "session_id")


@dataclasses.dataclass(frozen=True)
class Cell:
    """One combination of values.

    Attributes:
        arguments: as flags.
        config: what they come to; None if they do not go together.
        why_not: in that case the sentence.
        same_as_before: whether an earlier cell comes to the same.
    """

    arguments: tuple[str, ...]
    config: Config | None
    why_not: str = ""
    same_as_before: bool = False

    @property
    def runs(self) -> bool:
        """Returns whether there is something to run."""
        return self.config is not None and not self.same_as_before


def help_groups(own: flag.Groups) -> flag.Groups:
    """Returns the flags of a sweep as they are explained: the values of `run`'s, each of which may be a list."""
    groups = {title: [f for f in group if f.name not in _NOT_HERE] for title, group in run_flags.RUN_FLAGS.items()}
    return {**own, **groups}


def sweep_groups(own: flag.Groups) -> flag.Groups:
    """Returns the flags of `run` as texts, which may be lists, and the sweep's own."""
    lists = {
        title: [dataclasses.replace(flag, kind=str, choices=()) for flag in group if flag.name not in _NOT_HERE]
        for title, group in run_flags.RUN_FLAGS.items()
    }
    return {**own, **lists}


def spell_out_booleans(arguments: Sequence[str]) -> list[str]:
    """Turns `--name` and `--noname` of the boolean flags of `run` into `--name=true` and `--name=false`."""
    arguments = flag.read_files(arguments)
    booleans = {flag.name for group in run_flags.RUN_FLAGS.values() for flag in group if flag.kind is bool}
    words = {f"--{name}": f"--{name}=true" for name in booleans}
    words |= {f"--no{name}": f"--{name}=false" for name in booleans}
    followed = zip(arguments, [*arguments, "--"][1:], strict=True)
    return [word if not after.startswith("-") else words.get(word, word) for word, after in followed]


def of_flags(values: Mapping[str, str | None]) -> dict[str, list[str]]:
    """Returns the values of each flag that is given, split at commas, in the order of `run`'s help."""
    names = [flag.name for group in run_flags.RUN_FLAGS.values() for flag in group if flag.name not in _NOT_HERE]
    given = {name: text for name in names if (text := values.get(name)) is not None}
    for name, text in given.items():
        if not all(item.strip() for item in text.split(",")):
            raise UsageError(f"--{name}={text}: there is an empty value between the commas.")
    return {name: _values(name, text) for name, text in given.items()}


def _values(name: str, text: str) -> list[str]:
    if name in _NO_LISTS:
        return [text]
    return text.split(";" if name in _SEMICOLONS else ",")


def of_suite(path: Path) -> list[dict[str, list[str]]]:
    """Reads a suite: a TOML file with a table `[[grid]]` per grid, whose keys are flags, with a value or a list.

    Raises:
        UsageError: it cannot be read, or holds something else.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"--suite={path}: {error}. A suite is a TOML file with a table [[grid]] per grid.") from error
    grids = tables.pop("grid", None)
    if tables or not isinstance(grids, list) or not all(isinstance(grid, dict) for grid in grids):
        raise UsageError(f"--suite={path}: a suite holds tables [[grid]] and nothing else, each with flags as keys.")
    for name in {name for grid in grids for name in grid} & {*_NOT_HERE}:
        raise UsageError(
            f"--suite={path}: {name} is for all runs together: give it on the command line, or not at all."
        )
    return [{name: [_text(value) for value in _listed(values)] for name, values in grid.items()} for grid in grids]


def _listed(values: Any) -> list[Any]:
    return values if isinstance(values, list) else [values]


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def cells(grids: Sequence[Mapping[str, Sequence[str]]], count_gpus: Callable[[], int]) -> list[Cell]:
    """Returns every combination of each grid; those that do not go together, with the reason.

    Raises:
        UsageError: a flag that does not exist, or a value that it never takes.
    """
    found: list[Cell] = []
    seen: set[str] = set()
    for grid in grids:
        for values in itertools.product(*grid.values()):
            arguments = tuple(f"--{name}={value}" for name, value in zip(grid, values, strict=True))
            parsed = flag.parse(arguments, run_flags.RUN_FLAGS)
            try:
                chosen = config.resolve(parsed.values, count_gpus)
            except UsageError as error:
                found.append(Cell(arguments, None, str(error)))
                continue
            identity = repr(dataclasses.replace(chosen, notices=()))
            found.append(Cell(arguments, chosen, same_as_before=identity in seen))
            seen.add(identity)
    return found


def wanted(values: Mapping[str, Any], count_gpus: Callable[[], int]) -> list[Cell]:
    """Returns every combination that flags, and the suite that they name, ask for.

    Raises:
        UsageError: a value that makes no sense, or nothing to run.
    """
    common = of_flags(values)
    grids = [{**common, **own} for own in of_suite(Path(values["suite"]))] if values["suite"] else [common]
    found = cells(grids, count_gpus)
    for cell in found:
        if cell.config and cell.config.cluster and not launch_plan.is_asked_for_in(cell.arguments):
            raise UsageError(
                "Runs of a grid cannot be one task of a cluster that others start, by flags or by TF_CONFIG: let each "
                "start its cluster with --local_cluster or --hosts, or unset TF_CONFIG."
            )
    if not any(cell.runs for cell in found):
        raise UsageError(f"Nothing can be run. {next((cell.why_not for cell in found), 'The suite is empty.')}")
    return found


def in_order(count: int, repeats: int) -> list[tuple[int, int]]:
    """Returns (repeat, number of the cell) in the order of running: forth and back, so that drift hits all alike."""
    forth = list(range(count))
    return [(repeat, number) for repeat in range(repeats) for number in (forth if repeat % 2 == 0 else forth[::-1])]
