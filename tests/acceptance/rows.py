"""The rows of `rows.toml`, how one is run, and the page on them."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.commands import RUN_BENCH, USER_ENVIRONMENT

_HERE = Path(__file__).parent
SEEN = _HERE / "seen.json"
_LONGEST_SECONDS = 300
_MOST_LINES_SHOWN = 12
_NEEDS = {
    "gpu": "needs a GPU",
    "hosts": "needs a second host",
}


@dataclasses.dataclass(frozen=True)
class Shown:
    """Commands of a shell, and what must be seen.

    Attributes:
        run: lines for bash, in an empty directory.
        seen: regular expressions; each must match a part of the output.
        status: of the last command.
    """

    run: str
    seen: Sequence[str]
    status: int = 0


@dataclasses.dataclass(frozen=True)
class Row:
    """One requirement.

    Attributes:
        id: which document, and which part of it.
        subject: of that part.
        can: what a user can do; to follow "A user can".
        shows: commands that show it on a machine without a GPU.
        needs: what the rest of it needs, a key of `_NEEDS`; empty if `shows` shows all.
        rest: what that rest is.
    """

    id: str
    subject: str
    can: str
    shows: Sequence[Shown] = ()
    needs: str = ""
    rest: str = ""

    @property
    def verdict(self) -> str:
        """Returns in a few words whether the commands show it all."""
        return f"{'the rest ' if self.shows else ''}{_NEEDS[self.needs]}" if self.needs else "shown"


@dataclasses.dataclass(frozen=True)
class Document:
    """A document that the requirements come from; `source` is its address or author."""

    title: str
    source: str
    rows: Sequence[Row]


class UnlikeError(AssertionError):
    """The output of a row's commands is not what it must be."""


def documents() -> list[Document]:
    """Returns all rows, by document."""
    listed = tomllib.loads((_HERE / "rows.toml").read_text(encoding="utf-8"))["document"]
    return [Document(each["title"], each["source"], [_row(row) for row in each["row"]]) for each in listed]


def rows() -> list[Row]:
    """Returns all rows."""
    return list(itertools.chain.from_iterable(document.rows for document in documents()))


def _row(values: Mapping[str, Any]) -> Row:
    return Row(**{**values, "shows": [Shown(**shown) for shown in values.get("shows", ())]})


def run(row: Row) -> list[list[str]]:
    """Runs a row's commands, and returns for each the lines in which the expected was seen.

    Raises:
        UnlikeError: something else was seen.
    """
    with tempfile.TemporaryDirectory() as directory:
        return [run_shown(shown, Path(directory)) for shown in row.shows]


def run_shown(shown: Shown, directory: Path) -> list[str]:
    """Runs commands in a directory, and returns the lines in which the expected was seen. Raises UnlikeError."""
    program = directory / "bin" / "run_bench.py"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\nexec {shlex.join(RUN_BENCH)} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    path = f"{program.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    with subprocess.Popen(
        ["bash", "-uc", shown.run],
        cwd=directory,
        env={**USER_ENVIRONMENT, "PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as shell:
        try:
            output, _ = shell.communicate(timeout=_LONGEST_SECONDS)
        except subprocess.TimeoutExpired:
            raise UnlikeError(f"did not end within {_LONGEST_SECONDS} s:\n{shown.run}") from None
        finally:
            _end(shell)
    if shell.returncode != shown.status:
        raise UnlikeError(f"status {shell.returncode}, not {shown.status}:\n{shown.run}\n{output}")
    return lines_seen(shown, output)


def _end(shell: subprocess.Popen[str]) -> None:
    """Ends what a row has left in the background."""
    try:
        os.killpg(shell.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def lines_seen(shown: Shown, output: str) -> list[str]:
    """Returns the whole lines that the expressions matched, in the order of the output."""
    numbers: set[int] = set()
    for expression in shown.seen:
        match = re.search(expression, output, re.MULTILINE)
        if not match:
            raise UnlikeError(f"nothing matches {expression!r}:\n{shown.run}\n{output}")
        first = output.count("\n", 0, match.start())
        numbers.update(range(first, first + match[0].strip("\n").count("\n") + 1))
    lines = output.splitlines()
    return [lines[number].rstrip() for number in sorted(numbers)]


def page() -> str:
    """Returns the rows with what was seen, as Markdown: an overview, and a section per document."""
    seen = json.loads(SEEN.read_text(encoding="utf-8"))
    parts = []
    overview = ["| row | subject | verdict |", "| --- | --- | --- |"]
    overview += [f"| [{row.id}](#{_anchor(row)}) | {row.subject} | {row.verdict} |" for row in rows()]
    parts.append("\n".join(overview))
    for document in documents():
        parts.append(f"## {document.title}\n\n{document.source}")
        parts += [_section(row, seen.get(row.id)) for row in document.rows]
    return "\n\n".join(parts)


def _section(row: Row, seen: Mapping[str, Any] | None) -> str:
    """Returns the section of a row, with what was seen where: the lines of each of its commands."""
    where = f" Seen on {seen['where']}." if seen else ""
    parts = [f"### {row.id} {row.subject}", f"A user can {row.can}.{where}"]
    for shown, lines in itertools.zip_longest(row.shows, seen["lines"] if seen else ()):
        parts.append(f"```shell\n{shown.run.strip()}\n```")
        if lines is None:
            continue
        shortened = [*lines[:_MOST_LINES_SHOWN], *(["..."] if len(lines) > _MOST_LINES_SHOWN else [])]
        parts.append("```text\n" + "\n".join(shortened) + "\n```")
    if row.rest:
        parts.append(f"{_NEEDS[row.needs].capitalize()}: {row.rest}.")
    return "\n\n".join(parts)


def _anchor(row: Row) -> str:
    return re.sub(r"[^\w -]", "", f"{row.id} {row.subject}".lower()).replace(" ", "-")
