"""Runs a cell of a grid in a process of its own; every outcome of the process becomes a record. No TensorFlow."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from msgspec.structs import replace

from benchmarks.console import warn
from benchmarks.errors import BenchError, says_no_memory
from benchmarks.machine import hardware
from benchmarks.machine.provenance import Provenance
from benchmarks.measure import interleaved_steps
from benchmarks.outside_text import whole_number
from benchmarks.process import sentinel, silence, subprocesses
from benchmarks.record_files import save
from benchmarks.run.run_record import out_of_memory, record_without_run
from benchmarks.sweep.grid import Cell
from results.loading import Loaded, load
from results.measurement import Derived, Measurement
from results.record import Record, Status
from results.store import Store
from results.text import counted

DEFAULT_TIMEOUT_SECONDS = 3600.0
_USAGE, _TAIL_LINES, _TAIL_BYTES = 2, 5, 2**16
# What is left of a log that filled the disk.
_LEFT_BYTES = 2**20
# What the C++ library prints when it ends a process that no memory is left for.
_NO_MEMORY = "std::bad_alloc"
# How TensorFlow ends its process; of what it could not allocate and did without, it prints lines, too.
_CHECK_FAILED = "Check failed"


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
        records: of all runs so far.
    """

    program: Sequence[str]
    store: Store
    output_dir: str
    provenance: Provenance
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    timeout_flag: str = ""
    records: list[Record] = dataclasses.field(default_factory=list, init=False)

    def run(self, cell: Cell, number: int) -> Record:
        """Runs a cell and returns its stored record; `number`, from 0, names the log."""
        return run_together([self], [cell], number)[0]

    @contextlib.contextmanager
    def ready(self, cell: Cell, number: int, end: interleaved_steps.End | None) -> Iterator[subprocesses.Command]:
        """Yields a cell's command with files for its output; `end` connects it to a run to interleave with."""
        session = self.provenance.session_id
        own = (f"--output_dir={self.output_dir}", f"--session_id={session}", "--output_format=json")
        directory = self.store.jsonl_path.parent
        with _temporary_file(directory) as stdout, _log(directory, f"{session}-{number + 1:04d}") as log:
            yield subprocesses.Command(
                words=[*self.program, *cell.arguments, *own],
                stdout=stdout,
                stderr=log,
                first_to_be_killed=True,
                variables={**sentinel.recorded_by_parent(), **(end.variables() if end else {})},
                hands_over=[end.socket] if end else [],
                ends_all=lambda: interleaved_steps.waited_in_vain(_tail(log)),
                waits=lambda: interleaved_steps.waits_for_other(_tail(log)),
            )

    def record_of(
        self, cell: Cell, command: subprocesses.Command, ended: subprocesses.Ended, before: IO[bytes], killed: str
    ) -> Record:
        """Returns the record of a process that ended or was killed; stores it unless the process did.

        `before` is the store's file, at its end before the process; `killed` is when or why it was, if it was.
        """
        session, was_removed = self.provenance.session_id, not _is_still(before, self.store.jsonl_path)
        loaded = self._left_in(before) if was_removed else self.store.load(before.tell())
        known = {record.identity.run_id for record in self.records}
        new = [each for each in loaded.records if each.identity.session_id == session]
        # A run prints its record, which others of this session may follow in the store, or which may not be in it, on
        # a full disk for example. One that was killed prints nothing.
        if printed := _printed(command.stdout, session):
            new = [each for each in new if each.identity.run_id == printed.identity.run_id]
        record = next((each for each in reversed(new) if each.identity.run_id not in known), None)
        is_stored = record is not None
        if record is None and (record := printed) is None:
            output = "\n".join([_tail(command.stderr), _tail(command.stdout), *loaded.problems])
            record = self._without_run(cell, *_what_happened(cell, ended, output, killed))
        if ended.wrote_too_much and command.stderr:
            command.stderr.truncate(min(_LEFT_BYTES, os.fstat(command.stderr.fileno()).st_size))
        if not was_removed and not is_stored:
            (record,), _ = save(self.store, record)
        self.records.append(record)
        if was_removed:
            self._store_again()
        return record

    def opened(self) -> IO[bytes]:
        """Opens the store's file at its end; if it was removed, stores the records of all runs again.

        Raises:
            BenchError: it cannot be made again.
        """
        if not self.store.jsonl_path.exists():
            self._store_again()
        file = self.store.jsonl_path.open("rb")
        file.seek(0, os.SEEK_END)
        return file

    def _left_in(self, removed: IO[bytes]) -> Loaded:
        """Reads a file that was removed, and the one that may have taken its place."""
        path = self.store.jsonl_path
        return load(Path(f"/proc/self/fd/{removed.fileno()}"), *([path] if path.exists() else []))

    def _store_again(self) -> None:
        """Stores the records that a file which was removed no longer has."""
        path = self.store.jsonl_path
        stored = {record.identity.run_id for record in self.store.load().records}
        missing = [record for record in self.records if record.identity.run_id not in stored]
        _, are_stored = save(self.store, *missing)
        if not are_stored:
            raise BenchError(f"{path} was removed while runs were to be stored in it, and it cannot be made again.")
        warn(f"{path} was removed. It was made again, with {counted(len(missing), 'record')} of this session.")

    def refuse(self, cell: Cell) -> Record:
        """Stores and returns the record of a cell that cannot be run."""
        return self._keep_without_run(cell, Status.SKIPPED, cell.why_not)

    def could_not_start(self, cell: Cell, error: OSError) -> Record:
        """Stores and returns the record of a cell whose process was refused by the operating system."""
        reason = f"Its process could not be started: {error.strerror or error}. Free memory, processes or disk space."
        return self._keep_without_run(cell, Status.CRASH, reason)

    def _keep_without_run(self, cell: Cell, status: Status, reason: str) -> Record:
        (record,), _ = save(self.store, self._without_run(cell, status, reason))
        self.records.append(record)
        return record

    def _without_run(self, cell: Cell, status: Status, reason: str) -> Record:
        """Returns the record of a run that left none, or that there cannot be."""
        provenance = dataclasses.replace(self.provenance, command=list(cell.arguments))
        if cell.config is None or cell.config.devices.device == "cpu":  # such a run does not look at GPUs
            provenance = dataclasses.replace(provenance, inventory=hardware.Inventory())
        if cell.config:
            return replace(record_without_run(cell.config, provenance, status, reason), warnings=[])
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


def run_together(runners: Sequence[CellRunner], cells: Sequence[Cell], number: int) -> list[Record]:
    """Runs one cell, or two at once that interleave their steps, each with its runner, and returns the records.

    Args:
        runners: the first one begins. Together they may take as long as one after the other.
        cells: what each of them runs.
        number: of the first runner's log, from 0; the second has the next.

    Raises:
        BenchError: a store was removed, and cannot be made again.
    """
    limit = sum(runner.timeout_seconds for runner in runners)
    ends = interleaved_steps.pair() if len(runners) > 1 else (None,)
    with contextlib.ExitStack() as stack:
        for end in filter(None, ends):
            stack.enter_context(end.socket)
        try:
            before = [stack.enter_context(runner.opened()) for runner in runners]
            commands = [
                stack.enter_context(runner.ready(cell, number + index, end))
                for index, (runner, cell, end) in enumerate(zip(runners, cells, ends, strict=True))
            ]
            ended = subprocesses.supervise(*commands, timeout_seconds=limit)
        except OSError as error:
            return [runner.could_not_start(cell, error) for runner, cell in zip(runners, cells, strict=True)]
        in_vain = any(command.ends_all() for command in commands)
        flag = f" ({runners[0].timeout_flag})" if runners[0].timeout_flag else ""
        killed = "because the run beside it waited in vain for its turn" if in_vain else f"after {limit:g} s{flag}"
        return [
            runner.record_of(cell, command, how, file, killed)
            for runner, cell, command, how, file in zip(runners, cells, commands, ended, before, strict=True)
        ]


def given(cell: Cell) -> dict[str, Any]:
    """Returns the values of a cell's flags, under the names of configuration fields."""
    names = {"num_gpus": "num_devices", "batch_size": "batch_per_device"}
    pairs = (argument.removeprefix("--").split("=", 1) for argument in cell.arguments)
    return {
        names.get(name, name): value if (number := whole_number(value)) is None else number for name, value in pairs
    }


def _is_still(file: IO[bytes], path: Path) -> bool:
    """Returns whether an open file still has its name."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except OSError:
        return False


def _tail(file: IO[bytes] | None) -> str:
    """Returns the end of a file, whose position stays: a run that writes into it shares that."""
    assert file is not None, "each run has files of its own"
    file.flush()
    number = file.fileno()
    return os.pread(number, _TAIL_BYTES, max(0, os.fstat(number).st_size - _TAIL_BYTES)).decode(errors="replace")


def _log(directory: Path, name: str) -> IO[bytes]:
    """Opens a run's log; a temporary one if the directory cannot be written."""
    try:
        (directory / "logs").mkdir(exist_ok=True)
        return (directory / "logs" / f"{name}.log").open("w+b")
    except OSError:
        return _temporary_file(directory)


def _temporary_file(directory: Path) -> IO[bytes]:
    """Opens a file without a name: in the temporary folder or in the results directory, whichever has more room.

    Raises:
        OSError: neither can be written.
    """
    first, second = sorted((Path(tempfile.gettempdir()), directory), key=_free_bytes, reverse=True)
    try:
        return tempfile.TemporaryFile(dir=first)
    except OSError:
        return tempfile.TemporaryFile(dir=second)


def _free_bytes(folder: Path) -> int:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return -1


def _printed(stdout: IO[bytes] | None, session: str) -> Record | None:
    """Returns the last record of this session that a run printed, if any."""
    assert stdout is not None, "each run has files of its own"
    stdout.seek(0)
    found = None
    for line in stdout:  # which may be many millions
        if line.startswith(b"{"):
            with contextlib.suppress(ValueError):
                record = Record.from_json(line)
                found = record if record.identity.session_id == session else found
    return found


def _what_happened(cell: Cell, ended: subprocesses.Ended, output: str, killed: str) -> tuple[Status, str]:
    """Returns how a process ended that left no record, with its last lines of output."""
    lines = [line for line in output.splitlines() if line.strip()]
    said = f" Its last output: {' / '.join(lines[-_TAIL_LINES:])[-500:]}" if lines else ""
    refused = [line.removeprefix("run_bench: ") for line in lines if line.startswith("run_bench: ")]
    if ended.was_silent:
        return Status.TIMEOUT, (
            f"Killed because it neither computed nor wrote anything for {silence.SILENT_SECONDS:g} s while it started "
            f"(it may be stopped), and the run beside it waited for it.{said}"
        )
    if ended.timed_out:
        return Status.TIMEOUT, f"Killed {killed} without finishing.{said}"
    if ended.wrote_too_much:
        return (
            Status.CRASH,
            f"Killed because it wrote more than {subprocesses.MOST_OUTPUT_BYTES:,} bytes of output.{said}",
        )
    if ended.returncode == _USAGE and refused and "--output_dir=" not in refused[-1]:
        return Status.SKIPPED, refused[-1]
    fatal = (line for line in output.splitlines() if _CHECK_FAILED in line)
    if ended.out_of_memory or _NO_MEMORY in output or any(map(says_no_memory, fatal)):
        by = "Memory could not be allocated"
        if ended.out_of_memory:
            by = "The kernel killed the run because memory ran out"
        reason = f"{by}: {' '.join(cell.arguments)}. Try a smaller --batch_size."
        if cell.config:
            reason = out_of_memory(by, cell.config.workload, cell.config.devices)
        return Status.OUT_OF_MEMORY, f"{reason}{said}"
    if ended.returncode < 0:
        name = signal.strsignal(-ended.returncode) or "a signal"
        hint = "; the host may have run out of memory" if ended.returncode == -signal.SIGKILL else ""
        return Status.CRASH, f"Ended by signal {-ended.returncode} ({name}){hint}.{said}"
    return Status.CRASH, f"Ended with status {ended.returncode} and left no record.{said}"
