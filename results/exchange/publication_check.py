"""Checks a folder of published results: is it whole, do its files agree, and does it hold nothing private?"""

from __future__ import annotations

import dataclasses
import itertools
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from results import loading, store
from results.exchange import publication, whole
from results.exchange.public_record import differing, public
from results.gate import comparison
from results.record import Record
from results.report.anomalies import warnings_of
from results.summary import Row, summarize
from results.text import counted, one_line

_LONGEST_LINE = 200


@dataclasses.dataclass(frozen=True)
class Checked:
    """What a check found: why the folder is refused, what a reader should know, and its rows."""

    refusals: Sequence[str]
    warnings: Sequence[str]
    rows: Sequence[Row]


def check(directory: Path, words: frozenset[str]) -> Checked:
    """Checks a folder, which may be somebody else's; `words` are those that flags may have.

    Raises:
        OSError: a file cannot be read, or is missing.
        UnicodeDecodeError: a file is not UTF-8.
    """
    if odd := [path for path in sorted(directory.iterdir()) if not stat.S_ISREG(path.lstat().st_mode)]:
        return Checked([f"{one_line(str(path))}: it is not a regular file. Remove it." for path in odd], [], [])
    path = directory / store.JSONL_NAME
    loaded = loading.load(path)
    records = loaded.records
    refusals = [*loaded.problems]
    if not records:
        refusals.append(f"{path}: there is no record in it. Publish again.")
    lines = sum(bool(line.strip()) for line in _text(path).split("\n"))
    if lines != len(records) + len(loaded.problems):
        refusals.append(f"{path}: {lines} lines hold {len(records)} records: two have the same run_id. Publish again.")
    for record in records:
        name = f"record {one_line(record.identity.run_id)}"
        refusals += [f"{name}: {sentence}." for sentence in whole.why_not(record)]
        refusals += [f"{name}: {sentence}. Publish its run again." for sentence in _private(record, words)]
    refusals += whole.mixed(records)
    rows = summarize(records)
    if not refusals:
        for file, expected in publication.files_of(records).items():
            refusals += _edits(directory / file, expected)
    refusals += [
        f"{directory / name}: this file is no part of a publication. Move it elsewhere."
        for name in sorted(one.name for one in directory.iterdir())
        if name not in (store.JSONL_NAME, publication.TABLE_NAME, publication.README_NAME)
    ]
    warnings = warnings_of(records)
    if once := sum(len(row.records) == 1 for row in rows):
        warnings.append(
            f"{counted(once, 'row')} of {len(rows)}: one run only, so its interval is that of steps in one process. "
            "Repeat it with sweep --repeats=3."
        )
    return Checked([one_line(each) for each in refusals], warnings, rows)


def _text(path: Path) -> str:
    with loading.open_file(path) as file:
        return file.read().decode()


def _private(record: Record, words: frozenset[str]) -> Iterator[str]:
    """Yields a sentence on the fields of a record that `publish` would not have written so."""
    try:
        names = differing(record, public(record, words))
    except ValueError as error:
        yield str(error)
        return
    if names:
        fields = comparison.listed([name[:80] for name in names])
        yield f"not in a public form: {fields}. Text is public if it is a word of a flag, or a version"


def _edits(path: Path, expected: str) -> Iterator[str]:
    """Yields a sentence on the first line of a file that differs from what the records give."""
    lines = itertools.zip_longest(_text(path).split("\n"), expected.split("\n"), fillvalue="nothing")
    for number, (line, wanted) in enumerate(lines, start=1):
        if line != wanted:
            yield (
                f"{path}:{number}: it was edited: it has '{line[:_LONGEST_LINE]}', and the records give "
                f"'{wanted[:_LONGEST_LINE]}'. Publish again."
            )
            return
