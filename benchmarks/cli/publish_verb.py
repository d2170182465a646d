"""The verb `publish`: results that can be put online. No TensorFlow."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import record_files
from benchmarks.config.run_flags import RUN_FLAGS
from benchmarks.config.verb import Verb
from benchmarks.console import say, warn
from benchmarks.errors import DataError, ExitStatus, UsageError
from benchmarks.option import Flag
from benchmarks.regression.compare_verb import WHERE
from results.exchange import publication, publication_check
from results.exchange.public_record import Stripping, Vocabulary
from results.exchange.publication_check import Checked
from results.report.anomalies import title
from results.store import JSONL_NAME
from results.text import counted

# Names that many machines and users have tell nothing about one of them.
_USUAL_NAMES = frozenset({"root", "user", "admin", "ubuntu", "runner", "localhost", "/root", "/", ""})
# Of paths and hosts, beside the flags that say so.
_PLACES = frozenset({"cluster_spec", "partitioned_graph_file_prefix"})


def publish(words: Sequence[str], values: Mapping[str, Any]) -> ExitStatus:
    """Makes a folder of runs that can be put online, checked as --check does.

    Raises:
        UsageError: no folder is named, it has files, or no run can be published.
        DataError: a file cannot be read, or the folder does not pass its check.
    """
    if values["check"]:
        return check(words, values)
    if not words:
        raise UsageError("publish: name the folder to make, and files of records, such as publish public out.")
    directory, vocabulary, machine = Path(words[0]), _vocabulary(), values["machine"] or ""
    if directory.exists() and not (directory.is_dir() and not any(directory.iterdir())):
        raise UsageError(f"publish: {directory} exists and is not an empty directory. Name another one.")
    if found := vocabulary.private_in(machine):
        raise UsageError(
            f"--machine: '{found}' may be a path, host, user or address: describe the machine in plain words."
        )
    files = record_files.paths(words[1:])
    records = record_files.matching(record_files.load(files), values["where"])
    stripping = Stripping(vocabulary, machine)
    kept, refused = publication.selected(records, stripping)
    for why, number in refused.items():
        warn(f"{counted(number, 'record')} left out: {why}.")
    if not kept:
        raise UsageError(
            f"publish: {', '.join(map(str, files))}: there is no valid run to publish. Nothing was written."
        )
    say(publication.files_of(kept)[publication.README_NAME])
    try:
        checked = _written(publication.write(kept, directory), directory, vocabulary)
    except OSError as error:
        raise UsageError(f"publish: {directory}: {error.strerror or error}. Name a folder that can be made.") from error
    if changed := dict.fromkeys(".".join(name.split(".")[:2]) for name, count in stripping.left_out.items() if count):
        say(f"Left out or replaced, as far as it is not public: {', '.join(sorted(changed))}.")
    _print(checked)
    say(f"{counted(len(kept), 'run')}: {directory} is ready: {', '.join(publication.files_of(kept))}. Read it once.")
    return ExitStatus.OK


def _written(folder: Path, directory: Path, vocabulary: Vocabulary) -> Checked:
    """Checks a folder and puts it where it is to be, or removes it.

    Raises:
        DataError: it does not pass.
    """
    try:
        checked = publication_check.check(folder, vocabulary)
        if checked.refusals:
            _print(checked)
            raise DataError(f"publish: {checked.refusals[0]} Nothing was written.")
        os.rename(folder, directory)  # an empty directory is replaced
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return checked


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
        checked = publication_check.check(directory, _vocabulary())
    except OSError as error:
        raise DataError(f"{error.filename}: {error.strerror}. Publish again.") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{directory}: a file is not UTF-8: {error}. Publish again.") from error
    _print(checked)
    if checked.refusals:
        raise DataError(f"{directory} is refused, for {counted(len(checked.refusals), 'reason')}; see above.")
    return ExitStatus.OK


def _print(checked: Checked) -> None:
    for sentence in checked.refusals:
        warn(f"refused: {sentence}")
    for sentence in checked.warnings:
        warn(sentence)
    for row in checked.rows if not checked.refusals else ():
        runs = counted(len(row.records), "run")
        say(f"{title(row)}: {row.rate:.2f} images/s ({row.measured.range()}), {runs}: whole and comparable.")


def _vocabulary() -> Vocabulary:
    """Returns the words of all flags' values, and the names of this host, its user and their home directory."""
    flags = [flag for group in RUN_FLAGS.values() for flag in group]
    home = Path.home()
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = ""
    host = socket.gethostname()
    private = {host, host.partition(".")[0], user, str(home), home.name} - _USUAL_NAMES
    return Vocabulary(
        words=frozenset(word for flag in flags for word in flag.words),
        flags=frozenset(flag.name for flag in flags),
        places=frozenset(flag.name for flag in flags if flag.path or "host" in flag.name or flag.name in _PLACES),
        private=frozenset(private),
    )


VERB = Verb(
    "publish",
    "make a folder of results that can be put online, or check one",
    {
        "The folder": (
            Flag("check", bool, "make nothing: check whether a folder is whole, comparable and fit to be public"),
            Flag("machine", str, "what to call the machine, beside the names of its CPU and GPUs"),
            WHERE,
        )
    },
    lambda given, command: publish(given.words, given.values),
    takes="words",
    words="DIR [FILE ...]",
    details="Leaves out what names people, hosts, places or files, and checks the folder. A refused folder gives the "
    "reasons, and status 5.",
    examples=("publish public out/results.jsonl --machine='one H100, 16 cores'", "publish public --check"),
)
