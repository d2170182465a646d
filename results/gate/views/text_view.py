"""Findings as a table that a person reads in a terminal, and the words that other views share with it."""

from __future__ import annotations

from collections.abc import Sequence

from results.gate.findings import Finding, Findings, Verdict

HEAD = (
    "configuration",
    "base images/s",
    "candidate images/s",
    "change %",
    "95 % interval",
    "rounds",
    "verdict",
)
_BY_WEIGHT = (
    Verdict.REGRESSED,
    Verdict.FAILED,
    Verdict.MISSING,
    Verdict.INCONCLUSIVE,
    Verdict.IMPROVED,
    Verdict.UNCHANGED,
)


def render(findings: Findings) -> str:
    """Returns the table, a sentence on every configuration that is not unchanged, the notes, and what it comes to."""
    lines = [*sides(findings), "", *_table([HEAD, *map(cells, findings.findings)]), ""]
    lines += [f"{one_line(finding.title)}: {explanation(finding)}" for finding in to_explain(findings)]
    lines += [one_line(f"Note: {note}") for note in findings.notes]
    return "\n".join([*lines, summary(findings)]) + "\n"


def sides(findings: Findings) -> list[str]:
    """Returns what was compared, and where, in a line each."""
    named = (("base", findings.base), ("candidate", findings.candidate))
    lines = [f"{name}: {side.name}" + (f" ({side.software})" if side.software else "") for name, side in named]
    return [one_line(line) for line in (*lines, f"hardware: {findings.hardware}")]


def cells(finding: Finding) -> list[str]:
    """Returns a line of the table; what is unknown is empty."""
    low, high = finding.change_low, finding.change_high
    return [
        one_line(finding.title),
        _rate(finding.base_images_per_sec),
        _rate(finding.candidate_images_per_sec),
        "" if finding.change is None else _percent(finding.change),
        "" if low is None or high is None else f"{_percent(low)} to {_percent(high)}",
        f"{finding.base_rounds} and {finding.candidate_rounds}",
        finding.verdict,
    ]


def to_explain(findings: Findings) -> list[Finding]:
    """Returns the findings whose reason a reader should see."""
    return [finding for finding in findings.findings if finding.verdict is not Verdict.UNCHANGED]


def explanation(finding: Finding) -> str:
    """Returns the verdict and its reason on one line."""
    return one_line(f"{finding.verdict}. {finding.reason}")


def counts(findings: Findings) -> dict[Verdict, int]:
    """Returns how many configurations have each verdict."""
    verdicts = [finding.verdict for finding in findings.findings]
    return {verdict: verdicts.count(verdict) for verdict in Verdict}


def summary(findings: Findings) -> str:
    """Returns what it comes to, such as '1 of 3 regressed, 2 unchanged.'; what matters most comes first."""
    found = [(number, verdict) for verdict, number in counts(findings).items() if number]
    if not found:
        return "Nothing was compared."
    (number, verdict), *others = sorted(found, key=lambda pair: _BY_WEIGHT.index(pair[1]))
    first = f"{number} of {len(findings.findings)} {verdict}"
    return ", ".join([first, *(f"{number} {verdict}" for number, verdict in others)]) + "."


def one_line(text: str) -> str:
    """Returns text without line breaks, and without what a terminal would obey."""
    return "".join(letter if letter.isprintable() else " " for letter in " ".join(text.split()))


def _rate(images_per_sec: float | None) -> str:
    return "" if images_per_sec is None else f"{images_per_sec:.2f}"


def _percent(share: float) -> str:
    return f"{100 * share:+.1f}"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]]
