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
from benchmarks.console import in_words, progress, warn
from benchmarks.machine import linux
from benchmarks.machine.hardware import usable_cores
from benchmarks.sweep.grid import Cell
from benchmarks.sweep.isolated_run import CellRunner, run_together
from benchmarks.sweep.progress import estimate_seconds
from benchmarks.tune.halving import Candidate, Durations, Halving, Outcome, Row, runs_needed
from benchmarks.tune.search_stages import SearchStage, Texts, cells, is_fixed
from results.quality import OTHERS_SHARE
from results.record import Record, Status
from results.text import counted, rounded

# The first round measures for about this long, but with enough steps for an interval, and with few steps while the
# time of a step is only estimated.
_FIRST_SECONDS = 2.0
_FEWEST_STEPS, _MOST_ESTIMATED_STEPS, _MOST_STEPS = 5, 40, 1000
# From the last step to the end of the process.
_END_SECONDS = 3.0
_LONGEST_REASON = 200
_RESERVED_RUNS = 1.5
# Of so many first losses, how far they are below the first one on average is compared. Runs that trained alike differed
# by up to 1.2 times (AlexNet, of which XLA drops other units), those with wrong gradients by 2.6 to 6 (ResNet-50 under
# XLA on an H200).
_COMPARED_STEPS, _FEWEST_COMPARED = 10, 5
_FACTOR, _LEAST_FALL = 2.0, 0.05
_REJECTED = "rejected: "
# Two runs at once must not need more of the available memory.
_SHARE_OF_MEMORY = 0.8

# What changes with a precision.
_WITH_PRECISION = {
    "fp32": "Products are those of float32.",
    "tf32": "Products of float32 round their factors: to 10 bits of mantissa on GPUs, to 7 on CPUs.",
    "bf16": "Layers compute with 7 bits of mantissa, of float32's 23; weights stay in float32.",
    "fp16": "Layers compute with 10 bits of mantissa, of float32's 23, in a small range, so that the loss is scaled; "
    "weights stay in float32.",
}

# The default budget is the estimate, which is rough, times this.
_LEEWAY = 1.5
_MARGIN = 1.2
DEFAULT_OUTPUT_DIR = "out/recommend"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecommendPlan:
    """What `recommend` searches: `fixed` are the user's flags, `usual` is the configuration that they give.

    `fresh` ignores a cached answer; `extends`: the budget is only an estimate, and grows if runs take longer.
    """

    fixed: Texts
    usual: Config
    stages: Sequence[SearchStage]
    budget_seconds: float
    fresh: bool = False
    extends: bool = False
    output_dir: str = DEFAULT_OUTPUT_DIR
    output_format: str = "text"


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageTable:
    """A stage: its title, the number of devices, and its candidates, best first."""

    title: str
    devices: int
    rows: list[Row]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """The result of a search.

    Attributes:
        arguments: the flags of the best run; empty if no run succeeded.
        best: the row of the best candidate, measured on one device if `untested_on`; None if there is none.
        tables: one per stage.
        notes: sentences about the choice.
        seconds: duration of the search.
        is_complete: whether it was not interrupted.
        is_finished: whether each stage had the time that it needs; only such an answer is stored.
        needed_seconds: roughly, of a search that is finished, by the runs so far; 0 if that is not known.
        results: path of the records of all runs.
        untested_on: the number of devices if there was no time to run the best settings on all of them; else 0.
    """

    arguments: list[str]
    best: Row | None
    tables: list[StageTable]
    notes: list[str]
    seconds: float
    is_complete: bool
    results: str
    untested_on: int = 0
    is_finished: bool = True
    needed_seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Returns the answer as a JSON object, with the command of the best run."""
        return {"command": command_line(self.arguments), **dataclasses.asdict(self)}


def command_line(arguments: Sequence[str]) -> str:
    """Returns the command line of a run; empty if there are no arguments."""
    return f"python run_bench.py {shlex.join(arguments)}" if arguments else ""


def runs_of(stages: Sequence[SearchStage]) -> int:
    """Returns how many runs the stages need at most."""
    return sum(runs_needed(len(stage.choices)) for stage in stages if len(stage.choices) > 1)


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
        self._begun = self._stage_begun = time.monotonic()
        self._end = self._stage_end = self._begun + plan.budget_seconds
        self._durations = Durations(lambda candidate, steps: estimate_seconds(_config(candidate), [], steps))
        self._seconds_of_runs: list[float] = []  # that succeeded
        self._is_finished = True
        self._step_seconds: float | None = None  # of the best so far
        self._failed_on_all = False
        # Of candidates that must train the same: each with its first losses, by its configuration.
        self._losses: dict[tuple[object, ...], dict[str, tuple[Candidate, Sequence[float | None]]]] = {}
        self._chosen: dict[str, str] = {}
        self._tables: list[StageTable] = []
        self._open: tuple[SearchStage, Halving, list[Candidate]] | None = None

    def run_stages(self) -> None:
        """Runs all stages with more than one candidate, each in its share of the time."""
        plan = self._plan
        sizes = [len(stage.choices) if len(stage.choices) > 1 else 0 for stage in plan.stages]
        for number, stage in enumerate(plan.stages):
            candidates = [Candidate(*each) for each in cells(stage, plan.fixed, self._chosen, self._count_gpus)]
            possible = [candidate for candidate in candidates if candidate.cell.runs]
            is_last_chance = number == len(sizes) - 1 and self._best()[1] < plan.usual.devices.num_devices
            if len(possible) > 1 or possible and is_last_chance:
                now = time.monotonic()
                seconds = (self._end - now) * max(sizes[number], 1) / max(sum(sizes[number:]), 1)
                self._stage_begun, self._stage_end = now, now + seconds
                warn(f"{stage.title}: {len(possible)} of {len(candidates)} can be run, in {in_words(max(seconds, 0))}")
                steps = _first_steps(_config(possible[0]), self._step_seconds)
                halving = Halving(possible, self._run, self._durations, self._seconds_left, steps, self._run_pair)
                self._open = (stage, halving, [each for each in candidates if not each.cell.runs])
                halving.search()
                self._is_finished &= halving.is_finished
                self._close_stage()
            elif possible:
                self._chosen |= possible[0].choice

    def answer(self, *, is_complete: bool) -> Answer:
        """Returns the results so far."""
        if self._open:
            self._close_stage()
        best, devices = self._best()
        is_untested = 0 < devices < self._plan.usual.devices.num_devices
        if is_untested and self._failed_on_all:
            best = None
        seconds = time.monotonic() - self._begun
        by_runs = runs_of(self._plan.stages) * statistics.fmean(self._seconds_of_runs or [0.0])
        return Answer(
            arguments=run_flags.words({**self._plan.fixed, **self._chosen}) if best else [],
            best=best,
            tables=self._tables,
            notes=list(self._warnings()),
            seconds=seconds,
            is_complete=is_complete,
            results=str(self._runner.store.jsonl_path),
            untested_on=self._plan.usual.devices.num_devices if best and is_untested else 0,
            is_finished=is_complete and self._is_finished,
            needed_seconds=_MARGIN * max(by_runs, seconds) if by_runs else 0.0,
        )

    def _best(self) -> tuple[Row | None, int]:
        """Returns the last choice, which all earlier ones are in, and on how many devices it was measured."""
        taken = [(row, table.devices) for table in self._tables for row in table.rows if row.is_taken]
        return taken[-1] if taken else (None, 0)

    def _seconds_left(self, is_first_run: bool) -> float:
        """Returns how long a run may take; a candidate's first run may use the time of later stages."""
        assert self._open is not None, "a stage is open"
        devices, reserved = self._plan.usual.devices, 0.0
        if self._open[0].on_one_device:
            # A run on all devices must still fit. Logical CPU devices share the cores.
            longest = max(self._seconds_of_runs, default=0.0)
            reserved = _RESERVED_RUNS * longest * (1 if devices.on_gpu else devices.num_devices)
        return min(self._end if is_first_run else self._stage_end, self._end - reserved) - time.monotonic()

    def _close_stage(self) -> None:
        """Adds the table of the open stage, and chooses its best candidate."""
        assert self._open is not None, "a stage is open"
        (stage, halving, impossible), self._open = self._open, None
        ranked = halving.rows()
        refused = [
            Row(arguments=run_flags.words(candidate.choice), reason=f"cannot run: {candidate.cell.why_not}")
            for candidate in impossible
        ]
        devices = 1 if stage.on_one_device else self._plan.usual.devices.num_devices
        self._tables.append(
            StageTable(title=stage.title, devices=devices, rows=[*(row for _, row in ranked), *refused])
        )
        for candidate, row in ranked:
            if row.is_taken:
                self._chosen |= candidate.choice
                if row.images_per_sec:
                    self._step_seconds = _config(candidate).batch_global / row.images_per_sec

    def _run(self, candidate: Candidate, steps: int, limit_seconds: float) -> Outcome:
        limit = max(1.0, limit_seconds - _END_SECONDS)
        limited = _shortened(candidate, num_batches=steps, time_limit_seconds=round(limit, 1))
        self._runner.timeout_seconds = max(1.0, limit_seconds)
        begun = time.monotonic()
        left = in_words(max(0.0, self._end - begun))
        progress.begin(f"trying {_in_words(candidate)}, up to {left} left", measured=True)
        outcome = _outcome(self._runner.run_cell(limited), begun)
        self._judge(candidate, outcome.losses)
        progress.end()
        if outcome.step_seconds:
            self._seconds_of_runs.append(outcome.seconds)
            self._extend()
        if outcome.step_seconds and not candidate.reason:
            result = f"{rounded(outcome.images_per_sec)} images/s in {len(outcome.step_seconds)} steps"
        else:
            result = candidate.reason or outcome.reason
            on_all = _config(candidate).devices.num_devices == self._plan.usual.devices.num_devices
            self._failed_on_all |= on_all and not outcome.cut_off
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
        group = self._losses.setdefault(alike, {})
        group[str(config.to_dict())] = (candidate, losses)
        runs = list(group.values())
        agreeing = [sum(not differ(own, other) for _, other in runs) for _, own in runs]
        right = agreeing.index(max(agreeing))
        for number, (each, own) in enumerate(runs):
            other, expected = runs[-1 if number == right and agreeing[right] == 1 else right]
            if not each.reason or each.reason.startswith(_REJECTED):
                why = differ(own, expected)
                each.reason = why and f"{_REJECTED}{why} with {_in_words(other)}: their gradients are not the same"

    def _extend(self) -> None:
        """Moves the ends of the search and of the open stage if runs take longer than was estimated."""
        if not self._plan.extends or self._open is None:
            return
        each = _LEEWAY * statistics.fmean(self._seconds_of_runs)
        self._end = max(self._end, self._begun + each * runs_of(self._plan.stages))
        self._stage_end = max(self._stage_end, self._stage_begun + each * runs_of([self._open[0]]))

    def _run_pair(
        self, first: Candidate, second: Candidate, steps: int, limit_seconds: float
    ) -> tuple[Outcome, Outcome] | None:
        """Runs two candidates with interleaved steps; None if they cannot be, or if memory might not suffice."""
        pair = (first, second)
        if not all(_config(candidate).can_interleave for candidate in pair):
            return None
        # What each needs is known once it has run alone.
        peaks = [candidate.runs[-1].peak_bytes if candidate.runs else math.inf for candidate in pair]
        if sum(peaks) > _SHARE_OF_MEMORY * linux.available_bytes():
            return None
        tried = " and ".join(map(_in_words, pair))
        self._runner.timeout_seconds = max(1.0, limit_seconds / 2)
        begun = time.monotonic()
        progress.begin(f"interleaving {tried}", measured=True)
        records = run_together([self._runner] * 2, [_shortened(candidate, num_batches=steps) for candidate in pair])
        outcomes = [_outcome(record, begun) for record in records]
        progress.end()
        rates = [rounded(each.images_per_sec) if each.step_seconds else each.reason for each in outcomes]
        left = in_words(max(0.0, self._end - time.monotonic()))
        warn(f"  {tried}, with interleaved steps: {' and '.join(rates)} images/s   ({left} left)")
        one, other = (dataclasses.replace(outcome, seconds=outcomes[0].seconds / 2) for outcome in outcomes)
        return one, other

    def _warnings(self) -> Iterator[str]:
        """Yields what the user should know about the chosen settings."""
        usual, batch = self._plan.usual.workload.batch_per_device, self._chosen.get("batch_size")
        if batch and int(batch) != usual:
            yield f"A batch of {batch} instead of {usual} trains differently: --batch_size={usual} keeps it."
        yield from self._on_precision()
        used, cores = self._runner.provenance.cores_used_by_others_before, usable_cores()
        if used is not None and used > OTHERS_SHARE * cores:
            yield (
                f"Other processes used {used:.1f} of {counted(cores, 'core')} directly before the search, which may "
                "have affected the result: search again on an idle machine, with --fresh."
            )

    def _on_precision(self) -> Iterator[str]:
        """Yields which precision the best has, and what changes with it, unless the user has chosen one."""
        plan, usual = self._plan, self._plan.usual.computing.precision
        chosen = self._chosen.get("precision", usual)
        tried = {choice.get("precision", usual) for stage in plan.stages for choice in stage.choices} - {usual}
        if chosen != usual:
            yield (
                f"Precision: {chosen} instead of {usual}. {_WITH_PRECISION[chosen]} Run it once with "
                f"--check_precision, which compares the losses with fp32; --precision={usual} keeps the default."
            )
        elif tried:
            yield f"Precision: {usual}, the default; also tried: {', '.join(sorted(tried))}."
        elif not is_fixed("precision", plan.fixed):
            yield f"Precision: {usual}; these devices have no faster arithmetic for another one."


def _config(candidate: Candidate) -> Config:
    assert candidate.cell.config is not None, "only possible cells are run"
    return candidate.cell.config


def _in_words(candidate: Candidate) -> str:
    return " ".join(run_flags.words(candidate.choice)) or "as given"


def _shortened(candidate: Candidate, **length: Any) -> Cell:
    config = _config(candidate)
    if not config.devices.on_gpu and config.data.data_dir is None:
        length["num_warmup_batches"] = 1
    words = tuple(f"--{name}={value}" for name, value in length.items())
    shorter = dataclasses.replace(config.length, at_least_seconds=None, **length)
    return Cell((*candidate.cell.arguments, *words), dataclasses.replace(config, length=shorter))


def _outcome(record: Record, begun: float) -> Outcome:
    """Returns the outcome of a run that began at this monotonic time and has just ended."""
    seconds, measurement = time.monotonic() - begun, record.measurement
    if record.status is Status.OK:
        return Outcome(
            seconds=seconds,
            images_per_step=measurement.images_per_step or 0,
            step_seconds=measurement.step_seconds,
            peak_bytes=measurement.peak_host_memory_bytes or 0,
            losses=[*measurement.warmup_losses, *measurement.losses][:_COMPARED_STEPS],
        )
    if record.status is Status.TIMEOUT:
        return Outcome(seconds=seconds, reason=f"stopped: not done after {seconds:.0f} s", cut_off=True)
    reason = " ".join(f"{record.status}: {record.reason}".split())
    return Outcome(seconds=seconds, reason=reason[:_LONGEST_REASON])


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
