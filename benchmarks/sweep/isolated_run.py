"""Runs a cell of a grid in a process of its own; every outcome of the process becomes a record. No TensorFlow."""

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
from benchmarks.run.runner import record_without_run
from benchmarks.sweep.grid import Cell
from benchmarks.system import hardware
from benchmarks.system.provenance import Provenance
from results.measurement import Derived, Measurement
from results.record import Record, Status
from results.store import Store

DEFAULT_TIMEOUT_SECONDS = 3600.0
_USAGE, _TAIL_LINES = 2, 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class CellRunner:
    """Runs cells, one process each; their records go to one store.

    Attributes:
        program: words that run a cell, given its flags.
        store: receives the records; logs lie beside it.
        output_dir: the store's directory, as the program receives it.
        provenance: of all runs; its session id marks their records.
        timeout_seconds: of one run.
        timeout_flag: the flag that changes it, if there is one.
        first_to_be_killed: whether the kernel should kill a run before any other process if memory runs out.
    """

    program: Sequence[str]
    store: Store
    output_dir: str
    provenance: Provenance
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    timeout_flag: str = ""
    first_to_be_killed: bool = False

    def run(self, cell: Cell, number: int) -> Record:
        """Runs a cell and returns its stored record; `number`, from 0, names the log."""
        return run_together([self], cell, number)[0]

    @contextlib.contextmanager
    def ready(self, cell: Cell, number: int, end: time_slices.End | None) -> Iterator[subprocesses.Command]:
        """Yields a cell's command with files for its output; `end` connects it to a run to interleave with."""
        session = self.provenance.session_id
        own = (f"--output_dir={self.output_dir}", f"--session_id={session}", "--output_format=json")
        with (
            tempfile.TemporaryFile() as stdout,
            _log(self.store.jsonl_path.parent, f"{session}-{number + 1:04d}") as log,
        ):
            yield subprocesses.Command(
                words=[*self.program, *cell.arguments, *own],
                stdout=stdout,
                stderr=log,
                first_to_be_killed=self.first_to_be_killed,
                variables=end.variables() if end else {},
                hands_over=[end.socket] if end else [],
            )

    def record_of(
        self, cell: Cell, command: subprocesses.Command, ended: subprocesses.Ended, stored_bytes: int, limit: float
    ) -> Record:
        """Returns the record of a process that ended or was killed at its limit; stores it unless the process did.

        `stored_bytes` is the size of the store before the process.
        """
        session = self.provenance.session_id
        printed, logged = _whole(command.stdout), _whole(command.stderr)
        loaded = self.store.load(stored_bytes)
        if stored := [record for record in loaded.records if record.identity.session_id == session]:
            return stored[-1]
        output = "\n".join([logged, printed, *loaded.problems])
        in_words = f"{limit:g} s" + (f" ({self.timeout_flag})" if self.timeout_flag else "")
        # A run prints the record that it cannot store, on a full disk for example.
        record = _printed(printed, session) or self._without_run(cell, *_what_happened(ended, output, in_words))
        keep(self.store, record)
        return record

    def refuse(self, cell: Cell) -> Record:
        """Stores and returns the record of a cell that cannot be run."""
        record = self._without_run(cell, Status.SKIPPED, cell.why_not)
        keep(self.store, record)
        return record

    def _without_run(self, cell: Cell, status: Status, reason: str) -> Record:
        """Returns the record of a run that left none, or that there cannot be."""
        provenance = dataclasses.replace(self.provenance, command=list(cell.arguments))
        if cell.config is None or cell.config.device == "cpu":  # such a run does not look at GPUs
            provenance = dataclasses.replace(provenance, inventory=hardware.Inventory())
        if cell.config:
            return dataclasses.replace(record_without_run(cell.config, provenance, status, reason), warnings=[])
        return Record(
            identity=provenance.identity(given(cell)),
            config=given(cell),
            environment=provenance.environment,
            model={},
            placement={},
            measurement=Measurement(images_per_step=None),
            derived=Derived(),
            status=status,
            reason=reason,
        )


def run_together(runners: Sequence[CellRunner], cell: Cell, number: int) -> list[Record]:
    """Runs a cell with one runner, or with two at once that interleave their steps, and returns the records.

    Args:
        runners: the first one begins. Together they may take as long as one after the other.
        cell: what each of them runs.
        number: of the first runner's log, from 0; the second has the next.
    """
    limit = sum(runner.timeout_seconds for runner in runners)
    ends = time_slices.pair() if len(runners) > 1 else (None,)
    with contextlib.ExitStack() as stack:
        for end in filter(None, ends):
            stack.enter_context(end.socket)
        sizes = [runner.store.size_bytes() for runner in runners]
        commands = [
            stack.enter_context(runner.ready(cell, number + index, end))
            for index, (runner, end) in enumerate(zip(runners, ends, strict=True))
        ]
        ended = subprocesses.run(*commands, timeout_seconds=limit)
        return [
            runner.record_of(cell, command, how, size, limit)
            for runner, command, how, size in zip(runners, commands, ended, sizes, strict=True)
        ]


def given(cell: Cell) -> dict[str, Any]:
    """Returns the values of a cell's flags, under the names of configuration fields."""
    names = {"num_gpus": "num_devices", "batch_size": "batch_per_device"}
    pairs = (argument.removeprefix("--").split("=", 1) for argument in cell.arguments)
    return {names.get(name, name): int(value) if value.isdigit() else value for name, value in pairs}


def _whole(file: IO[bytes] | None) -> str:
    assert file is not None, "each run has files of its own"
    file.seek(0)
    return file.read().decode(errors="replace")


def _log(directory: Path, name: str) -> IO[bytes]:
    """Opens a run's log; a temporary one if the directory cannot be written."""
    try:
        (directory / "logs").mkdir(exist_ok=True)
        return (directory / "logs" / f"{name}.log").open("w+b")
    except OSError:
        return tempfile.TemporaryFile()


def _printed(stdout: str, session: str) -> Record | None:
    """Returns the record of this session that a run printed, if any."""
    for line in reversed(stdout.splitlines()):
        try:
            record = Record.from_json(line)
        except ValueError:
            continue
        return record if record.identity.session_id == session else None
    return None


def _what_happened(ended: subprocesses.Ended, output: str, limit: str) -> tuple[Status, str]:
    """Returns how a process ended that left no record, with its last lines of output."""
    lines = [line for line in output.splitlines() if line.strip()]
    said = f" Its last output: {' / '.join(lines[-_TAIL_LINES:])[-500:]}" if lines else ""
    refused = [line.removeprefix("run_bench: ") for line in lines if line.startswith("run_bench: ")]
    if ended.timed_out:
        return Status.TIMEOUT, f"Killed after {limit} without finishing.{said}"
    if ended.returncode == _USAGE and refused and "--output_dir=" not in refused[-1]:
        return Status.SKIPPED, refused[-1]
    if ended.out_of_memory:
        return Status.OUT_OF_MEMORY, f"Killed by the kernel: the host ran out of memory.{said}"
    if ended.returncode < 0:
        name = signal.strsignal(-ended.returncode) or "a signal"
        hint = "; the host may have run out of memory" if ended.returncode == -signal.SIGKILL else ""
        return Status.CRASH, f"Ended by signal {-ended.returncode} ({name}){hint}.{said}"
    return Status.CRASH, f"Ended with status {ended.returncode} and left no record.{said}"
