"""Runs that start no process: they take the place of `supervise`, and a function decides how each one ends."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from msgspec.structs import replace

from benchmarks.config.config import Config
from benchmarks.machine import provenance
from benchmarks.machine.provenance import Provenance
from benchmarks.measure.interleaved_steps import TimeSlices
from benchmarks.process.deadlines import Deadlines
from benchmarks.process.subprocesses import Command, ExitInfo
from results.measurement import Measurement, derive
from results.record import Record, Status
from results.store import Store
from tests.support.settings import resolve


@dataclasses.dataclass(frozen=True)
class FakeRun:
    """A run that a verb has started: the words of its command, and its side of the interleaving if it has one."""

    words: Sequence[str]
    slices: TimeSlices | None = None

    @property
    def flags(self) -> dict[str, str]:
        """Returns the values of its flags, as text."""
        return dict(word[2:].split("=", 1) for word in self.words if word.startswith("--"))

    @property
    def config(self) -> Config:
        """Returns the configuration that its flags mean, on a machine without GPUs."""
        words = [word for word in self.words if word.startswith("--")]
        return resolve(*words)

    def leave(self, record: Record) -> None:
        """Stores the record of this run where its flags say."""
        identity = replace(record.identity, session_id=self.flags["session_id"])
        Store(Path(self.flags["output_dir"])).append(replace(record, identity=identity))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failure:
    """The end of a run that leaves no record; with status 0, that of a command that leaves none."""

    returncode: int = 0
    stdout: str = ""
    stderr: str = ""
    timed_out: bool = False


class FakeRuns:
    """Stands for `supervise`; runs that are started together run at once, each in a thread.

    Args:
        behave: returns the record that a run leaves, or how it ends without one; raises what interrupts the verb.

    Attributes:
        started: all runs, in order.
    """

    def __init__(self, behave: Callable[[FakeRun], Record | Failure]) -> None:
        self.started: list[FakeRun] = []
        self._behave = behave

    def __call__(self, *commands: Command, timeout_seconds: float | None) -> list[ExitInfo]:
        runs = [FakeRun(command.words, _time_slices(command)) for command in commands]
        self.started += runs
        if len(runs) == 1:  # in this thread, which alone receives signals
            return [self._run(runs[0], commands[0])]
        with ThreadPoolExecutor(len(runs)) as threads:
            return list(threads.map(self._run, runs, commands))

    def _run(self, run: FakeRun, command: Command) -> ExitInfo:
        with contextlib.ExitStack() as stack:
            for end in command.hands_over:
                stack.callback(end.close)
            if run.slices:
                stack.callback(run.slices.leave)
            found = self._behave(run)
        if isinstance(found, Record):
            run.leave(found)
            command.stderr.write(found.reason.encode())
            return ExitInfo(0, timed_out=False, out_of_memory=False, seconds=1.0)
        command.stdout.write(found.stdout.encode())
        command.stderr.write(found.stderr.encode())
        return ExitInfo(found.returncode, found.timed_out, out_of_memory=False, seconds=1.0)


def _time_slices(command: Command) -> TimeSlices | None:
    """Returns the side of the interleaving that a command hands over, as the run would find it in its environment."""
    if not command.hands_over:
        return None
    (connection,) = command.hands_over
    begins = command.variables["CNN_BENCH_TIME_SLICES"].endswith(":first")
    return TimeSlices(connection, begins=begins, deadlines=Deadlines(step_timeout_seconds=0.0))


def record_of(run: FakeRun, *, step_seconds: float = 0.1) -> Record:
    """Returns the record that this machine's software would leave of a run, after five equal steps."""
    chosen, origin = run.config, _this_machine()
    measurement = Measurement(images_per_step=chosen.batch_global, step_seconds=[step_seconds] * 5, startup_seconds=1.0)
    return Record(
        identity=origin.identity(chosen.key_fields()),
        config=chosen.to_dict(),
        config_not_in_key=chosen.fields_not_in_key(),
        environment={},
        model={},
        placement={},
        measurement=measurement,
        derived=derive(measurement, chosen.devices.num_devices),
        status=Status.OK,
    )


def interrupt(number: int) -> None:
    """Sends this process a signal, unless that would end it without a word."""
    assert callable(signal.getsignal(number)), f"nothing handles signal {number}"
    signal.raise_signal(number)


@functools.cache
def _this_machine() -> Provenance:
    return provenance.of_this_run([], on_gpus=False)
