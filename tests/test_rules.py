"""The rules that conftest.py adds to pytest: small tests break each of them, in a pytest of their own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import ROOT, USER_ENVIRONMENT

pytestmark = pytest.mark.process

RULES = """
import pytest
from tests.support import limits
limits.MOST_SECONDS = -1.0
limits.LONG_TESTS["test_it.py::test_listed"] = "because"

def test_default(): pass
def test_listed(): pass
@pytest.mark.slow
@pytest.mark.process
def test_slow(): pass
def test_skipped_for_want_of_a_gpu(): pytest.skip("there is no NVIDIA GPU")
def test_skipped_for_no_reason(): pytest.skip("not today")
"""
IMPORTS = """
def test_with(): import tensorflow
def test_without(): pass
"""


def outcomes(directory: Path, source: str, *flags: str, **variables: str) -> dict[str, str]:
    """Returns the outcome that pytest reports for each test of a module."""
    (directory / "test_it.py").write_text(source)
    environment = {name: value for name, value in USER_ENVIRONMENT.items() if name != "CI"}
    pytest_here = [sys.executable, "-m", "pytest", "-c", ROOT / "setup.cfg", f"--rootdir={directory}"]
    done = subprocess.run(
        [*pytest_here, "-p", "tests.conftest", "-v", "--numprocesses=1", *flags, directory / "test_it.py"],
        env={**environment, "PYTHONPATH": str(ROOT), **variables},
        cwd=directory,
        capture_output=True,
        text=True,
    )
    return {name: outcome for outcome, name in re.findall(r"% *\] ([A-Z]+) test_it.py::test_(\S+)", done.stdout)}


def test_in_ci_long_default_tests_and_unusual_skips_fail(tmp_path: Path) -> None:
    assert outcomes(tmp_path, RULES, CI="true") == {
        "default": "FAILED",
        "listed": "PASSED",
        "slow@processes": "PASSED",
        "skipped_for_want_of_a_gpu": "SKIPPED",
        "skipped_for_no_reason": "FAILED",
    }
    assert "FAILED" not in outcomes(tmp_path, RULES).values()


def test_without_tensorflow_a_test_that_imports_it_is_skipped(tmp_path: Path) -> None:
    assert outcomes(tmp_path, IMPORTS, "--no-tensorflow") == {"with": "SKIPPED", "without": "PASSED"}
