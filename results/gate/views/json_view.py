"""Findings as JSON, for programs; `data/findings.schema.json` describes it.

History:
  1  first format.
"""

from __future__ import annotations

import dataclasses
import json
import math

from results.gate.findings import Finding, Findings
from results.gate.views import text_view
from results.record import strict

FORMAT_VERSION = 1


def render(findings: Findings) -> str:
    """Returns all findings. Numbers are not rounded; one that is not finite is null, like an unknown one."""
    values = {
        "format_version": FORMAT_VERSION,
        "base": dataclasses.asdict(findings.base),
        "candidate": dataclasses.asdict(findings.candidate),
        "hardware": findings.hardware,
        "has_regressed": findings.has_regressed,
        "is_undecided": findings.is_undecided,
        "counts": text_view.counts(findings),
        "findings": strict([dataclasses.asdict(finding) for finding in findings.findings]),
        "notes": list(findings.notes),
    }
    return json.dumps(values, indent=2, allow_nan=False) + "\n"


def render_github_benchmark(findings: Findings) -> str:
    """Returns the candidates' rates for github-action-benchmark (customBiggerIsBetter), which draws them over commits.

    Source: the README of benchmark-action/github-action-benchmark, and BenchmarkResult in its src/extract.ts.
    """
    entries = [
        _entry(finding, findings.base.name)
        for finding in findings.findings
        if finding.candidate_images_per_sec is not None and math.isfinite(finding.candidate_images_per_sec)
    ]
    return json.dumps(entries, indent=2) + "\n"


def _entry(finding: Finding, base_name: str) -> dict[str, str | float | None]:
    """Returns the chart's fields of a configuration; its range is the 95 % interval of the change, as a rate."""
    _, _, _, change, interval, _, verdict = text_view.cells(finding)
    extra = [f"verdict: {verdict}", f"rounds: {finding.candidate_rounds}", f"config_key: {finding.config_key}"]
    if change:
        within = f" (95 % interval {interval})" if interval else ""
        extra.insert(1, f"change: {change} %{within} against {base_name}")
    entry = {
        "name": finding.title,
        "unit": "images/sec",
        "value": finding.candidate_images_per_sec,
        "extra": "\n".join(extra),
    }
    low, high, base = finding.change_low, finding.change_high, finding.base_images_per_sec
    if low is not None and high is not None and base is not None:
        entry["range"] = f"± {base * (high - low) / 2:.2f}"
    return entry
