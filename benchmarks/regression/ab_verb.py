"""The verb `ab`: is the candidate slower than the base? Runs both, in turn, until that is decided. No TensorFlow."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.config.flag import Flag, Groups
from benchmarks.config.verb import Verb
from benchmarks.console import warn
from benchmarks.errors import DataError, ExitStatus, UsageError
from benchmarks.process.signals import until_stopped
from benchmarks.regression import outputs, rounds
from benchmarks.regression import sides as ab_side
from benchmarks.regression.baseline_verb import BASELINES_DIR
from benchmarks.regression.compare_verb import threshold_of
from benchmarks.regression.configuration import Configuration, titles
from benchmarks.regression.outputs import OUTPUT_FLAGS
from benchmarks.regression.rounds import Pair, Rounds, TurnTakers, differences
from benchmarks.regression.sides import Side
from benchmarks.sweep import grid
from benchmarks.sweep.estimate import estimate_seconds, in_words
from benchmarks.sweep.grid import Cell
from benchmarks.sweep.isolated_run import DEFAULT_TIMEOUT_SECONDS
from benchmarks.sweep.progress import what_is_run
from benchmarks.system import hardware
from benchmarks.system.provenance import of_this_run
from results.gate import findings as finding
from results.gate import noise
from results.gate.comparability import hardware_in_words, software_differences, software_in_words
from results.gate.rounds import rate
from results.record import Record

STOPPED = "Stopped before all was known. What was run is in {}."
_MAX_ROUNDS = 15
_UNKNOWN = "unknown, for no run was valid"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What is compared, and how.

    Attributes:
        cells: every configuration; those that this suite takes for impossible, too, for the sides decide that.
        sides: opens base and candidate.
        output_dir: where records go.
        baselines_dir: where noise is looked up.
        threshold: the share that matters; None for what the machine supports.
        max_rounds: pairs per configuration.
        warmup_round: whether an uncounted round goes before.
        steps_in_turn: whether both sides may be started at once, to measure in turn.
        round_timeout_seconds: of one run.
    """

    cells: Sequence[Cell]
    sides: contextlib.AbstractContextManager[tuple[Side, Side]]
    output_dir: Path
    baselines_dir: Path
    threshold: float | None
    max_rounds: int = _MAX_ROUNDS
    warmup_round: bool = True
    steps_in_turn: bool = True
    round_timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS


def resolve(values: Mapping[str, Any], count_gpus: Callable[[], int]) -> Plan:
    """Turns flag values (None: not given) into a plan.

    Raises:
        UsageError: a value that makes no sense, or nothing to run.
    """
    timeout = seconds_above_zero(values["round_timeout_seconds"])
    max_rounds = _MAX_ROUNDS if values["max_rounds"] is None else values["max_rounds"]
    if max_rounds < noise.SHORTEST_TRIAL:
        raise UsageError(
            f"--max_rounds={max_rounds}: at least {noise.SHORTEST_TRIAL} pairs of rounds are needed to see a change "
            "and to repeat it."
        )
    for side in ("base", "candidate"):
        if values[side] is not None and values[f"{side}_command"] is not None:
            raise UsageError(f"--{side} and --{side}_command both say what the {side} is: give one of them.")
    if all(values[name] is None for name in ("base", "base_command", "candidate_command")):
        raise UsageError("ab: say what to compare with: --base=REVISION, such as main, or --base_command='WORDS'.")
    return Plan(
        cells=[cell for cell in grid.wanted(values, count_gpus) if not cell.same_as_before],
        sides=_sides(values),
        output_dir=Path(values["output_dir"] or "out/ab"),
        baselines_dir=Path(values["baselines_dir"] or BASELINES_DIR),
        threshold=None if values["threshold"] is None else threshold_of(values["threshold"]),
        max_rounds=max_rounds,
        warmup_round=values["warmup_round"] is not False,
        steps_in_turn=values["steps_in_turn"] is not False,
        round_timeout_seconds=timeout,
    )


def seconds_above_zero(seconds: float | None) -> float:
    """Returns --round_timeout_seconds, or its default.

    Raises:
        UsageError: it is not above zero.
    """
    if seconds is not None and not seconds > 0:
        raise UsageError(f"--round_timeout_seconds={seconds} must be above 0.")
    return seconds or DEFAULT_TIMEOUT_SECONDS


@contextlib.contextmanager
def _sides(values: Mapping[str, Any]) -> Iterator[tuple[Side, Side]]:
    """Yields base and candidate, as long as they are needed."""
    with contextlib.ExitStack() as stack:
        found = []
        for name in (rounds.BASE, rounds.CANDIDATE):
            command, revision = values[f"{name}_command"], values[name]
            if command is not None:
                found.append(ab_side.of_command(f"{name}_command", command))
            elif revision is not None:
                found.append(stack.enter_context(ab_side.of_revision(revision)))
            else:
                found.append(ab_side.this_suite())
        yield found[0], found[1]


def run(plan: Plan, command: Sequence[str], values: Mapping[str, Any]) -> ExitStatus:
    """Runs both sides until all is decided, and says what was found.

    Args:
        plan: what to compare.
        command: the words of the command line, for records of runs that left none.
        values: of the flags that say where findings go.

    Raises:
        UsageError: a side cannot be made, results cannot be kept, or the sides ran on unlike hardware.
        DataError: what is stored of this machine's noise cannot be read.
    """

    def compare() -> ExitStatus:
        with plan.sides as (base, candidate):
            comparison = _Comparison(plan, base, candidate, command)
            comparison.run()
            findings = comparison.findings()
        outputs.write(findings, values)
        return outputs.exit_status(findings)

    return until_stopped(compare, STOPPED.format(plan.output_dir))


class _Comparison:
    """Runs the configurations of a plan, in rounds."""

    def __init__(self, plan: Plan, base: Side, candidate: Side, command: Sequence[str]) -> None:
        self._plan = plan
        self._base, self._candidate = base, candidate
        on_gpus = any(cell.config and cell.config.device == "gpu" for cell in plan.cells)
        provenance = of_this_run(command, on_gpus=on_gpus, session_id=uuid.uuid4().hex[:12])
        self._takers = TurnTakers(wanted=plan.steps_in_turn)
        self._open = functools.partial(
            Rounds, base, candidate, provenance=provenance, timeout_seconds=plan.round_timeout_seconds
        )
        self._rounds = self._open(output_dir=plan.output_dir)
        make_trial = functools.partial(noise.trial_of, max_rounds=plan.max_rounds)
        self._configurations = [Configuration(cell, self._threshold, make_trial) for cell in plan.cells]
        self._notes: list[str] = []

    def run(self) -> None:
        """Runs rounds until every configuration is decided."""
        self._announce()
        if self._plan.warmup_round:
            warmup = self._open(output_dir=self._plan.output_dir / "warmup")
            for configuration in self._configurations:
                self._takers.try_out(configuration.cell, warmup)
        for number in range(self._plan.max_rounds):
            for configuration in [each for each in self._configurations if not each.is_over]:
                cell = configuration.cell
                words = configuration.take(self._rounds.pair(cell, number, in_turn=self._takers.take_turns(cell)))
                warn(f"round {number + 1} of at most {self._plan.max_rounds}, {configuration.what}: {words}")

    def findings(self) -> finding.Findings:
        """Returns what was found."""
        compared = [each for each in self._configurations if not each.refusal]
        refused = [f"{what_is_run(e.cell)} cannot be run: {e.refusal}" for e in self._configurations if e.refusal]
        pairs = [pair for each in self._configurations for pair in each.pairs]
        valid = [[r for pair in pairs if rate(r := getattr(pair, n)) is not None] for n in ("base", "candidate")]
        sides = [
            finding.Side(name=side.name, software=software_in_words(records) if records else _UNKNOWN)
            for side, records in zip((self._base, self._candidate), valid, strict=True)
        ]
        ran = [*self._takers.notes, *self._rounds.notes]
        return finding.Findings(
            base=sides[0],
            candidate=sides[1],
            hardware=hardware_in_words(both[0]) if (both := [*valid[0], *valid[1]]) else _UNKNOWN,
            findings=[each.finding(words) for each, words in zip(compared, titles(compared), strict=True)],
            notes=list(dict.fromkeys([*self._notes, *ran, *_unlike(pairs), *refused])),
        )

    def _announce(self) -> None:
        plan = self._plan
        count = len(plan.cells)
        once = 2 * sum(estimate_seconds(cell.config, []) for cell in plan.cells if cell.config)
        warn(f"base: {self._base.name}; candidate: {self._candidate.name}")
        warn(
            f"{count} configuration{'s' * (count > 1)}, at most {plan.max_rounds} pairs of rounds each; about "
            f"{in_words(once)} for a pair of all, by a rough guess."
        )

    def _threshold(self, record: Record) -> float:
        """Returns the share that matters for a record's configuration on its machine, and notes where it is raised."""
        if self._plan.threshold is not None:
            return self._plan.threshold
        path = noise.path_of(self._plan.baselines_dir, record.identity.hardware_key)
        try:
            stored = noise.load(path).get(record.identity.config_key)
        except noise.NoiseFileError as error:
            raise DataError(str(error)) from error
        if stored is None:
            return noise.QUIET_THRESHOLD
        if stored.in_turn != record.in_turn:
            how = ("of whole runs", "of runs in turn")[stored.in_turn]
            self._notes.append(f"{stored.title}: calibrate has measured the noise {how} ({path}): do it again.")
            return noise.QUIET_THRESHOLD
        if stored.threshold > noise.QUIET_THRESHOLD:
            self._notes.append(
                f"{stored.title}: the threshold is {100 * stored.threshold:.1f} %, twice what equal runs differ by on "
                f"this machine ({100 * stored.noise:.1f} %, {path})."
            )
        return stored.threshold


def _unlike(pairs: Sequence[Pair]) -> Iterator[str]:
    """Yields in what the sides differ, of the pairs that could be compared."""
    for pair in pairs:
        if pair.rates:
            versions = software_differences(pair.base, pair.candidate, ("the base", "the candidate"))
            yield from [f"The software differs: {versions}."] if versions else []
            for words in differences(pair.base, pair.candidate):
                yield f"The sides understand the same flags differently: {words}."


_SUITE = Flag("suite", str, "a TOML file with a table [[grid]] per grid, which holds flags, as of a sweep")
_TIMEOUT = Flag(
    "round_timeout_seconds",
    float,
    "kill a run that takes longer, or two in turn that take twice as long (default 3600)",
)
_TURNS = Flag(
    "steps_in_turn",
    bool,
    "start both sides of a pair at once and have them measure in turn, 0.25 s each or a step, so that both see the "
    "machine alike, where that can be: on CPUs, with synthetic images (default true; false: one run after the other)",
)
_BASELINES = Flag(
    "baselines_dir", str, "where calibrate keeps what equal runs differ by, per machine (default results/baselines)"
)

AB_FLAGS: Groups = {
    "ab: is the candidate slower than the base? Fresh processes of both, in turn; status 1 if it is": (
        Flag("base", str, "a git revision of this suite, checked out for the time being"),
        Flag("candidate", str, "likewise (default: this suite as it is)"),
        Flag("base_command", str, "words that start a run, such as '/venv/bin/python /src/run_bench.py'"),
        Flag("candidate_command", str, "likewise; default of one side if the other is given: this suite as it is"),
        _SUITE,
        Flag(
            "threshold",
            float,
            "a drop matters from so many percent on (default 5, or twice what calibrate found, if that is more)",
        ),
        Flag("max_rounds", int, "pairs of rounds per configuration after which it ends undecided (default 15)"),
        Flag(
            "warmup_round",
            bool,
            "first run everything once on each side, uncounted; without it no turns are taken (default true)",
        ),
        _TURNS,
        _TIMEOUT,
        _BASELINES,
        Flag("output_dir", str, "has base/, candidate/ and warmup/, with records and logs (default out/ab)"),
    ),
    "What is said, and where": OUTPUT_FLAGS,
}
CALIBRATE_FLAGS: Groups = {
    "calibrate: how much do equal runs differ on this machine, and which drop can it show?": (
        Flag("rounds", int, "pairs of rounds per configuration (default 10)"),
        _SUITE,
        _TURNS,
        _TIMEOUT,
        _BASELINES,
        Flag("output_dir", str, "has base/ and candidate/, with records and logs (default out/calibrate)"),
    ),
}


VERB = Verb(
    "ab",
    "is the candidate slower than the base? Interleaves runs of two revisions or environments: ab --base=REVISION",
    AB_FLAGS,
    lambda given, command: run(resolve(given.values, hardware.count_gpus), command, given.values),
    takes="lists",
)
