"""The candidate's rates for github-action-benchmark (tool: customBiggerIsBetter), which draws them over commits.

Source: the README of benchmark-action/github-action-benchmark, and BenchmarkResult in its src/extract.ts.
"""

from __future__ import annotations

import json
import math

from results.gate.findings import Finding, Findings
from results.gate.views.text_view import cells


def render(findings: Findings) -> str:
    """Returns an entry for every configuration whose candidate has a rate."""
    entries = [
        _entry(finding, findings.base.name)
        for finding in findings.findings
        if finding.candidate_images_per_sec is not None and math.isfinite(finding.candidate_images_per_sec)
    ]
    return json.dumps(entries, indent=2) + "\n"


def _entry(finding: Finding, base_name: str) -> dict[str, str | float | None]:
    """Returns the chart's fields of a configuration; its range is the 95 % interval of the change, as a rate."""
    _, _, _, change, interval, _, verdict = cells(finding)
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
