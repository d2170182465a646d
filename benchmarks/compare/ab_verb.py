"""The verbs `ab`: is the candidate slower than the base?, and `calibrate`: how much do equal runs differ?"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from benchmarks.compare import builds, compare_verb, interleaved_rounds
from benchmarks.compare.builds import Build
from benchmarks.compare.compare_verb import OUTPUT_FLAGS
from benchmarks.compare.interleaved_rounds import BASE, CANDIDATE, SIDES, Configuration, Pair, RoundsPlan
from benchmarks.compare.repository import Repository, repository_of
from benchmarks.config.verb import Verb
from benchmarks.console import in_words, say, warn
from benchmarks.errors import DataError, ExitStatus, UsageError
from benchmarks.machine import hardware
from benchmarks.option import Flag, Groups
from benchmarks.process.signals import until_stopped
from benchmarks.sweep import grid
from benchmarks.sweep.grid import Cell
from benchmarks.sweep.isolated_run import DEFAULT_TIMEOUT_SECONDS
from benchmarks.sweep.progress import estimate_seconds, what_is_run
from results.gate import noise
from results.gate.baselines import BASELINES_DIR
from results.gate.comparison import (
    config_differences,
    hardware_in_words,
    listed,
    software_differences,
    software_in_words,
)
from results.gate.decision import FEWEST_ROUNDS, NOISE_IN_THRESHOLD, QUIET_THRESHOLD
from results.gate.findings import Findings, Side
from results.gate.noise import Noise
from results.gate.rounds import rate
from results.gate.trial import SHORTEST_TRIAL, Trial
from results.text import counted

_STOPPED = "Stopped before the end. The finished runs are in {}."
_MAX_ROUNDS = 15
_OUTPUT_DIR = "out/ab"
_CALIBRATION_ROUNDS = 10
_CALIBRATION_DIR = "out/calibrate"
# A drop that a gate should not miss, in thresholds.
_CLEAR_DROP = 1.5
_MOST_NEEDED = 60
_UNKNOWN = "unknown, no run was valid"


@dataclasses.dataclass(frozen=True)
class _Comparison:
    """What is compared: `repository` is None if no side is a revision; `grids` are of flags and their values."""

    plan: RoundsPlan
    repository: Repository | None
    grids: Sequence[Mapping[str, Sequence[str]]]


def _plan_ab(values: Mapping[str, Any]) -> _Comparison:
    """Turns flag values (None: not given) into a plan; impossible configurations are included, the sides decide."""
    max_rounds = _MAX_ROUNDS if values["max_rounds"] is None else values["max_rounds"]
    for side in (BASE, CANDIDATE):
        if values[side] is not None and values[f"{side}_command"] is not None:
            raise UsageError(f"--{side} and --{side}_command both define the {side}: set only one of them.")
    if all(values[name] is None for name in ("base", "base_command", "candidate_command")):
        raise UsageError("ab: set what to compare with: --base=REVISION, such as main, or --base_command='WORDS'.")
    grids: list[Mapping[str, Sequence[str]]] = [*grid.grids_of(values)]
    repository = None
    if revisions := [values[side] for side in (BASE, CANDIDATE) if values[side] is not None]:
        repository = repository_of(dict.fromkeys(model for each in grids for model in each.get("model", ())))
        for revision in revisions:
            repository.commit(revision)
        grids = list(map(repository.with_common_paths, grids))
    cells = [cell for cell in grid.runnable(grids, hardware.count_gpus) if not cell.same_as_before]
    if repository and repository.models:
        cells = list(map(_with_batch, cells))
    return _Comparison(interleaved_rounds.plan_rounds(values, cells, max_rounds, _OUTPUT_DIR), repository, grids)


def _with_batch(cell: Cell) -> Cell:
    """Returns a cell that names its batch size, whose default follows from the operations of a user's model."""
    if cell.config is None or any(word.startswith("--batch_size=") for word in cell.arguments):
        return cell
    batch = f"--batch_size={cell.config.workload.batch_per_device}"
    return dataclasses.replace(cell, arguments=(*cell.arguments, batch))


@contextlib.contextmanager
def _sides(values: Mapping[str, Any], compared: _Comparison) -> Iterator[dict[str, Build]]:
    """Yields the builds of both sides, and removes what was checked out for them."""
    with contextlib.ExitStack() as stack:
        sides = {}
        for side in (BASE, CANDIDATE):
            command, revision = values[f"{side}_command"], values[side]
            if command is not None:
                sides[side] = builds.of_command(f"{side}_command", command)
            elif revision is not None and compared.repository:
                sides[side] = stack.enter_context(compared.repository.at(revision))
            else:
                sides[side] = compared.repository.now() if compared.repository else builds.this_suite()
        of = f"{compared.repository.title}: " if compared.repository else ""
        warn(f"{of}base: {sides[BASE].name}; candidate: {sides[CANDIDATE].name}")
        for build in sides.values():
            if compared.repository:
                compared.repository.check_models(build, compared.grids)
        yield sides


def run_ab(values: Mapping[str, Any], command: Sequence[str]) -> ExitStatus:
    """Runs both sides until all is decided, and reports the findings.

    Raises:
        UsageError: a value is out of range, nothing can be run, a side cannot be made, records cannot be stored, or the
            sides ran on different hardware.
        DataError: the stored noise of this machine cannot be read.
    """
    threshold, compared = compare_verb.threshold_of(values["threshold"]), _plan_ab(values)

    def compare() -> ExitStatus:
        with _sides(values, compared) as sides:
            findings = _compare(compared, threshold, sides, command)
        return compare_verb.report(findings, values)

    return until_stopped(compare, _STOPPED.format(compared.plan.output_dir))


def _compare(
    compared: _Comparison, threshold: float | None, sides: Mapping[str, Build], command: Sequence[str]
) -> Findings:
    plan, cells, max_rounds = compared.plan, compared.plan.cells, compared.plan.max_rounds
    once = 2 * sum(estimate_seconds(cell.config, []) for cell in cells if cell.config)
    warn(
        f"{counted(len(cells), 'configuration')}, at most {max_rounds} pairs of rounds each; about {in_words(once)} "
        "for one pair of each, by a rough guess."
    )
    notes: list[str] = []

    def make_trial(pair: Pair) -> Trial:
        share = _supported_threshold(plan.baselines_dir, pair, notes) if threshold is None else threshold
        return Trial(share, max_rounds=max_rounds)

    configurations = [Configuration(cell, make_trial) for cell in cells]
    run_notes = interleaved_rounds.run_rounds(plan, sides, configurations, command)
    decided = [each for each in configurations if not each.refusal]
    refused = [f"{what_is_run(each.cell)} cannot be run: {each.refusal}" for each in configurations if each.refusal]
    pairs = [pair for each in configurations for pair in each.pairs]
    base = [pair.base for pair in pairs if rate(pair.base) is not None]
    candidate = [pair.candidate for pair in pairs if rate(pair.candidate) is not None]
    return Findings(
        base=Side(name=sides[BASE].name, software=software_in_words(base) or _UNKNOWN),
        candidate=Side(name=sides[CANDIDATE].name, software=software_in_words(candidate) or _UNKNOWN),
        hardware=next(map(hardware_in_words, [*base, *candidate]), _UNKNOWN),
        findings=[each.finding(title) for each, title in zip(decided, interleaved_rounds.titles(decided), strict=True)],
        notes=list(dict.fromkeys([*notes, *run_notes, *_notes_on_differences(pairs), *refused])),
    )


def _supported_threshold(baselines_dir: Path, pair: Pair, notes: list[str]) -> float:
    """Returns the threshold for a configuration on its machine; appends a note if noise raises it.

    The keys of the sides differ if the code of a model does: then the noise of either side counts.
    """
    record = pair.base
    path = noise.path_of(baselines_dir, record.identity.hardware_key)
    try:
        known = noise.load(path)
    except noise.NoiseFileError as error:
        raise DataError(str(error)) from error
    stored = known.get(record.identity.config_key) or known.get(pair.candidate.identity.config_key)
    if stored is None:
        return QUIET_THRESHOLD
    if stored.is_interleaved != record.is_interleaved:
        how = "interleaved steps" if stored.is_interleaved else "whole runs"
        notes.append(f"{stored.title}: calibrate has measured the noise of {how} ({path}): run it again.")
        return QUIET_THRESHOLD
    if stored.threshold > QUIET_THRESHOLD:
        notes.append(
            f"{stored.title}: the threshold is {100 * stored.threshold:.1f} %, twice the noise of equal runs on this "
            f"machine ({100 * stored.noise:.1f} %, {path})."
        )
    return stored.threshold


def _notes_on_differences(pairs: Sequence[Pair]) -> Iterator[str]:
    for base, candidate in [(pair.base, pair.candidate) for pair in pairs if pair.rates]:
        if fields := software_differences(base, candidate, SIDES):
            yield f"The software differs: {listed(fields)}."
        codes = [record.config.get("model_digest") for record in (base, candidate)]
        fields = [text for text in config_differences(base, candidate, SIDES) if not text.startswith("model_digest ")]
        if fields:
            yield f"The sides understand the same flags differently: {listed(fields)}."
        if codes[0] != codes[1]:
            names = [record.model.get("code") or record.config.get("model") for record in (base, candidate)]
            yield f"The code of the model differs: {names[0]} in the base, {names[1]} in the candidate."
        elif codes[0] is not None:
            yield f"The code of {base.config.get('model')} is the same in {SIDES[0]} and {SIDES[1]}."


def run_calibrate(values: Mapping[str, Any], command: Sequence[str]) -> ExitStatus:
    """Runs the suite against itself, reports the noise, and stores it.

    Raises:
        UsageError: a value is out of range, nothing can be run, or records or noise cannot be stored.
        DataError: the stored noise of this machine cannot be read.
    """
    count = _CALIBRATION_ROUNDS if values["rounds"] is None else values["rounds"]
    cells = [cell for cell in grid.wanted(values, hardware.count_gpus) if cell.runs]
    plan = interleaved_rounds.plan_rounds(values, cells, count, _CALIBRATION_DIR)

    def calibrate() -> ExitStatus:
        suite = builds.this_suite()
        configurations = [Configuration(cell) for cell in plan.cells]
        interleaved_rounds.run_rounds(plan, {BASE: suite, CANDIDATE: suite}, configurations, command)
        done = [each for each in configurations if not each.failure]
        for each, title in zip(done, interleaved_rounds.titles(done), strict=True):
            _store_noise(plan, each.pairs, title)
        for each in configurations:
            if each.failure:
                warn(f"{each.what} is not calibrated. {each.failure[1]}")
        return ExitStatus.OK if len(done) == len(configurations) else ExitStatus.RUN_FAILED

    return until_stopped(calibrate, _STOPPED.format(plan.output_dir))


def _store_noise(plan: RoundsPlan, pairs: Sequence[Pair], title: str) -> None:
    """Reports the noise of a configuration, and stores it."""
    base, candidate = zip(*(pair.rates for pair in pairs if pair.rates), strict=True)
    first = pairs[0].base
    result = replace(
        noise.estimate(base, candidate),
        time_utc=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        suite_commit=first.identity.suite_commit,
        title=title,
        is_interleaved=first.is_interleaved,
    )
    for line in noise_lines(result):
        say(line)
    path = noise.path_of(plan.baselines_dir, first.identity.hardware_key)
    try:
        noise.save(path, {first.identity.config_key: result})
    except noise.NoiseFileError as error:
        raise DataError(str(error)) from error
    except OSError as error:
        raise UsageError(f"--baselines_dir={plan.baselines_dir}: {error.strerror or error}.") from error
    say(f"  stored in {path}; ab uses it for this configuration on this hardware")


def noise_lines(result: Noise) -> list[str]:
    """Returns what noise means for thresholds and rounds, in lines."""
    threshold = result.threshold
    drop = _CLEAR_DROP * threshold
    count = noise.rounds_needed(result.noise, drop=drop, threshold=threshold, most=_MOST_NEEDED) if drop < 1 else None
    needed = f"up to {count} pairs of rounds" if count else f"more than {_MOST_NEEDED} pairs of rounds"
    interval = f"{_percent(result.low)} to {_percent(result.high)}"
    return [
        result.title,
        f"  noise of one round: {_percent(result.noise)} (95 % interval {interval}, {result.rounds} pairs)",
        f"  threshold that this machine supports: {_percent(threshold)}",
        f"  a drop of {_percent(drop)} is found in 95 % of the cases with {needed}",
        f"  {_advice(result)}",
    ]


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.01 else f"{100 * share:.1f} %"


def _advice(result: Noise) -> str:
    if result.threshold > QUIET_THRESHOLD:
        advice = "give the run fewer threads than there are cores"
        if result.is_interleaved:
            advice = "let the run use all cores"
        return (
            "Noisy: look for other load (doctor reports how quiet the machine is), measure longer (--num_batches), or "
            f"{advice}; then calibrate again."
        )
    if NOISE_IN_THRESHOLD * result.high > QUIET_THRESHOLD:
        return "Quiet enough for 5 %, but these rounds are too few to be sure: set more --rounds."
    return "Quiet enough for 5 %."


_SUITE = Flag(
    "suite", str, "a TOML file with a table [[grid]] per grid, which contains flags, as for a sweep", path="file"
)
_TIMEOUT = Flag(
    "round_timeout_seconds",
    float,
    "kill a run after this time, a pair after twice it",
    default=DEFAULT_TIMEOUT_SECONDS,
    above=0,
)
_INTERLEAVING = Flag(
    "interleave_steps",
    bool,
    "start both sides of a pair at once and interleave their steps in time slices of 0.25 s, so that both run under "
    "the same load; on CPUs with synthetic images only; false: one run after the other",
    default=True,
)
_BASELINES = Flag(
    "baselines_dir", str, "directory of the noise that calibrate has stored", default=BASELINES_DIR, path="directory"
)

AB_FLAGS: Groups = {
    "What is compared, and how": (
        Flag(
            "base",
            str,
            "a git revision, checked out temporarily: of the repository of --model if that is a file, or of this suite",
        ),
        Flag("candidate", str, "a git revision of the same repository", default="the files as they are"),
        Flag("base_command", str, "words that start a run, such as '/venv/bin/python /src/run_bench.py'"),
        Flag("candidate_command", str, "words that start a run; a side without any flag is this suite as it is"),
        _SUITE,
        Flag(
            "threshold",
            float,
            "smallest drop in percent that matters",
            default=f"{100 * QUIET_THRESHOLD:g}, or twice the noise if that is larger",
        ),
        Flag(
            "max_rounds",
            int,
            "pairs of rounds per configuration after which it ends undecided",
            default=_MAX_ROUNDS,
            at_least=SHORTEST_TRIAL,
        ),
        Flag("warmup_round", bool, "first run all once, uncounted; needed to interleave steps", default=True),
        _INTERLEAVING,
        _TIMEOUT,
        _BASELINES,
        Flag(
            "output_dir",
            str,
            "directory of base/, candidate/ and warmup/, with records and logs",
            default=_OUTPUT_DIR,
            path="directory",
        ),
    ),
    "Output of the findings": OUTPUT_FLAGS,
}
CALIBRATE_FLAGS: Groups = {
    "The calibration": (
        Flag(
            "rounds",
            int,
            "pairs of rounds per configuration",
            default=_CALIBRATION_ROUNDS,
            at_least=FEWEST_ROUNDS,
        ),
        _SUITE,
        _INTERLEAVING,
        _TIMEOUT,
        _BASELINES,
        Flag(
            "output_dir",
            str,
            "directory of base/ and candidate/, with records and logs",
            default=_CALIBRATION_DIR,
            path="directory",
        ),
    ),
}


AB = Verb(
    "ab",
    "is this revision, or environment, slower than that one?",
    AB_FLAGS,
    lambda given, command: run_ab(given.values, command),
    takes="lists",
    details="Fresh processes of both alternate. Exit status 1 if the candidate is slower, 3 if noise hides the answer.",
    examples=("ab --base=main --model=resnet50 --num_gpus=1",),
)
CALIBRATE = Verb(
    "calibrate",
    "how much do equal runs differ here, and which drop can be seen?",
    CALIBRATE_FLAGS,
    lambda given, command: run_calibrate(given.values, command),
    takes="lists",
    examples=("calibrate --model=resnet50 --num_gpus=1",),
)
