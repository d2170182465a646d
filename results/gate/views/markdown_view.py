"""Findings as Markdown, for a job's summary or a comment on a pull request."""

from __future__ import annotations

from results.gate.findings import Findings
from results.gate.views.text_view import HEAD, cells, explanation, sides, summary, to_explain
from results.report.headline import markdown_line, markdown_text

_RULES = ("---", "---:", "---:", "---:", "---:", "---:", "---")


def render(findings: Findings) -> str:
    """Returns a heading with the outcome, the table, the reasons and the notes."""
    lines = [f"## Performance gate: {findings.outcome}", "", summary(findings), ""]
    lines += [f"- {markdown_text(line)}" for line in sides(findings)]
    lines += ["", *(markdown_line(line) for line in (HEAD, _RULES, *map(cells, findings.findings)))]
    reasons = [
        f"- **{markdown_text(finding.title)}**: {markdown_text(explanation(finding))}"
        for finding in to_explain(findings)
    ]
    notes = [f"- {markdown_text(note)}" for note in findings.notes]
    for title, items in (("Reasons", reasons), ("Notes", notes)):
        lines += ["", f"### {title}", "", *items] if items else []
    return "\n".join(lines) + "\n"
