"""The rows of `rows.toml`, their finished rounds, and the table of ratios that is made of both."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import statistics
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.errors import DataError
from benchmarks.machine import hardware, provenance
from results import store
from results.gate.decision import judge
from results.text import counted, markdown

_HERE = Path(__file__).parent
# The rounds of the table in docs/performance.md, which is shown when there are enough.
KEPT = _HERE / "rounds.jsonl"
_UNITS = {
    "images_per_second": "images/s",
    "input_images_per_second": "images/s",
    "process_seconds": "s",
    "first_measured_step_seconds": "s",
}
# Of a difference that matters; the interval of `judge`, which alone is used here, does not depend on it.
_THRESHOLD = 0.05
# Of each row of a published table.
_LEAST_ROUNDS = 3
_HEADER = ("work", "theirs", "ours", "ours / theirs [95 % interval]", "rounds")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One comparison; `rows.toml` says what the fields mean."""

    name: str
    work: str
    both: str
    theirs: str = ""
    ours: str = ""
    against: str = "tf_cnn_benchmarks"
    cluster: bool = False
    measure: str = "images_per_second"

    def flags(self, side: str) -> list[str]:
        """Returns the flags of a side, `theirs` or `ours`."""
        return [*self.both.split(), *(self.ours if side == "ours" else self.theirs).split()]

    @property
    def unit(self) -> str:
        """Returns the unit of what is measured."""
        return _UNITS[self.measure]

    @property
    def is_of_input(self) -> bool:
        """Whether batches are made, and no model is trained."""
        return self.measure == "input_images_per_second"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Round:
    """One run of each side, theirs first.

    Attributes:
        row: name of the row.
        flags: of both sides; a round with other flags than its row now has does not count.
        theirs: what was measured, in the row's unit.
        ours: the same of this suite.
        date: in ISO 8601, UTC.
        commit: of this suite; None outside a checkout.
        machine: where it ran; a table is of one machine.
    """

    row: str
    flags: Sequence[Sequence[str]]
    theirs: float
    ours: float
    date: str
    commit: str | None
    machine: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
    """One line of the table: geometric means of both sides, and their ratio with its 95 % interval.

    The interval is Student's, of the logarithms of the rounds' ratios; it needs two rounds.
    """

    name: str
    work: str
    unit: str
    rounds: int
    theirs: float | None = None
    ours: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    failure: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """All lines, where and when they were measured, and with which versions."""

    machine: Mapping[str, Any]
    dates: Sequence[str]
    commits: Sequence[str]
    lines: Sequence[Line]


def rows() -> list[Row]:
    """Returns all rows."""
    return [Row(**row) for row in tomllib.loads((_HERE / "rows.toml").read_text(encoding="utf-8"))["row"]]


def machine(peer_tensorflow: str) -> dict[str, Any]:
    """Describes this machine and the versions of TensorFlow: rounds are compared only if these are equal."""
    host = hardware.describe_host()
    return {
        "cpu": hardware.describe_hardware(hardware.Inventory())["cpu_model"],
        "extensions": host["extensions"],
        "cores": host["threads_usable"],
        "tensorflow": provenance.describe_software()["tensorflow_version"],
        "peer_tensorflow": peer_tensorflow,
    }


def of_row(finished: Sequence[Round], row: Row, here: Mapping[str, Any]) -> list[Round]:
    """Returns the finished rounds of a row, as it is now, on this machine."""
    key = (row.name, [row.flags("theirs"), row.flags("ours")], here)
    return [each for each in finished if (each.row, each.flags, each.machine) == key]


def line(row: Row, finished: Sequence[Round], failure: str = "") -> Line:
    """Returns a row's line of the table."""
    common = Line(name=row.name, work=row.work, unit=row.unit, rounds=len(finished), failure=failure)
    if not finished:
        return common
    decision = judge([math.log(each.ours / each.theirs) for each in finished], threshold=_THRESHOLD, fresh=0)
    assert decision.change is not None, "there are rounds"
    bounds = [None if bound is None else 1 + bound for bound in decision.change.bounds]
    return dataclasses.replace(
        common,
        theirs=statistics.geometric_mean(each.theirs for each in finished),
        ours=statistics.geometric_mean(each.ours for each in finished),
        ratio=1 + decision.change.value,
        ratio_low=bounds[0],
        ratio_high=bounds[1],
    )


def load(path: Path) -> list[Round]:
    """Reads finished rounds, oldest first; a file that is not there has none.

    Raises:
        DataError: a line is not a round.
    """
    if not path.exists():
        return []
    try:
        return [Round(**json.loads(text)) for text in path.read_text(encoding="utf-8").splitlines()]
    except (TypeError, ValueError) as error:
        raise DataError(f"{path} has a line that is no round ({error}): remove the line, or the file.") from error


def add(path: Path, finished: Round) -> None:
    """Appends a finished round to a file."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(dataclasses.asdict(finished)) + "\n")


def keep(finished: Sequence[Round], path: Path) -> None:
    """Replaces the rounds in a file."""
    store.replace(path, "".join(f"{json.dumps(dataclasses.asdict(each))}\n" for each in finished))


def table(finished: Sequence[Round], here: Mapping[str, Any], failures: Mapping[str, str]) -> Table:
    """Returns the table of all rows, each with its finished rounds of this machine."""
    counted_by_row = {row: of_row(finished, row, here) for row in rows()}
    every = sorted(itertools.chain.from_iterable(counted_by_row.values()), key=lambda each: each.date)
    return Table(
        machine=here,
        dates=list(dict.fromkeys(each.date[:10] for each in every)),
        commits=list(dict.fromkeys(each.commit for each in every if each.commit)),
        lines=[line(row, those, failures.get(row.name, "")) for row, those in counted_by_row.items()],
    )


def why_not_published(made: Table) -> str:
    """Returns why a table must not be published, or nothing if all is of one commit and enough rounds."""
    if len(made.commits) != 1 or made.commits[0].endswith("+"):
        return f"rounds are of commits {', '.join(made.commits) or 'unknown'}, not of one without changes"
    few = [each.name for each in made.lines if each.rounds < _LEAST_ROUNDS]
    return f"{counted(len(few), 'row')} with fewer than {_LEAST_ROUNDS} rounds, such as {few[0]}" if few else ""


def page() -> str:
    """Returns the table of the kept rounds as Markdown, if it may be published."""
    finished = load(KEPT)
    if not finished:
        return "No table is published yet."
    made = table(finished, finished[0].machine, {})
    reason = why_not_published(made)
    return f"No table is published yet: {reason}." if reason else as_markdown(made)


def as_markdown(made: Table) -> str:
    """Returns where a table was measured, the table, and why rows of it failed, as Markdown."""
    cells = [_HEADER, ["---"] * len(_HEADER), *map(_cells, made.lines)]
    failures = [f"- {each.work}: {markdown(each.failure)}" for each in made.lines if each.failure]
    parts = [_where(made), "\n".join(f"| {' | '.join(row)} |" for row in cells)]
    return "\n\n".join([*parts, *(["Failed runs:", "\n".join(failures)] if failures else [])])


def _where(made: Table) -> str:
    here, days = made.machine, [*made.dates[:1], *made.dates[1:][-1:]]
    extensions = ", ".join(here["extensions"] or ["extensions that are not known"])
    return (
        f"Measured {'on' if len(days) < 2 else 'from'} {' to '.join(days) or 'no day yet'} on "
        f"{counted(here['cores'], 'core')} of an {here['cpu']} with {extensions}; "
        f"TensorFlow {here['tensorflow']} (theirs: {here['peer_tensorflow']}); this suite at commit "
        f"{', '.join(made.commits) or 'unknown'}."
    )


def _cells(each: Line) -> list[str]:
    interval = "" if each.ratio_low is None else f" [{each.ratio_low:.2f}, {each.ratio_high:.2f}]"
    ratio = "" if each.ratio is None else f"{each.ratio:.2f}{interval}"
    sides = ["" if side is None else f"{side:.4g} {each.unit}" for side in (each.theirs, each.ours)]
    return [each.work, *sides, ratio, str(each.rounds)]
