"""The verb `publish`: results that can be put online. No TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import record_files
from benchmarks.compare.compare_verb import WHERE
from benchmarks.config.run_flags import FLAGS
from benchmarks.config.verb import Verb
from benchmarks.console import say, warn
from benchmarks.errors import DataError, ExitStatus, UsageError, writing
from benchmarks.option import Flag
from results.exchange import publication
from results.exchange.publication import Checked
from results.store import JSONL_NAME
from results.text import counted

# What flags of a run may have as values.
_WORDS = frozenset(word for flag in FLAGS.values() for word in flag.words)


def publish(words: Sequence[str], values: Mapping[str, Any]) -> ExitStatus:
    """Makes a folder of runs that can be put online, checked as --check does.

    Raises:
        UsageError: no folder is named, it has files, or no run can be published.
        DataError: a file cannot be read, or has no records, or the folder does not pass its check.
    """
    if values["check"]:
        return check(words, values)
    if not words:
        raise UsageError("publish: name the folder to make, and files of records, such as publish public out.")
    directory = Path(words[0])
    if directory.exists() and not (directory.is_dir() and not any(directory.iterdir())):
        raise UsageError(f"publish: {directory} exists and is not an empty directory. Name another one.")
    files = record_files.paths(words[1:])
    records = record_files.chosen(files, values["where"])
    kept, refused, changed = publication.selected(records, _WORDS, values["machine"] or "")
    for why, number in refused.items():
        warn(f"{counted(number, 'record')} left out: {why}.")
    if not kept:
        raise UsageError(
            f"publish: {', '.join(map(str, files))}: there is no valid run to publish. Nothing was written."
        )
    say(publication.files_of(kept)[publication.README_NAME])
    with writing(f"publish: {directory}", "folder that can be made"):
        checked = publication.write(kept, directory, _WORDS)
    _print(checked)
    if checked.refusals:
        raise DataError(f"publish: {checked.refusals[0]} Nothing was written.")
    if changed:
        say(f"Removed or replaced private fields: {', '.join(changed)}.")
    made = ", ".join(publication.files_of(kept))
    say(f"{counted(len(kept), 'run')}: {directory} is ready: {made}. Review it before you publish it.")
    return ExitStatus.OK


def check(words: Sequence[str], values: Mapping[str, Any]) -> ExitStatus:
    """Checks a folder that `publish` made, and prints a sentence for each of its rows.

    Raises:
        UsageError: not one folder is named, or a flag is about a new one.
        DataError: it cannot be read, or is refused.
    """
    if len(words) != 1 or values["machine"] or values["where"]:
        raise UsageError("publish --check: name the folder to check and nothing else, such as publish public --check.")
    directory = Path(words[0])
    if not (directory / JSONL_NAME).is_file():
        raise UsageError(f"{directory}: there is no {JSONL_NAME} in it. Name a folder that `publish` made.")
    try:
        checked = publication.check(directory, _WORDS)
    except OSError as error:
        raise DataError(f"{error.filename}: {error.strerror}. Publish again.") from error
    _print(checked)
    if checked.refusals:
        raise DataError(f"{directory} is refused, for {counted(len(checked.refusals), 'reason')}; see above.")
    return ExitStatus.OK


def _print(checked: Checked) -> None:
    for sentence in checked.refusals:
        warn(f"refused: {sentence}")
    warn(*checked.warnings)
    for row in checked.rows if not checked.refusals else ():
        runs = counted(len(row.records), "run")
        say(f"{row.title}: {row.measured.text()} images/s, {runs}: valid.")


VERB = Verb(
    "publish",
    {
        "The folder": (
            Flag(
                "check", bool, "check an existing folder: whether it is complete, comparable and without private data"
            ),
            Flag(
                "machine",
                str,
                "name of a machine that has none in its records, published as it is; names of CPUs and of most GPUs "
                "are not published",
            ),
            WHERE,
        )
    },
    lambda given, command: publish(given.words, given.values),
    takes="words",
    words="DIR [FILE ...]",
    details="Without files, the records of `out` are taken. Numbers and words of flags are public, other text is "
    "removed. If a folder is refused, the reasons are printed and the exit status is 5.",
    examples=("publish public out --machine='one H100, 16 cores'", "publish public --check"),
)
