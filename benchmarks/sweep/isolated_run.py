"""Runs a cell of a grid in a process of its own; every outcome of the process becomes a record. No TensorFlow."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import os
import shutil
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from msgspec.structs import replace

from benchmarks.console import progress, warn
from benchmarks.errors import BenchError, ExitStatus, says_no_memory
from benchmarks.machine import hardware
from benchmarks.machine.provenance import Provenance, of_this_run
from benchmarks.measure import interleaved_steps
from benchmarks.outside_text import whole_number
from benchmarks.process import sentinel, subprocesses
from benchmarks.process.signals import signal_in_words
from benchmarks.record_files import open_store, save
from benchmarks.run.run_record import base_record, out_of_memory
from benchmarks.sweep.grid import Cell
from results.loading import load
from results.measurement import Derived, Measurement
from results.record import Record, Status
from results.store import Store
from results.text import counted

PROGRAM: Sequence[str] = (sys.executable, str(subprocesses.RUN_BENCH))
DEFAULT_TIMEOUT_SECONDS = 3600.0
# After which a process that was stopped, as by SIGSTOP, is killed if another one interleaves its steps with it.
_STOPPED_SECONDS = 120.0
_TAIL_LINES = 5
# What is left of a log that filled the disk.
_LEFT_BYTES = 2**20
# What the C++ library prints when it ends a process that no memory is left for.
_NO_MEMORY = "std::bad_alloc"
# How TensorFlow ends its process; of what it could not allocate and did without, it prints lines, too.
_CHECK_FAILED = "Check failed"


def new_session(command: Sequence[str], *, on_gpus: bool, session_id: str | None = None) -> Provenance:
    """Returns the provenance of the runs of a command, under a new session id unless one is given."""
    return of_this_run(command, on_gpus=on_gpus, session_id=session_id or uuid.uuid4().hex[:12])


@dataclasses.dataclass(kw_only=True)
class CellRunner:
    """Runs cells, one process each; their records go to one store.

    Attributes:
        output_dir: directory of the records and logs, as the program receives it.
        provenance: of all runs; its session id marks their records.
        program: words that run a cell, given its flags.
        directory: in which they run; None: that of this process.
        variables: of their environment, beside those of this process.
        timeout_seconds: of one run.
        timeout_flag: the flag that changes it, if there is one.
        numbers: name the logs of a session; runners of one session may share them.
        store: receives the records.
        records: of all runs so far.

    Raises:
        UsageError: the directory cannot be written.
    """

    output_dir: str
    provenance: Provenance
    program: Sequence[str] = dataclasses.field(default_factory=lambda: PROGRAM)
    directory: Path | None = None
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    timeout_flag: str = ""
    numbers: Iterator[int] = dataclasses.field(default_factory=lambda: itertools.count(1))
    records: list[Record] = dataclasses.field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.store: Store = open_store(self.output_dir)

    def run_cell(self, cell: Cell, what: str) -> Record:
        """Runs a cell and returns its stored record; `what` is shown meanwhile."""
        return run_together([self], [cell], what)[0]

    @contextlib.contextmanager
    def ready(self, cell: Cell, end: interleaved_steps.RunSocket | None) -> Iterator[subprocesses.Command]:
        """Yields a cell's command with files for its output; `end` connects it to a run to interleave with."""
        session = self.provenance.session_id
        flags = (f"--output_dir={self.output_dir}", f"--session_id={session}", "--output_format=json")
        directory = self.store.jsonl_path.parent
        with _temporary_file(directory) as stdout, _log(directory, f"{session}-{next(self.numbers):04d}") as log:
            yield subprocesses.Command(
                words=[*self.program, *cell.arguments, *flags],
                stdout=stdout,
                stderr=log,
                first_to_be_killed=True,
                directory=self.directory,
                variables={**self.variables, **sentinel.RECORDED_BY_PARENT, **(end.variables() if end else {})},
                hands_over=[end.socket] if end else [],
                patience=lambda status: 0.0 if interleaved_steps.waited_in_vain(subprocesses.tail(log)) else math.inf,
                stopped_seconds=_STOPPED_SECONDS if end else math.inf,
            )

    def record_of(
        self, cell: Cell, command: subprocesses.Command, ended: subprocesses.ExitInfo, before: IO[bytes], killed: str
    ) -> Record:
        """Returns the record of a process that ended or was killed; stores it unless the process did.

        `before` is the store's file, at its end before the process; `killed` is when or why it was, if it was.
        """
        session, path = self.provenance.session_id, self.store.jsonl_path
        was_removed = not (path.exists() and os.path.samestat(os.fstat(before.fileno()), path.stat()))
        if was_removed:  # the run may have stored its record before that, or in a new file
            loaded = load(Path(f"/proc/self/fd/{before.fileno()}"), *([path] if path.exists() else []))
        else:
            loaded = self.store.load(before.tell())
        known = {record.identity.run_id for record in self.records}
        new = [each for each in loaded.records if each.identity.session_id == session]
        # A run prints its record, which others of this session may follow in the store, or which may not be in it, on
        # a full disk for example. One that was killed prints nothing.
        if printed := _printed(command.stdout, session):
            new = [each for each in new if each.identity.run_id == printed.identity.run_id]
        record = next((each for each in reversed(new) if each.identity.run_id not in known), None)
        is_stored = record is not None
        if record is None and (record := printed) is None:
            output = "\n".join([subprocesses.tail(command.stderr), subprocesses.tail(command.stdout), *loaded.problems])
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
        return self.save_without_run(cell, Status.SKIPPED, cell.why_not)

    def save_without_run(self, cell: Cell, status: Status, reason: str) -> Record:
        """Stores and returns the record of a cell of which there is no run."""
        (record,), _ = save(self.store, self._without_run(cell, status, reason))
        self.records.append(record)
        return record

    def _without_run(self, cell: Cell, status: Status, reason: str) -> Record:
        """Returns the record of a run that left none, or that there cannot be."""
        provenance = dataclasses.replace(self.provenance, command=list(cell.arguments))
        if cell.config is None or not cell.config.devices.on_gpu:  # such a run does not look at GPUs
            provenance = dataclasses.replace(provenance, inventory=hardware.Inventory())
        if cell.config and self.directory is None:  # in another directory a model may be another one
            return replace(base_record(cell.config, provenance, status, reason), warnings=[])
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


def run_together(runners: Sequence[CellRunner], cells: Sequence[Cell], what: str) -> list[Record]:
    """Runs one cell, or two at once that interleave their steps, each with its runner, and returns the records.

    Args:
        runners: the first one begins. Together they may take as long as one after the other.
        cells: what each of them runs.
        what: is shown meanwhile.

    Raises:
        BenchError: a store was removed, and cannot be made again.
    """
    limit = sum(runner.timeout_seconds for runner in runners)
    ends = interleaved_steps.pair() if len(runners) > 1 else (None,)
    with contextlib.ExitStack() as stack:
        # Nothing is drawn while a run measures: it must not share its cores with a bar.
        progress.begin(what, measured=True)
        stack.callback(progress.end)
        for end in filter(None, ends):
            stack.enter_context(end.socket)
        try:
            before = [stack.enter_context(runner.opened()) for runner in runners]
            commands = [
                stack.enter_context(runner.ready(cell, end))
                for runner, cell, end in zip(runners, cells, ends, strict=True)
            ]
            ended = subprocesses.supervise(*commands, timeout_seconds=limit)
        except OSError as error:
            why = f"Its process could not be started: {error.strerror or error}. Free memory, processes or disk space."
            both = zip(runners, cells, strict=True)
            return [runner.save_without_run(cell, Status.CRASH, why) for runner, cell in both]
        in_vain = any(interleaved_steps.waited_in_vain(subprocesses.tail(command.stderr)) for command in commands)
        flag = f" ({runners[0].timeout_flag})" if runners[0].timeout_flag else ""
        killed = (
            "because the run beside it waited in vain for its time slice" if in_vain else f"after {limit:g} s{flag}"
        )
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


def _log(directory: Path, name: str) -> IO[bytes]:
    try:
        (directory / "logs").mkdir(exist_ok=True)
        return (directory / "logs" / f"{name}.log").open("w+b")
    except OSError:
        return _temporary_file(directory)


def _temporary_file(directory: Path) -> IO[bytes]:
    """Opens a file without a name: in the temporary folder or in the results directory, whichever has more room.

    Raises:
        OSError: it cannot be written.
    """
    folders = [directory]
    with contextlib.suppress(FileNotFoundError):  # there is none that can be written
        folders.append(Path(tempfile.gettempdir()))
    return tempfile.TemporaryFile(dir=max(folders, key=_free_bytes))


def _free_bytes(folder: Path) -> int:
    try:
        return shutil.disk_usage(folder).free
    except OSError:  # such as a TMPDIR that was removed during a sweep
        return -1


def _printed(stdout: IO[bytes] | None, session: str) -> Record | None:
    """Returns the last record of this session that a run printed, if any."""
    assert stdout is not None, "each run has files of its own"
    stdout.seek(0)
    last = None
    for line in stdout:  # which may be many millions
        if line.startswith(b"{"):
            with contextlib.suppress(ValueError):
                record = Record.from_json(line)
                last = record if record.identity.session_id == session else last
    return last


def _what_happened(cell: Cell, ended: subprocesses.ExitInfo, output: str, killed: str) -> tuple[Status, str]:
    """Returns how a process ended that left no record, with its last lines of output."""
    lines = [line for line in output.splitlines() if line.strip()]
    last_output = f" Its last output: {' / '.join(lines[-_TAIL_LINES:])[-500:]}" if lines else ""
    refused = [line.removeprefix("run_bench: ") for line in lines if line.startswith("run_bench: ")]
    if ended.timed_out:
        return Status.TIMEOUT, f"Killed {killed} without finishing.{last_output}"
    if ended.was_killed:
        return Status.TIMEOUT if ended.was_stopped else Status.CRASH, f"The run {ended.in_words()}.{last_output}"
    if ended.returncode == ExitStatus.USAGE and refused and "--output_dir=" not in refused[-1]:
        return Status.SKIPPED, refused[-1]
    fatal = (line for line in output.splitlines() if _CHECK_FAILED in line)
    if ended.out_of_memory or _NO_MEMORY in output or any(map(says_no_memory, fatal)):
        by = f"The run {ended.in_words()}" if ended.out_of_memory else "Memory could not be allocated"
        reason = f"{by}: {' '.join(cell.arguments)}. Try a smaller --batch_size."
        if cell.config:
            reason = out_of_memory(by, cell.config)
        return Status.OUT_OF_MEMORY, f"{reason}{last_output}"
    if ended.returncode < 0:
        by = signal_in_words(-ended.returncode, "; the host may have run out of memory")
        return Status.CRASH, f"Ended by {by}.{last_output}"
    return Status.CRASH, f"Ended with status {ended.returncode} and left no record.{last_output}"
