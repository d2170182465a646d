"""The verb `sweep`: many runs, each in a process of its own, whatever happens to any of them. No TensorFlow."""

from __future__ import annotations

import dataclasses
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.config.config import Config
from benchmarks.config.flag import Flag, Groups
from benchmarks.config.verb import Verb
from benchmarks.console import say, warn
from benchmarks.errors import ExitStatus, UsageError
from benchmarks.process import subprocesses
from benchmarks.process.signals import until_stopped
from benchmarks.record_files import open_store
from benchmarks.sweep import grid
from benchmarks.sweep.estimate import estimate_seconds
from benchmarks.sweep.grid import Cell
from benchmarks.sweep.isolated_run import DEFAULT_TIMEOUT_SECONDS, CellRunner, given
from benchmarks.sweep.progress import SweepDisplay, grid_lines
from benchmarks.system import hardware
from benchmarks.system.provenance import Provenance, of_this_run
from results.record import Record, Status, key_of
from results.report import headline
from results.store import Store
from results.summary import summarize
from variable_mgr.modifiers import Modifiers

# What says nothing of what is run; which data set lay in the directory is only known afterwards.
_NOT_CHOSEN = ("output_dir", "output_format", "display_every", "session_id", "notices", "data_set", "cluster")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What is run and how long that may take.

    Attributes:
        cells: every combination, possible or not.
        repeats: rounds; each is a fresh process.
        output_dir: where results go.
        resume: whether what is there already is not run again.
        round_timeout_seconds: of one run.
        stop_after_seconds: no run is begun after so long; None for no limit.
        dry_run: only print the grid.
        program: runs a cell, given its flags.
    """

    cells: Sequence[Cell]
    repeats: int
    output_dir: str
    resume: bool = False
    round_timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    stop_after_seconds: float | None = None
    dry_run: bool = False
    program: Sequence[str] = (sys.executable, str(subprocesses.RUN_BENCH))


def resolve(values: Mapping[str, Any], count_gpus: Callable[[], int]) -> Plan:
    """Turns flag values (None: not given) into a plan.

    Raises:
        UsageError: a value that makes no sense, or nothing to run.
    """
    for name in ("repeats", "round_timeout_seconds", "stop_after_seconds"):
        if values[name] is not None and not values[name] > 0:
            raise UsageError(f"--{name}={values[name]} must be above 0.")
    return Plan(
        cells=grid.wanted(values, count_gpus),
        repeats=values["repeats"] or 1,
        output_dir=values["output_dir"] or "out",
        resume=bool(values["resume"]),
        round_timeout_seconds=values["round_timeout_seconds"] or DEFAULT_TIMEOUT_SECONDS,
        stop_after_seconds=values["stop_after_seconds"],
        dry_run=bool(values["dry_run"]),
    )


def run(plan: Plan, command: Sequence[str]) -> ExitStatus:
    """Runs every cell as often as is wanted, and prints what came of it.

    Raises:
        UsageError: results cannot be kept.
    """
    store = open_store(plan.output_dir)
    earlier = store.load().records
    estimates = [estimate_seconds(cell.config, earlier) if cell.config else 0.0 for cell in plan.cells]
    for line in grid_lines(plan.cells, estimates, plan.repeats):
        say(line)
    if plan.dry_run:
        return ExitStatus.OK
    on_gpus = any(cell.config and cell.config.device == "gpu" for cell in plan.cells)
    provenance = of_this_run(command, on_gpus=on_gpus, session_id=uuid.uuid4().hex[:12])
    sweep = _Sweep(plan, store, provenance, earlier if plan.resume else [])

    def run_all() -> ExitStatus:
        finished = sweep.run(estimates)
        for line in headline.lines(summarize(finished)):
            say(line)
        say(f"\n{len(finished)} records: {store.jsonl_path} and {store.csv_path}")
        failed = [record for record in finished if record.status not in (Status.OK, Status.SKIPPED)]
        return ExitStatus.RUN_FAILED if failed else ExitStatus.OK

    again = f"Interrupted. The same command with --resume runs only what is missing from {store.jsonl_path}."
    return until_stopped(run_all, again)


class _Sweep:
    """Runs the cells of a plan; knows what has been run already."""

    def __init__(self, plan: Plan, store: Store, provenance: Provenance, earlier: Sequence[Record]) -> None:
        self._plan = plan
        self._runner = CellRunner(
            program=plan.program,
            store=store,
            output_dir=plan.output_dir,
            provenance=provenance,
            timeout_seconds=plan.round_timeout_seconds,
            timeout_flag="--round_timeout_seconds",
        )
        self._records: list[Record] = []
        # A run on the CPU does not look at GPUs, so its machine seems to have none.
        without_gpus = dataclasses.replace(provenance, inventory=hardware.Inventory())
        this_machine = {origin.identity({}).hardware_key for origin in (provenance, without_gpus)}
        self._done: dict[str, list[Record]] = {}
        for record in earlier:
            # What a run of its own refused may have been refused for a passing reason, and is tried again.
            refused = record.status is Status.SKIPPED and record.config_aside
            again = refused or record.status is Status.INTERRUPTED
            if record.identity.hardware_key in this_machine and not again:
                self._done.setdefault(_what_is_run(record.config), []).append(record)

    def run(self, estimates: Sequence[float]) -> list[Record]:
        """Runs what is missing; returns all records of the plan."""
        cells = self._plan.cells
        for cell in cells:
            if cell.config is None and not self._taken(given(cell)):
                self._records.append(self._runner.refuse(cell))
        possible = [(cell, estimate) for cell, estimate in zip(cells, estimates, strict=True) if cell.runs]
        order = grid.in_order(len(possible), self._plan.repeats)
        wanted = [cell.config.to_dict() if cell.config else {} for cell, _ in possible]
        missing = [number for _, number in order if not self._taken(wanted[number])]
        begun = time.monotonic()
        with SweepDisplay([possible[number][1] for number in missing]) as display:
            for count, number in enumerate(missing):
                limit = self._plan.stop_after_seconds
                if limit is not None and time.monotonic() - begun > limit:
                    warn(f"--stop_after_seconds={limit:g} is over: {len(missing) - count} runs are left for --resume.")
                    break
                cell = possible[number][0]
                display.begin(count, cell)
                record = self._runner.run(cell, count)
                self._records.append(record)
                display.end(record)
        return self._records

    def _taken(self, what: Mapping[str, Any]) -> bool:
        """Returns whether this has been run earlier; each earlier record counts for one run."""
        done = self._done.get(_what_is_run(what))
        if not done:
            return False
        self._records.append(done.pop(0))
        return True


def _what_is_run(config: Mapping[str, Any]) -> str:
    """Returns what is equal for records of the same run: all but where the result goes and how it is shown.

    A field at its default is left out: a record of an older version may not have it.
    """
    chosen = {name: value for name, value in config.items() if name not in _NOT_CHOSEN}
    modifiers = _not_at_default(Modifiers, chosen.get("modifiers") or {})
    return key_of({**_not_at_default(Config, chosen), "modifiers": modifiers})


def _not_at_default(described_by: type[Config | Modifiers], values: Mapping[str, Any]) -> dict[str, Any]:
    defaults = {field.name: field.default for field in dataclasses.fields(described_by)}
    return {name: value for name, value in values.items() if name not in defaults or value != defaults[name]}


SWEEP_FLAGS: Groups = {
    "The sweep": (
        Flag("repeats", int, "rounds, each run in a fresh process (default 1)"),
        Flag("suite", str, "a TOML file with a table [[grid]] per grid, which holds flags"),
        Flag("resume", bool, "run only what is missing in --output_dir"),
        Flag("dry_run", bool, "print the grid and stop"),
        Flag("round_timeout_seconds", float, "kill a run that takes longer (default 3600)"),
        Flag("stop_after_seconds", float, "start no run after this time"),
        Flag("output_dir", str, "directory of results.jsonl and results.csv (default out)"),
    )
}
VERB = Verb(
    "sweep",
    "many runs: every flag of run takes a comma list, each combination runs in a process of its own",
    SWEEP_FLAGS,
    lambda given, command: run(resolve(given.values, hardware.count_gpus), command),
    takes="lists",
)
