"""Findings as a table for people, in text or Markdown, and for programs as JSON and JUnit XML."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal
from xml.etree import ElementTree

import msgspec
from msgspec.structs import asdict

from results.gate.findings import Finding, Findings, Side, Verdict
from results.measurement import Count
from results.record import strict
from results.text import Table, as_rate, markdown, rounded

_NUMBERS = ("base images/s", "candidate images/s", "change %", "95 % interval", "runs")
_SUITE = "cnn-train-bench"
_JUNIT_ELEMENTS = {
    Verdict.REGRESSED: "failure",
    Verdict.FAILED: "failure",
    Verdict.INCONCLUSIVE: "skipped",
    Verdict.MISSING: "skipped",
}
# XML 1.0 has no way to write these, not even as references; a crash's last words may hold them.
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All findings for programs. Shares are fractions: a change of -0.07 is 7 % slower. What is not known is null.

    Attributes:
        hardware: of both sides, in words.
        has_regressed: a configuration is regressed or failed: exit status 1.
        is_undecided: a configuration is inconclusive or missing: else exit status 3.
        counts: how many configurations have each verdict.
    """

    format_version: Literal[1] = 1
    base: Side
    candidate: Side
    hardware: str
    has_regressed: bool
    is_undecided: bool
    counts: Mapping[Verdict, Count]
    findings: Sequence[Finding]
    notes: Sequence[str]


def render_text(findings: Findings) -> str:
    """Returns the table, the reason of every configuration that is not unchanged, the notes and a summary."""
    lines = [*_sides(findings), "", *_table(findings).text(), ""]
    lines += map(": ".join, _reasons(findings))
    lines += [f"Note: {note}" for note in findings.notes]
    return "\n".join([*lines, _summary(findings)]) + "\n"


def render_markdown(findings: Findings) -> str:
    """Returns a heading with the outcome, the table, the reasons and the notes, for a job's summary."""
    lines = [f"## Performance gate: {findings.outcome}", "", _summary(findings), ""]
    lines += [f"- {markdown(line)}" for line in _sides(findings)]
    lines += ["", *_table(findings).markdown()]
    reasons = [f"- **{markdown(title)}**: {markdown(reason)}" for title, reason in _reasons(findings)]
    notes = [f"- {markdown(note)}" for note in findings.notes]
    for title, items in (("Reasons", reasons), ("Notes", notes)):
        lines += ["", f"### {title}", "", *items] if items else []
    return "\n".join(lines) + "\n"


def render_json(findings: Findings) -> str:
    """Returns all findings. Numbers are not rounded; one that is not finite is null, like an unknown one."""
    names = set(Document.__struct_fields__) - {"format_version"}
    document = Document(**{name: getattr(findings, name) for name in names})
    return json.dumps(strict(document), indent=2, allow_nan=False) + "\n"


def render_github_benchmark(findings: Findings) -> str:
    """Returns the candidates' rates for github-action-benchmark (customBiggerIsBetter), which draws them over commits.

    The range is the 95 % interval of the change, as a rate. Source: the README of
    benchmark-action/github-action-benchmark, and BenchmarkResult in its src/extract.ts.
    """
    entries = []
    for finding in findings.findings:
        if finding.candidate_images_per_sec is None or not math.isfinite(finding.candidate_images_per_sec):
            continue
        entry: dict[str, Any] = {
            "name": finding.name,
            "unit": "images/sec",
            "value": finding.candidate_images_per_sec,
            "extra": f"{_explanation(finding)}\nruns: {finding.candidate_rounds}\nbase: {findings.base.name}",
        }
        low, high, base = finding.change_low, finding.change_high, finding.base_images_per_sec
        if low is not None and high is not None and base is not None:
            entry["range"] = f"± {rounded(base * (high - low) / 2)}"
        entries.append(entry)
    return json.dumps(entries, indent=2) + "\n"


def render_junit(findings: Findings) -> str:
    """Returns JUnit XML, which GitLab, Jenkins and GitHub's publishers show as tests: one per configuration.

    There are no times: what took how long is not what was found. It is all in ASCII, which every encoding includes.
    """
    elements = [_JUNIT_ELEMENTS.get(finding.verdict) for finding in findings.findings]
    root = ElementTree.Element("testsuites")
    suite = _xml(
        root,
        "testsuite",
        name=_SUITE,
        tests=len(elements),
        failures=elements.count("failure"),
        errors=0,
        skipped=elements.count("skipped"),
    )
    properties = ElementTree.SubElement(suite, "properties")
    for line in _sides(findings):
        name, _, value = line.partition(": ")
        _xml(properties, "property", name=name, value=value)
    for finding, element in zip(findings.findings, elements, strict=True):
        case = _xml(suite, "testcase", classname=_SUITE, name=finding.name)
        properties = ElementTree.SubElement(case, "properties")
        for name, value in asdict(finding).items():
            if value is not None and name not in ("name", "reason"):
                _xml(properties, "property", name=name, value=value)
        if element:
            failure_type = {"type": finding.verdict.value} if element == "failure" else {}
            _xml(case, element, finding.reason, message=_explanation(finding), **failure_type)
    if findings.notes:
        _xml(suite, "system-out", "\n".join(findings.notes))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root).decode("ascii") + "\n"


def _xml(parent: ElementTree.Element, tag: str, text: str = "", **attributes: object) -> ElementTree.Element:
    possible = {name: _NOT_IN_XML.sub("\ufffd", str(value)) for name, value in attributes.items()}
    element = ElementTree.SubElement(parent, tag, possible)
    element.text = _NOT_IN_XML.sub("\ufffd", text) or None
    return element


def _sides(findings: Findings) -> list[str]:
    named = (("base", findings.base), ("candidate", findings.candidate))
    lines = [f"{name}: {side.name}" + (f" ({side.software})" if side.software else "") for name, side in named]
    return [*lines, f"hardware: {findings.hardware}"]


def _table(findings: Findings) -> Table:
    return Table(("configuration", *_NUMBERS, "verdict"), list(map(_cells, findings.findings)), _NUMBERS)


def _cells(finding: Finding) -> list[str]:
    """Returns a row of the table; unknown values are empty."""
    low, high = finding.change_low, finding.change_high
    rates = (finding.base_images_per_sec, finding.candidate_images_per_sec)
    return [
        finding.title,
        *("" if rate is None else as_rate(rate) for rate in rates),
        "" if finding.change is None else f"{100 * finding.change:+.1f}",
        "" if low is None or high is None else f"{100 * low:+.1f} to {100 * high:+.1f}",
        f"{finding.base_rounds} and {finding.candidate_rounds}",
        finding.verdict,
    ]


def _reasons(findings: Findings) -> list[tuple[str, str]]:
    changed = [finding for finding in findings.findings if finding.verdict is not Verdict.UNCHANGED]
    return [(finding.title, _explanation(finding)) for finding in changed]


def _explanation(finding: Finding) -> str:
    return f"{finding.verdict}. {finding.reason}"


def _summary(findings: Findings) -> str:
    phrases = [f"{count} {verdict}" for verdict, count in findings.counts.items() if count]
    if not phrases:
        return "Nothing was compared."
    return ", ".join(phrases).replace(" ", f" of {len(findings.findings)} ", 1) + "."
