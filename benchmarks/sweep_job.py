"""The verb `sweep`: many runs, each in a process of its own, whatever happens to any of them. No TensorFlow."""

from __future__ import annotations

import dataclasses
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from benchmarks import child_process, grid, hardware, started_cluster
from benchmarks.display import say, warn
from benchmarks.duration import estimate_seconds
from benchmarks.errors import ExitStatus, Terminated, UsageError, raise_terminated
from benchmarks.grid import Cell
from benchmarks.keeping import keep, open_store
from benchmarks.provenance import Provenance, of_this_run
from benchmarks.sweep_display import SweepDisplay, grid_lines
from models import specs
from results import headline
from results.measurement import Derived, Measurement
from results.record import Record, Status, key_of
from results.store import Store
from results.summary import summarize

DEFAULT_TIMEOUT_SECONDS = 3600.0
_USAGE, _TAIL_LINES = 2, 5
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
    program: Sequence[str] = (sys.executable, str(child_process.RUN_BENCH))


def resolve(values: Mapping[str, Any], count_gpus: Callable[[], int]) -> Plan:
    """Turns flag values (None: not given) into a plan.

    Raises:
        UsageError: a value that makes no sense, or nothing to run.
    """
    common = grid.of_flags(values)
    grids = [{**common, **own} for own in grid.of_suite(Path(values["suite"]))] if values["suite"] else [common]
    for name in ("repeats", "round_timeout_seconds", "stop_after_seconds"):
        if values[name] is not None and not values[name] > 0:
            raise UsageError(f"--{name}={values[name]} must be above 0.")
    cells = grid.cells(grids, count_gpus)
    for cell in cells:
        if cell.config and cell.config.cluster and not started_cluster.is_asked_for_in(cell.arguments):
            raise UsageError(
                "A sweep cannot be one task of a cluster that others start, by flags or by TF_CONFIG: let it start "
                "clusters with --local_cluster or --hosts, or unset TF_CONFIG."
            )
    if not any(cell.runs for cell in cells):
        raise UsageError(f"Nothing can be run. {next((cell.why_not for cell in cells), 'The suite is empty.')}")
    return Plan(
        cells=cells,
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
        KeyboardInterrupt: what has been run until then is kept.
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
    signal.signal(signal.SIGTERM, raise_terminated)
    try:
        finished = sweep.run(estimates)
    except KeyboardInterrupt:
        warn(f"Interrupted. The same command with --resume runs only what is missing from {store.jsonl_path}.")
        return ExitStatus.INTERRUPTED
    except Terminated:
        return ExitStatus.TERMINATED
    rows = summarize(finished)
    for line in headline.lines(rows):
        say(line)
    say(f"\n{len(finished)} records: {store.jsonl_path} and {store.csv_path}")
    failed = [record for record in finished if record.status not in (Status.OK, Status.SKIPPED)]
    return ExitStatus.RUN_FAILED if failed else ExitStatus.OK


class _Sweep:
    """Runs the cells of a plan; knows what has been run already."""

    def __init__(self, plan: Plan, store: Store, provenance: Provenance, earlier: Sequence[Record]) -> None:
        self._plan = plan
        self._store = store
        self._provenance = provenance
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
            if cell.config is None and not self._taken(_given(cell)):
                self._keep(self._without_run(cell, Status.SKIPPED, cell.why_not))
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
                record = self._run(cell, count)
                display.end(record)
        return self._records

    def _taken(self, what: Mapping[str, Any]) -> bool:
        """Returns whether this has been run earlier; each earlier record counts for one run."""
        done = self._done.get(_what_is_run(what))
        if not done:
            return False
        self._records.append(done.pop(0))
        return True

    def _run(self, cell: Cell, count: int) -> Record:
        session = self._provenance.session_id
        own = (f"--output_dir={self._plan.output_dir}", f"--session_id={session}", "--output_format=json")
        before = self._store.size_bytes()
        with (
            tempfile.TemporaryFile() as stdout,
            _log(self._store.jsonl_path.parent, f"{session}-{count + 1:04d}") as log,
        ):
            ended = child_process.run(
                [*self._plan.program, *cell.arguments, *own], stdout, log, self._plan.round_timeout_seconds
            )
            stdout.seek(0)
            said = stdout.read().decode(errors="replace")
            log.seek(0)
            logged = log.read().decode(errors="replace")
        left = [record for record in self._store.load(before).records if record.identity.session_id == session]
        if left:
            self._records += left
            return left[-1]
        # What could not be stored, on a full disk for one, has been printed.
        record = _printed(said, session) or self._without_run(
            cell, *_what_happened(ended, f"{logged}\n{said}", self._plan.round_timeout_seconds)
        )
        self._keep(record)
        return record

    def _without_run(self, cell: Cell, status: Status, reason: str) -> Record:
        """Returns the record of a run that left none, or that there cannot be."""
        config = cell.config.to_dict() if cell.config else _given(cell)
        in_key = cell.config.key_fields() if cell.config else config
        spec = specs.find(cell.config.model) if cell.config else None
        facts = ("title", "image_size", "parameters", "gflop_per_image") if spec else ()
        provenance = self._provenance
        if cell.config is None or cell.config.device == "cpu":  # such a run does not look at GPUs
            provenance = dataclasses.replace(provenance, inventory=hardware.Inventory())
        return Record(
            identity=dataclasses.replace(provenance.identity(in_key), command=list(cell.arguments)),
            config=config,
            config_aside=cell.config.aside_fields() if cell.config else [],
            environment=provenance.environment,
            model={field: getattr(spec, field) for field in facts},
            placement={},
            measurement=Measurement(images_per_step=cell.config.batch_global if cell.config else None),
            derived=Derived(),
            status=status,
            reason=reason,
        )

    def _keep(self, record: Record) -> None:
        self._records.append(record)
        keep(self._store, record)


def _what_is_run(config: Mapping[str, Any]) -> str:
    """Returns what is equal for records of the same run: all but where the result goes and how it is shown."""
    return key_of({name: value for name, value in config.items() if name not in _NOT_CHOSEN})


def _given(cell: Cell) -> dict[str, Any]:
    """Returns what an impossible cell asked for, under the names that a configuration has for it."""
    names = {"num_gpus": "num_devices", "batch_size": "batch_per_device"}
    pairs = (argument.removeprefix("--").split("=", 1) for argument in cell.arguments)
    return {names.get(name, name): int(value) if value.isdigit() else value for name, value in pairs}


def _log(directory: Path, name: str) -> IO[bytes]:
    """Opens a run's log; where that cannot be, one that is not kept."""
    try:
        (directory / "logs").mkdir(exist_ok=True)
        return (directory / "logs" / f"{name}.log").open("w+b")
    except OSError:
        return tempfile.TemporaryFile()


def _printed(stdout: str, session: str) -> Record | None:
    """Returns the record of this session that a run has printed, if there is one."""
    for line in reversed(stdout.splitlines()):
        try:
            record = Record.from_json(line)
        except ValueError:
            continue
        return record if record.identity.session_id == session else None
    return None


def _what_happened(ended: child_process.Ended, output: str, timeout_seconds: float) -> tuple[Status, str]:
    """Returns how a process ended that left no record, in words."""
    lines = [line for line in output.splitlines() if line.strip()]
    said = f" It said: {' / '.join(lines[-_TAIL_LINES:])[-500:]}" if lines else ""
    refused = [line.removeprefix("run_bench: ") for line in lines if line.startswith("run_bench: ")]
    if ended.timed_out:
        return Status.TIMEOUT, f"Not done after {timeout_seconds:g} s (--round_timeout_seconds), and killed.{said}"
    if ended.returncode == _USAGE and refused and "--output_dir=" not in refused[-1]:
        return Status.SKIPPED, refused[-1]
    if ended.out_of_memory:
        return Status.OUT_OF_MEMORY, f"Killed by the kernel: the host's memory did not suffice.{said}"
    if ended.returncode < 0:
        name = signal.strsignal(-ended.returncode) or "a signal"
        hint = "; the host's memory may not have sufficed" if ended.returncode == -signal.SIGKILL else ""
        return Status.CRASH, f"Ended by signal {-ended.returncode} ({name}){hint}.{said}"
    return Status.CRASH, f"Ended with status {ended.returncode} and left no record.{said}"
