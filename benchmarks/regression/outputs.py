"""Where findings go: files in the formats that CI systems read, the job's summary, and stdout."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.config.flag import Flag
from benchmarks.console import say, warn
from benchmarks.errors import ExitStatus, UsageError
from results import store
from results.gate.findings import Findings
from results.gate.views import github_benchmark_view, json_view, junit_view, markdown_view, text_view

OUTPUT_FLAGS: list[Flag] = [
    Flag("output_format", str, "what goes to stdout (default text)", ("text", "json")),
    Flag("json", str, "a file for all that was found, for programs"),
    Flag("junit", str, "a file for a test report: GitLab, Jenkins and GitHub's publishers show it"),
    Flag("markdown", str, "a file for a comment; also appended to $GITHUB_STEP_SUMMARY where that is set"),
    Flag("benchmark_json", str, "a file for github-action-benchmark, which draws rates over commits"),
]
_FILES: Mapping[str, Callable[[Findings], str]] = {
    "json": json_view.render,
    "junit": junit_view.render,
    "markdown": markdown_view.render,
    "benchmark_json": github_benchmark_view.render,
}
_STEP_SUMMARY = "GITHUB_STEP_SUMMARY"


def write(findings: Findings, values: Mapping[str, Any]) -> None:
    """Prints findings, appends them to the job's summary, and writes the files that the flags ask for.

    What is printed is so also if a file cannot be written. Nobody has asked for the summary, so that is only warned of.

    Raises:
        UsageError: a file cannot be written.
    """
    view = json_view if values["output_format"] == "json" else text_view
    say(view.render(findings).rstrip("\n"))
    summary = os.environ.get(_STEP_SUMMARY)
    if summary:
        try:
            with open(summary, "a", encoding="utf-8") as file:
                file.write("\n" + markdown_view.render(findings))
        except OSError as error:
            warn(f"${_STEP_SUMMARY}={summary} cannot be written: {error.strerror or error}.")
    for name, render in _FILES.items():
        if values[name] is not None:
            try:
                store.replace(Path(values[name]), render(findings))
            except OSError as error:
                raise UsageError(
                    f"--{name}={values[name]}: {error.strerror or error}. Name a file that can be written."
                ) from error


def exit_status(findings: Findings) -> ExitStatus:
    """Returns what the gate says. To have compared nothing decides nothing."""
    if findings.has_regressed:
        return ExitStatus.REGRESSED
    return ExitStatus.UNDECIDED if findings.is_undecided or not findings.findings else ExitStatus.OK
