"""Goes through the stages of `recommend`: runs candidates, each a process of its own, and keeps what it finds.

Imports no TensorFlow.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from benchmarks.config import run_flags
from benchmarks.config.config import Config
from benchmarks.console import warn
from benchmarks.process import subprocesses
from benchmarks.sweep.estimate import Durations, estimate_seconds, in_words
from benchmarks.sweep.grid import Cell
from benchmarks.sweep.isolated_run import CellRunner
from benchmarks.tune import stages as recommend_stages
from benchmarks.tune.halving import Budget, Search, Standing
from benchmarks.tune.report import Answer, Row, Table
from benchmarks.tune.stages import Stage, Texts
from results.quality import BUSY_LOAD_PER_CORE
from results.record import Record, Status
from results.repeats import Outcome

# The first round measures about so long, but as many steps as an interval needs; few where their time is a guess.
_FIRST_SECONDS = 2.0
_FEWEST_STEPS, _MOST_STEPS_BY_GUESS, _MOST_STEPS = 5, 40, 1000
# From the last step to the end of the process.
_END_SECONDS = 3.0
_LONGEST_REASON = 200
_SPARE_RUNS = 1.5
_OF_STANDING = ("low", "high", "steps", "runs", "reason", "is_close", "is_repeated")

Words = tuple[str, ...]

DEFAULT_TIME_LIMIT_SECONDS = 600.0
DEFAULT_OUTPUT_DIR = "out/recommend"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What is looked for.

    Attributes:
        fixed: flags that the user has given, as text.
        usual: what these come to.
        stages: what is varied.
        time_limit_seconds: for everything.
        any_precision: whether the arithmetic may change.
        fresh: whether a remembered answer does not count.
        output_dir: where records go.
        output_format: `text` or `json`.
        program: runs a candidate, given its flags.
    """

    fixed: Texts
    usual: Config
    stages: Sequence[Stage]
    time_limit_seconds: float = DEFAULT_TIME_LIMIT_SECONDS
    any_precision: bool = False
    fresh: bool = False
    output_dir: str = DEFAULT_OUTPUT_DIR
    output_format: str = "text"
    program: Sequence[str] = (sys.executable, str(subprocesses.RUN_BENCH))


class Finder:
    """Goes through the stages of a plan, and knows what was found so far.

    Args:
        plan: what is looked for.
        runner: runs cells, and keeps their records.
        count_gpus: asks how many GPUs there are.
    """

    def __init__(self, plan: Plan, runner: CellRunner, count_gpus: Callable[[], int]) -> None:
        self._plan, self._runner, self._count_gpus = plan, runner, count_gpus
        self._begun = time.monotonic()
        self._ran = 0
        self._longest_seconds = 0.0
        self._chosen: dict[str, str] = {}
        self._cells: dict[Words, Cell] = {}
        self._step_seconds: float | None = None
        self._durations = Durations(self._guess_seconds)
        self._best: tuple[Words, Row] | None = None
        self._best_on_one: Row | None = None
        self._failed_on_all = False
        self._kept: list[str] = []
        self._tables: list[Table] = []
        self._open: tuple[Stage, dict[Words, tuple[Texts, Cell]], Search[Words]] | None = None

    def find(self) -> None:
        """Runs all stages that have something to choose, each in its share of the time."""
        plan = self._plan
        sizes = [len(stage.choices) if len(stage.choices) > 1 else 0 for stage in plan.stages]
        for number, stage in enumerate(plan.stages):
            found = recommend_stages.cells(stage, plan.fixed, self._chosen, plan.usual, self._count_gpus)
            possible = [choice for choice, cell in found if cell.runs]
            last_chance = self._best is None and number == len(sizes) - 1
            if len(possible) > 1 or last_chance:
                share = max(sizes[number], 1) / max(sum(sizes[number:]), 1)
                self._choose(stage, {cell.arguments: (choice, cell) for choice, cell in found}, share)
            elif possible:
                self._chosen |= possible[0]

    def answer(self, *, is_complete: bool) -> Answer:
        """Returns what is known by now."""
        if self._open:
            self._close()
        words, best = self._best or ((), None)
        is_untested = best is None and self._best_on_one is not None and not self._failed_on_all
        if is_untested:
            words, best = tuple(run_flags.words({**self._plan.fixed, **self._chosen})), self._best_on_one
        return Answer(
            arguments=list(words),
            best=best,
            tables=self._tables,
            notes=list(self._notes()),
            seconds=time.monotonic() - self._begun,
            is_complete=is_complete,
            results=str(self._runner.store.jsonl_path),
            untested_on=self._plan.usual.num_devices if is_untested else 0,
        )

    def _choose(self, stage: Stage, found: dict[Words, tuple[Texts, Cell]], share: float) -> None:
        left = self._begun + self._plan.time_limit_seconds - time.monotonic()
        spare = self._spare_seconds if stage.on_one_device else lambda: 0.0
        budget = Budget(share * left, left, spare, time.monotonic)
        candidates = {words: cell for words, (_, cell) in found.items() if cell.runs}
        self._cells |= candidates
        warn(f"{stage.title}: {len(candidates)} of {len(found)} can be run, in {in_words(max(budget.seconds, 0))}")
        search = Search(list(candidates), self._run, self._durations, budget, self._first_steps(list(candidates)))
        self._open = (stage, found, search)
        search.search()
        self._close()

    def _spare_seconds(self) -> float:
        """Returns what a run on all devices may take: what comes later may be given up, but not that."""
        usual = self._plan.usual
        if usual.num_devices == 1:
            return 0.0
        # Devices of a CPU share its cores.
        return _SPARE_RUNS * self._longest_seconds * (usual.num_devices if usual.device == "cpu" else 1)

    def _close(self) -> None:
        """Makes a table of the open stage, and chooses its best."""
        assert self._open is not None, "a stage is open"
        (stage, found, search), self._open = self._open, None
        devices = 1 if stage.on_one_device else self._plan.usual.num_devices
        standings = search.standings()
        rows = [
            Row(
                arguments=run_flags.words(found[one.candidate][0]),
                images_per_sec=one.rate,
                **{name: getattr(one, name) for name in _OF_STANDING},
            )
            for one in standings
        ]
        impossible = [(choice, cell) for choice, cell in found.values() if not cell.runs]
        rows += [
            Row(arguments=run_flags.words(choice), reason=f"cannot run: {cell.why_not}") for choice, cell in impossible
        ]
        self._tables.append(Table(title=stage.title, devices=devices, rows=rows))
        if not standings or standings[0].rate is None:
            return
        place = _place_of_choice(standings, next(iter(found)))
        best, rate = standings[place].candidate, standings[place].rate
        config = self._cells[best].config
        if place:
            stays = " ".join(rows[place].arguments) or "what is given"
            self._kept.append(f"In {stage.title}, {stays} stays: nothing is faster by more than the noise.")
        self._chosen |= found[best][0]
        self._step_seconds = config.batch_global / rate if config and rate else None
        if devices == self._plan.usual.num_devices:
            self._best = (best, rows[place])
        else:
            self._best_on_one = rows[place]

    def _run(self, words: Words, steps: int, limit_seconds: float) -> Outcome:
        cell, limit = self._cells[words], max(1.0, limit_seconds - _END_SECONDS)
        assert cell.config is not None, "it can be run"
        limited = Cell(
            (*cell.arguments, f"--num_batches={steps}", f"--time_limit_seconds={limit:.1f}"),
            dataclasses.replace(cell.config, num_batches=steps, time_limit_seconds=limit),
        )
        runner = dataclasses.replace(self._runner, timeout_seconds=max(1.0, limit_seconds))
        begun = time.monotonic()
        outcome = _outcome(runner.run(limited, self._ran), begun)
        self._ran += 1
        self._note(cell.config, outcome)
        assert self._open is not None, "only a stage runs something"
        what = " ".join(run_flags.words(self._open[1][words][0])) or "as given"
        rate = cell.config.batch_global * len(outcome.step_seconds) / sum(outcome.step_seconds or [1.0])
        came = f"{rate:.2f} images/s in {len(outcome.step_seconds)} steps" if outcome.step_seconds else outcome.reason
        left = max(0.0, self._begun + self._plan.time_limit_seconds - time.monotonic())
        warn(f"  {what}: {came}   ({in_words(left)} left)")
        return outcome

    def _note(self, config: Config, outcome: Outcome) -> None:
        """Learns from a run how long those on all devices may take, and whether they fail."""
        is_failed = bool(outcome.reason) and not outcome.cut_off
        if outcome.step_seconds:
            self._longest_seconds = max(self._longest_seconds, outcome.seconds)
        self._failed_on_all |= is_failed and config.num_devices == self._plan.usual.num_devices

    def _guess_seconds(self, words: Words, steps: int) -> float:
        config = self._cells[words].config
        assert config is not None, "it can be run"
        return estimate_seconds(dataclasses.replace(config, num_batches=steps), [])

    def _first_steps(self, candidates: Sequence[Words]) -> int:
        if self._step_seconds is not None:
            return max(_FEWEST_STEPS, min(_MOST_STEPS, round(_FIRST_SECONDS / self._step_seconds)))
        guesses = [(self._guess_seconds(words, 101) - self._guess_seconds(words, 1)) / 100 for words in candidates[:1]]
        return max(_FEWEST_STEPS, *(min(_MOST_STEPS_BY_GUESS, round(_FIRST_SECONDS / guess)) for guess in guesses), 0)

    def _notes(self) -> Iterator[str]:
        """Yields what a reader must know of the choice."""
        yield from self._kept
        plan, batch = self._plan, self._chosen.get("batch_size")
        if batch and int(batch) != plan.usual.batch_per_device:
            yield (
                f"A batch of {batch} instead of {plan.usual.batch_per_device} trains differently: "
                f"--batch_size={plan.usual.batch_per_device} keeps it."
            )
        if self._chosen.get("precision", "fp32") != "fp32":
            yield f"{self._chosen['precision']} changes the arithmetic: run it once with --check_precision."
        elif not plan.any_precision and plan.usual.precision == "fp32" and "precision" not in plan.fixed:
            yield "Precision stayed fp32, since others change the arithmetic: --any_precision tries them, too."
        if self._runner.provenance.load_per_core > BUSY_LOAD_PER_CORE:
            yield (
                f"The machine was busy before (load {self._runner.provenance.load_per_core:.1f} per core), which may "
                "have decided: search again on an idle one, with --fresh."
            )


def _place_of_choice(standings: Sequence[Standing[Words]], default: Words) -> int:
    """Returns whose place is chosen: the default's if nothing is faster by more than the noise, else the first."""
    for place, one in enumerate(standings):
        # Close is also who was run only once; such ones must overlap, too.
        if one.candidate == default and one.is_close and (one.high or math.inf) >= (standings[0].low or 0.0):
            return place
    return 0


def _outcome(record: Record, begun: float) -> Outcome:
    """Returns what came of a run that began then, by the monotonic clock, and has just ended."""
    seconds = time.monotonic() - begun
    if record.status is Status.OK:
        return Outcome(
            seconds=seconds,
            images_per_step=record.measurement.images_per_step or 0,
            step_seconds=record.measurement.step_seconds,
        )
    if record.status is Status.TIMEOUT:
        return Outcome(seconds=seconds, reason=f"not done after {seconds:.0f} s, and ended", cut_off=True)
    reason = " ".join(f"{record.status}: {record.reason}".split())
    return Outcome(seconds=seconds, reason=reason[:_LONGEST_REASON])
