"""The verbs `baseline`, `check` and `history`: stored sessions, and whether today is slower. No TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import record_files
from benchmarks.compare import compare_verb
from benchmarks.compare.compare_verb import OUTPUT_FLAGS, WHERE
from benchmarks.config.verb import Verb
from benchmarks.console import say, warn
from benchmarks.errors import DataError, ExitStatus, UsageError, did_you_mean
from benchmarks.option import Flag, Groups, only
from results.gate import baseline_check, baselines, rounds, session_history
from results.gate.baseline_check import MOST_SESSIONS
from results.gate.baselines import BASELINES_DIR
from results.gate.comparison import UnlikeError, hardware_in_words
from results.gate.decision import QUIET_THRESHOLD
from results.gate.rounds import RunGroup, sessions
from results.record import Record
from results.text import Table, counted

_PICTURES = (".png", ".svg")
_MOST_REFUSALS = 10


def run_baseline(words: Sequence[str], values: Mapping[str, Any]) -> ExitStatus:
    """Promotes, lists, shows or prunes baselines, as the first word says.

    Raises:
        UsageError: the command line is wrong, there is nothing to promote, or the directory cannot be written.
        DataError: a file cannot be read.
    """
    action, directory = words[0] if words else "", _directory(values)
    if action not in _ACTIONS:
        unknown = f" there is no '{action}'.{did_you_mean(action, _ACTIONS)}" if words else ""
        raise UsageError(f"baseline:{unknown} Actions: baseline {', '.join(_ACTIONS)}.")
    if action in ("list", "prune") and len(words) > 1:
        raise UsageError(f"baseline {action} takes no '{words[1]}', only flags.")
    try:
        _ACTIONS[action](Path(directory), words[1:], values)
    except OSError as error:
        raise UsageError(
            f"--baselines_dir={directory}: {error.strerror or error}. Name a directory that can be written."
        ) from error
    return ExitStatus.OK


def check(words: Sequence[str], values: Mapping[str, Any]) -> ExitStatus:
    """Judges the runs of files by the stored sessions.

    Raises:
        UsageError: the command line is wrong, there are no baselines of this hardware, or an output cannot be written.
        DataError: a file cannot be read.
    """
    threshold = compare_verb.threshold_of(values["threshold"])
    files, directory = record_files.paths(words), _directory(values)
    try:
        today, stored = record_files.load(files), _stored(directory)
        findings = baseline_check.check(today, stored, (" and ".join(map(str, files)), directory), threshold)
    except UnlikeError as error:
        raise UsageError(str(error)) from error
    return compare_verb.report(findings, values)


def history(words: Sequence[str], values: Mapping[str, Any]) -> ExitStatus:
    """Shows the rate of each configuration session by session, of files or of the baselines.

    Raises:
        UsageError: there is nothing to show, or the picture cannot be written.
        DataError: a file cannot be read.
    """
    plot = Path(values["plot"]) if values["plot"] is not None else None
    if plot is not None and plot.suffix.lower() not in _PICTURES:
        raise UsageError(f"--plot={plot}: name a file that ends in {' or '.join(_PICTURES)}.")
    directory = _directory(values)
    records = record_files.load(record_files.paths(words)) if words else _stored(directory)
    histories = session_history.histories(record_files.matching(records, values["where"]))
    if not histories:
        where = ", ".join(words) or directory
        raise UsageError(f"There are no ok runs{_such(values)} in {where}. `baseline promote FILE` adds some.")
    as_json = values["output_format"] == "json"
    say(session_history.as_json(histories) if as_json else "\n".join(session_history.as_text(histories)))
    if plot is not None:
        try:
            drawn = session_history.draw(histories, plot)
        except OSError as error:
            raise UsageError(f"--plot={plot}: {error.strerror or error}. Name a file that can be written.") from error
        if drawn < len(histories):
            warn(f"{plot} shows {drawn} of {len(histories)} configurations, those with the most sessions: use --where.")
    return ExitStatus.OK


def _promote(directory: Path, words: Sequence[str], values: Mapping[str, Any]) -> None:
    files = record_files.paths(words)
    promoted = baselines.promote(directory, record_files.matching(record_files.load(files), values["where"]))
    for sentence in promoted.refused[:_MOST_REFUSALS]:
        warn(sentence)
    if len(promoted.refused) > _MOST_REFUSALS:
        warn(f"{len(promoted.refused) - _MOST_REFUSALS} more runs cannot become a baseline.")
    if not promoted.added and not promoted.present:
        raise UsageError(f"There is no run{_such(values)} in {', '.join(map(str, files))} that can become a baseline.")
    for group in rounds.group(promoted.added).values():
        group_sessions = sessions(group.records)
        size = f"{counted(len(group.records), 'run')} in {counted(len(group_sessions), 'session')}"
        say(f"promoted: {group.title}: {size}, the last of {group_sessions[-1].images_per_sec:.2f} images/s")
    present = f", {len(promoted.present)} already present" if promoted.present else ""
    say(f"{counted(len(promoted.added), 'run')} new in {directory}{present}.")


def _list(directory: Path, words: Sequence[str], values: Mapping[str, Any]) -> None:
    machines: dict[str, list[RunGroup]] = {}
    for (_, hardware_key), group in rounds.group(_stored(directory)).items():
        machines.setdefault(hardware_key, []).append(group)
    if not machines:
        say(f"There are no baselines in {directory}. `baseline promote FILE` adds some.")
    for hardware_key, groups in machines.items():
        columns = ("config_key", "configuration", "sessions", "newest (UTC)", "its images/s")
        rows = []
        for group in groups:
            group_sessions = sessions(group.records)
            rate = f"{group_sessions[-1].images_per_sec:.2f}"
            rows.append([group.config_key, group.title, str(len(group_sessions)), group_sessions[-1].date, rate])
        _say_table(f"{hardware_key}: {hardware_in_words(groups[0].records[0])}", Table(columns, rows, columns[2::2]))


def _show(directory: Path, words: Sequence[str], values: Mapping[str, Any]) -> None:
    if len(words) != 1:
        raise UsageError("baseline show: name one hardware_key or config_key, or its beginning, from `baseline list`.")
    key = words[0]
    matching = [
        record
        for record in _stored(directory)
        if key and any(each.startswith(key) for each in (record.identity.hardware_key, record.identity.config_key))
    ]
    if not matching:
        raise UsageError(
            f"baseline show: no hardware_key or config_key in {directory} begins with '{key}'. "
            "`baseline list` prints them."
        )
    for group in rounds.group(matching).values():
        table = session_history.sessions_table(sessions(group.records))
        _say_table(f"{group.title} on {hardware_in_words(group.records[0])}", table)


def _prune(directory: Path, words: Sequence[str], values: Mapping[str, Any]) -> None:
    keep = MOST_SESSIONS if values["keep"] is None else values["keep"]
    _stored(directory)  # warns of damaged lines, which pruning removes
    removed = baselines.prune(directory, keep)
    for path, count in removed.items():
        say(f"{path}: {counted(count, 'session')} removed, {keep} kept")
    if not removed:
        say(f"No configuration in {directory} has more than {keep} sessions.")


_ACTIONS: Mapping[str, Callable[[Path, Sequence[str], Mapping[str, Any]], None]] = {
    "promote": _promote,
    "list": _list,
    "show": _show,
    "prune": _prune,
}


def _directory(values: Mapping[str, Any]) -> str:
    return str(values["baselines_dir"] or BASELINES_DIR)


def _stored(directory: str | Path) -> list[Record]:
    try:
        loaded = baselines.load(Path(directory))
    except OSError as error:
        raise DataError(
            f"{error.filename}: {error.strerror}. Make it readable, or name another --baselines_dir."
        ) from error
    for problem in loaded.problems:
        warn(problem)
    return loaded.records


def _such(values: Mapping[str, Any]) -> str:
    return f" with {values['where']}" if values["where"] else ""


def _say_table(title: str, table: Table) -> None:
    for line in [title, *(f"  {line}" for line in table.text())]:
        say(line)


_DIRECTORY = Flag(
    "baselines_dir", str, "directory of the baselines, to be committed", default=BASELINES_DIR, path="directory"
)

BASELINE_FLAGS: Groups = {
    "promote [FILE ...]: store the ok runs of files; list; show KEY; prune": (
        _DIRECTORY,
        Flag("where", str, f"promote: {WHERE.help}"),
        Flag("keep", int, "prune: how many sessions of each configuration to keep", default=MOST_SESSIONS, at_least=1),
    )
}
CHECK_FLAGS: Groups = {
    "check [FILE ...]: today's runs against the last 20 stored sessions": (
        Flag(
            "threshold",
            float,
            "smallest drop in percent that matters",
            default=f"{100 * QUIET_THRESHOLD:g}, or twice the noise of sessions if that is larger",
        ),
        _DIRECTORY,
    ),
    "Output": OUTPUT_FLAGS,
}
HISTORY_FLAGS: Groups = {
    "history [FILE ...]: the rate session by session, of baselines or of files": (
        _DIRECTORY,
        WHERE,
        Flag("plot", str, "draw the history: a .png or .svg file", path="file"),
        *only(OUTPUT_FLAGS, "output_format"),
    )
}


BASELINE = Verb(
    "baseline",
    "store results to compare with; list, show and prune them",
    BASELINE_FLAGS,
    lambda given, command: run_baseline(given.words, given.values),
    takes="words",
    words="promote [FILE ...]|list|show KEY|prune",
    known_words=tuple(_ACTIONS),
    examples=("baseline promote out/results.jsonl", "baseline list"),
)
CHECK = Verb(
    "check",
    "are today's runs slower than the stored sessions?",
    CHECK_FLAGS,
    lambda given, command: check(given.words, given.values),
    takes="words",
    words="[FILE ...]",
    details="Exit status 1 if a configuration is slower, 3 if noise hides the answer.",
    examples=("check out/results.jsonl",),
)
HISTORY = Verb(
    "history",
    "the rate session by session, and where it changed",
    HISTORY_FLAGS,
    lambda given, command: history(given.words, given.values),
    takes="words",
    words="[FILE ...]",
    details="Without files, of the baselines.",
    examples=("history --plot=history.png",),
)
