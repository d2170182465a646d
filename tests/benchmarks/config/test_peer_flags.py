"""Every flag of tf_cnn_benchmarks is in one class, and does what its class says; so do published command lines."""

from __future__ import annotations

import csv
import re
import shlex
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cli.verbs import commands, flags_of
from benchmarks.config import config, flag, peer_flags, run_flags
from benchmarks.config.config import Config
from benchmarks.errors import UsageError
from benchmarks.option import Flag
from benchmarks.sweep import grid, sweep_verb

GROUPS = peer_flags.groups_to_parse(run_flags.RUN_FLAGS)
KINDS = {"string": str, "enum": str, "list": str, "integer": int, "float": float, "boolean": bool}
# Names, types and defaults as in its last version, and what differs here in a flag of the same name.
with (Path(__file__).parent / "peer_flags.csv").open() as file:
    PEER = {row["flag"]: row for row in csv.DictReader(file)}
# Command lines that people have published.
LINES = tomllib.loads((Path(__file__).parent / "public_command_lines.toml").read_text())["line"]
OF_OLDER_VERSIONS = {
    "use_nccl", "flush_stdout", "gpu_mem_fraction", "learning_rate", "cache_data", "checkpoint_directory",
    "checkpoint_every_n_epochs", "checkpoint_interval", "save_summaries_secs", "enable_layout_optimizer",
    "ml_perf_compliance_logging", "result_storage", "use_multi_device_iterator",
}  # fmt: skip


def resolve(*words: str) -> Config:
    values = flag.parse(["--device=cpu", "--model=trivial", *words], GROUPS).values
    return config.resolve(values, lambda: 0, {})


def other_value(one: Flag) -> Any:
    return {bool: str(one.default is not True).lower(), int: 7, float: 0.5, str: "something"}[one.kind]


def test_every_flag_is_a_flag_of_a_run_or_in_one_class() -> None:
    ours = {name for name in run_flags.FLAGS if name in PEER or name == "use_nccl"}
    classes = Counter([*ours, *(one.name for one in peer_flags.GONE)])
    assert set(classes) == set(PEER) | OF_OLDER_VERSIONS
    assert set(classes.values()) == {1}
    assert len(PEER) == 137 and {name for name, row in PEER.items() if row["differs"]} <= ours


@pytest.mark.parametrize("name", sorted(PEER))
def test_the_type_is_that_of_tf_cnn_benchmarks(name: str) -> None:
    one = run_flags.FLAGS.get(name) or next(one for one in peer_flags.GONE if one.name == name)
    kind = bool if one.boolean else one.kind
    assert kind is KINDS[PEER[name]["type"]]


@pytest.mark.parametrize("one", peer_flags.RENAMED, ids=lambda one: one.name)
def test_the_renamed_work_under_both_names(one: Flag) -> None:
    value = "on" if one.choices else {float: "0.5", str: "3"}[one.kind]
    values = flag.parse([f"--{one.name}={value}"], GROUPS).values
    assert values == flag.parse([f"--{one.same_as}={value}"], GROUPS).values
    assert values[one.same_as] is not None
    if one.unset is not None:
        assert set(flag.parse([f"--{one.name}={one.unset}"], GROUPS).values.values()) == {None}
    with pytest.raises(UsageError, match="contradict each other"):
        flag.parse([f"--{one.name}={value}", f"--{one.same_as}={ {'on': 'off'}.get(value, '0.25') }"], GROUPS)


def test_texts_that_are_empty_by_default_there_may_be_given_so() -> None:
    empty = [name for name, row in PEER.items() if row["type"] == "string" and row["default"] in ("", "None")]
    assert {"data_dir", "ps_hosts", "all_reduce_spec"} <= set(empty)
    assert set(flag.parse([f"--{name}=" for name in empty], GROUPS).values.values()) == {None}


@pytest.mark.parametrize("one", peer_flags.ACCEPTED, ids=lambda one: one.name)
def test_the_accepted_have_no_effect_and_a_notice(one: Flag) -> None:
    chosen = resolve(f"--{one.name}={other_value(one)}")
    assert chosen.notices == (f"--{one.name} has no effect: {one.help}.",)
    assert chosen.key_fields() == resolve().key_fields()


@pytest.mark.parametrize("one", peer_flags.REPLACED, ids=lambda one: one.name)
def test_the_replaced_are_refused_with_what_to_do(one: Flag) -> None:
    with pytest.raises(UsageError, match=f"^--{one.name}: ") as caught:
        resolve(f"--{one.name}={other_value(one)}")
    does = ("Use ", "Omit it", "Use that", "set the environment variable ", "start the process with ")
    assert any(words in str(caught.value) for words in does), "it says what to do instead"
    named = set(re.findall(r"--(\w+)", str(caught.value))) - {one.name}
    assert named <= {*run_flags.FLAGS, "cpunodebind", "membind"}, "they exist"


@pytest.mark.parametrize("one", [*peer_flags.ACCEPTED, *peer_flags.REPLACED], ids=lambda one: one.name)
def test_the_default_and_no_value_pass_silently(one: Flag) -> None:
    for value in filter(lambda value: value is not None, (one.default, one.unset)):
        assert resolve(f"--{one.name}={str(value).lower() if isinstance(value, bool) else value}") == resolve()


@pytest.mark.parametrize(
    "one",
    [one for one in (*peer_flags.ACCEPTED, *peer_flags.REPLACED) if one.name in PEER],
    ids=lambda one: one.name,
)
def test_the_default_is_that_of_tf_cnn_benchmarks(one: Flag) -> None:
    text = PEER[one.name]["default"]
    mine = one.unset if one.default is None else one.default
    expected: Any = text
    if one.kind is bool:
        expected = text == "True"
    elif one.kind is not str:
        expected = one.kind(text) if text else one.default if one.unset is None else one.unset
    assert mine in (expected, None if not text else expected)


def test_all_that_is_replaced_is_named_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        resolve("--checkpoint_interval=5", "--checkpoint_every_n_epochs", "--tfprof_file=t", "--model=ssd300")
    text = str(caught.value)
    assert text.startswith("--checkpoint_every_n_epochs, --checkpoint_interval: ")
    assert all(word in text for word in ("--tfprof_file: ", "--model=ssd300: "))


@pytest.mark.parametrize("model", ["ssd300", "deepspeech2", "ncf", "official_ncf", "official_resnet50", "SSD300"])
def test_models_of_tf_cnn_benchmarks_alone_are_refused_with_another(model: str) -> None:
    with pytest.raises(UsageError, match=rf"^--model={model.lower()}: .* --model=resnet50"):
        resolve(f"--model={model}")


@pytest.mark.parametrize("verb", ["run", "sweep", "explain", "ab", "recommend", "track calibrate"])
def test_verbs_that_take_a_run_take_them(verb: str) -> None:
    groups = grid.sweep_groups(commands()[verb].flags) if commands()[verb].takes == "lists" else commands()[verb].flags
    words = ["--use_tf_layers=false", "--kmp_affinity=a,b,1,0", "--gpu_indices=0,1"]
    values = flag.parse(words, peer_flags.groups_to_parse(groups)).values
    assert values["kmp_affinity"] == "a,b,1,0"
    in_help = {one.name for group in flags_of(commands()[verb]).values() for one in group}
    assert not in_help & {one.name for one in peer_flags.GONE}


def test_a_sweep_takes_each_as_one_value() -> None:
    words = ["--device=cpu", "--model=trivial", "--batch_size=1,2", "--kmp_affinity=a,b", "--nouse_tf_layers", "-mkl"]
    values = flag.parse(words, grid.sweep_groups(sweep_verb.SWEEP_FLAGS)).values
    cells = grid.cells([grid.of_flags(values)], lambda: 0)
    assert len(cells) == 2
    for cell in cells:
        assert cell.config and cell.config.devices.onednn == "on"
        assert [notice.split()[0] for notice in cell.config.notices] == ["--kmp_affinity", "--use_tf_layers"]
    refused = grid.cells([{"checkpoint_interval": [5], "device": ["cpu"]}], lambda: 0)
    assert refused[0].why_not.startswith("--checkpoint_interval: ")


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["--device", "CPU"], "device", "cpu"),
        (["--data_format=nhwc"], "data_format", "NHWC"),
        (["--variable_update=REPLICATED"], "variable_update", "replicated"),
        (["--use_nccl", "True"], "use_nccl", True),
        (["--distortions", "False"], "distortions", False),
        (["--xla"], "xla", "jit"),
        (["--xla=False"], "xla", "off"),
        (["--noxla"], "xla", "off"),
        (["--xla", "--forward_only"], "xla", "jit"),
        (["-model", "resnet50"], "model", "resnet50"),
        (["-batch_size=8"], "batch_size", 8),
        (["-nodistortions"], "distortions", False),
        (["--batch-size=8"], "batch_size", 8),
        (["--train-dir", "a-b"], "train_dir", "a-b"),
        (["\u2013-batch_size=8"], "batch_size", 8),  # as web pages show two dashes
        (["\u2014model", "resnet50"], "model", "resnet50"),
        (["-\u2013model", "resnet50"], "model", "resnet50"),
        (["\u2212\u2212model=resnet50"], "model", "resnet50"),
        ([" --batch_size=8"], "batch_size", 8),  # lines that end with a backslash, pasted as one line
        (["-no-distortions"], "distortions", False),
        (["-m", "resnet50"], "model", "resnet50"),
        (["-b=8"], "batch_size", 8),
        (["--data_format=channels_last"], "data_format", "NHWC"),
        (["--data_format", "channels_first"], "data_format", "NCHW"),
        (["--device=cuda"], "device", "gpu"),
        (["--xla=on"], "xla", "jit"),
        (["-g", "2"], "num_gpus", 2),
        (["--mkl"], "onednn", "on"),
        (["--batch_size=0"], "batch_size", None),
        (["--data_dir", ""], "data_dir", None),
        (["--resnet_base_lr=0"], "resnet_base_lr", None),
        (["--eval_during_training_at_specified_steps", "1,2"], "eval_during_training_at_specified_steps", "1,2"),
    ],
)
def test_what_old_scripts_write(words: list[str], name: str, value: object) -> None:
    parsed = flag.parse(words, GROUPS)
    assert parsed.values[name] == value
    assert not parsed.words


@pytest.mark.parametrize("here", peer_flags._OF_OTHER_TOOLS)
def test_flags_of_other_tools_are_answered_with_the_flag_here(here: str) -> None:
    for name in peer_flags._OF_OTHER_TOOLS[here].split():
        with pytest.raises(UsageError, match=re.escape(f"There is no flag --{name}. Use {here}. See --help")):
            flag.parse([f"--{name}=1"], GROUPS)


def test_horovod_is_refused_with_its_replacement_under_mpi_and_slurm() -> None:
    with pytest.raises(UsageError) as caught:
        flag.parse(["--variable_update=Horovod"], GROUPS)
    for words in ("--variable_update=collective_all_reduce", "mpirun -np N ... --cluster=mpi", "--cluster=slurm"):
        assert words in str(caught.value)


@pytest.mark.row("U1.1")
@pytest.mark.parametrize("line", LINES, ids=lambda line: line["url"].split("//")[1])
def test_a_published_line_is_understood_or_refused_with_what_to_use(line: dict[str, str]) -> None:
    assert line["url"].startswith("https://")
    words = shlex.split(re.sub(r"<.*?>|\$\{?\w+\}?", "placeholder", line["command"]))
    words = words[next(number for number, word in enumerate(words) if word.endswith(".py")) + 1 :]
    try:
        parsed = flag.parse(words, GROUPS)
        chosen = config.resolve(parsed.values, lambda: config.ANY_NUMBER_OF_GPUS, {})
    except UsageError as error:
        assert line.get("refused", "There is no model '") in str(error)
        return
    assert "refused" not in line and not parsed.words
    assert chosen.workload.model == (parsed.values["model"] or "resnet50")
