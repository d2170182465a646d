"""Reads the records that the command line names, and saves new ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.console import log, warn
from benchmarks.errors import DataError, UsageError, did_you_mean
from results import loading, store
from results.columns import COLUMNS
from results.record import Record
from results.store import Store, StoreError
from results.text import first_few

_DEFAULT_FILE = Path("out") / store.JSONL_NAME
_STDIN = ("/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")
_BELOW = tuple(f"{folders}{store.JSONL_NAME}" for folders in ("", "*/", "*/*/"))


def paths(words: Sequence[str]) -> list[Path]:
    """Returns the files that the words name, or the default file; a directory is the results file in it, `-` stdin.

    Raises:
        UsageError: stdin is named twice.
    """
    named = [Path("/dev/stdin" if word == "-" else word) for word in words] or [_DEFAULT_FILE]
    if sum(str(path) in _STDIN for path in named) > 1:
        raise UsageError("stdin (-) is named twice, and it is read once: name it once, and files for the rest.")
    return [path / store.JSONL_NAME if path.is_dir() else path for path in named]


def load(files: Sequence[Path], where: str | None = None, advice: str = "") -> list[Record]:
    """Reads records; with `where`, those that fulfil this condition on columns of results.csv.

    A line that is torn or of an unknown format is skipped with a warning.

    Raises:
        DataError: a file cannot be read; the message ends with the advice, by default to name what is near it.
        UsageError: `where` is no condition, names no column, or no record fulfils it.
    """
    try:
        loaded = loading.load(*files)
    except OSError as error:
        near = [str(path) for pattern in _BELOW for path in sorted(Path(error.filename).parent.glob(pattern))]
        such = f", such as {first_few(near, ', ')}" if near else f"; by default a run writes {_DEFAULT_FILE}"
        advice = advice or f"Name files that runs have written{such}."
        raise DataError(f"{error.filename}: {error.strerror}. {advice}") from error
    warn(*loaded.problems)
    if not where or not loaded.records:
        return loaded.records
    from results.exchange.frame import FilterError, Results  # with pandas, which takes its time

    try:
        found = list(Results(loaded.records).where(where).records)
    except FilterError as error:
        names = [column.name for column in COLUMNS]
        raise UsageError(
            f"--where={where}: {error}.{did_you_mean(error.unknown, names)} Write COLUMN=VALUE,COLUMN=VALUE, or a "
            "condition such as \"num_gpus > 1 and model in ['vgg16', 'alexnet']\" or \"time_utc > '2026-01-31'\" (in "
            f"UTC, without a zone). Columns: {', '.join(names)}."
        ) from error
    if not found:
        sources = first_few([str(file) for file in files], ", ")
        raise UsageError(
            f"--where={where}: no record in {sources} fulfils it. In a condition, text has quotes, a number none."
        )
    return found


def chosen(files: Sequence[Path], where: str | None = None) -> list[Record]:
    """Reads records as `load` does: at least one.

    Raises:
        UsageError: none fulfils the condition, or it is no condition.
        DataError: a file cannot be read, or they contain no records.
    """
    records = load(files, where)
    if not records:
        raise DataError(f"{', '.join(map(str, files))}: there are no records in it. Name a file that runs have left.")
    return records


def open_store(output_dir: str) -> Store:
    """Opens the results directory.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        return Store(Path(output_dir))
    except StoreError as error:
        raise UsageError(str(error)) from error


def save(store: Store, *records: Record) -> tuple[Sequence[Record], bool]:
    """Saves records, or prints them on stderr if that fails.

    Returns:
        The records as they were saved, which are those to print and to send: without secrets. And whether they were.
    """
    records = tuple(record.cleaned() for record in records)
    try:
        problems = store.append(*records)
    except StoreError as error:
        warn(f"{error} The record follows; append this line to {store.jsonl_path} to have it there.")
        for record in records:
            log(record.to_json())
        return records, False
    warn(*problems)
    return records, True
