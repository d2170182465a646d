"""Draws diagrams as SVG on a white card, so that they are legible on a light and on a dark page."""

from __future__ import annotations

import dataclasses
import html
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence

# Okabe and Ito's colours; each kind of data also has its own dashes, so that colour is never the only difference.
WEIGHTS, GRADIENTS, MEANS = "#0072B2", "#D55E00", "#007A55"
_DASHES = {WEIGHTS: "", GRADIENTS: "7 4", MEANS: "2 3"}
INK, SOFT, LINE, BAND = "#1b1f24", "#57606a", "#8c959f", "#f3f5f7"
WIDTH, MARGIN = 700, 20
_LETTERS_OF_A_FACT, _LINE_HEIGHT = 84, 17

Point = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Box:
    """A rectangle with a title."""

    left: float
    top: float
    width: float
    height: float
    title: str

    @property
    def middle(self) -> Point:
        """Returns the centre."""
        return self.left + self.width / 2, self.top + self.height / 2

    def leaves(self, inside: Point, target: Point) -> Point:
        """Returns where the line from a point inside to one outside leaves the rectangle."""
        (x, y), (dx, dy) = inside, (target[0] - inside[0], target[1] - inside[1])
        sides = [(self.left + self.width * (dx > 0) - x) / dx] if dx else []
        sides += [(self.top + self.height * (dy > 0) - y) / dy] if dy else []
        scale = min(sides, default=0.0)
        return x + scale * dx, y + scale * dy


class Drawing:
    """A diagram of a fixed width, to which parts are added from top to bottom.

    Args:
        title: also the text for a screen reader.
        below: a second line, smaller.
    """

    def __init__(self, title: str, below: str = "") -> None:
        self._title, self._parts = title, list[str]()
        self.text(MARGIN, 32, title, size=17, bold=True, anchor="start")
        if below:
            self.text(MARGIN, 52, below, size=13, colour=SOFT, anchor="start", mono=below.startswith("--"))

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: int = 14,
        colour: str = INK,
        anchor: str = "middle",
        bold: bool = False,
        mono: bool = False,
        halo: bool = False,
    ) -> None:
        """Writes a line whose baseline is at `y`; with `halo` it covers the lines behind it."""
        style = f'font-size="{size}" fill="{colour}" text-anchor="{anchor}"'
        style += ' font-weight="600"' if bold else ""
        style += ' font-family="ui-monospace, Menlo, Consolas, DejaVu Sans Mono, monospace"' if mono else ""
        style += ' stroke="#fff" stroke-width="5" stroke-linejoin="round" paint-order="stroke"' if halo else ""
        self._parts.append(f'<text x="{x:.1f}" y="{y:.1f}" {style}>{html.escape(text)}</text>')

    def rectangle(self, box: Box, *, fill: str = BAND, stroke: str = LINE, dashes: str = "") -> None:
        """Draws a rectangle without its title."""
        size = f'x="{box.left:.1f}" y="{box.top:.1f}" width="{box.width:.1f}" height="{box.height:.1f}"'
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        self._parts.append(f'<rect {size} rx="6" fill="{fill}" stroke="{stroke}"{dashed}/>')

    def box(self, box: Box, holds: Sequence[str] = (), *, fill: str = BAND, note: str = "") -> None:
        """Draws a rectangle with its title, what it holds as blue labels, and a note below them."""
        self.rectangle(box, fill=fill)
        x, y = box.middle[0], box.top + 20
        self.text(x, y, box.title, bold=True)
        for place, label in enumerate(holds):
            width = box.width / len(holds) - 16
            left = box.left + 8 + place * (box.width - 8) / len(holds)
            self.rectangle(Box(left, y + 8, width, 22, ""), fill=WEIGHTS, stroke=WEIGHTS)
            self.text(left + width / 2, y + 24, label, size=13, colour="#fff")
        if note:
            self.text(x, box.top + box.height - 9, note, size=12, colour=SOFT)

    def line(self, points: Sequence[Point], colour: str = LINE, *, arrow: bool = True) -> None:
        """Draws a line through points, with the dashes of its colour."""
        path = "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        head = f' marker-end="url(#{colour[1:]})"' if arrow else ""
        dashes = f' stroke-dasharray="{_DASHES[colour]}"' if _DASHES.get(colour) else ""
        self._parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}{head}/>')

    def arrow(
        self, source: Box, target: Box, colour: str, label: str = "", *, at: float = 0.5, aside: float = 7
    ) -> None:
        """Draws an arrow between boxes, `aside` of the line between their centres; the label is `at` a part of it."""
        (x, y), (to_x, to_y) = source.middle, target.middle
        length = math.dist(source.middle, target.middle)
        dx, dy = aside * (to_y - y) / length, -aside * (to_x - x) / length
        begin = source.leaves((x + dx, y + dy), (to_x + dx, to_y + dy))
        end = target.leaves((to_x + dx, to_y + dy), (x + dx, y + dy))
        self.line([begin, end], colour)
        if label:
            middle = [a + at * (b - a) for a, b in zip(begin, end, strict=True)]
            self.text(middle[0], middle[1] + 4, label, size=13, colour=colour, halo=True)

    def legend(self, y: float, colours: Iterable[tuple[str, str]]) -> None:
        """Explains colours on one line."""
        x = float(MARGIN)
        for colour, meaning in colours:
            self.line([(x, y - 4), (x + 36, y - 4)], colour)
            self.text(x + 44, y, meaning, size=13, colour=colour, anchor="start")
            x += 64 + 7.2 * len(meaning)

    def facts(self, y: float, facts: Mapping[str, str]) -> float:
        """Writes facts below each other, and returns where the text ends."""
        for name, fact in facts.items():
            for number, line in enumerate(textwrap.wrap(fact, _LETTERS_OF_A_FACT)):
                if number == 0:
                    self.text(MARGIN, y, name, size=13, bold=True, anchor="start")
                self.text(MARGIN + 88, y, line, size=13, anchor="start")
                y += _LINE_HEIGHT
        return y

    def svg(self, height: float) -> str:
        """Returns the file."""
        heads = "".join(
            f'<marker id="{colour[1:]}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="6" markerHeight="6" '
            f'orient="auto"><path d="M0 0L10 5L0 10z" fill="{colour}"/></marker>'
            for colour in (WEIGHTS, GRADIENTS, MEANS, LINE)
        )
        card = (
            f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:.0f}" rx="10" fill="#fff" stroke="{LINE}"/>'
        )
        return "\n".join(
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
                f'height="{height:.0f}" font-family="system-ui, Segoe UI, Helvetica, Arial, DejaVu Sans, sans-serif" '
                'role="img">',
                f"<title>{html.escape(self._title)}</title>",
                f"<defs>{heads}</defs>",
                card,
                *self._parts,
                "</svg>\n",
            )
        )
