"""The verb `ab`: is the candidate slower than the base?"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.compare import builds, compare_verb, interleaved_rounds
from benchmarks.compare.builds import Build, Repository
from benchmarks.compare.compare_verb import OUTPUT_FLAGS
from benchmarks.compare.interleaved_rounds import BASE, CANDIDATE, SIDES, Configuration, Pair, RoundsPlan
from benchmarks.config.run_flags import DEFAULTS
from benchmarks.config.verb import Verb
from benchmarks.console import in_words, warn
from benchmarks.errors import DataError, ExitStatus, UsageError
from benchmarks.machine import hardware
from benchmarks.measure.interleaved_steps import waited_in_vain
from benchmarks.option import Flag, Groups
from benchmarks.process.signals import until_stopped
from benchmarks.sweep import grid
from benchmarks.sweep.grid import Cell
from benchmarks.sweep.progress import estimate_seconds, what_is_run
from results.environment import differences, hardware_in_words, listed, software, software_in_words
from results.gate import noise
from results.gate.comparison import config_differences
from results.gate.decision import QUIET_THRESHOLD
from results.gate.findings import Findings, Side
from results.gate.trial import SHORTEST_TRIAL, Trial
from results.text import counted

Grid = Mapping[str, Sequence[str]]
_MAX_REPEATS = 15
_OUTPUT_DIR = "out/ab"
_UNKNOWN = "unknown, no run was valid"


def _plan_ab(values: Mapping[str, Any]) -> tuple[RoundsPlan, Repository | None, Sequence[Grid]]:
    """Turns flag values (None: not given) into a plan; impossible configurations are included, the sides decide.

    Also returns the repository of the revisions, if a side is one, and the grids that are run.
    """
    max_repeats = _MAX_REPEATS if values["max_repeats"] is None else values["max_repeats"]
    for side in (BASE, CANDIDATE):
        if values[side] is not None and values[f"{side}_command"] is not None:
            raise UsageError(f"--{side} and --{side}_command both define the {side}: set only one of them.")
    if all(values[name] is None for name in ("base", "base_command", "candidate_command")):
        raise UsageError("ab: set what to compare with: --base=REVISION, such as main, or --base_command='WORDS'.")
    grids: list[Grid] = [*grid.grids_of(values)]
    repository = None
    if any(values[side] is not None for side in (BASE, CANDIDATE)):
        usual = (DEFAULTS["model"],)
        repository = builds.repository_of(dict.fromkeys(model for each in grids for model in each.get("model", usual)))
        grids = list(map(repository.with_common_paths, grids))
    cells = [cell for cell in grid.runnable(grids, hardware.count_gpus) if not cell.same_as_before]
    if repository and repository.models:
        cells = list(map(_with_batch, cells))
    return interleaved_rounds.plan_rounds(values, cells, max_repeats, _OUTPUT_DIR), repository, grids


def _with_batch(cell: Cell) -> Cell:
    """Returns a cell that names its batch size, whose default follows from the operations of a user's model."""
    if cell.config is None or any(word.startswith("--batch_size=") for word in cell.arguments):
        return cell
    batch = f"--batch_size={cell.config.workload.batch_per_device}"
    return dataclasses.replace(cell, arguments=(*cell.arguments, batch))


@contextlib.contextmanager
def _sides(
    values: Mapping[str, Any], repository: Repository | None, grids: Sequence[Grid]
) -> Iterator[dict[str, Build]]:
    """Yields the builds of both sides, and removes what was checked out for them."""
    with contextlib.ExitStack() as stack:
        sides = {}
        for side in (BASE, CANDIDATE):
            command, revision = values[f"{side}_command"], values[side]
            if command is not None:
                sides[side] = builds.of_command(f"{side}_command", command)
            elif revision is not None and repository:
                sides[side] = stack.enter_context(repository.at(revision))
            else:
                sides[side] = repository.now() if repository else builds.this_suite()
        of = f"{repository.title}: " if repository else ""
        warn(f"{of}base: {sides[BASE].name}; candidate: {sides[CANDIDATE].name}")
        if repository:
            for build in sides.values():
                repository.check_models(build, grids)
        yield sides


def run_ab(values: Mapping[str, Any], command: Sequence[str]) -> ExitStatus:
    """Runs both sides until all is decided, and reports the findings.

    Raises:
        UsageError: a value is out of range, nothing can be run, a side cannot be made, records cannot be stored, or the
            sides ran on different hardware.
        DataError: the stored noise of this machine cannot be read.
    """
    plan, repository, grids = _plan_ab(values)
    compare_verb.require_writable(values, plan.output_dir)

    def compare() -> ExitStatus:
        with _sides(values, repository, grids) as sides:
            findings, candidate_runs = _compare(plan, values["threshold"], sides, command)
        status = compare_verb.report(findings, values)
        # Both sides fail if their common environment is broken, and a gate only warns of status 3.
        return ExitStatus.RUN_FAILED if status is ExitStatus.UNDECIDED and not candidate_runs else status

    return until_stopped(compare, interleaved_rounds.STOPPED.format(plan.output_dir))


def _compare(
    plan: RoundsPlan, percent: float | None, sides: Mapping[str, Build], command: Sequence[str]
) -> tuple[Findings, bool]:
    """Returns the findings, and whether the candidate ran, or only waited for a base that did not.

    `percent` is the threshold, if one is given.
    """
    cells, max_repeats = plan.cells, plan.max_repeats
    once = 2 * sum(estimate_seconds(cell.config, []) for cell in cells if cell.config)
    warn(
        f"{counted(len(cells), 'configuration')}, at most {max_repeats} repeats each on both sides; about "
        f"{in_words(once)} for one repeat of each, by a rough guess."
    )
    notes: list[str] = []

    def make_trial(pair: Pair) -> Trial:
        share = _supported_threshold(Path(plan.baselines_dir), pair, notes) if percent is None else percent / 100
        return Trial(share, max_rounds=max_repeats)

    configurations = [Configuration(cell, make_trial) for cell in cells]
    run_notes = interleaved_rounds.run_rounds(plan, sides, configurations, command)
    decided = [each for each in configurations if not each.refusal]
    refused = [f"{what_is_run(each.cell)} cannot be run: {each.refusal}" for each in configurations if each.refusal]
    pairs = [pair for each in configurations for pair in each.pairs]
    base = [pair.base for pair in pairs if pair.base.rate is not None]
    candidate = [pair.candidate for pair in pairs if pair.candidate.rate is not None]
    findings = Findings(
        base=Side(name=sides[BASE].name, software=software_in_words(base) or _UNKNOWN),
        candidate=Side(name=sides[CANDIDATE].name, software=software_in_words(candidate) or _UNKNOWN),
        hardware=next(map(hardware_in_words, [*base, *candidate]), _UNKNOWN),
        findings=[each.finding(title) for each, title in zip(decided, interleaved_rounds.titles(decided), strict=True)],
        notes=list(dict.fromkeys([*notes, *run_notes, *_notes_on_differences(pairs), *refused])),
    )
    return findings, bool(candidate) or any(waited_in_vain(pair.candidate.reason) for pair in pairs)


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
        notes.append(f"{stored.title}: `track calibrate` measured the noise of {how} ({path}): run it again.")
        return QUIET_THRESHOLD
    if stored.threshold > QUIET_THRESHOLD:
        notes.append(
            f"{stored.title}: the threshold is {100 * stored.threshold:.1f} %, twice the noise of equal runs on this "
            f"machine ({100 * stored.noise:.1f} %, {path})."
        )
    return stored.threshold


def _notes_on_differences(pairs: Sequence[Pair]) -> Iterator[str]:
    """Yields in what the sides differ, and whether the code of a user's model does."""
    for base, candidate in [(pair.base, pair.candidate) for pair in pairs if pair.rates]:
        if fields := differences(software(base), software(candidate), SIDES):
            yield f"The software differs: {listed(fields)}."
        codes = [record.config.get("model_digest") for record in (base, candidate)]
        fields = [text for text in config_differences(base, candidate, SIDES) if not text.startswith("model_digest ")]
        if fields:
            yield f"The configurations differ, by the flags or defaults of the commands: {listed(fields)}."
        if codes[0] != codes[1]:
            names = [record.model.get("code") or record.config.get("model") for record in (base, candidate)]
            yield f"The code of the model differs: {names[0]} in the base, {names[1]} in the candidate."
        elif codes[0] is not None:
            yield f"The code of {base.config.get('model')} is the same in {SIDES[0]} and {SIDES[1]}."


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
        compare_verb.threshold_flag(", or twice the noise if that is larger"),
        Flag(
            "max_repeats",
            int,
            "maximum repeats of each configuration, a pair of runs each; then it is undecided",
            default=_MAX_REPEATS,
            at_least=SHORTEST_TRIAL,
        ),
        Flag("warmup", bool, "run everything once before the first repeat; needed to interleave steps", default=True),
        *interleaved_rounds.plan_flags(_OUTPUT_DIR),
    ),
    "Output of the findings": OUTPUT_FLAGS,
}


VERB = Verb(
    "ab",
    AB_FLAGS,
    lambda given, command: run_ab(given.values, command),
    takes="lists",
    details="Fresh processes of both alternate. Exit status 1 if the candidate is slower, 3 if noise hides the answer.",
    examples=("ab --base=main --model=resnet50 --num_gpus=1",),
)
