"""Findings as a table for people: text for a terminal, Markdown for a job's summary or a pull request."""

from __future__ import annotations

from collections import Counter

from results.gate.findings import Finding, Findings, Verdict
from results.text import Table, markdown

_NUMBERS = ("base images/s", "candidate images/s", "change %", "95 % interval", "rounds")
_BY_SEVERITY = (
    Verdict.REGRESSED,
    Verdict.FAILED,
    Verdict.MISSING,
    Verdict.INCONCLUSIVE,
    Verdict.IMPROVED,
    Verdict.UNCHANGED,
)


def render(findings: Findings) -> str:
    """Returns the table, the reason of every configuration that is not unchanged, the notes and a summary."""
    lines = [*sides(findings), "", *_table(findings).text(), ""]
    lines += [f"{finding.title}: {explanation(finding)}" for finding in to_explain(findings)]
    lines += [f"Note: {note}" for note in findings.notes]
    return "\n".join([*lines, summary(findings)]) + "\n"


def render_markdown(findings: Findings) -> str:
    """Returns a heading with the outcome, the table, the reasons and the notes."""
    lines = [f"## Performance gate: {findings.outcome}", "", summary(findings), ""]
    lines += [f"- {markdown(line)}" for line in sides(findings)]
    lines += ["", *_table(findings).markdown()]
    reasons = [f"- **{markdown(finding.title)}**: {markdown(explanation(finding))}" for finding in to_explain(findings)]
    notes = [f"- {markdown(note)}" for note in findings.notes]
    for title, items in (("Reasons", reasons), ("Notes", notes)):
        lines += ["", f"### {title}", "", *items] if items else []
    return "\n".join(lines) + "\n"


def sides(findings: Findings) -> list[str]:
    """Returns a line each for base, candidate and hardware."""
    named = (("base", findings.base), ("candidate", findings.candidate))
    lines = [f"{name}: {side.name}" + (f" ({side.software})" if side.software else "") for name, side in named]
    return [*lines, f"hardware: {findings.hardware}"]


def _table(findings: Findings) -> Table:
    return Table(("configuration", *_NUMBERS, "verdict"), list(map(cells, findings.findings)), _NUMBERS)


def cells(finding: Finding) -> list[str]:
    """Returns a row of the table; unknown values are empty."""
    low, high = finding.change_low, finding.change_high
    rates = (finding.base_images_per_sec, finding.candidate_images_per_sec)
    return [
        finding.title,
        *("" if rate is None else f"{rate:.2f}" for rate in rates),
        "" if finding.change is None else f"{100 * finding.change:+.1f}",
        "" if low is None or high is None else f"{100 * low:+.1f} to {100 * high:+.1f}",
        f"{finding.base_rounds} and {finding.candidate_rounds}",
        finding.verdict,
    ]


def to_explain(findings: Findings) -> list[Finding]:
    """Returns the findings whose reason a reader should see."""
    return [finding for finding in findings.findings if finding.verdict is not Verdict.UNCHANGED]


def explanation(finding: Finding) -> str:
    """Returns the verdict and its reason on one line."""
    return f"{finding.verdict}. {finding.reason}"


def counts(findings: Findings) -> dict[Verdict, int]:
    """Returns how many configurations have each verdict."""
    found = Counter(finding.verdict for finding in findings.findings)
    return {verdict: found[verdict] for verdict in Verdict}


def summary(findings: Findings) -> str:
    """Returns the counts, such as '1 of 3 regressed, 2 unchanged.'; the most severe verdict comes first."""
    number = counts(findings)
    found = [f"{number[verdict]} {verdict}" for verdict in _BY_SEVERITY if number[verdict]]
    if not found:
        return "Nothing was compared."
    return ", ".join(found).replace(" ", f" of {len(findings.findings)} ", 1) + "."
