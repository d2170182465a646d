from __future__ import annotations

import csv
from pathlib import Path

import pytest

from benchmarks.config import flag, run_flags
from benchmarks.errors import UsageError
from benchmarks.sweep import grid, sweep_verb

TABLE = [flag for group in run_flags.RUN_FLAGS.values() for flag in group]


def test_an_unset_flag_is_none() -> None:
    assert set(flag.parse([], run_flags.RUN_FLAGS).values.values()) == {None}


@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        (["--model=vgg16"], "model", "vgg16"),
        (["--model", "vgg16"], "model", "vgg16"),
        (["--batch_size=8"], "batch_size", 8),
        (["--weight_decay=0"], "weight_decay", 0.0),
        (["--forward_only"], "forward_only", True),
        (["--noforward_only"], "forward_only", False),
        (["--nodistortions"], "distortions", False),
        (["--use_nccl=True"], "use_nccl", True),
        (["--use_nccl", "True"], "use_nccl", True),
        (["--distortions", "False"], "distortions", False),
        (["--xla"], "xla", "jit"),
        (["--xla=jit"], "xla", "jit"),
        (["--xla", "jit"], "xla", "jit"),
        (["--xla", "True"], "xla", "jit"),
        (["--xla=False"], "xla", "off"),
        (["--noxla"], "xla", "off"),
        (["--xla=1"], "xla", "jit"),
        (["--xla", "--forward_only"], "xla", "jit"),
        (["--data_format=nhwc"], "data_format", "NHWC"),
        (["--variable_update=REPLICATED"], "variable_update", "replicated"),
    ],
)
def test_forms(arguments: list[str], name: str, value: object) -> None:
    parsed = flag.parse(arguments, run_flags.RUN_FLAGS)
    assert parsed.values[name] == value
    assert list(parsed.words) == []


def test_a_flagfile_is_read(tmp_path: Path) -> None:
    (tmp_path / "flags").write_text("# a comment\n--xla\n--model=alexnet\n--num_gpus=2\n")
    parsed = flag.parse([f"--flagfile={tmp_path / 'flags'}", "--num_gpus=4"], run_flags.RUN_FLAGS)
    assert [parsed.values[name] for name in ("xla", "model", "num_gpus")] == ["jit", "alexnet", 4]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--modle=vgg16"], r"no flag --modle. Did you mean 'model'\?"),
        (["--zzzzz"], "no flag --zzzzz. See --help"),
        (
            ["--variable_update=replicate"],
            r"there is no 'replicate'. Did you mean 'replicated'\? Choices: collective_all_reduce",
        ),
        (["--batch_size=many"], "batch_size"),
        (["--forward_only=perhaps"], "forward_only"),
        (["--flagfile=/nowhere/flags"], "/nowhere/flags"),
        (["--model"], "model"),
    ],
)
def test_misses_are_explained(arguments: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        flag.parse(arguments, run_flags.RUN_FLAGS)


def test_words_are_kept_wherever_they_stand() -> None:
    assert list(flag.parse(["one", "--num_gpus=2", "two"], run_flags.RUN_FLAGS).words) == ["one", "two"]


def test_help_names_every_flag() -> None:
    text = flag.describe(run_flags.RUN_FLAGS)
    assert max(map(len, text.splitlines())) <= 120
    unwrapped = " ".join(text.split())
    for one in TABLE:
        assert f"{one.name}" in text
        assert one.help in unwrapped


def test_flags_that_the_peer_has_are_of_its_type() -> None:
    """The peer's types, for the flags of the same name; the file lies beside this test."""
    types = {"string": str, "enum": str, "list": str, "integer": int, "float": float, "boolean": bool}
    with (Path(__file__).parent / "peer_flag_types.csv").open() as file:
        peer = {row["flag"]: types[row["type"]] for row in csv.DictReader(file)}
    common = [flag for flag in TABLE if flag.name in peer]
    assert len(common) >= 20
    kinds = {flag.name: bool if flag.boolean else flag.kind for flag in common}
    assert kinds == {flag.name: peer[flag.name] for flag in common}


@pytest.mark.parametrize("name", flag.presets())
def test_every_preset_is_a_grid_that_can_be_run(name: str) -> None:
    parsed = flag.parse([f"--preset={name}", "--num_gpus=1"], grid.sweep_groups(sweep_verb.SWEEP_FLAGS))
    cells = grid.cells([{**grid.of_flags(parsed.values), "device": ["cpu"]}], lambda: 0)
    assert cells and all(cell.config for cell in cells), "and what is said after it wins"


def test_an_unknown_preset_is_named() -> None:
    with pytest.raises(UsageError, match="Did you mean 'quick'"):
        flag.parse(["--preset=quik"], run_flags.RUN_FLAGS)
    with pytest.raises(UsageError, match="write --preset=NAME"):
        flag.parse(["--preset", "quick"], run_flags.RUN_FLAGS)
