"""The candidate's rates as github-action-benchmark reads them (tool: customBiggerIsBetter), for a chart over commits.

Source: the README of benchmark-action/github-action-benchmark, and BenchmarkResult in its src/extract.ts.
"""

from __future__ import annotations

import json
import math

from results.gate.findings import Finding, Findings
from results.gate.views.text_view import cells


def render(findings: Findings) -> str:
    """Returns an entry for every configuration whose candidate has a rate."""
    return (
        json.dumps([_entry(finding, findings) for finding in findings.findings if _has_rate(finding)], indent=2) + "\n"
    )


def _has_rate(finding: Finding) -> bool:
    return finding.candidate_images_per_sec is not None and math.isfinite(finding.candidate_images_per_sec)


def _entry(finding: Finding, findings: Findings) -> dict[str, str | float | None]:
    """Returns what the chart shows of a configuration; its range is the 95 % interval of the change, as a rate."""
    _, _, _, change, interval, _, verdict = cells(finding)
    extra = [f"verdict: {verdict}", f"rounds: {finding.candidate_rounds}", f"config_key: {finding.config_key}"]
    if change:
        within = f" (95 % interval {interval})" if interval else ""
        extra.insert(1, f"change: {change} %{within} against {findings.base.name}")
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
