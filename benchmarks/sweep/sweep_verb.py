"""The verb `sweep`: many runs, each in a process of its own, so that one failure does not end it. No TensorFlow."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.config.run_flags import DEFAULTS, RUN_FLAGS
from benchmarks.config.verb import Verb
from benchmarks.console import in_words, say, warn
from benchmarks.errors import ExitStatus
from benchmarks.machine import hardware
from benchmarks.machine.provenance import Provenance
from benchmarks.option import Flag, Groups, only
from benchmarks.process.signals import until_stopped
from benchmarks.sweep import grid
from benchmarks.sweep.grid import Cell
from benchmarks.sweep.isolated_run import DEFAULT_TIMEOUT_SECONDS, CellRunner, given, new_session
from benchmarks.sweep.progress import estimate_seconds, grid_lines, what_is_run
from benchmarks.trackers import tracker_list
from results.record import Record, Status, key_of
from results.report import headline, side_tables
from results.report.anomalies import warnings_of
from results.report.verdict import verdict
from results.summary import summarize
from results.text import as_rate, counted

_LIMIT = "--run_timeout_seconds"
# Of an identity: what must be equal in the records of one sweep.
_SOFTWARE = ("software_key", "suite_version", "suite_commit")
# Fields that do not change what is run; the data set in a directory is known only after the run.
_NOT_CHOSEN = set(
    "output_dir output_format display_every loss_type_to_report session_id data_set cluster trackers".split()
    + ["reasons", "notices"]
)


def run_sweep(values: Mapping[str, Any], command: Sequence[str]) -> ExitStatus:
    """Runs every cell `repeats` times, and prints the results. If it is stopped, finished runs are stored.

    Raises:
        UsageError: a value is out of range, nothing can be run, or results cannot be stored.
    """
    return run_cells(grid.wanted(values, hardware.count_gpus), values, command, _show)


def _show(finished: Sequence[Record]) -> None:
    rows = summarize(finished)
    tables = side_tables.comparisons(rows)
    say(*headline.lines(rows), *(line for table in tables for line in table.text()), "", verdict(rows))


def run_cells(
    cells: Sequence[Cell],
    values: Mapping[str, Any],
    command: Sequence[str],
    show: Callable[[Sequence[Record]], None],
) -> ExitStatus:
    """Runs cells as often as the flags say, and shows their records, also earlier ones with --resume.

    `values` are of the flags of a sweep (None: not given); `command` is for records of runs that left none.

    Raises:
        UsageError: there are too many runs, several would train in one directory, or results cannot be stored.
    """
    repeats = values["repeats"] or 1
    grid.refuse_too_many(len(cells) * repeats)
    grid.refuse_shared_trainings(cells, repeats)
    output_dir = values["output_dir"] or DEFAULTS["output_dir"]
    for targets in {frozenset(cell.config.output.trackers.items()) for cell in cells if cell.config}:
        tracker_list.require(dict(targets))
    on_gpus = any(cell.config and cell.config.devices.on_gpu for cell in cells)
    runner = CellRunner(
        output_dir=output_dir,
        provenance=new_session(command, on_gpus=on_gpus),
        timeout_seconds=values["run_timeout_seconds"] or DEFAULT_TIMEOUT_SECONDS,
        timeout_flag=_LIMIT,
    )
    store = runner.store
    loaded = store.load()
    warn(*loaded.problems if values["resume"] else ())  # what such lines were of is run again
    estimates = [estimate_seconds(cell.config, loaded.records) if cell.config else 0.0 for cell in cells]
    forth = list(zip(cells, estimates, strict=True))
    # And back, so that a drift of the machine affects all cells alike.
    rounds = [forth if repeat % 2 == 0 else forth[::-1] for repeat in range(repeats)]
    kept, refused, missing = _split(rounds, _done(loaded.records if values["resume"] else [], cells, runner.provenance))
    as_json = values["output_format"] == "json" and not values["dry_run"]
    for line in grid_lines(cells, estimates, repeats, missing):
        (warn if as_json else say)(line)
    longest = max((seconds for _, seconds in missing), default=0.0)
    if longest > runner.timeout_seconds:
        limit = in_words(runner.timeout_seconds)
        warn(f"A run takes {in_words(longest)} by this estimate, and is killed after {limit}: pass a larger {_LIMIT}.")
    if values["dry_run"]:
        return ExitStatus.OK

    def sweep() -> ExitStatus:
        finished = [*kept, *map(runner.refuse, refused)]
        finished += _run_all(runner, cells, missing, values["budget_seconds"])
        if as_json:
            say("\n".join(record.to_json() for record in finished))
        else:
            show(finished)
        warn(*warnings_of(finished))
        if not as_json:
            say(f"\n{counted(len(finished), 'record')}: {store.jsonl_path} and {store.csv_path}")
        statuses = {record.status for record in finished}
        is_whole = Status.OK in statuses and statuses <= {Status.OK, Status.SKIPPED}
        return ExitStatus.OK if is_whole else ExitStatus.RUN_FAILED

    hint = f"The same command with --resume runs only what is missing from {store.jsonl_path}."
    return until_stopped(sweep, f"Interrupted. {hint}")


def _split(
    rounds: Sequence[Sequence[tuple[Cell, float]]], done: Mapping[str, list[Record]]
) -> tuple[list[Record], list[Cell], list[tuple[Cell, float]]]:
    """Returns earlier records that count, cells that cannot run, and the runs that are missing, in their order.

    `rounds` are the cells of each repeat, each with its estimated seconds; each `done` record counts for one run.
    """
    kept: list[Record] = []

    def is_done(config: Mapping[str, Any]) -> bool:
        left = done.get(_key(config))
        if not left:
            return False
        kept.append(left.pop(0))
        return True

    refused = [cell for cell, _ in rounds[0] if cell.config is None and not is_done(given(cell))]
    missing = [
        (cell, seconds)
        for cells in rounds
        for cell, seconds in cells
        if cell.config and cell.runs and not is_done(cell.config.to_dict())
    ]
    return kept, refused, missing


def _run_all(
    runner: CellRunner, cells: Sequence[Cell], missing: Sequence[tuple[Cell, float]], limit: float | None
) -> list[Record]:
    """Runs the missing cells of a grid, each with its estimated seconds; returns their records.

    After `limit` seconds (None: no limit), no run is started.
    """
    records: list[Record] = []
    differing = dict(zip(cells, grid.own_flags(cells)[1], strict=True))
    begun, estimates = time.monotonic(), [seconds for _, seconds in missing]

    def left() -> str:
        """Returns the estimated time that is left, scaled by how long the finished runs really took."""
        done, rest = sum(estimates[: len(records)]), sum(estimates[len(records) :])
        return in_words(rest * ((time.monotonic() - begun) / done if done else 1.0))

    for number, (cell, _) in enumerate(missing, start=1):
        if limit is not None and time.monotonic() - begun > limit:
            warn(f"--budget_seconds={limit:g} is over: {len(missing) - len(records)} runs are left for --resume.")
            break
        what = f"[{number}/{len(missing)}] {differing[cell] if len(differing) > 1 else what_is_run(cell)}"
        record = runner.run_cell(cell, f"{what}, {left()} left")
        records.append(record)
        rate = record.derived.images_per_sec
        result = f"{as_rate(rate)} images/sec" if rate is not None else f"{record.status}: {record.reason}"
        warn(f"{what}: {result}   ({left()} left)")
    return records


def _done(earlier: Sequence[Record], cells: Sequence[Cell], provenance: Provenance) -> dict[str, list[Record]]:
    """Returns this machine's earlier records that need not be run again, by the key of their configuration.

    Warns of those that other software has written, which do not count.
    """
    # A run on the CPU does not query GPUs, so its machine seems to have none.
    without_gpus = dataclasses.replace(provenance, inventory=hardware.Inventory())
    this_machine = {origin.identity({}).hardware_key for origin in (provenance, without_gpus)}
    keys = {_key(cell.config.to_dict() if cell.config else given(cell)) for cell in cells}
    ours = provenance.identity({})
    done: dict[str, list[Record]] = {}
    others = 0
    for record in earlier:
        # A run's own refusal may have had a temporary reason, so it is tried again.
        refused = record.status is Status.SKIPPED and record.config_not_in_key
        again = refused or record.status is Status.INTERRUPTED
        key = _key(record.config)
        if record.identity.hardware_key not in this_machine or again or key not in keys:
            continue
        if all(getattr(record.identity, name) == getattr(ours, name) for name in _SOFTWARE):
            done.setdefault(key, []).append(record)
        else:
            others += 1
    if others:
        warn(f"--resume: {counted(others, 'record')} of another version of this suite or its packages: run again.")
    return done


def _key(config: Mapping[str, Any]) -> str:
    return key_of({name: value for name, value in config.items() if name not in _NOT_CHOSEN})


SWEEP_FLAGS: Groups = {
    "The sweep": (
        Flag("repeats", int, "runs of each combination, each in a fresh process", default=1, at_least=1),
        grid.SUITE_FLAG,
        Flag("resume", bool, "run only what --output_dir does not have from this machine and software"),
        Flag("dry_run", bool, "print the grid and stop"),
        Flag("run_timeout_seconds", float, "kill a run that takes longer", default=DEFAULT_TIMEOUT_SECONDS, above=0),
        Flag(
            "budget_seconds", float, "time budget of all runs; none starts later, and --resume runs the rest", above=0
        ),
        *only(RUN_FLAGS["Output"], "output_dir", "output_format"),
    )
}
VERB = Verb(
    "sweep",
    SWEEP_FLAGS,
    lambda given, command: run_sweep(given.values, command),
    takes="lists",
    details="Flags of a run take comma lists. Each combination runs in a fresh process. --model=all is every "
    "model. --output_format=json prints a record per line.",
    examples=("sweep --model=resnet50,vgg16 --num_gpus=1,2,4,8", "sweep --preset=scaling --dry_run"),
)
