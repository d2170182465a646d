"""The rows of `rows.toml`, their finished rounds, and the table of ratios that is made of both."""

from __future__ import annotations

import dataclasses
import itertools
import json
import statistics
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.errors import DataError
from benchmarks.machine import hardware, provenance
from results import store
from results.intervals import Interval, of_repeats
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


def of_rows(finished: Sequence[Round], here: Mapping[str, Any]) -> dict[Row, list[Round]]:
    """Returns of each row, as it is now, its finished rounds on this machine."""
    return {
        row: [
            each
            for each in finished
            if (each.row, each.flags, each.machine) == (row.name, [row.flags("theirs"), row.flags("ours")], here)
        ]
        for row in rows()
    }


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


def keep(finished: Sequence[Round], path: Path) -> None:
    """Replaces the rounds in a file."""
    store.replace(path, "".join(f"{json.dumps(dataclasses.asdict(each))}\n" for each in finished))


def why_not_published(by_row: Mapping[Row, Sequence[Round]]) -> str:
    """Returns why a table must not be published, or nothing if all is of one commit and enough rounds."""
    commits = _commits(by_row)
    if len(commits) != 1 or commits[0].endswith("+"):
        return f"rounds are of commits {', '.join(commits) or 'unknown'}, not of one without changes"
    few = [row.name for row, finished in by_row.items() if len(finished) < _LEAST_ROUNDS]
    return f"{counted(len(few), 'row')} with fewer than {_LEAST_ROUNDS} rounds, such as {few[0]}" if few else ""


def page() -> str:
    """Returns the table of the kept rounds as Markdown, if it may be published."""
    finished = load(KEPT)
    if not finished:
        return "No table is published yet."
    by_row = of_rows(finished, finished[0].machine)
    reason = why_not_published(by_row)
    return f"No table is published yet: {reason}." if reason else as_markdown(by_row, finished[0].machine, {})


def as_markdown(by_row: Mapping[Row, Sequence[Round]], here: Mapping[str, Any], failures: Mapping[str, str]) -> str:
    """Returns where rounds were measured, their table, and why rows failed (by name), as Markdown.

    A rate is the geometric mean. The interval is Student's, of the logarithms of the ratios; it needs two rounds.
    """
    cells = [_HEADER, ["---"] * len(_HEADER), *(_cells(row, finished) for row, finished in by_row.items())]
    failed = [f"- {row.work}: {markdown(failures[row.name])}" for row in by_row if row.name in failures]
    parts = [_where(by_row, here), "\n".join(f"| {' | '.join(line)} |" for line in cells)]
    return "\n\n".join([*parts, *(["Failed runs:", "\n".join(failed)] if failed else [])])


def _where(by_row: Mapping[Row, Sequence[Round]], here: Mapping[str, Any]) -> str:
    dates = sorted({each.date[:10] for each in _every(by_row)})
    days = list(dict.fromkeys([*dates[:1], *dates[-1:]]))
    extensions = ", ".join(here["extensions"] or ["extensions that are not known"])
    return (
        f"Measured {'on' if len(days) < 2 else 'from'} {' to '.join(days) or 'no day yet'} on "
        f"{counted(here['cores'], 'core')} of an {here['cpu']} with {extensions}; "
        f"TensorFlow {here['tensorflow']} (theirs: {here['peer_tensorflow']}); this suite at commit "
        f"{', '.join(_commits(by_row)) or 'unknown'}."
    )


def _every(by_row: Mapping[Row, Sequence[Round]]) -> list[Round]:
    return sorted(itertools.chain.from_iterable(by_row.values()), key=lambda each: each.date)


def _commits(by_row: Mapping[Row, Sequence[Round]]) -> list[str]:
    return list(dict.fromkeys(each.commit for each in _every(by_row) if each.commit))


def _cells(row: Row, finished: Sequence[Round]) -> list[str]:
    if not finished:
        return [row.work, "", "", "", "0"]
    ratios = [each.ours / each.theirs for each in finished]
    ratio = of_repeats(ratios) if len(ratios) > 1 else Interval(ratios[0])
    means = [statistics.geometric_mean(getattr(each, side) for each in finished) for side in ("theirs", "ours")]
    interval = f" [{ratio.low:.2f}, {ratio.high:.2f}]" if ratio.is_known else ""
    sides = [f"{mean:.4g} {row.unit}" for mean in means]
    return [row.work, *sides, f"{ratio.value:.2f}{interval}", str(len(finished))]
