"""Runs the stages of `recommend`: each candidate is a process of its own. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
import math
import shlex
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.config import run_flags
from benchmarks.config.config import Config
from benchmarks.console import in_words, warn
from benchmarks.machine.hardware import usable_cores
from benchmarks.outside_text import shortened
from benchmarks.sweep.grid import Cell
from benchmarks.sweep.isolated_run import CellRunner
from benchmarks.sweep.progress import estimate_seconds
from benchmarks.tune.halving import NOT_RUN, Candidate, Halving, Outcome, Row, runs_needed
from benchmarks.tune.search_stages import MANAGERS, SearchStage, Texts, cells
from results.quality import warnings_of_others
from results.record import Record, Status
from results.step_statistics import MIN_STEPS_FOR_INTERVAL
from results.text import counted, one_line, rounded

# The first round measures for about this long, but with enough steps for an interval, and with few steps while the
# time of a step is only estimated.
_FIRST_SECONDS = 2.0
_FEWEST_STEPS, _MOST_ESTIMATED_STEPS, _MOST_STEPS = MIN_STEPS_FOR_INTERVAL, 40, 1000
# From the last step to the end of the process.
_END_SECONDS = 3.0
# A run may take its part of the time of its stage, or so many times what runs are estimated to take, for XLA compiles;
# but at least so many seconds.
_PATIENCE, _LEAST_LIMIT_SECONDS = 5.0, 60.0
# Of so many first losses, how far they are below the first one on average is compared. Runs that trained alike differed
# by up to 1.2 times (AlexNet, of which XLA drops other units), those with wrong gradients by 2.6 to 6 (ResNet-50 under
# XLA on an H200).
_COMPARED_STEPS, _FEWEST_COMPARED = 10, 5
_FACTOR, _LEAST_FALL = 2.0, 0.05
_REJECTED = "rejected: "
# The default budget is the estimate, which is rough, times this.
_LEEWAY = 1.5
DEFAULT_OUTPUT_DIR = "out/recommend"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecommendPlan:
    """What `recommend` searches: `fixed` are the user's flags, `usual` is the configuration that they give."""

    fixed: Texts
    usual: Config
    stages: Sequence[SearchStage]
    budget_seconds: float
    output_dir: str = DEFAULT_OUTPUT_DIR
    output_format: str = "text"


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageTable:
    """A stage: its title, the number of devices, and its candidates, best first."""

    title: str
    devices: int
    rows: list[Row]

    @property
    def default_failed(self) -> bool:
        """Whether the settings that earlier stages chose failed in this one."""
        return any(row.is_default and row.reason and not row.reason.startswith(NOT_RUN) for row in self.rows)

    @property
    def is_undecided(self) -> bool:
        """Whether nothing was repeated, and others may be as fast as the choice."""
        return any(row.is_close for row in self.rows) and not any(row.is_repeated for row in self.rows)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """The result of a search.

    Attributes:
        arguments: the flags of the best run; empty if no run succeeded.
        best: the row of the best candidate; None if there is none.
        devices: number of devices on which it was measured.
        tables: one per stage.
        notes: sentences about the choice.
        seconds: duration of the search.
        is_complete: whether it was not interrupted.
        results: path of the records of all runs.
    """

    arguments: list[str]
    best: Row | None
    devices: int
    tables: list[StageTable]
    notes: list[str]
    seconds: float
    is_complete: bool
    results: str


def unrun(choice: Texts, cell: Cell) -> Row:
    """Returns the row of a candidate that has not run, with the reason."""
    return Row(arguments=run_flags.words(choice), reason=f"cannot run: {cell.why_not}" if cell.why_not else NOT_RUN)


def command_line(arguments: Sequence[str]) -> str:
    """Returns the command line of a run; empty if there are no arguments."""
    return f"python run_bench.py {shlex.join(arguments)}" if arguments else ""


def runs_of(stages: Sequence[SearchStage]) -> int:
    """Returns how many runs the stages need at most."""
    return sum(runs_needed(len(stage.choices)) for stage in stages if stage.is_measured)


def estimate_run_seconds(usual: Config) -> float:
    """Returns roughly how long a run of a search takes, its start included."""
    return estimate_seconds(usual, [], _first_steps(usual))


def default_budget(usual: Config, stages: Sequence[SearchStage]) -> float:
    """Returns the seconds in which a search should finish, in whole minutes."""
    return 60.0 * max(1, math.ceil(_LEEWAY * runs_of(stages) * estimate_run_seconds(usual) / 60))


def _first_steps(config: Config, step_seconds: float | None = None) -> int:
    """Returns the number of steps of a first run; `step_seconds`: what a step takes, None if that is not known."""
    most = _MOST_STEPS
    if step_seconds is None:
        step_seconds = (estimate_seconds(config, [], 101) - estimate_seconds(config, [], 1)) / 100
        most = _MOST_ESTIMATED_STEPS
    return max(_FEWEST_STEPS, min(most, round(_FIRST_SECONDS / step_seconds))) if step_seconds else _FEWEST_STEPS


class Finder:
    """Runs the stages of a plan and holds the results so far."""

    def __init__(self, plan: RecommendPlan, runner: CellRunner, count_gpus: Callable[[], int]) -> None:
        self._plan, self._runner, self._count_gpus = plan, runner, count_gpus
        self._begun = time.monotonic()
        self._end = self._stage_end = self._begun + plan.budget_seconds
        self._limit_seconds = _LEAST_LIMIT_SECONDS  # of a run
        self._step_seconds: float | None = None  # of the best so far
        # Candidates that must train the same, by their configuration.
        self._trained: dict[tuple[object, ...], dict[str, Candidate]] = {}
        self._chosen: dict[str, str] = {}
        self._tables: list[StageTable] = []

    def run_stages(self) -> None:
        """Runs all stages that are measured, each in its share of the time."""
        for number, stage in enumerate(self._plan.stages):
            candidates = [Candidate(*each) for each in cells(stage, self._plan.fixed, self._chosen, self._count_gpus)]
            possible = [candidate for candidate in candidates if candidate.cell.runs]
            if len(possible) > 1 or (possible and stage.title == MANAGERS):
                now = time.monotonic()
                seconds = max(0.0, self._end - now) * runs_of([stage]) / runs_of(self._plan.stages[number:])
                self._stage_end = now + seconds
                estimated = _PATIENCE * estimate_run_seconds(self._plan.usual)
                self._limit_seconds = max(_LEAST_LIMIT_SECONDS, estimated, seconds / len(possible))
                warn(f"{stage.title}: {len(possible)} of {len(candidates)} can be run, in {in_words(seconds)}")
                halving = Halving(possible, self._run, _first_steps(_config(possible[0]), self._step_seconds))
                try:
                    halving.search()
                finally:  # also of a search that is stopped
                    self._close(stage, halving, [each for each in candidates if not each.cell.runs])
            elif possible:
                self._chosen |= possible[0].choice

    def answer(self, *, is_complete: bool) -> Answer:
        """Returns the results so far."""
        best, devices = self._best()
        return Answer(
            arguments=run_flags.words({**self._plan.fixed, **self._chosen}) if best else [],
            best=best,
            devices=devices,
            tables=self._tables,
            notes=list(self._warnings()),
            seconds=time.monotonic() - self._begun,
            is_complete=is_complete,
            results=str(self._runner.store.jsonl_path),
        )

    def _best(self) -> tuple[Row | None, int]:
        """Returns the last choice, which all earlier ones are in, and on how many devices it was measured.

        There is none if that choice, and all others, failed in a later stage.
        """
        for table in reversed(self._tables):
            taken = next((row for row in table.rows if row.is_taken), None)
            if taken or table.default_failed:
                return taken, table.devices
        return None, 0

    def _close(self, stage: SearchStage, halving: Halving, impossible: Sequence[Candidate]) -> None:
        """Adds the table of a stage, and chooses its best candidate."""
        ranked = halving.rows()
        rows = [*(row for _, row in ranked), *(unrun(candidate.choice, candidate.cell) for candidate in impossible)]
        self._tables.append(StageTable(title=stage.title, devices=stage.devices, rows=rows))
        for candidate, row in ranked:
            if row.is_taken:
                self._chosen |= candidate.choice
                if row.images_per_sec:
                    self._step_seconds = _config(candidate).batch_global / row.images_per_sec.value

    def _run(self, candidate: Candidate, steps: int) -> Outcome | None:
        limit = min(self._limit_seconds, self._stage_end - time.monotonic())
        if limit < _END_SECONDS + 1:
            return None
        limited = _shortened(candidate, num_batches=steps, time_limit_seconds=round(limit - _END_SECONDS, 1))
        self._runner.timeout_seconds = limit
        left = in_words(max(0.0, self._end - time.monotonic()))
        record = self._runner.run_cell(limited, f"trying {_in_words(candidate)}, up to {left} left")
        outcome = _outcome(record, steps, limit, is_last=limit < self._limit_seconds)
        self._judge(candidate, outcome.losses)
        if outcome.step_seconds and not candidate.reason:
            result = f"{rounded(outcome.images_per_sec)} images/s in {counted(len(outcome.step_seconds), 'step')}"
        else:
            result = candidate.reason or outcome.reason
        warn(f"  {_in_words(candidate)}: {result}   ({in_words(max(0.0, self._end - time.monotonic()))} left)")
        return outcome

    def _judge(self, candidate: Candidate, losses: Sequence[float | None]) -> None:
        """Rejects candidates of which the losses are not those of most that must train the same.

        If as many are on each side, the earlier ones are right, among which the default is. If no two agree, any may be
        wrong, and all are rejected, until a later run agrees with one.
        """
        config = _config(candidate)
        sees_others = config.data.input is not None and config.data.input.sloppy
        learns_alike = not (config.variables.modifiers.asynchronous or config.workload.forward_only or sees_others)
        if not learns_alike or sum(loss is not None for loss in losses) < _FEWEST_COMPARED:
            return
        alike = (config.computing.precision, config.workload.batch_per_device, config.devices.num_devices)
        group = self._trained.setdefault(alike, {})
        candidate.losses = losses
        group[str(config.to_dict())] = candidate
        runs = list(group.values())
        right = max(([one for one in runs if not differ(one.losses, each.losses)] for each in runs), key=len)
        if len(right) == 1 < len(runs):
            right = []
        for each in runs:
            if not each.reason or each.reason.startswith(_REJECTED):
                each.reason = "" if each in right else _why_rejected(each, right or runs)

    def _warnings(self) -> Iterator[str]:
        """Yields what the user should know about the chosen settings."""
        workload, computing = self._plan.usual.workload, self._plan.usual.computing
        usual = {"batch_size": str(workload.batch_per_device), "precision": computing.precision}
        changed = {name: value for name, value in usual.items() if self._chosen.get(name, value) != value}
        if changed:
            check = " Run the answer once with --check_precision." if "precision" in changed else ""
            yield f"{' '.join(run_flags.words(changed))}, the default, trains differently: pass it to keep it.{check}"
        if undecided := [table.title for table in self._tables if table.is_undecided]:
            yield (
                f"There was no time to repeat what is within the noise ({', '.join(undecided)}), so it may be faster: "
                f"search with a larger --budget_seconds than {self._plan.budget_seconds:.0f}."
            )
        used = self._runner.provenance.cores_used_by_others_before
        yield from warnings_of_others(used, usable_cores(), "directly before the search")


def _config(candidate: Candidate) -> Config:
    assert candidate.cell.config is not None, "only possible cells are run"
    return candidate.cell.config


def _in_words(candidate: Candidate) -> str:
    return " ".join(run_flags.words(candidate.choice)) or "as given"


def _shortened(candidate: Candidate, **length: Any) -> Cell:
    config = _config(candidate)
    words = tuple(f"--{name}={value}" for name, value in length.items())
    shorter = dataclasses.replace(config.length, at_least_seconds=None, **length)
    return Cell((*candidate.cell.arguments, *words), dataclasses.replace(config, length=shorter))


def _outcome(record: Record, steps: int, limit_seconds: float, *, is_last: bool) -> Outcome:
    """Returns the outcome of a run of so many steps, with a limit that the time of its stage sets if it `is_last`."""
    measurement = record.measurement
    if record.status is Status.OK:
        return Outcome(
            images_per_step=measurement.images_per_step or 0,
            step_seconds=measurement.step_seconds,
            losses=[*measurement.warmup_losses, *measurement.losses][:_COMPARED_STEPS],
            cut_off=is_last and len(measurement.step_seconds) < steps,
        )
    if record.status is Status.TIMEOUT and is_last:
        return Outcome(reason=f"{NOT_RUN} to its end: stopped after {limit_seconds:.0f} s", cut_off=True)
    return Outcome(reason=shortened(one_line(f"{record.status}: {record.reason}")))


def _why_rejected(one: Candidate, others: Sequence[Candidate]) -> str:
    """Returns with which of the others its losses differ, and how."""
    other, why = next((other, why) for other in others if (why := differ(one.losses, other.losses)))
    return f"{_REJECTED}{why} with {_in_words(other)}: their gradients are not the same"


def differ(losses: Sequence[float | None], others: Sequence[float | None]) -> str:
    """Returns in words how two runs of the same start train unlike; nothing if they do not, or if it is unknown.

    The first loss is before any update. Rounding, and the units that dropout drops, change the others a little.
    """
    pairs = [(one, other) for one, other in zip(losses, others, strict=False) if None not in (one, other)]
    if len(pairs) < _FEWEST_COMPARED:
        return ""
    fall, usual = (numbers[0] - statistics.fmean(numbers[1:]) for numbers in zip(*pairs, strict=True))
    if max(fall, usual) < _LEAST_FALL or max(fall, usual) < _FACTOR * min(fall, usual):
        return ""
    return f"in its first {len(pairs)} steps the loss is {fall:.3f} below the first one on average, and {usual:.3f}"
