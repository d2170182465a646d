"""`tools.fit_reached`: the shares in the table are those that it finds."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks.predict.hosts import reached
from benchmarks.predict.prediction import step
from tools import fit_reached


@pytest.mark.slow
def test_made_up_rates_give_back_the_shares_that_they_were_made_with() -> None:
    """Of a testbed with several hosts, so that most shares matter."""
    found = [case for case in fit_reached.cases() if case[0] == "ec2-p2.8xlarge"][::7]
    truth = dataclasses.replace(fit_reached.START, network=0.3, board=0.94, spread=0.01)
    made = []
    for bed, _, subject in found:
        made.append((bed, subject.images / step(subject, truth).end_seconds, subject))
    fitted = fit_reached.fit(made)
    assert (fitted.board, fitted.spread, fitted.network) == (truth.board, truth.spread, truth.network)


@pytest.mark.seldom
@pytest.mark.timeout(900)
def test_the_table_has_what_the_tool_finds() -> None:
    found = fit_reached.cases()
    assert fit_reached.fit(found) == reached()
    rest = [case for case in found if case[0] != "dgx-1-p100"]
    assert fit_reached.fit(rest) == reached("without_dgx-1-p100")
