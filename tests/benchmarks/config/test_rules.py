"""Every row of the table of rules, in a made-up situation and on a command line."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.config import config, flag, run_flags
from benchmarks.config.rule_table import FACTS, RULES
from benchmarks.config.rules import Excludes, Needs, NoEffect, Rule, Situation, apply
from benchmarks.errors import UsageError
from benchmarks.option import Flag

TEXTS = {"data_dir": "x", "train_dir": "t", "hosts": "a,b", "local_cluster": "worker:2", "all_reduce_spec": "xring"}


def _value(one: Flag) -> Any:
    if one.kind is bool:
        return not one.usual
    if one.kind is str:
        return next((word for word in one.choices if word != one.usual), TEXTS.get(one.name, "x"))
    return next(number for number in (one.at_least or 0.5, 1, 2) if number not in (0, one.usual))


def _given(term: str) -> dict[str, Any]:
    """Returns flag values with which a term that names a flag holds."""
    name, is_equal, words = term.partition("=")
    if is_equal and name.endswith("!"):
        one = run_flags.FLAGS[name[:-1]]
        others = [word for word in (*one.choices, *one.known, "2", "0.5") if word.lower() not in words.split("|")]
        return {one.name: one.kind(others[0]) if one.kind in (int, float) else others[0]}
    if is_equal:
        one, word = run_flags.FLAGS[name], words.split("|")[0]
        return {name: one.kind(word) if one.kind in (int, float) and word not in one.choices else word}
    name = name.removeprefix("~")
    if name.startswith("!"):
        return {name[1:]: None}
    return {name: _value(run_flags.FLAGS[name])} if name in run_flags.FLAGS else {name.removeprefix("no"): False}


def _situation(rule: Rule, *terms: str) -> Situation:
    facts = {term for term in terms if term.startswith("@")} | {term for term in rule.when.split() if term[0] == "@"}
    values = [_given(term) for term in (*rule.when.split(), *terms) if not term.startswith("@")]
    given = run_flags.unset({name: value for one in values for name, value in one.items()})
    return Situation(given, {name: FACTS[name].text for name in facts})


def _cases(*kinds: type[Rule]) -> Iterator[Any]:
    for number, rule in enumerate(RULES):
        if isinstance(rule, kinds):
            for term, other in itertools.product(rule.flags.split(), rule.others.split()):
                yield pytest.param(rule, term, other, id=f"{number}-{term}-{other}")


@pytest.mark.parametrize(("rule", "term", "other"), list(_cases(Excludes)))
def test_what_does_not_go_together_is_refused(rule: Rule, term: str, other: str) -> None:
    now = _situation(rule, other, term)
    assert now.holds(term) and now.holds(other)
    assert all(map(now.holds, rule.when.split()))
    sentence = dict(rule.problems(now))[term]
    assert sentence.startswith(f"{now.spelled(term)} does not go with ") and f": {rule.because}. " in sentence
    assert sentence.endswith(".") and "  " not in sentence
    with pytest.raises(UsageError):
        apply([rule], now, run_flags.DEFAULTS)


@pytest.mark.parametrize(("rule", "term", "other"), list(_cases(Needs)))
def test_what_is_needed_is_named(rule: Rule, term: str, other: str) -> None:
    sentence = dict(rule.problems(_situation(rule, term)))[term]
    assert " needs " in sentence and f"--{other}" in sentence and f": {rule.because}. " in sentence
    assert not list(rule.problems(_situation(rule, other, term)))


@pytest.mark.parametrize(("rule", "term", "other"), list(_cases(NoEffect)))
def test_what_has_no_effect_is_dropped_with_a_notice(rule: Rule, term: str, other: str) -> None:
    now = _situation(rule, other, term)
    kept, (notice,) = apply([rule], now, run_flags.DEFAULTS)
    assert kept == {**now.given, term: None}
    assert notice.startswith(f"--{term}=") and notice.endswith(f" has no effect: {rule.because}.")
    assert apply([rule], dataclasses.replace(now, given={**now.given, term: None}), {})[1] == ()
    assert apply([rule], now, {**run_flags.DEFAULTS, term: now.given[term]}) == (kept, ()), (
        "its default needs no notice"
    )


WITH = {
    "@cpu": ("--device=cpu",),
    "@gpu": ("--device=gpu",),
    "@cluster": ("--local_cluster=worker:2", "--variable_update=collective_all_reduce"),
    "@controller": ("--controller_host=h:1", "--worker_hosts=h:2", "--job_name=controller"),
    "@synthetic": (),
    "@synthetic_host": ("--data_name=synthetic_host",),
    "@small_images": ("--model=resnet20", "--data_dir=/tmp"),
    "@mnist": ("--model=mlp", "--data_dir=/tmp"),
    "@nchw": ("--data_format=NCHW",),
    "@nhwc_only": ("--model=keras:ConvNeXtTiny",),
    "@no_conv1x1": ("--model=vgg16",),
    "@no_larger_convolutions": ("--model=trivial",),
    "@no_batch_norm": ("--model=vgg16",),
    "@not_resnet50": ("--model=vgg16",),
    "@no_resnet": ("--model=vgg16",),
    "@workers": ("--local_cluster=worker:2", "--variable_update=collective_all_reduce"),
    "@no_shared_devices": ("--variable_update=independent",),
}


@pytest.mark.parametrize("fact", FACTS)
def test_a_fact_is_found_on_a_command_line(fact: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that no flag can break is added to the table, and is broken where its fact holds."""
    monkeypatch.setattr(config, "RULES", (Excludes(fact, fact, "of the test"),))
    with pytest.raises(UsageError, match="of the test"):
        _resolve(*WITH[fact])
    with pytest.raises(UsageError) if fact in ("@cpu", "@synthetic") else contextlib.nullcontext():
        _resolve("--model=resnet50")


def _resolve(*words: str) -> config.Config:
    return config.resolve(flag.parse(words, run_flags.RUN_FLAGS).values, lambda: 2 * ("--device=gpu" in words), {})
