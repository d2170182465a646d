"""Fixtures of the tests of records and reports."""

from __future__ import annotations

import pytest

from results.record import Record
from tests.support import records


@pytest.fixture(scope="session")
def everything() -> list[Record]:
    """Records with something for every view: see `tests.support.records.everything`."""
    return records.everything()
