"""The table of faults is complete; the faults themselves are injected by `make test-seldom`."""

from __future__ import annotations

import pytest

from tests.faults import __main__, catalog
from tests.faults.catalog import Fault
from tests.faults.harness import Skipped


def test_names_are_unique_and_every_promise_is_tested() -> None:
    names = [each.name for each in catalog.faults()]
    assert len(names) == len(set(names))
    assert {each.promise for each in catalog.faults()} == set(catalog.PROMISES)


@pytest.mark.seldom
@pytest.mark.process
@pytest.mark.xdist_group("faults")
@pytest.mark.parametrize("fault", [pytest.param(each, id=each.name) for each in catalog.faults()])
def test_fault(fault: Fault) -> None:
    try:
        __main__.inject(fault, moments=4)
    except Skipped as error:
        pytest.skip(f"the fault cannot be injected here: {error}")
