"""What a task learns of the failed attempts before it."""

from __future__ import annotations

import re

import pytest

from benchmarks.cluster import restarts
from benchmarks.cluster.restarts import Attempts


@pytest.mark.parametrize(
    ("failures", "warning"),
    [
        ((), ""),
        (
            ("At noon: worker 1 was killed.", "At two: 'ps 0' ended."),
            "The cluster was started again 2 times; .* At noon: worker 1 was killed. At two: 'ps 0' ended.",
        ),
    ],
)
def test_a_task_knows_of_which_run_it_is_and_what_failed_before(
    monkeypatch: pytest.MonkeyPatch, failures: tuple[str, ...], warning: str
) -> None:
    attempts = Attempts("this", failures)
    for variable in attempts.handed_over().items():
        monkeypatch.setenv(*variable)
    assert restarts.inherited() == attempts
    assert re.fullmatch(warning, " ".join(restarts.warnings()))
