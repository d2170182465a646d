"""Checks a folder of published results: is it whole, do its files agree, and does it hold nothing private?"""

from __future__ import annotations

import csv
import dataclasses
import json
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from results import loading, store
from results.exchange import public_table, publication, whole
from results.exchange.public_record import Stripping, Vocabulary
from results.exchange.public_table import TableError
from results.gate import comparability
from results.record import Record, flat
from results.summary import Row, summarize
from results.text import counted, one_line


@dataclasses.dataclass(frozen=True)
class Checked:
    """What a check found: why the folder is refused, what a reader should know, and its rows."""

    refusals: Sequence[str]
    warnings: Sequence[str]
    rows: Sequence[Row]


def check(directory: Path, vocabulary: Vocabulary) -> Checked:
    """Checks a folder. It may be somebody else's: there, a name of this host or user is a word like others.

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
        refusals += [
            f"{name}: {sentence}" for sentence in _private(record, dataclasses.replace(vocabulary, private=frozenset()))
        ]
    refusals += whole.mixed(records)
    rows = summarize(records)
    if not refusals:
        files = publication.files_of(records)
        if _text(path) != files[path.name]:
            refusals.append(f"{path}: its text differs from that of its records. Publish again.")
        refusals += _of_table(directory / publication.TABLE_NAME, files[publication.TABLE_NAME])
        readme = directory / publication.README_NAME
        if _text(readme) != files[readme.name]:
            refusals.append(f"{readme}: it was edited, and its text is not known to be public. Publish again.")
    refusals += [
        f"{directory / name}: this file is no part of a publication. Move it elsewhere."
        for name in sorted(one.name for one in directory.iterdir())
        if name not in (store.JSONL_NAME, publication.TABLE_NAME, publication.README_NAME)
    ]
    quality = Counter(sentence for record in records for sentence in whole.warnings(record))
    warnings = [f"{counted(number, 'run')} of {len(records)}: {sentence}" for sentence, number in quality.items()]
    if once := sum(len(row.records) == 1 for row in rows):
        warnings.append(
            f"{counted(once, 'row')} of {len(rows)}: one run only, so its interval is that of steps in one process. "
            "Repeat it with sweep --repeats=3."
        )
    return Checked([one_line(each) for each in refusals], warnings, rows)


def _text(path: Path) -> str:
    with loading.open_file(path) as file:
        return file.read().decode()


def _private(record: Record, vocabulary: Vocabulary) -> Iterator[str]:
    """Yields a sentence on the fields of a record that `publish` would not have written so."""
    try:
        stripped = Stripping(vocabulary).record(record)
    except ValueError as error:
        yield f"{error}. Publish its run again."
        return
    found, wanted = (flat(json.loads(one.to_json())) for one in (record, stripped))
    if private := [name[:80] for name in {**found, **wanted} if found.get(name) != wanted.get(name)]:
        yield (
            f"not in a public form: {comparability.listed(private)}. Only words of the suite, numbers and versions are "
            "public: publish its run again, with this version of the suite."
        )


def _of_table(path: Path, expected: str) -> Iterator[str]:
    """Yields a sentence for each cell of the table that differs from the records."""
    text = _text(path)
    if text == expected:
        return
    try:
        public_table.parsed(text, str(path))
    except TableError as error:
        yield str(error)
        return
    stated, wanted = (list(csv.reader(one.splitlines())) for one in (text, expected))
    if len(stated) != len(wanted) or stated[0] != wanted[0]:
        yield (
            f"{path}: it must have {len(wanted)} lines and the columns {', '.join(wanted[0])}; it has {len(stated)} "
            f"lines and {len(stated[0])} columns. Publish again."
        )
        return
    for number, (line, other) in enumerate(zip(stated, wanted, strict=True), start=1):
        for name, cell, right in zip(wanted[0], line, other, strict=False):
            if cell != right:
                yield f"{path}:{number}: column {name} is '{cell[:80]}', and the records give '{right}'. Publish again."
    if [len(line) for line in stated] != [len(line) for line in wanted]:
        yield f"{path}: a line has more or fewer cells than the first. Publish again."
