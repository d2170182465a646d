"""Which of many tests that are alike `.ci/run` runs: another share of them for another commit.

A test marked `rotates` is one cell of a table, such as a model under one manager, beside which other cells of its kind
are tested in every build. It counts as slow in the share of the current commit, and as seldom otherwise, so equal
commits are tested alike, and `make test-seldom` runs all.
"""

from __future__ import annotations

import subprocess
import zlib
from collections.abc import Iterable
from typing import Any

import pytest

from tests.support.commands import ROOT

SHARES = 10
_Parameters = type(pytest.param())


def of_test(name: str) -> int:
    """Returns the share of a test whose mark does not state one; it depends on nothing but its name."""
    return zlib.crc32(name.encode()) % SHARES


def of_commit() -> tuple[int, str]:
    """Returns the share of the current commit, and what the commit is called; outside of git, that is share 0."""
    command = ["git", "rev-parse", "HEAD"]
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    return (int(commit[:8], 16) % SHARES, f"commit {commit[:10]}") if commit else (0, "no commit")


def rotating(
    names: str | tuple[str, ...], parameters: Iterable[Any], *, first: int, ids: Any = None
) -> pytest.MarkDecorator:
    """Parametrizes a test as `pytest.mark.parametrize` does; what comes after the first parameters rotates."""
    listed = []
    for index, each in enumerate(parameters):
        known = each if isinstance(each, _Parameters) else pytest.param(*([each] if isinstance(names, str) else each))
        marks = [*known.marks, *([pytest.mark.rotates] if index >= first else [])]
        listed.append(pytest.param(*known.values, id=known.id, marks=marks))
    return pytest.mark.parametrize(names, listed, ids=ids)
