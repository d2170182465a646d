"""The verb `compare`: is the candidate slower than the base? Prints the findings of all these verbs. No TensorFlow."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import record_files
from benchmarks.config.verb import Verb
from benchmarks.console import say, warn
from benchmarks.errors import ExitStatus, UsageError, writing
from benchmarks.option import Flag, Groups
from results import store
from results.gate import comparison, views
from results.gate.comparison import UnlikeError
from results.gate.decision import QUIET_THRESHOLD
from results.gate.findings import Findings

OUTPUT_FLAGS: list[Flag] = [
    Flag("output_format", str, "format of the result on stdout", ("text", "json"), default="text"),
    Flag("json_file", str, "also write all findings as JSON", path="file"),
    Flag("junit_file", str, "also write a JUnit report, for GitLab, Jenkins or GitHub actions", path="file"),
    Flag(
        "markdown_file",
        str,
        "also write a comment for a pull request; it is appended to $GITHUB_STEP_SUMMARY, too, if that is set",
        path="file",
    ),
    Flag("benchmark_json_file", str, "also write input for github-action-benchmark", path="file"),
]
WHERE = Flag(
    "where",
    str,
    "only records that match, such as model=vgg16,num_gpus=1 or 'num_gpus > 1'; the names are columns of results.csv",
)
_FILES: Mapping[str, Callable[[Findings], str]] = {
    "json_file": views.render_json,
    "junit_file": views.render_junit,
    "markdown_file": views.render_markdown,
    "benchmark_json_file": views.render_github_benchmark,
}
_STEP_SUMMARY = "GITHUB_STEP_SUMMARY"
_STATUS = {"regressed": ExitStatus.REGRESSED, "undecided": ExitStatus.UNDECIDED, "passed": ExitStatus.OK}


def threshold_flag(otherwise: str = "") -> Flag:
    """Returns the flag --threshold; `otherwise` is what else its default may be."""
    meaning = "smallest drop that matters, in percent"
    return Flag("threshold", float, meaning, default=f"{100 * QUIET_THRESHOLD:g}{otherwise}", above=0, at_most=99)


def report(findings: Findings, values: Mapping[str, Any]) -> ExitStatus:
    """Prints findings, appends them to the job's summary, writes the files that flags name; returns the exit status.

    Findings are printed even if a file cannot be written. A summary that cannot be written is only a warning.

    Raises:
        UsageError: a file cannot be written, or two flags name one file.
    """
    _require_different_files(values)
    render_stdout = views.render_json if values["output_format"] == "json" else views.render_text
    say(render_stdout(findings).rstrip("\n"))
    summary = os.environ.get(_STEP_SUMMARY)
    if summary:
        try:
            with open(summary, "a", encoding="utf-8") as file:
                file.write("\n" + views.render_markdown(findings))
        except OSError as error:
            warn(f"${_STEP_SUMMARY}={summary} cannot be written: {error.strerror or error}.")
    problems = []
    for name, render in _FILES.items():
        if values[name] is not None:
            try:
                with writing(f"--{name}={values[name]}"):
                    store.replace(Path(values[name]), render(findings))
            except UsageError as error:
                problems.append(error)
    if problems:
        raise problems[0]
    return _STATUS[findings.outcome]


def _require_different_files(values: Mapping[str, Any]) -> None:
    """Raises UsageError if two flags name one file, unless it is a device such as /dev/stdout."""
    flags: dict[str, str] = {}
    for name in _FILES:
        path = values[name]
        if path is not None and not path.startswith("/dev/"):
            other = flags.setdefault(os.path.realpath(path), name)
            if other != name:
                raise UsageError(f"--{other} and --{name} both name {path}: give each its own file.")


def require_writable(values: Mapping[str, Any], output_dir: Path) -> None:
    """Finds out whether the files that flags name can be written, before hours of runs, which make `output_dir`.

    Raises:
        UsageError: one cannot be, or two flags name one file.
    """
    _require_different_files(values)
    made = Path(os.path.realpath(output_dir))
    for name in _FILES:
        if values[name] is not None:
            path = Path(os.path.realpath(values[name]))
            with writing(f"--{name}={values[name]}"):
                if path.is_dir():
                    raise IsADirectoryError(errno.EISDIR, "it is a directory")
                if path.is_file() or not path.exists():  # and no device, such as /dev/stdout
                    folder = path.parent
                    while folder in (made, *made.parents) and not folder.exists():
                        folder = folder.parent
                    tempfile.TemporaryFile(dir=folder).close()


def run_compare(words: Sequence[str], values: Mapping[str, Any]) -> ExitStatus:
    """Compares the records of two files, and returns whether a configuration became slower.

    Raises:
        UsageError: the command line is wrong, the hardware differs, or an output cannot be written.
        DataError: a file cannot be read, or contains no records.
    """
    if len(words) != 2:
        raise UsageError(
            "compare: name two files of records, first the base, such as compare main/results.jsonl "
            f"branch/results.jsonl; given: {len(words)}."
        )
    threshold = QUIET_THRESHOLD if values["threshold"] is None else values["threshold"] / 100
    base, candidate = (record_files.chosen([path], values["where"]) for path in record_files.paths(words))
    try:
        findings = comparison.compare(base, candidate, (words[0], words[1]), threshold)
    except UnlikeError as error:
        raise UsageError(str(error)) from error
    return report(findings, values)


COMPARE_FLAGS: Groups = {
    "compare BASE CANDIDATE: records of two builds, files or directories; status 1 if the candidate is slower": (
        threshold_flag(),
        WHERE,
    ),
    "Output": OUTPUT_FLAGS,
}


VERB = Verb(
    "compare",
    COMPARE_FLAGS,
    lambda given, command: run_compare(given.words, given.values),
    takes="words",
    words="BASE CANDIDATE",
    details="Exit status 1 if the candidate is slower, 3 if noise hides the answer.",
    examples=("compare main/results.jsonl branch/results.jsonl",),
)
