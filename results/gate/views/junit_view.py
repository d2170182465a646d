"""Findings as JUnit XML, which GitLab, Jenkins and GitHub's publishers show as tests: one per configuration."""

from __future__ import annotations

import dataclasses
import re
from xml.etree import ElementTree

from results.gate.findings import Finding, Findings, Verdict
from results.gate.views.text_view import explanation, sides

_SUITE = "cnn-train-bench"
_ELEMENTS = {
    Verdict.REGRESSED: "failure",
    Verdict.FAILED: "failure",
    Verdict.INCONCLUSIVE: "skipped",
    Verdict.MISSING: "skipped",
}
# ASCII is UTF-8, too, and that is the one encoding that every reader knows.
_DECLARATION = '<?xml version="1.0" encoding="UTF-8"?>\n'
_NOT_PROPERTIES = ("title", "reason")
# XML 1.0 has no way to write these, not even as references; a crash's last words may hold them.
_IMPOSSIBLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(findings: Findings) -> str:
    """Returns XML, all in ASCII. There are no times: what took how long is not what was found."""
    kinds = [_ELEMENTS.get(finding.verdict) for finding in findings.findings]
    numbers = {"tests": len(kinds), "failures": kinds.count("failure"), "errors": 0, "skipped": kinds.count("skipped")}
    root = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(root, "testsuite", {"name": _SUITE} | {k: str(v) for k, v in numbers.items()})
    properties = ElementTree.SubElement(suite, "properties")
    for line in sides(findings):
        name, _, value = line.partition(": ")
        _add_property(properties, name, value)
    for finding in findings.findings:
        _add_case(suite, finding)
    if findings.notes:
        ElementTree.SubElement(suite, "system-out").text = _possible("\n".join(findings.notes))
    ElementTree.indent(root)
    return _DECLARATION + ElementTree.tostring(root).decode("ascii") + "\n"


def _add_case(suite: ElementTree.Element, finding: Finding) -> None:
    case = ElementTree.SubElement(suite, "testcase", {"classname": _SUITE, "name": _possible(finding.title)})
    properties = ElementTree.SubElement(case, "properties")
    for name, value in dataclasses.asdict(finding).items():
        if value is not None and name not in _NOT_PROPERTIES:
            _add_property(properties, name, str(value))
    element = _ELEMENTS.get(finding.verdict)
    if element:
        attributes = {"message": _possible(explanation(finding))}
        attributes |= {"type": finding.verdict.value} if element == "failure" else {}
        ElementTree.SubElement(case, element, attributes).text = _possible(finding.reason)


def _add_property(properties: ElementTree.Element, name: str, value: str) -> None:
    ElementTree.SubElement(properties, "property", {"name": name, "value": _possible(value)})


def _possible(text: str) -> str:
    return _IMPOSSIBLE.sub("\ufffd", text)
