"""The tables of tests/reliability.md and tests/acceptance.md: what marks of tests say that these hold.

    @pytest.mark.fault("R5", "Ctrl-C of a run that measures", survives="status 130, one record")
    @pytest.mark.row("S2.5")

The marks are read from the source of the tests, which are not imported.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_ROWS = ROOT / "tests" / "acceptance.toml"
# By its number: a title, and what is promised.
PROMISES = {
    "R1": (
        "finished runs survive",
        "A finished run survives kill -9 and outputs that cannot be written: its record is one line, appended and "
        "fsynced before anything is printed; files that are rewritten are renamed into place.",
    ),
    "R2": (
        "sweeps go on",
        "A sweep goes on after a run that raises, exits, crashes, runs out of memory, hangs or prints garbage: each "
        "run is a process of its own.",
    ),
    "R3": ("out of memory is recorded", "Out of memory is a row, with the request and the device."),
    "R4": (
        "nothing hangs",
        "Nothing hangs: start-up, a step and a run have deadlines; when one passes, all threads' stacks are printed, "
        "and who waited for whom.",
    ),
    "R5": ("signals leave valid files", "Ctrl-C, SIGTERM and SIGHUP leave valid files and no processes."),
    "R6": ("resume runs what is missing", "`--resume` runs only what is missing."),
    "R7": (
        "lost tasks are named",
        "If a parameter server, a worker or the chief dies or stops, all others end within 60 s and name it.",
    ),
    "R8": ("slow workers are named", "A slow worker is named, with its straggler ratio."),
    "R9": (
        "corrupt records are located",
        "A corrupt record is reported with file, record, offset and reason, and nothing else is lost.",
    ),
    "R10": (
        "wrong numbers never look right",
        "Wrong numbers never look right: NaN, drifted replicas, a missing device, a run that did not take place, "
        "other software.",
    ),
    "R11": (
        "full disks are reported",
        "A full or read-only disk is reported at the start; if it fills later, the record is printed.",
    ),
    "R12": ("unusable ports are named", "A port or address that cannot be used is named, with what to do."),
    "R13": (
        "concurrent writers lose nothing",
        "Several processes that write the same results leave all of them intact.",
    ),
    "R14": (
        "existing files stay",
        "What exists stays: outputs follow links, keep devices and modes, and remove no results.",
    ),
    "R15": ("secrets stay inside", "Nothing gets out: secrets appear in no record, report or terminal."),
    "R16": (
        "no access from outside",
        "No flag or address becomes an option of another program, and no server is open to the network without "
        "consent.",
    ),
    "R17": (
        "foreign files are only data",
        "A file from elsewhere is only data: what is odd is skipped with a reason, and nothing in it is executed, "
        "or interpreted by a terminal, a spreadsheet or a browser.",
    ),
}


@dataclasses.dataclass(frozen=True)
class Mark:
    """A mark of a test: its name, its arguments, and the test as pytest names it."""

    name: str
    arguments: Sequence[str]
    test: str


@functools.cache
def marks() -> list[Mark]:
    """Returns the marks `fault` and `row` of all tests."""
    return [mark for path in sorted((ROOT / "tests").rglob("test_*.py")) for mark in _marks_of(path)]


def _marks_of(path: Path) -> Iterator[Mark]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for decorator in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
            name = ast.unparse(decorator.func).removeprefix("pytest.mark.") if isinstance(decorator, ast.Call) else ""
            if name in ("fault", "row"):
                assert isinstance(decorator, ast.Call) and isinstance(node, ast.FunctionDef)
                values = [*decorator.args, *(keyword.value for keyword in decorator.keywords)]
                arguments = [ast.literal_eval(value) for value in values]
                yield Mark(name, arguments, f"{path.relative_to(ROOT)}::{node.name}")


def subjects() -> list[Mapping[str, Any]]:
    """Returns what a user can do, by subject: each has a title and rows."""
    listed: list[Mapping[str, Any]] = tomllib.loads(_ROWS.read_text(encoding="utf-8"))["subject"]
    return listed


def faults_page() -> str:
    """Returns a section for each promise: what is done to the suite, what must hold, and which test does it."""
    parts = []
    for promise, (title, sentence) in PROMISES.items():
        of_promise = [mark for mark in marks() if mark.name == "fault" and mark.arguments[0] == promise]
        rows = [f"| {mark.arguments[1]} | {mark.arguments[2]} | `{mark.test}` |" for mark in of_promise]
        parts += [f"## {promise}: {title}", sentence, "\n".join([_header("fault", "must hold", "test"), *rows])]
    return "\n\n".join(parts)


def acceptance_page() -> str:
    """Returns a table for each subject: what a user can do, a command that shows it, and the tests that hold it."""
    parts = []
    for subject in subjects():
        rows = []
        for row in subject["row"]:
            tests = ", ".join(
                f"`{mark.test}`" for mark in marks() if mark.name == "row" and row["id"] in mark.arguments
            )
            can = row["can"] + (f" ({row['rest']})" if "rest" in row else "")
            rows.append(f"| {row['id']} | {can} | `{row['command']}` | {tests} |")
        header = _header("row", "a user can", "command", "tests")
        parts += [f"## {subject['title']}", "\n".join([header, *rows])]
    return "\n\n".join(parts)


def _header(*cells: str) -> str:
    return f"| {' | '.join(cells)} |\n|{'---|' * len(cells)}"
