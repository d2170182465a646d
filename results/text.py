"""Text for people: tables in a terminal, sentences on one line, nouns with a number."""

from __future__ import annotations

from collections.abc import Sequence


def table(rows: Sequence[Sequence[str]], *, rule: bool = False) -> list[str]:
    """Returns rows of cells as lines of aligned columns; `rule` draws dashes below the first row."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return [lines[0], "  ".join("-" * width for width in widths if width), *lines[1:]] if rule else lines


def one_line(text: str) -> str:
    """Returns text without line breaks and without terminal control characters."""
    return "".join(letter if letter.isprintable() else " " for letter in " ".join(text.split()))


def interval(low: float | None, high: float | None) -> str:
    """Returns an interval; empty if a bound is unknown."""
    return "" if low is None or high is None else f"{low:.2f} to {high:.2f}"


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun, such as "1 run" and "2 runs"."""
    return f"{number} {noun}{'s' * (number != 1)}"
