"""Flags, and parts of a configuration whose fields declare them."""

from __future__ import annotations

import dataclasses
from typing import Literal

import pytest

from benchmarks.option import Flag, decided, filled, flags_of, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inner:
    share: float = option("a share", default=0.5, flag="share_of_it", at_least=0, at_most=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    kind: Literal["a", "b"] | None = option("one of them", default=None, default_text="the best")
    count: int = option("how many", default=3, at_least=1, in_key=False)
    steps: tuple[int, int] | None = option("first and last", default=None)
    inner: Inner = Inner()
    derived: int
    not_in_key: int = decided(default=0, in_key=False)


def test_fields_of_a_part_and_of_those_in_it_declare_flags() -> None:
    assert flags_of(Part) == (
        Flag("kind", str, "one of them", ("a", "b"), default="the best"),
        Flag("count", int, "how many", default=3, at_least=1),
        Flag("steps", str, "first and last"),
        Flag("share_of_it", float, "a share", default=0.5, at_least=0, at_most=1),
    )


def test_a_part_has_the_given_values_the_decided_ones_and_its_defaults() -> None:
    given = {"kind": "b", "count": None, "steps": "1:2", "share_of_it": 0.0, "of_another_part": 5}
    expected = Part(kind="b", count=3, steps=(1, 2), inner=Inner(share=0.0), derived=7)
    assert filled(Part, given, steps=(1, 2), derived=7) == expected


@pytest.mark.parametrize(
    ("one", "usual"),
    [
        (Flag("s", str, "", ("a", "b"), default="a"), "a"),
        (Flag("s", str, "", known=("a", "b"), default="a"), "a"),
        (Flag("s", str, "", ("a", "b"), default="a, or b on GPUs"), None),
        (Flag("n", int, "", default="the model's"), None),
        (Flag("n", int, "", default=0), 0),
        (Flag("b", bool, ""), False),
        (Flag("b", bool, "", default="true on GPUs"), None),
    ],
)
def test_only_a_default_that_is_a_value_holds_in_rules(one: Flag, usual: object) -> None:
    assert one.usual == usual


@pytest.mark.parametrize(
    ("one", "spelling", "default"),
    [
        (Flag("n", int, "", default=0), "--n=INT", "0"),
        (Flag("n", int, "", default="the model's", at_least=1), "--n=INT", "the model's"),
        (Flag("n", int, "", ("auto",), at_least=1), "--n=INT|auto", ""),
        (Flag("n", int, "", at_least=0, at_most=9), "--n=INT", ""),
        (Flag("x", float, "", default=4e-5, above=0, at_most=1), "--x=FLOAT", "4e-05"),
        (Flag("x", float, "", default=600.0), "--x=FLOAT", "600"),
        (Flag("b", bool, ""), "--[no]b", "false"),
        (Flag("b", bool, "", default=True), "--[no]b", "true"),
        (Flag("s", str, ""), "--s=TEXT", ""),
        (Flag("s", str, "", default="out", path="directory"), "--s=DIRECTORY", "out"),
        (Flag("s", str, "", ("text", "json")), "--s=text|json", ""),
        (Flag("s", str, "", known=("a", "b")), "--s=NAME", ""),
    ],
)
def test_what_is_written_about_a_flag(one: Flag, spelling: str, default: str) -> None:
    assert (one.spelling, one.default_text) == (spelling, default)
