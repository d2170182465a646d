"""Command lines of tf_cnn_benchmarks that people have published are understood, or refused with what to use instead."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from benchmarks.config import config, flag, peer_flags, run_flags
from benchmarks.errors import UsageError
from models import specs

LINES = tomllib.loads((Path(__file__).parent / "public_command_lines.toml").read_text())["line"]
GROUPS = peer_flags.groups_to_parse(run_flags.RUN_FLAGS)


def flags_of(command: str) -> list[str]:
    words = shlex.split(re.sub("<.*?>", "placeholder", command))
    return words[next(number for number, word in enumerate(words) if word.endswith(".py")) + 1 :]


def model_of(words: list[str]) -> str:
    text = " ".join(words)
    found = re.search(r"--model[= ](\S+)", text)
    return found[1] if found else "resnet50"


def test_there_are_enough_and_each_is_another() -> None:
    assert len({tuple(flags_of(line["command"])) for line in LINES}) >= 40
    assert all(line["url"].startswith("https://") for line in LINES)


@pytest.mark.parametrize("line", LINES, ids=lambda line: line["url"].split("//")[1])
def test_a_line_is_understood_or_refused_with_what_to_use(line: dict[str, str]) -> None:
    words = flags_of(line["command"])
    refused = line.get("refused", "")
    if not refused and model_of(words) not in specs.names():
        refused = f"There is no model '{model_of(words)}'"
    try:
        values = flag.parse(words, GROUPS)
        assert not values.words
        chosen = config.resolve(values.values, lambda: config.ANY_NUMBER_OF_GPUS, {})
    except UsageError as error:
        assert refused and refused in str(error), error
        return
    assert not refused
    assert chosen.workload.model == model_of(words)
