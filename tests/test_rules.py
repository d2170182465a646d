"""The rules that conftest.py adds to pytest, and the budget of `.ci/run`: small tests and builds break each of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import budget, rotation
from tests.support.commands import ROOT, USER_ENVIRONMENT

pytestmark = [pytest.mark.slow, pytest.mark.process]

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
ROTATING = """
import pytest
from tests.support.rotation import rotating

@rotating("cell", range(50), first=1)
def test_cell(cell): pass
@pytest.mark.rotates(share=3)
def test_in_share_3(): pass
@pytest.mark.rotates(share=4)
def test_in_share_4(): pass
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


def test_what_rotates_is_slow_in_its_share_and_seldom_otherwise(tmp_path: Path) -> None:
    cells = [f"cell[{cell}]" for cell in range(1, 50) if rotation.of_test(f"test_it.py::test_cell[{cell}]") == 3]
    assert 0 < len(cells) < 49
    assert set(outcomes(tmp_path, ROTATING, "--share=3", "-m", "slow and not seldom")) == {*cells, "in_share_3"}


MAKEFILE = """
install-test browser lint:
	@echo {{$@}}
pytest-ci:
	@echo the tests; {tests}
typecheck:
	@echo the types; {types}
"""


@pytest.mark.parametrize(("tests", "types"), [("true", "true"), ("false", "true"), ("true", "false")])
def test_a_build_has_its_stages_and_minutes_and_fails_with_any_of_them(tmp_path: Path, tests: str, types: str) -> None:
    (tmp_path / "Makefile").write_text(MAKEFILE.format(tests=tests, types=types))
    environment = {**USER_ENVIRONMENT, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.support.budget"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == (0 if tests == types else 2)
    *lines, minutes = done.stdout.splitlines()
    assert lines[:5] == ["{install-test}", "{browser}", "{lint}", "the tests", "the types"]
    assert re.fullmatch(r"Minutes .*: install 0\.0, lint 0\.0, types and tests 0\.0; in all 0\.0", minutes)


def test_a_build_may_take_so_long() -> None:
    assert budget.verdict(budget.WARN_MINUTES) == (0, "")
    assert [budget.verdict(minutes)[0] for minutes in (budget.MOST_MINUTES, budget.MOST_MINUTES + 0.1)] == [0, 1]
    assert budget.verdict(budget.MOST_MINUTES)[1].startswith("WARNING: the build took 60.0 minutes")
    assert budget.verdict(70.0)[1].startswith("FAILED: the build took 70.0 minutes, and may take 60.")


def test_time_that_others_use_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """In 100 s, another process has used 30 s of each core."""
    clock, others = iter([0.0, 100.0]), iter([50.0, 50.0 + 30.0 * (os.cpu_count() or 1)])
    with monkeypatch.context() as patch:
        patch.setattr(budget.time, "monotonic", lambda: next(clock))
        patch.setattr(budget, "cpu_seconds_of_others", lambda: next(others))
        assert budget.IdleStopwatch().seconds() == pytest.approx(70.0)
