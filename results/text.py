"""Text for people: tables, sentences on one line, nouns with a number; text of records made harmless for its reader.

A record may come from anywhere, so its text may hold what a terminal, Markdown or a spreadsheet would obey.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Collection, Mapping, Sequence

CODE = re.compile(r"`([^`]+)`")
_MARKDOWN = re.compile(r"[\\`*\[\]|~]|(?<!\w)_|_(?!\w)")
# In Markdown, a bare address is a link, and @ mentions a user.
_WWW = re.compile(r"(www)\.", re.IGNORECASE)
_FORMULA = tuple("=+-@＝＋－＠﹦﹢﹣﹫")
_FEW = 3
# Significant digits of a number: at most, if its noise is unknown, and at least, however wide its interval is.
_MOST_DIGITS, _DIGITS, _LEAST_DIGITS = 5, 3, 2
_NO_NOISE = 1e-9  # of a number: an interval as narrow is one of equal repeats, which shows nothing
_MOST_DECIMALS, _MOST_PLACES = 6, 15


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of cells under the names of columns.

    Attributes:
        columns: the names; an empty one is that of remarks.
        rows: a text for each column.
        numbers: the columns that are aligned to the right.
        widths: the least width of each column, of a table that is printed row by row, before all rows are known.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]] = ()
    numbers: Collection[str] = ()
    widths: Sequence[int] = ()

    def text(self, *, rule: bool = True) -> list[str]:
        """Returns lines of aligned columns; `rule` draws dashes below the names."""
        cells = [[printable(cell) for cell in row] for row in (self.columns, *self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        names, *lines = (self._aligned(row, widths) for row in cells)
        return [names, "  ".join("-" * width for width in widths if width), *lines] if rule else [names, *lines]

    def line(self, cells: Sequence[str] | None = None) -> str:
        """Returns a row of a table that is printed row by row; without cells, the names of its columns."""
        return self._aligned([printable(cell) for cell in cells or self.columns], self.widths)

    def _aligned(self, cells: Sequence[str], widths: Sequence[int]) -> str:
        aligned = (
            cell.rjust(width) if name in self.numbers else cell.ljust(width)
            for name, cell, width in zip(self.columns, cells, widths, strict=True)
        )
        return "  ".join(aligned).rstrip()

    def markdown(self) -> list[str]:
        """Returns the lines of a Markdown table, in which cells are text."""
        rules = ["---:" if name in self.numbers else "---" for name in self.columns]
        return [f"| {' | '.join(map(markdown, cells))} |" for cells in (self.columns, rules, *self.rows)]


def fact_lines(values: Mapping[str, str]) -> list[str]:
    """Returns a line for each name and value, the values below each other."""
    width = max(map(len, values), default=0) + 1
    return [f"{f'{name}:':{width}} {value}" for name, value in values.items()]


def printable(text: str) -> str:
    """Returns text with a space for each character that a terminal may obey: escapes, line breaks, reversed writing."""
    if text.isprintable():
        return text
    text = text.encode("utf-8", "backslashreplace").decode()  # bytes of a path that are not UTF-8 stay visible
    return "".join(letter if letter.isprintable() else " " for letter in text)


def harmless(text: str) -> str:
    """Returns text that controls no reader: what has line breaks or control characters, on one line without them."""
    return text if text.isprintable() else one_line(text)


def one_line(text: str) -> str:
    """Returns text without line breaks and without terminal control characters."""
    return " ".join(printable(text).split())


def markdown(text: str) -> str:
    """Returns text on one line that Markdown shows as it is: no link, picture, cell, code or HTML begins in it."""
    return _escaped(one_line(text))


def _escaped(line: str) -> str:
    escaped = _MARKDOWN.sub(r"\\\g<0>", line).replace("&", "&amp;").replace("<", "&lt;")
    return _WWW.sub(r"\1&#46;", escaped.replace("://", ":&#47;/").replace("@", "&#64;"))


def markdown_with_code(text: str) -> str:
    """Returns text as `markdown` does, but what is between backticks stays code, in which nothing else begins."""
    parts = enumerate(CODE.split(one_line(text)))
    return "".join(f"`{part}`" if number % 2 else _escaped(part) for number, part in parts)


def csv_cell(value: str) -> str:
    """Returns text on one line that a spreadsheet takes for text: an apostrophe precedes what begins like a formula."""
    line = printable(value)
    return f"'{line}" if line.lstrip().startswith(_FORMULA) else line


def first_few(phrases: Sequence[str], separator: str = "; ", most: int = _FEW) -> str:
    """Returns the first phrases, and how many more there are."""
    more = [f"and {len(phrases) - most} more"] if len(phrases) > most else []
    return separator.join([*phrases[:most], *more])


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun, such as "1 run" and "2 runs"."""
    return f"{number} {noun}{'s' * (number != 1)}"


def rounded(number: float, noise: float | None = None) -> str:
    """Returns a number as the views of results print it: rounded to the second digit of its noise.

    It has at least two and at most five significant digits; three if the noise is unknown. CSV and JSON have all.

    Args:
        number: in any unit.
        noise: half the width of its interval, in the same unit; None, 0 or not finite: unknown.
    """
    if not number or not math.isfinite(number):
        return f"{number:.0f}"
    place = math.floor(math.log10(abs(number)))
    digits = _DIGITS
    if noise is not None and _NO_NOISE * abs(number) < noise < math.inf:
        digits = min(max(place - math.floor(math.log10(noise)) + 2, _LEAST_DIGITS), _MOST_DIGITS)
    short = f"{number:.{digits - 1}e}"
    decimals = digits - 1 - int(short.partition("e")[2])
    if not -_MOST_PLACES < decimals <= _MOST_DECIMALS:
        return f"{number:.{digits}g}"
    return f"{float(short):.{max(0, decimals)}f}"


def as_rate(rate: float) -> str:
    """Returns a rate as tables of small changes print it: with two decimals, or if it is below 10, with five digits."""
    return f"{rate:.2f}" if rate >= 10 else rounded(rate, rate / 10**_MOST_DIGITS)


def amount(value: float, unit: str) -> str:
    """Returns a number with three digits and an SI prefix: 23.1 GFLOP."""
    three = float(f"{value:.3g}")
    if three < 1:
        return f"{three:g} {unit}"
    steps = min(math.floor(math.log10(three) / 3), 5)
    scaled = three / 1000**steps
    return f"{scaled:.{max(0, 2 - math.floor(math.log10(scaled)))}f} {['', 'k', 'M', 'G', 'T', 'P'][steps]}{unit}"


def in_bytes(size: float) -> str:
    """Returns a size in bytes with three digits and an SI prefix: 17.1 MB."""
    return f"{size:.0f} B" if size < 1000 else amount(size, "B")
