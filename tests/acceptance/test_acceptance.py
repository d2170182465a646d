"""The rows are complete; their commands are run by `make test-seldom`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.acceptance import rows
from tests.acceptance.rows import Row, Shown, UnlikeError

ROWS = rows.rows()


def test_every_row_is_shown_or_says_what_it_needs() -> None:
    assert len({row.id for row in ROWS}) == len(ROWS) == 66
    for row in ROWS:
        assert row.shows or row.needs, row.id
        assert bool(row.needs) == bool(row.rest), row.id
        assert all(shown.seen for shown in row.shows), f"{row.id} checks nothing"


def test_the_page_is_of_these_rows() -> None:
    held = json.loads(rows.SEEN.read_text(encoding="utf-8"))
    assert all(re.match(r"\d{4}-\d\d-\d\d on \d+ cores of ", row["where"]) for row in held.values())
    seen = {name: row["lines"] for name, row in held.items()}
    assert {name: len(lines) for name, lines in seen.items()} == {row.id: len(row.shows) for row in ROWS if row.shows}
    for row in ROWS:
        for shown, lines in zip(row.shows, seen.get(row.id, []), strict=True):
            again = rows.lines_seen(shown, "".join(f"{line}\n" for line in lines))
            assert again == lines, f"run `make acceptance ROW={row.id}`"


def test_what_is_not_seen_is_a_failure(tmp_path: Path) -> None:
    assert rows.run_shown(Shown("echo one; echo two; echo three", ["^t.o$", "on"]), tmp_path) == ["one", "two"]
    with pytest.raises(UnlikeError, match="nothing matches 'four'"):
        rows.run_shown(Shown("echo one", ["four"]), tmp_path)
    with pytest.raises(UnlikeError, match="status 1, not 0"):
        rows.run_shown(Shown("echo one; false", ["one"]), tmp_path)


@pytest.mark.seldom
@pytest.mark.process
@pytest.mark.xdist_group("acceptance")
@pytest.mark.parametrize("row", [pytest.param(row, id=row.id) for row in ROWS if row.shows])
def test_row(row: Row) -> None:
    rows.run(row)
