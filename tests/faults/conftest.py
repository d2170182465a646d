"""Fixtures of the faults."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.scratch import Scratch


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Scratch]:
    """A directory to inject a fault in; at the end, what must hold after every fault is checked."""
    with Scratch(tmp_path / "scratch") as scratch:
        yield scratch
