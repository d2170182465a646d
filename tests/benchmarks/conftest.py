"""Fixtures of the tests of data sets."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def copied(fake_imagenet: Path, tmp_path: Path) -> Path:
    """A data set that a test may damage."""
    return Path(shutil.copytree(fake_imagenet, tmp_path / "copied"))
