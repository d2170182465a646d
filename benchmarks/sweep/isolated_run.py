"""One cell of a grid, run in a process of its own: whatever happens to that becomes a record. No TensorFlow."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from benchmarks.process import subprocesses
from benchmarks.record_files import keep
from benchmarks.run import time_slices
from benchmarks.sweep.grid import Cell
from benchmarks.system import hardware
from benchmarks.system.provenance import Provenance
from models import specs
from results.measurement import Derived, Measurement
from results.record import Record, Status
from results.store import Store

DEFAULT_TIMEOUT_SECONDS = 3600.0
_USAGE, _TAIL_LINES = 2, 5


@dataclasses.dataclass(frozen=True)
class Started:
    """What was started for a cell; `size_bytes` is what the store held before."""

    cell: Cell
    command: subprocesses.Command
    size_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class CellRunner:
    """Runs cells, one process each; their records go to one store.

    Attributes:
        program: runs a cell, given its flags.
        store: where records are kept; logs lie beside them.
        output_dir: the store's directory, as the program is told it.
        provenance: of all runs; its session tells their records from others.
        timeout_seconds: of one run.
        timeout_flag: what the user would say to change that, if there is such a flag.
        first_to_be_killed: whether the kernel shall kill a run before any other process if memory does not suffice.
    """

    program: Sequence[str]
    store: Store
    output_dir: str
    provenance: Provenance
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    timeout_flag: str = ""
    first_to_be_killed: bool = False

    def run(self, cell: Cell, number: int) -> Record:
        """Runs a cell and returns its record, which has been kept; `number`, from 0, names the log."""
        with self.ready(cell, number) as started:
            (ended,) = subprocesses.run(started.command, timeout_seconds=self.timeout_seconds)
            return self.record_of(started, ended, self.timeout_seconds)

    @contextlib.contextmanager
    def ready(self, cell: Cell, number: int, turns_with: time_slices.End | None = None) -> Iterator[Started]:
        """Yields what is started to run a cell, as long as what it says is wanted."""
        session = self.provenance.session_id
        own = (f"--output_dir={self.output_dir}", f"--session_id={session}", "--output_format=json")
        with (
            tempfile.TemporaryFile() as stdout,
            _log(self.store.jsonl_path.parent, f"{session}-{number + 1:04d}") as log,
        ):
            command = subprocesses.Command(
                words=[*self.program, *cell.arguments, *own],
                stdout=stdout,
                stderr=log,
                first_to_be_killed=self.first_to_be_killed,
                variables=turns_with.variables() if turns_with else {},
                hands_over=[turns_with.socket] if turns_with else [],
            )
            yield Started(cell, command, self.store.size_bytes())

    def record_of(self, started: Started, ended: subprocesses.Ended, limit_seconds: float) -> Record:
        """Returns the record of what has ended, or was killed after so long, which has been kept."""
        cell, session = started.cell, self.provenance.session_id
        said, logged = (_whole(file) for file in (started.command.stdout, started.command.stderr))
        loaded = self.store.load(started.size_bytes)
        left = [record for record in loaded.records if record.identity.session_id == session]
        if left:
            return left[-1]
        # What could not be stored, on a full disk for one, has been printed.
        output = "\n".join([logged, said, *loaded.problems])
        limit = f"{limit_seconds:g} s" + (f" ({self.timeout_flag})" if self.timeout_flag else "")
        record = _printed(said, session) or self._without_run(cell, *_what_happened(ended, output, limit))
        keep(self.store, record)
        return record

    def refuse(self, cell: Cell) -> Record:
        """Returns the record of a cell that cannot be run, which has been kept."""
        record = self._without_run(cell, Status.SKIPPED, cell.why_not)
        keep(self.store, record)
        return record

    def _without_run(self, cell: Cell, status: Status, reason: str) -> Record:
        """Returns the record of a run that left none, or that there cannot be."""
        config = cell.config.to_dict() if cell.config else given(cell)
        in_key = cell.config.key_fields() if cell.config else config
        provenance = self.provenance
        if cell.config is None or cell.config.device == "cpu":  # such a run does not look at GPUs
            provenance = dataclasses.replace(provenance, inventory=hardware.Inventory())
        return Record(
            identity=dataclasses.replace(provenance.identity(in_key), command=list(cell.arguments)),
            config=config,
            config_aside=cell.config.aside_fields() if cell.config else [],
            environment=provenance.environment,
            model=specs.find(cell.config.model).facts() if cell.config else {},
            placement={},
            measurement=Measurement(images_per_step=cell.config.batch_global if cell.config else None),
            derived=Derived(),
            status=status,
            reason=reason,
        )


def run_in_turn(runners: Sequence[CellRunner], cell: Cell, number: int) -> list[Record]:
    """Runs a cell with two runners at once, so that they measure in turn, and returns their records.

    Args:
        runners: the first has the first turn. Together they may take as long as one after the other.
        cell: what both run.
        number: of the first one's log, from 0; the second has the next.
    """
    limit = sum(runner.timeout_seconds for runner in runners)
    ends = time_slices.pair()
    with contextlib.ExitStack() as stack:
        for end in ends:
            stack.enter_context(end.socket)
        started = [
            stack.enter_context(runner.ready(cell, number + index, end))
            for index, (runner, end) in enumerate(zip(runners, ends, strict=True))
        ]
        ended = subprocesses.run(*(each.command for each in started), timeout_seconds=limit)
        return [r.record_of(s, e, limit) for r, s, e in zip(runners, started, ended, strict=True)]


def given(cell: Cell) -> dict[str, Any]:
    """Returns what an impossible cell asked for, under the names that a configuration has for it."""
    names = {"num_gpus": "num_devices", "batch_size": "batch_per_device"}
    pairs = (argument.removeprefix("--").split("=", 1) for argument in cell.arguments)
    return {names.get(name, name): int(value) if value.isdigit() else value for name, value in pairs}


def _whole(file: IO[bytes] | None) -> str:
    assert file is not None, "each run has files of its own"
    file.seek(0)
    return file.read().decode(errors="replace")


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


def _what_happened(ended: subprocesses.Ended, output: str, limit: str) -> tuple[Status, str]:
    """Returns how a process ended that left no record, in words."""
    lines = [line for line in output.splitlines() if line.strip()]
    said = f" It said: {' / '.join(lines[-_TAIL_LINES:])[-500:]}" if lines else ""
    refused = [line.removeprefix("run_bench: ") for line in lines if line.startswith("run_bench: ")]
    if ended.timed_out:
        return Status.TIMEOUT, f"Not done after {limit}, and killed.{said}"
    if ended.returncode == _USAGE and refused and "--output_dir=" not in refused[-1]:
        return Status.SKIPPED, refused[-1]
    if ended.out_of_memory:
        return Status.OUT_OF_MEMORY, f"Killed by the kernel: the host's memory did not suffice.{said}"
    if ended.returncode < 0:
        name = signal.strsignal(-ended.returncode) or "a signal"
        hint = "; the host's memory may not have sufficed" if ended.returncode == -signal.SIGKILL else ""
        return Status.CRASH, f"Ended by signal {-ended.returncode} ({name}){hint}.{said}"
    return Status.CRASH, f"Ended with status {ended.returncode} and left no record.{said}"
