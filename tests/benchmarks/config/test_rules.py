"""Every row of the table of rules, in a made-up situation and on a command line; every flag in every kind of run."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.config import config, flag, run_flags
from benchmarks.config.config import Config
from benchmarks.config.rule_table import RULES
from benchmarks.config.rules import FACTS, Excludes, Needs, NoEffect, Rule, Situation, apply
from benchmarks.errors import UsageError
from benchmarks.option import Flag

TEXTS = {"data_dir": "x", "train_dir": "t", "hosts": "a,b", "local_cluster": "worker:2", "all_reduce_spec": "xring"}

# Of the table: how many pairs of flags, or flags alone, the rules of each kind are about.
PAIRS = {"NoEffect": 83, "Excludes": 240, "Needs": 33}


def resolve(*words: str) -> Config:
    return config.resolve(flag.parse(words, run_flags.RUN_FLAGS).values, lambda: 2 * ("--device=gpu" in words), {})


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


def test_the_table_has_every_rule() -> None:
    """The other tests go through the table, so they would not notice a row, or a flag of one, that is deleted."""
    pairs = collections.Counter[str]()
    for rule in RULES:
        pairs[type(rule).__name__] += len(rule.flags.split()) * len(rule.others.split() or [""])
    assert pairs == PAIRS, "after a rule, or a flag of one, was added or removed, change PAIRS"


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
    "@alone": (),
    "@servers": ("--local_cluster=ps:1,worker:2", "--variable_update=distributed_replicated"),
    "@several_devices": ("--device=cpu", "--num_gpus=2"),
    "@cluster": ("--local_cluster=worker:2", "--variable_update=collective_all_reduce"),
    "@controller": ("--controller_host=h:1", "--worker_hosts=h:2", "--job_name=controller"),
    "@synthetic": (),
    "@synthetic_host": ("--data_name=synthetic_host",),
    "@small_images": ("--model=resnet20", "--data_dir=/tmp"),
    "@mnist": ("--model=mlp", "--data_dir=/tmp"),
    "@nchw": ("--data_format=NCHW",),
    "@nhwc_only": ("--model=keras:ConvNeXtTiny",),
    "@fp32": ("--precision=fp32",),
    "@no_conv1x1": ("--model=vgg16",),
    "@no_larger_convolutions": ("--model=trivial",),
    "@no_batch_norm": ("--model=vgg16",),
    "@not_resnet50": ("--model=vgg16",),
    "@no_resnet": ("--model=vgg16",),
    "@workers": ("--local_cluster=worker:2", "--variable_update=collective_all_reduce"),
    "@no_shared_devices": ("--variable_update=independent",),
}


@pytest.mark.parametrize(
    ("fact", "words"),
    [
        *((fact, WITH[fact]) for fact in FACTS),
        ("@small_images", WITH["@mnist"]),
        ("@no_resnet", ("--model=resnet20",)),  # for CIFAR
    ],
)
def test_a_fact_is_found_on_a_command_line(fact: str, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that no flag can break is added to the table, and is broken where its fact holds."""
    monkeypatch.setattr(config, "RULES", (Excludes(fact, fact, "of the test"),))
    with pytest.raises(UsageError, match="of the test"):
        resolve(*words)
    with pytest.raises(UsageError) if fact in ("@alone", "@cpu", "@synthetic", "@fp32") else contextlib.nullcontext():
        resolve("--model=resnet50")


# Every flag in every kind of run.

RUNS = {
    "one CPU device": ("--device=cpu",),
    "no GPU": (),
    "two CPU devices": ("--device=cpu", "--num_gpus=2", "--variable_update=replicated"),
    "independent": ("--device=cpu", "--num_gpus=2", "--variable_update=independent"),
    "inference": ("--device=cpu", "--num_gpus=2", "--forward_only"),
    "momentum": ("--device=cpu", "--optimizer=momentum"),
    "GPUs": ("--device=gpu", "--num_gpus=2"),
    "real data": ("--device=cpu", "--data_dir=x"),
    "local cluster": ("--device=cpu", "--local_cluster=ps:1,worker:2", "--variable_update=distributed_replicated"),
    "Keras": ("--device=cpu", "--variable_update=keras_fit"),
    "PyTorch": ("--device=cpu", "--variable_update=pytorch"),
}
# Values that the table does not have, or that act on small models.
OTHERS = {
    "model": "resnet20",
    "data_dir": "y",
    "gpus": "1,0",
    "hosts": "a,b",
    "local_cluster": "worker:2",
    "ps_hosts": "h:1",
    "worker_hosts": "h:2",
    "controller_host": "h:3",
    "cluster_spec": "worker|h:1",
    "all_reduce_spec": "xring",
    "output_dir": "elsewhere",
    "session_id": "mine",
    "num_classes": 1000,
    "agg_small_grads_max_bytes": 100_000,
}
# Read by the command `run` or its launcher; the first task of no cluster is this process.
READ_ELSEWHERE = {"print_config", "ssh", "private_network", "task_index"}
# TensorFlow has one protocol left, so the flag has one value.
SAME_AS_DEFAULT = {"server_protocol"}


def other_values(one: Flag) -> list[Any]:
    """Returns values of which at least one is not the default."""
    if one.name in OTHERS:
        return [OTHERS[one.name]]
    if one.kind is bool:
        return ["true", "false"]
    if one.choices and one.kind is str:
        return list(one.choices)
    number = one.at_least if one.at_least is not None else 0
    return [0.5] if one.at_most == 1 else [number + 1, number + 2]


@pytest.mark.parametrize("kind", RUNS)
def test_a_flag_without_effect_is_refused_or_named(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.config.variable_update._torch_version", lambda loop: "2.6.0")  # it may be missing
    base, silent = resolve(*RUNS[kind]), []
    given = {word.removeprefix("--").split("=")[0] for word in RUNS[kind]}
    for one in (one for one in run_flags.FLAGS.values() if one.name not in given | READ_ELSEWHERE | SAME_AS_DEFAULT):
        outcomes = {_outcome(base, one.name, value, *RUNS[kind]) for value in other_values(one)}
        if outcomes == {""}:
            silent.append(one.name)
    assert not silent, "these change nothing, and the user does not learn it"


def _outcome(base: Config, name: str, value: Any, *run: str) -> str:
    """Returns what becomes of a flag: it is refused, named in a notice, or changes the configuration; else nothing."""
    try:
        made = resolve(*run, f"--{name}={value}")
    except UsageError:
        return "refused"
    if any(f"--{name}" in notice for notice in made.notices):
        return "named"
    fields = {field.name for field in dataclasses.fields(Config)}
    return "acts" if any(getattr(made, field) != getattr(base, field) for field in fields) else ""


@pytest.mark.parametrize(
    ("words", "shared_on"),
    [
        (("--variable_update=parameter_server",), "gpu"),
        (("--variable_update=parameter_server", "--forward_only"), "gpu"),
        (("--variable_update=replicated",), "gpu"),
        (("--variable_update=local_sgd",), "gpu"),
        (("--variable_update=local_sgd", "--all_reduce_spec=collective"), "cpu"),
        (("--variable_update=distributed_all_reduce", "--local_cluster=worker:2"), "gpu"),
        (("--variable_update=replicated", "--all_reduce_spec=xring"), "cpu"),
        (("--variable_update=replicated", "--hierarchical_copy"), "cpu"),
        (("--variable_update=replicated", "--forward_only"), "cpu"),
        (("--variable_update=local_sgd", "--local_cluster=worker:2"), "cpu"),
        (("--variable_update=parameter_server", "--local_cluster=ps:1,worker:2"), "cpu"),
        (("--variable_update=collective_all_reduce",), "cpu"),
    ],
)
def test_the_device_of_parameters_counts_where_something_is_shared(words: tuple[str, ...], shared_on: str) -> None:
    made = resolve("--device=cpu", "--num_gpus=4", "--local_parameter_device=gpu", *words)
    assert made.variables.shared_on == shared_on
    assert any("--local_parameter_device" in notice for notice in made.notices) == (shared_on == "cpu")


def test_two_spellings_of_nccl_ignore_the_device_of_parameters_alike() -> None:
    gpus, keys = ("--device=gpu", "--num_gpus=2", "--variable_update=replicated"), []
    for nccl, device in itertools.product(("--use_nccl", "--all_reduce_spec=nccl"), ("cpu", "gpu")):
        keys.append(resolve(*gpus, nccl, f"--local_parameter_device={device}").key_fields())
    assert all(key == keys[0] for key in keys)
    split = ("--device=gpu", "--num_gpus=4", "--virtual_gpus=2", *gpus[2:], "--use_nccl")
    made = resolve(*split, "--local_parameter_device=cpu")
    assert made.variables.shared_on == "cpu", "NCCL needs whole GPUs, so gradients are copied there"


def test_compiled_batch_normalisation_may_be_fused_where_no_gradient_needs_it() -> None:
    compiled = ("--device=gpu", "--model=resnet20", "--xla", "--fused_bn")
    with pytest.raises(UsageError, match="XLA computes wrong gradients"):
        resolve(*compiled)
    assert resolve(*compiled, "--forward_only").computing.fused_bn


def test_what_scripts_for_tf_cnn_benchmarks_pass_is_accepted() -> None:
    words = ("--local_parameter_device=cpu", "--allow_growth", "--momentum=0.5", "--use_nccl=false")
    for kind, run in RUNS.items():
        if kind not in ("Keras", "PyTorch"):
            resolve(*run, *words)
