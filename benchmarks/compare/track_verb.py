"""The verb `track`: stored sessions, and whether today is slower. No TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import record_files
from benchmarks.compare import calibration, compare_verb
from benchmarks.compare.compare_verb import OUTPUT_FLAGS, WHERE
from benchmarks.config.verb import Verb
from benchmarks.console import say, warn
from benchmarks.errors import ExitStatus, UsageError, writing
from benchmarks.option import Flag, only
from results.gate import baseline_check, baselines, rounds, session_history
from results.gate.baseline_check import MOST_SESSIONS
from results.gate.baselines import BASELINES_DIR
from results.gate.comparison import UnlikeError
from results.gate.rounds import sessions
from results.record import Record
from results.summary import grouped
from results.text import Table, as_rate, counted

_PICTURES = (".png", ".svg")
_FOLDER = "directory that can be written"
_NO_SESSIONS = "There are no sessions in {}. `track store FILE` adds some."
_MOST_REFUSALS = 3


def check(words: Sequence[str], values: Mapping[str, Any]) -> ExitStatus:
    """Judges the runs of files by the stored sessions.

    Raises:
        UsageError: the command line is wrong, no session of this hardware is stored, or an output cannot be written.
        DataError: a file cannot be read, or has no records.
    """
    threshold = None if values["threshold"] is None else values["threshold"] / 100
    files, directory = record_files.paths(words), _directory(values)
    try:
        today, stored = _dated(record_files.chosen(files, values["where"])), _stored(directory, values["where"])
        if not today:
            raise UsageError(f"There is no run in {' and '.join(map(str, files))} whose time can be used.")
        findings = baseline_check.check(today, stored, (" and ".join(map(str, files)), directory), threshold)
    except UnlikeError as error:
        raise UsageError(str(error)) from error
    return compare_verb.report(findings, values)


def history(words: Sequence[str], values: Mapping[str, Any]) -> ExitStatus:
    """Shows the rate of each configuration session by session, of files or of the stored sessions.

    Raises:
        UsageError: there is nothing to show, or the picture cannot be written.
        DataError: a file cannot be read, or has no records.
    """
    plot = Path(values["output"]) if values["output"] is not None else None
    if plot is not None and plot.suffix.lower() not in _PICTURES:
        raise UsageError(f"--output={plot}: name a file that ends in {' or '.join(_PICTURES)}.")
    directory = _directory(values)
    where = values["where"]
    records = record_files.chosen(record_files.paths(words), where) if words else _stored(directory, where)
    histories = session_history.histories(records)
    if not histories:
        advice = "Name a file that has some." if words else "`track store FILE` adds some."
        raise UsageError(f"There are no valid runs in {', '.join(words) or directory}. {advice}")
    as_json = values["output_format"] == "json"
    say(session_history.as_json(histories) if as_json else "\n".join(session_history.as_text(histories)))
    if plot is not None:
        with writing(f"--output={plot}"):
            drawn = session_history.draw(histories, plot)
        if drawn < len(histories):
            warn(f"{plot} shows {drawn} of {len(histories)} configurations, those with the most sessions: use --where.")
    return ExitStatus.OK


def store(words: Sequence[str], values: Mapping[str, Any]) -> ExitStatus:
    """Stores the runs of files as sessions to compare with.

    Raises:
        UsageError: no run can be stored, or the directory cannot be written.
        DataError: a file cannot be read, or has no records.
    """
    directory, files = _directory(values), record_files.paths(words)
    runs = record_files.chosen(files, values["where"])
    with writing(f"--baselines_dir={directory}", _FOLDER):
        added, present, refused = baselines.store_runs(Path(directory), runs)
    warn(*refused[:_MOST_REFUSALS])
    if len(refused) > _MOST_REFUSALS:
        warn(f"{len(refused) - _MOST_REFUSALS} more runs cannot be stored.")
    if not added and not present:
        raise UsageError(f"There is no run in {', '.join(map(str, files))} that can be stored.")
    for group in rounds.group(added).values():
        group_sessions = sessions(group.records)
        size = f"{counted(len(group.records), 'run')} in {counted(len(group_sessions), 'session')}"
        say(f"stored: {group.title}: {size}, the last of {as_rate(group_sessions[-1].images_per_sec)} images/s")
    before = f", {len(present)} already present" if present else ""
    say(f"{counted(len(added), 'run')} new in {directory}{before}.")
    return ExitStatus.OK


def list_stored(values: Mapping[str, Any]) -> ExitStatus:
    """Lists the stored configurations by machine.

    Raises:
        DataError: a file cannot be read.
    """
    directory = _directory(values)
    histories = session_history.histories(_stored(directory))
    if not histories:
        say(_NO_SESSIONS.format(directory))
    for hardware_key, of_machine in grouped(histories, lambda history: history.identity.hardware_key).items():
        columns = ("config_key", "configuration", "sessions", "newest (UTC)", "its images/s")
        rows = [
            [one.identity.config_key, one.title, f"{len(one.sessions)}", one.sessions[-1].date, as_rate(one.rates[-1])]
            for one in of_machine
        ]
        lines = Table(columns, rows, columns[2::2]).text()
        say("\n  ".join([f"{hardware_key}: {of_machine[0].hardware}", *lines]))
    return ExitStatus.OK


def prune(values: Mapping[str, Any]) -> ExitStatus:
    """Removes the oldest sessions of each configuration.

    Raises:
        UsageError: the directory cannot be written.
        DataError: a file cannot be read.
    """
    keep, directory = MOST_SESSIONS if values["keep"] is None else values["keep"], _directory(values)
    stored = _stored(directory)  # warns of damaged lines, which pruning removes
    with writing(f"--baselines_dir={directory}", _FOLDER):
        removed = baselines.prune(Path(directory), keep)
    for path, count in removed.items():
        say(f"{path}: {counted(count, 'session')} removed, {keep} kept")
    if not stored:
        say(_NO_SESSIONS.format(directory))
    elif not removed:
        say(f"No configuration in {directory} has more than {counted(keep, 'session')}.")
    return ExitStatus.OK


def _directory(values: Mapping[str, Any]) -> str:
    return str(values["baselines_dir"] or BASELINES_DIR)


def _stored(directory: str, where: str | None = None) -> list[Record]:
    files = baselines.paths(Path(directory))
    return _dated(record_files.load(files, where, "Make it readable, or name another --baselines_dir."))


def _dated(records: Sequence[Record]) -> list[Record]:
    """Returns the records without those of the future, which it names."""
    for record in filter(baselines.is_misdated, records):
        of = record.identity
        warn(f"Run {of.run_id} ({of.config_key}) of {of.time_utc} is not used: correct its time, or remove it.")
    return [record for record in records if not baselines.is_misdated(record)]


_DIRECTORY = Flag(
    "baselines_dir", str, "directory of the stored sessions, to be committed", default=BASELINES_DIR, path="directory"
)
VERB = Verb(
    "track",
    examples=("track store out/results.jsonl", "track check out/results.jsonl"),
    parts=(
        Verb(
            "track store",
            {"What is stored": (_DIRECTORY, WHERE)},
            lambda given, command: store(given.words, given.values),
            takes="words",
            words="[FILE ...]",
            details="Without files, the runs of `out`.",
            examples=("track store out/results.jsonl",),
            meaning="store the valid runs of files as sessions to compare with",
        ),
        Verb(
            "track list",
            {"What is listed": (_DIRECTORY,)},
            lambda given, command: list_stored(given.values),
            examples=("track list",),
            meaning="list the stored configurations",
        ),
        Verb(
            "track prune",
            {
                "What is kept": (
                    Flag("keep", int, "sessions of each configuration to keep", default=MOST_SESSIONS, at_least=1),
                    _DIRECTORY,
                )
            },
            lambda given, command: prune(given.values),
            examples=("track prune --keep=10",),
            meaning="remove the oldest sessions",
        ),
        Verb(
            "track check",
            {
                "What is compared": (
                    compare_verb.threshold_flag(", or twice the noise between sessions if that is larger"),
                    _DIRECTORY,
                    WHERE,
                ),
                "Output": OUTPUT_FLAGS,
            },
            lambda given, command: check(given.words, given.values),
            takes="words",
            words="[FILE ...]",
            details=f"Without files, the runs of `out`. Compares with the last {MOST_SESSIONS} sessions. Exit status 1 "
            "if a configuration is slower, 3 if noise hides the answer.",
            examples=("track check out/results.jsonl",),
            meaning="are these runs slower than the stored sessions?",
        ),
        Verb(
            "track history",
            {
                "What is shown": (
                    _DIRECTORY,
                    WHERE,
                    Flag("output", str, "plot into this .png or .svg file", path="file"),
                    *only(OUTPUT_FLAGS, "output_format"),
                )
            },
            lambda given, command: history(given.words, given.values),
            takes="words",
            words="[FILE ...]",
            details="Without files: of the stored sessions.",
            examples=("track history --output=history.png", "track history --where=config_key=f13e1c470598"),
            meaning="print or plot the rate of each session, and mark where it changed",
        ),
        Verb(
            "track calibrate",
            calibration.CALIBRATE_FLAGS,
            lambda given, command: calibration.run_calibrate(given.values, command),
            takes="lists",
            examples=("track calibrate --model=resnet50 --num_gpus=1",),
            meaning="measure the noise between equal runs, and the smallest drop that `ab` can detect",
        ),
    ),
)
