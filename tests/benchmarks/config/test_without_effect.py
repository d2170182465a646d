"""Flags without effect are refused or named in a notice; every flag is tried in every kind of run."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest

from benchmarks.config import config, flag, run_flags
from benchmarks.config.config import Config
from benchmarks.errors import UsageError
from benchmarks.option import Flag

TABLE = {one.name: one for group in run_flags.RUN_FLAGS.values() for one in group}
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
}
# Values that the table does not have, or that act on small models.
TEXTS = {
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
    if one.name in TEXTS:
        return [TEXTS[one.name]]
    if one.kind is bool:
        return ["true", "false"]
    if one.choices and one.kind is str:
        return list(one.choices)
    number = one.at_least if one.at_least is not None else 0
    return [0.5] if one.at_most == 1 else [number + 1, number + 2]


def resolve(*words: str) -> Config:
    return config.resolve(flag.parse(words, run_flags.RUN_FLAGS).values, lambda: 2 * ("--device=gpu" in words), {})


@pytest.mark.parametrize("kind", RUNS)
def test_a_flag_without_effect_is_refused_or_named(kind: str) -> None:
    base, silent = resolve(*RUNS[kind]), []
    given = {word.removeprefix("--").split("=")[0] for word in RUNS[kind]}
    for one in (one for one in TABLE.values() if one.name not in given | READ_ELSEWHERE | SAME_AS_DEFAULT):
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
    ("run", "idle"),
    [
        ("one CPU device", "--allow_growth"),
        ("no GPU", "--allow_growth"),
        ("one CPU device", "--momentum=0.5"),
        ("inference", "--optimizer=adam"),
        ("inference", "--init_learning_rate=3"),
        ("inference", "--weight_decay=3"),
        ("independent", "--local_parameter_device=gpu"),
        ("local cluster", "--local_parameter_device=gpu"),
    ],
)
def test_a_flag_without_effect_does_not_change_the_key(run: str, idle: str) -> None:
    with_it, without = resolve(*RUNS[run], idle), resolve(*RUNS[run])
    assert with_it.key_fields() == without.key_fields()
    (notice,) = with_it.notices
    assert notice.startswith(f"{idle.partition('=')[0]}=") and "has no effect: " in notice


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


@pytest.mark.parametrize(
    "word", ["--momentum=0.9", "--noallow_growth", "--local_parameter_device=cpu", "--batchnorm_persistent"]
)
def test_a_default_that_is_given_needs_no_notice(word: str) -> None:
    made = resolve("--device=cpu", "--variable_update=independent", word)
    assert made == resolve("--device=cpu", "--variable_update=independent")


def test_what_scripts_for_tf_cnn_benchmarks_pass_is_accepted() -> None:
    words = ("--local_parameter_device=cpu", "--allow_growth", "--momentum=0.5", "--use_nccl=false")
    for run in RUNS.values():
        if "--variable_update=keras_fit" not in run:
            resolve(*run, *words)


def test_a_limit_of_gpu_memory_reaches_the_session_and_the_key() -> None:
    made, usual = resolve("--device=gpu", "--gpu_memory_limit_mb=100"), resolve("--device=gpu")
    assert made.devices.gpu_memory_limit_mib == 100
    assert made.key_fields() != usual.key_fields()


def test_an_evaluation_names_what_training_alone_reads() -> None:
    words = ("--precision=fp16", "--fp16_loss_scale=4", "--distortions", "--nodistort_color_in_yiq")
    made = resolve("--device=gpu", "--eval", "--train_dir=t", "--data_dir=x", *words)
    for name in ("fp16_loss_scale", "distortions", "distort_color_in_yiq"):
        assert any(notice.startswith(f"--{name}=") and "--eval trains nothing" in notice for notice in made.notices)
