"""The verbs `report`, `rerun` and `diff`, which read records. No TensorFlow, except in what `rerun` starts."""

from __future__ import annotations

import gc
import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import record_files
from benchmarks.compare.compare_verb import WHERE
from benchmarks.config import flag, outside_models, peer_flags, run_flags
from benchmarks.config.flag import local_path
from benchmarks.config.verb import Verb
from benchmarks.console import say, warn
from benchmarks.data import input_verb
from benchmarks.data.sources.storage import is_address
from benchmarks.errors import DataError, ExitStatus, UsageError, did_you_mean, writing
from benchmarks.microbench import allreduce_verb
from benchmarks.option import Flag, only
from benchmarks.outside_text import shortened
from benchmarks.process.subprocesses import RUN_BENCH, replace_by
from benchmarks.run import run_verb
from benchmarks.trackers import handover, tracker_list
from results.exchange.formats import FORMATS, TABLES
from results.exchange.public_table import TableError
from results.masking import MASK
from results.record import Record, differing, flat
from results.report import published
from results.report.contents import Report
from results.store import JSONL_NAME, replace
from results.text import counted

# Of files that users want where a report would be a directory, with the format that is such a file.
_FORMAT_OF_SUFFIX = {
    **dict.fromkeys((".html", ".pdf", ".png", ".svg", ".txt"), ""),
    **{".xlsx": "csv", ".prom": "openmetrics"},
    **{f".{name}": name for name in FORMATS},
}
_REPEATED: Mapping[str, Verb] = {verb.name: verb for verb in (run_verb.VERB, allreduce_verb.VERB, input_verb.VERB)}
# The flags that `rerun` repeats: those of these groups, and some others.
_REPEATED_GROUPS = (
    *("What is trained", "Devices", "Variables and gradients", "Data", "How images are read and prepared"),
    *("Learning rate", "Optimizer", "Evaluation", "How long"),
    *("What is reduced, and how", "What is measured"),
)
_REPEATED_BESIDE = (
    *("local_cluster", "start_timeout_seconds", "step_timeout_seconds", "output_format", "display_every"),
    *("loss_type_to_report", "print_config"),
)
_LEFT_OUT = ("output_dir", "session_id")
_RUN_IDS = "The first characters of a run id are enough. Without files, the records of `out` are searched."


def report(words: Sequence[str], values: Mapping[str, Any]) -> ExitStatus:
    """Reports the records of files: writes a page and more into a directory, exports them, or prints a table.

    Raises:
        UsageError: no record matches, or the directory cannot be written, or holds results of its own.
        DataError: a file cannot be read, or contains no records.
    """
    paths = record_files.paths(words)
    records = record_files.chosen(paths, values["where"])
    gc.freeze()  # records have no cycles; with 100,000 of them, each search for some takes seconds
    if values["output"] == "-":
        values = {**values, "output": None}
    targets = tracker_list.targets_of(values)
    tracker_list.require(targets)
    exports = values["output_format"] not in (None, "text")
    if exports:
        _export(records, values, paths)
    elif values["table"] is not None:
        raise UsageError(f"--table={values['table']} is for --output_format=csv, json or parquet: set one.")
    else:
        contents = Report(records, _tables(values["against"] or ""))
        output = values["output"]
        made = [] if output is None else [_write(contents, list(map(str, paths)), Path(output))]
        say(*contents.lines)
        for note in contents.notes:
            (warn if note in contents.problems else say)(note)
        say(*made)
    announce: Callable[[str], None] = warn if exports else say  # stdout may have the export
    return ExitStatus.OK if handover.send(records, targets, paths, announce) else ExitStatus.RUN_FAILED


def _write(contents: Report, sources: Sequence[str], output: Path) -> str:
    """Writes a report into a directory; returns a sentence on what it made.

    Raises:
        UsageError: the directory cannot be written, or holds results of its own.
    """
    form = _FORMAT_OF_SUFFIX.get(output.suffix)
    if form is not None and not output.is_dir():
        given = f"pass --output={output.with_suffix('.csv')} and" if output.suffix == ".xlsx" else "add"
        format_flag = f", or {given} --output_format={form}" if form else ""
        raise UsageError(f"--output={output}: a report is a directory of files: name one{format_flag}.")
    if (output / JSONL_NAME).exists():
        raise UsageError(
            f"--output={output}: {JSONL_NAME} is there, and the report's results.csv would replace that of its runs. "
            f"Name another directory, such as {output / 'report'}."
        )
    with writing("TMPDIR", "directory that can be written"):
        from results.report import write  # with matplotlib, which takes its time, and needs a temporary directory
    with writing(f"--output={output}", "directory that can be written"):
        write.write(contents, sources, output)
    return f"{counted(len(contents.records), 'record')}: {output / 'report.html'}, report.md, results.csv and plots/"


def _export(records: Sequence[Record], values: Mapping[str, Any], sources: Sequence[Path]) -> None:
    """Writes records in the format of --output_format to the file --output, or to stdout.

    Raises:
        UsageError: the format needs another flag or a package, or the file cannot be written, or is one of the sources.
    """
    name, form = values["output_format"], FORMATS[values["output_format"]]
    output = values["output"]
    if values["against"]:
        raise UsageError("--against is about the table and the page: omit --output_format.")
    if values["table"] is not None and not form.has_tables:
        with_tables = ", ".join(other_name for other_name, other in FORMATS.items() if other.has_tables)
        raise UsageError(f"--table={values['table']}: {name} has no such tables. They are for {with_tables}.")
    if form.is_binary and output is None:
        raise UsageError(f"--output_format={name} is not text: give --output=FILE, too.")
    try:
        content = form.render(records, values["table"] or "runs")
    except ImportError as error:
        raise UsageError(
            f"--output_format={name}: {error}. Run {sys.executable} -m pip install {error.name}."
        ) from error
    if not form.has_failures and (failed := sum(record.rate is None for record in records)):
        warn(f"{name} is of valid rates: {failed} of {counted(len(records), 'record')} have none and are left out.")
    if output is None:
        say(*str(content).split("\n")[:-1])
        return
    derived = [path.with_name("results.csv") for path in sources]  # whose rows are those of all records
    if os.path.realpath(output) in map(os.path.realpath, (*sources, *derived)):
        raise UsageError(f"--output={output}: it belongs to the records that were read: name another file.")
    with writing(f"--output={output}"):
        replace(Path(output), content)


def _tables(names: str) -> list[published.FigureTable]:
    """Returns the tables that --against names.

    Raises:
        UsageError: there is no such table.
        DataError: it cannot be read.
    """
    try:
        return [
            published.table(local_path(name, "--against: ")) for name in dict.fromkeys(filter(None, names.split(",")))
        ]
    except TableError as error:
        raise DataError(f"--against={names}: {error}") from error
    except OSError as error:
        known, file = ", ".join(published.SOURCES), str(error.filename)
        raise UsageError(
            f"--against={names}: {file}: {error.strerror}.{did_you_mean(file, published.SOURCES)} "
            f"Name {known}, a directory of results, or a CSV file in the format of docs/reference/public-table.md."
        ) from error


def rerun(words: Sequence[str], values: Mapping[str, Any]) -> ExitStatus:
    """Runs the command of a record again, and returns its exit status.

    A record may come from anywhere, so only commands that measure are run, with flags that can neither name code or
    other hosts nor a place to write to; results go where the user says.

    Raises:
        UsageError: no record has this id, or its command is not repeated.
        DataError: a file cannot be read, or has no records.
    """
    if not words:
        raise UsageError("rerun: name the record by its run id, such as rerun f13e1c470598 out/results.jsonl.")
    record = _find(words[0], record_files.chosen(record_files.paths(words[1:])))
    recorded = record.identity.command
    try:
        again = [*_repeated(recorded), *run_flags.words({"output_dir": values["output_dir"]})]
    except UsageError as error:
        say(f"$ {shlex.join([str(RUN_BENCH), *recorded])}")
        if values["dry_run"]:
            return ExitStatus.OK
        raise UsageError(f"rerun: {error} Read the command above, and run it yourself.") from error
    command = [sys.executable, str(RUN_BENCH), *again]
    say(f"$ {shlex.join(command[1:])}")
    if values["dry_run"]:
        return ExitStatus.OK
    sys.stdout.flush()
    replace_by(command)  # signals reach the run itself, and its status is ours


def _repeated(command: Sequence[str]) -> list[str]:
    """Returns the command of a record without the names of its directory and session.

    Raises:
        UsageError: why it is not run again.
    """
    given = list(command)
    verb = given.pop(0) if given and not given[0].startswith("-") else "run"
    if verb not in _REPEATED:
        raise UsageError(f"it repeats the verbs {', '.join(_REPEATED)}, and this record was written by '{verb}'.")
    if without_values := [word for word in given if MASK in word]:
        raise UsageError(f"its record lacks the value of {without_values[0]}, which looks like a secret.")
    if files := [word for word in map(flag.spelled, given) if word.startswith("--flagfile")]:
        raise UsageError(f"{files[0]} names a file that is not part of the record.")
    groups = _REPEATED[verb].flags
    parsed = flag.parse(given, peer_flags.groups_to_parse(groups))
    if parsed.words:
        raise UsageError(f"'{parsed.words[0]}' in its command is no flag of {verb}.")
    repeated = {flag.name for group in groups.values() for flag in group} - {*_LEFT_OUT}  # others had no effect
    values = {name: value for name, value in parsed.values.items() if value is not None and name in repeated}
    allowed = {flag.name for title in _REPEATED_GROUPS for flag in groups.get(title, ())} | {*_REPEATED_BESIDE}
    allowed |= {"private_network"} if values.get("private_network") else set()
    if others := sorted(values.keys() - allowed):
        raise UsageError(f"--{others[0]} is not repeated: it may reach other hosts, or write where you did not say.")
    model = values.get("model", "")
    if outside_models.is_code(model):
        raise UsageError(f"--model={model} is code that the record does not contain.")
    if is_address(values.get("data_dir", "")):
        raise UsageError(f"--data_dir={values['data_dir']} is in a storage that other hosts serve.")
    return [verb, *run_flags.words(values)]


def diff(words: Sequence[str], values: Mapping[str, Any]) -> ExitStatus:
    """Prints what differs between two records in configuration, environment, placement and result.

    Raises:
        UsageError: no record has such an id.
        DataError: a file cannot be read, or has no records.
    """
    if len(words) < 2:
        raise UsageError("diff: name two records by their run ids, such as diff f13e1c470598 0daa2ee5cace.")
    records = record_files.chosen(record_files.paths(words[2:]))
    first, second = (_find(word, records) for word in words[:2])
    changed = {}
    for part in ("config", "environment", "placement", "derived"):
        before, after = (flat(msgspec.to_builtins(getattr(record, part))) for record in (first, second))
        changed[part] = differing(before, after)
    if values["output_format"] == "json":
        say(json.dumps(changed))
        return ExitStatus.OK
    for part, fields in changed.items():
        for name, (one, other) in fields.items():
            say(f"{part}.{name}: {_shown(one)} -> {_shown(other)}")
    if not any(fields for part, fields in changed.items() if part != "derived"):
        say("Configuration, environment and placement are the same.")
    return ExitStatus.OK


def _find(run_id: str, records: Sequence[Record]) -> Record:
    matching = [record for record in records if record.identity.run_id.startswith(run_id)]
    if len(matching) == 1:
        return matching[0]
    many = f"{len(matching)} records have ids that start with" if matching else "No record has the id"
    raise UsageError(f"{many} '{run_id}'; ids are in results.csv, column run_id.")


def _shown(value: Any) -> str:
    return "nothing" if value is None else f"{value:.4g}" if isinstance(value, float) else shortened(str(value))


REPORT = Verb(
    "report",
    {
        "The report": (
            Flag(
                "output",
                str,
                "write report.html, report.md, results.csv and plots into this directory; with another format, write "
                "this file",
                default="print the table",
                path="directory",
            ),
            Flag(
                "output_format",
                str,
                f"what to print or write; {'; '.join(f'{name}: {form.meaning}' for name, form in FORMATS.items())}",
                ("text", *FORMATS),
                default="text",
            ),
            Flag("table", str, "of csv, json and parquet: what a row is", TABLES, default="runs"),
            Flag(
                "against",
                str,
                "comma-separated CSV files, directories of results, or tables of the suite to compare with",
                known=tuple(published.SOURCES),
            ),
            WHERE,
        ),
        "Experiment trackers": only(run_verb.VERB.flags["Output"], *tracker_list.FLAGS),
    },
    lambda given, command: report(given.words, given.values),
    takes="words",
    words="[FILE ...]",
    details="A file is a results.jsonl, or a directory with one; the default is `out`.",
    examples=(
        "report out/results.jsonl --output=report",
        "report out --output_format=json --table=steps",
        "report out --output_format=openmetrics --output=/var/lib/node_exporter/cnn_train_bench.prom",
    ),
)
RERUN = Verb(
    "rerun",
    {
        "The run": (
            Flag("dry_run", bool, "print the command and stop"),
            Flag("output_dir", str, "directory of results.jsonl and results.csv", default="out", path="directory"),
        )
    },
    lambda given, command: rerun(given.words, given.values),
    takes="words",
    words="RUN_ID [FILE ...]",
    details=f"{_RUN_IDS} A command that names code, other hosts or a place to write to is only printed, with status 2.",
    examples=("rerun f13e1c470598 out/results.jsonl",),
)
DIFF = Verb(
    "diff",
    {"Output": only(run_verb.VERB.flags["Output"], "output_format")},
    lambda given, command: diff(given.words, given.values),
    takes="words",
    words="RUN_ID RUN_ID [FILE ...]",
    details=_RUN_IDS,
    examples=("diff f13e1c470598 0daa2ee5cace out/results.jsonl",),
)
