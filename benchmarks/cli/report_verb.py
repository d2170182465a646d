"""The verbs `report`, `rerun` and `diff`, which read records. No TensorFlow, except in what `rerun` starts."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import record_files
from benchmarks.config.flag import Flag
from benchmarks.config.verb import Verb
from benchmarks.console import say, warn
from benchmarks.errors import ExitStatus, UsageError
from benchmarks.process.subprocesses import RUN_BENCH
from results.gate.comparability import flat
from results.record import Record
from results.report import headline, published
from results.report.anomalies import anomalies, warnings_of
from results.summary import summarize

_MOST_NOTES = 10


def report(words: Sequence[str], values: Mapping[str, Any]) -> ExitStatus:
    """Reports the records of files: writes a page and more into a directory, or prints the headline table.

    Raises:
        UsageError: there is nothing to report, or the directory cannot be written.
        DataError: a file cannot be read.
    """
    paths = record_files.paths(words)
    records = record_files.matching(record_files.load(paths), values["where"])
    if not records:
        raise UsageError(f"There are no such records in {', '.join(map(str, paths))}.")
    if values["output"] is None:
        if values["against"]:
            raise UsageError("--against is about plots and the page: give --output=DIR, too.")
        rows = summarize(records)
        for line in [*headline.lines(rows), "", *anomalies(rows), *warnings_of(records)]:
            say(line)
        return ExitStatus.OK
    from results.report import write  # with matplotlib, which takes its time

    output = Path(values["output"])
    try:
        notes = write.write(records, [str(path) for path in paths], output, against_table=values["against"])
    except OSError as error:
        raise UsageError(
            f"--output={output}: {error.strerror or error}. Name a directory that can be written."
        ) from error
    for note in notes[:_MOST_NOTES]:
        warn(note)
    say(f"{len(records)} records: {output / 'report.html'}, report.md, results.csv and plots/")
    return ExitStatus.OK


def rerun(words: Sequence[str], values: Mapping[str, Any]) -> ExitStatus:
    """Runs the exact command of a record again, and returns its exit status.

    Raises:
        UsageError: no record has this id.
        DataError: a file cannot be read.
    """
    if not words:
        raise UsageError("rerun: name the record by its run id, such as rerun f13e1c470598 out/results.jsonl.")
    record = _find(words[0], record_files.load(record_files.paths(words[1:])))
    command = [sys.executable, str(RUN_BENCH), *record.identity.command]
    say(f"$ {shlex.join(command[1:])}")
    if values["dry_run"]:
        return ExitStatus.OK
    sys.stdout.flush()
    os.execv(command[0], command)  # signals reach the run itself, and its status is ours


def diff(words: Sequence[str]) -> ExitStatus:
    """Prints what differs between two records in configuration, environment and result.

    Raises:
        UsageError: no record has such an id.
        DataError: a file cannot be read.
    """
    if len(words) < 2:
        raise UsageError("diff: name two records by their run ids, such as diff f13e1c470598 0daa2ee5cace.")
    records = record_files.load(record_files.paths(words[2:]))
    first, second = (_find(word, records) for word in words[:2])
    alike = True
    for part in ("config", "environment", "placement", "derived"):
        one, other = (flat(dataclasses.asdict(record)[part]) for record in (first, second))
        changed = [name for name in {**one, **other} if one.get(name) != other.get(name)]
        for name in changed:
            say(f"{part}.{name}: {_shown(one.get(name))} -> {_shown(other.get(name))}")
        alike = alike and (not changed or part == "derived")
    if alike:
        say("Configuration, environment and placement are the same.")
    return ExitStatus.OK


def _find(run_id: str, records: Sequence[Record]) -> Record:
    """Returns the record whose id starts with `run_id`."""
    found = [record for record in records if record.identity.run_id.startswith(run_id)]
    if len(found) == 1:
        return found[0]
    many = f"{len(found)} records have ids that start with" if found else "No record has the id"
    raise UsageError(f"{many} '{run_id}'; ids are in results.csv, column run_id.")


def _shown(value: Any) -> str:
    return "nothing" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


REPORT = Verb(
    "report",
    "tables, plots and a page from records: report FILE ... --output=DIR",
    {
        "report FILE ...: what records show; without --output, the headline table": (
            Flag("output", str, "a directory for report.html, report.md, results.csv and plots"),
            Flag("against", str, "published figures to compare with", tuple(published.SOURCES)),
            Flag(
                "where", str, "only records with these values, such as model=vgg16,status=ok (columns of results.csv)"
            ),
        )
    },
    lambda given, command: report(given.words, given.values),
    takes="words",
)
RERUN = Verb(
    "rerun",
    "the exact command of a record again: rerun RUN_ID [FILE ...]",
    {
        "rerun RUN_ID [FILE ...]: the exact command of a record again": (
            Flag("dry_run", bool, "print the command and stop"),
        )
    },
    lambda given, command: rerun(given.words, given.values),
    takes="words",
)
DIFF = Verb(
    "diff",
    "what differs between two records: diff RUN_ID RUN_ID [FILE ...]",
    {"diff RUN_ID RUN_ID [FILE ...]: what differs between two runs": ()},
    lambda given, command: diff(given.words),
    takes="words",
)
