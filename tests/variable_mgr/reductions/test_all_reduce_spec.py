from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from variable_mgr.reductions import all_reduce_spec
from variable_mgr.reductions.algorithm_catalog import ALGORITHMS, find_algorithm
from variable_mgr.reductions.all_reduce_spec import Range

ranges = st.builds(Range, st.sampled_from(sorted(ALGORITHMS)), st.integers(1, 64))


@st.composite
def specs(draw: st.DrawFn) -> tuple[Range, ...]:
    limits = sorted(draw(st.sets(st.integers(1, 2**40), max_size=4)))
    made = [draw(ranges) for _ in range(len(limits) + 1)]
    return tuple(Range(item.algorithm, item.shards, limit) for item, limit in zip(made, [*limits, None], strict=True))


@given(specs())
def test_what_is_described_is_read_back(made: tuple[Range, ...]) -> None:
    assert all_reduce_spec.parse(all_reduce_spec.describe(made)) == made


def test_by_hand() -> None:
    assert all_reduce_spec.parse("PSCPU:32k:xring#2") == (Range("pscpu", 1, 32 * 1024), Range("xring", 2))
    assert all_reduce_spec.describe(all_reduce_spec.parse("pscpu:1024:psgpu:2M:rechd")) == "pscpu:1K:psgpu:2M:rechd"
    assert all_reduce_spec.parse("pscpu/xring:32K:psgpu#2") == (Range("pscpu/xring", 1, 2**15), Range("psgpu", 2))
    inside = ALGORITHMS["pscpu"].meaning
    assert find_algorithm("pscpu/xring").meaning.startswith(f"inside a worker {inside}, then across workers")


@given(specs(), st.integers(0, 2**41))
def test_the_first_range_that_is_large_enough_is_chosen(made: tuple[Range, ...], elements: int) -> None:
    chosen = all_reduce_spec.choose(made, elements)
    for item in made[: made.index(chosen)]:
        assert item.limit_elements is not None and item.limit_elements < elements
    assert chosen.limit_elements is None or elements <= chosen.limit_elements


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "'' is no range"),
        ("ring", "Did you mean 'xring'"),
        ("qqq", "Algorithms: pscpu, psgpu, xring"),
        ("xring#0", "'xring#0' is no range"),
        ("xring#10000", "'xring#10000' is no range: give an algorithm, with #1 to #9999 shards"),
        ("xring:32K", "must end with an algorithm"),
        ("pscpu:many:xring", "'many' is no size"),
        ("pscpu:0:xring", "'0' is no size"),
        ("pscpu:32K:xring:1K:psgpu", "must grow from left to right"),
        ("pscpu/xrng", "^There is no algorithm 'xrng'. Did you mean 'xring'"),
        ("pscpuu/xring", "^There is no algorithm 'pscpuu'. Did you mean 'pscpu'"),
        ("/xring", "is no range: give an algorithm"),
        ("pscpu/xring/rechd", "is no range: give an algorithm"),
        ("pscpu#2/xring", "is no range: give an algorithm"),
    ],
)
def test_mistakes_are_explained(text: str, words: str) -> None:
    with pytest.raises(all_reduce_spec.SpecError, match=words):
        all_reduce_spec.parse(text)
