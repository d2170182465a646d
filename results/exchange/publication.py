"""Folders of results that can be put online: `results.jsonl`, `table.csv` and `README.md`, made from records alone.

The check of a folder makes all of it anew from its records, and compares.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from results import loading
from results.environment import HARDWARE, differences, listed
from results.exchange import public_table
from results.exchange.public_record import public, reasons_not_to_publish
from results.record import Record, differing, flat
from results.report.anomalies import warnings_of
from results.report.contents import Report
from results.store import JSONL_NAME, replace
from results.summary import Row, summarize
from results.text import counted, markdown, one_line

TABLE_NAME, README_NAME = "table.csv", "README.md"
_SOFTWARE = ("python", "tensorflow", "keras", "numpy", "cuda", "cudnn", "nccl")
_SHOWN = 40  # bytes before and after the first that differs


@dataclasses.dataclass(frozen=True)
class Checked:
    """What a check found: why the folder is refused, what a reader should know, and its rows."""

    refusals: Sequence[str]
    warnings: Sequence[str]
    rows: Sequence[Row]


def selected(
    records: Sequence[Record], words: frozenset[str], machine: str = ""
) -> tuple[list[Record], Counter[str], list[str]]:
    """Selects the runs that can be published, and takes out of them what is not public; see `public`.

    Returns:
        The runs; for each reason to leave out other records their number; the names of fields that were changed.
    """
    kept, refused, changed = [], Counter[str](), set[str]()
    for record in records:
        try:
            if why := next(reasons_not_to_publish(record), None):
                raise ValueError(why)
            published = public(record, words, machine)
            fields = [flat(json.loads(each.to_json())) for each in (record, published)]
            changed.update(".".join(name.split(".")[:2]) for name in differing(*fields))
            kept.append(published)
        except ValueError as error:
            refused[str(error)] += 1
    return kept, refused, sorted(changed)


def files_of(records: Sequence[Record]) -> dict[str, str]:
    """Returns the files of a folder by their names; equal records give equal files."""
    report = Report(records)
    return {
        JSONL_NAME: "".join(f"{record.to_json()}\n" for record in records),
        TABLE_NAME: public_table.written(public_table.of_rows(report.rows)),
        README_NAME: "\n".join(_readme(report)) + "\n",
    }


def write(records: Sequence[Record], directory: Path, words: frozenset[str]) -> Checked:
    """Makes a folder, checks it, and leaves it only if nothing is refused.

    Raises:
        OSError: it cannot be written.
    """
    folder = directory.parent / f".{directory.name}.{uuid.uuid4().hex[:8]}"
    folder.mkdir(parents=True)
    try:
        for name, text in files_of(records).items():
            replace(folder / name, text)
        checked = check(folder, words)
        if not checked.refusals:
            os.rename(folder, directory)  # an empty directory is replaced
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return checked


def _readme(report: Report) -> list[str]:
    lines = [*report.head, "## Repeat it", ""]
    lines += ["Install this version of cnn-train-bench. `***` stands for what is not public."]
    given = [(record.environment.get("variables") or {}).items() for record in report.records]
    if variables := sorted({f"{name}={value}" for each in given for name, value in each}):
        lines += ["", f"Environment variables: {markdown(', '.join(variables))}."]
    for row in report.rows:
        lines += [
            "",
            f"{markdown(row.title)}, {counted(len(row.records), 'run')}:",
            "",
            "```",
            row.records[0].command_line,
            "```",
        ]
    lines += ["", "## Files", "", f"- `{JSONL_NAME}`: the records, with every step"]
    lines += [f"- `{TABLE_NAME}`: the results as a table, for `run_bench.py report --against={TABLE_NAME}`", ""]
    return [*lines, "`run_bench.py publish . --check` checks this folder."]


def check(directory: Path, words: frozenset[str]) -> Checked:
    """Checks a folder, which may be somebody else's; `words` are those that flags may have.

    Raises:
        OSError: a file cannot be read, or is missing.
    """
    path = directory / JSONL_NAME
    loaded, records = loading.load(path), list[Record]()
    refusals = [*loaded.problems]
    if not loaded.records:
        refusals.append(f"{path}: there is no record in it. Publish again.")
    for record in loaded.records:
        published, reasons, _ = selected([record], words)
        refusals += [f"record {record.identity.run_id}: {why}." for why in reasons]
        records += published
    refusals += contradictions(records)
    expected, names = {} if refusals else files_of(records), (JSONL_NAME, TABLE_NAME, README_NAME)
    refusals += [edit for name, text in expected.items() if (edit := _first_edit(directory / name, text))]
    if other := sorted(path.name for path in directory.iterdir() if path.is_symlink() or path.name not in names):
        refusals.append(f"{directory}: no file of a publication: {', '.join(other)}. Move it elsewhere; copy no links.")
    rows, warnings = summarize(records), warnings_of(records)
    if once := sum(len(row.records) == 1 for row in rows):
        warnings.append(
            f"{counted(once, 'row')} of {len(rows)}: one run only, so its interval is that of steps in one process. "
            "Repeat it with sweep --repeats=3."
        )
    return Checked([one_line(sentence) for sentence in refusals], warnings, rows)


def _first_edit(path: Path, expected: str) -> str:
    """Returns a sentence on where a file first differs from what the records give; empty if it does not."""
    with loading.open_file(path) as file:
        texts = [file.read(), expected.encode()]
    if texts[0] == texts[1]:
        return ""
    at = len(os.path.commonprefix(texts))
    found, given = (text[max(0, at - _SHOWN) : at + _SHOWN].decode(errors="replace") for text in texts)
    line = texts[0].count(b"\n", 0, at) + 1
    return f"{path}:{line}: it was edited: it has '{found}', and the records give '{given}'. Publish again."


def contradictions(records: Sequence[Record]) -> Iterator[str]:
    """Yields a sentence for two records with equal keys and unlike hardware or software.

    Equal keys of unlike configurations are found when records are loaded.
    """
    versions = [f"{name}_version" for name in _SOFTWARE]
    for key, what, names in (("hardware_key", "hardware", HARDWARE), ("software_key", "software", versions)):
        first_with: dict[str, Record] = {}
        for record in records:
            other = first_with.setdefault(getattr(record.identity, key), record)
            first, second = ({name: of.environment.get(name) for name in names} for of in (other, record))
            if unlike := differences(first, second, (other.identity.run_id, record.identity.run_id)):
                yield (
                    f"{record.identity.run_id}: {key} and {what} contradict those of {other.identity.run_id}: "
                    f"{listed(unlike)}. Equal keys mean equal {what}: publish their runs again."
                )
