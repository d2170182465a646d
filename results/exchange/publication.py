"""Folders of results that can be put online: `results.jsonl`, `table.csv` and `README.md`, made from records alone."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from results.exchange import public_table, whole
from results.exchange.public_record import differing, public
from results.gate.comparability import hardware_in_words
from results.masking import MASK
from results.record import Record
from results.report import headline
from results.report.anomalies import title, warnings_of
from results.store import JSONL_NAME, replace
from results.summary import Row, summarize
from results.text import counted, markdown

TABLE_NAME, README_NAME = "table.csv", "README.md"


def selected(
    records: Sequence[Record], words: frozenset[str], machine: str = ""
) -> tuple[list[Record], Counter[str], list[str]]:
    """Selects the runs that can be published, and takes out of them what is not public.

    Args:
        records: of runs, and others.
        words: those that flags may have.
        machine: what to call the machine; empty for the titles that the records have.

    Returns:
        The runs; for each reason to leave out other records their number; the names of fields that were changed.
    """
    kept, refused, changed = [], Counter[str](), set[str]()
    for record in records:
        if why := next(whole.why_not(record), None):
            refused[why] += 1
            continue
        try:
            published = public(record, words, machine)
            differ = differing(record, published)
        except ValueError as error:
            refused[str(error)] += 1
        else:
            kept.append(published)
            changed.update(".".join(name.split(".")[:2]) for name in differ)
    return kept, refused, sorted(changed)


def files_of(records: Sequence[Record]) -> dict[str, str]:
    """Returns the files of a folder by their names; equal records give equal files."""
    rows = summarize(records)
    return {
        JSONL_NAME: "".join(f"{record.to_json()}\n" for record in records),
        TABLE_NAME: public_table.written(public_table.of_rows(rows)),
        README_NAME: "\n".join(_readme(records, rows)) + "\n",
    }


def write(records: Sequence[Record], directory: Path) -> Path:
    """Writes the files of a folder beside where it is to be, and returns where they are; `os.rename` puts them there.

    Raises:
        OSError: they cannot be written.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    mask = os.umask(0)
    os.umask(mask)
    folder.chmod(0o777 & ~mask)  # mkdtemp's is for its user alone
    try:
        for name, text in files_of(records).items():
            replace(folder / name, text)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def _readme(records: Sequence[Record], rows: Sequence[Row]) -> list[str]:
    days = sorted(record.identity.time_utc[:10] for record in records)
    versions = dict.fromkeys(
        f"{one.suite_version}{f' (commit {one.suite_commit})' if one.suite_commit else ''}"
        for one in (record.identity for record in records)
    )
    when = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    machines = {record.identity.hardware_key: record for record in records}
    lines = ["# How fast CNNs train on this machine" if len(machines) == 1 else "# How fast CNNs train", ""]
    lines += [f"{counted(len(records), 'run')}, measured {when} with cnn-train-bench {', '.join(versions)}.", ""]
    for number, record in enumerate(machines.values(), start=1):
        lines += [f"## Machine {number}" if len(machines) > 1 else "## Machine", "", *_machine(record), ""]
    lines += ["## Results", "", "Images per second over all devices, with 95 % intervals.", ""]
    lines += [*headline.table(rows).markdown(), ""]
    if warnings := warnings_of(records):
        lines += [*(f"- {markdown(sentence)}" for sentence in warnings), ""]
    lines += ["## Repeat it", "", "Install this version of cnn-train-bench. `***` stands for what is not public."]
    for row in rows:
        command = shlex.join(["run_bench.py", *row.records[0].identity.command])
        lines += ["", f"{markdown(title(row))}, {counted(len(row.records), 'run')}:", "", "```", command, "```"]
    lines += ["", "## Files", "", f"- `{JSONL_NAME}`: the records, with every step"]
    lines += [f"- `{TABLE_NAME}`: the results as a table, for `run_bench.py report --against={TABLE_NAME}`", ""]
    return [*lines, "`run_bench.py publish . --check` checks this folder."]


def _machine(record: Record) -> list[str]:
    environment = record.environment
    facts = {
        "title": environment.get("machine"),
        "hardware": hardware_in_words(record).replace(f"{MASK}, ", ""),  # the title names the CPU
        "operating system": environment.get("operating_system"),
        "GPU driver": environment.get("gpu_driver_version"),
        **{
            label: environment.get(f"{label.lower()}_version")
            for label in ("Python", "TensorFlow", "Keras", "NumPy", "CUDA", "cuDNN", "NCCL")
        },
    }
    variables = environment.get("variables") or {}
    facts["variables"] = ", ".join(f"{name}={value}" for name, value in variables.items())
    return [f"- {name}: {markdown(str(value))}" for name, value in facts.items() if value]
