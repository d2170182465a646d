"""Parses flags and describes them for `--help`. The flags of a run are in `benchmarks.config.run_flags`."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags as absl_flags

from benchmarks.errors import UsageError, did_you_mean

_LONGEST_CHOICES = 90
_PRESETS = Path(__file__).resolve().parent / "presets"


@dataclasses.dataclass(frozen=True)
class Flag:
    """One flag.

    Attributes:
        name: as on the command line.
        kind: bool, int, float or str.
        help: for `--help`.
        choices: the words that a str may be, in any case; an int may be one of them instead of a number.
        boolean: the value that `--name` stands for, and that of `--noname`.
    """

    name: str
    kind: type
    help: str
    choices: tuple[str, ...] = ()
    boolean: tuple[str, str] | None = None


Groups = Mapping[str, Sequence[Flag]]


def only(group: Sequence[Flag], *names: str) -> list[Flag]:
    """Returns the flags of a group that have these names."""
    return [flag for flag in group if flag.name in names]


def without(group: Sequence[Flag], *names: str) -> list[Flag]:
    """Returns the flags of a group that have other names."""
    return [flag for flag in group if flag.name not in names]


@dataclasses.dataclass(frozen=True)
class Parsed:
    """A parsed command line: every flag's value (None: not given), and the words that are not flags."""

    values: Mapping[str, Any]
    words: Sequence[str]


def parse(arguments: Sequence[str], groups: Groups) -> Parsed:
    """Reads flags.

    Besides absl's forms (`--name=value`, `--name value`, `--name`, `--noname`, `--flagfile=FILE`), a boolean may be
    followed by the word true or false, as in scripts for tf_cnn_benchmarks, and `--preset=NAME` is a file of flags that
    comes with the suite.

    Raises:
        UsageError: an unknown flag, or a value that the flag does not take.
    """
    table = [flag for group in groups.values() for flag in group]
    flag_values = absl_flags.FlagValues()
    for flag in table:
        form = {"boolean": True} if flag.kind is bool else {}
        absl_flags.DEFINE(_parser(flag), flag.name, None, flag.help, flag_values=flag_values, **form)
    flag_values.set_gnu_getopt(True)
    try:
        words = flag_values(["run_bench.py", *_join_booleans(read_files(arguments), table)])[1:]
    except absl_flags.UnrecognizedFlagError as error:
        raise UsageError(
            f"There is no flag --{error.flagname}.{did_you_mean(error.flagname, [f.name for f in table])} "
            "See --help for all flags."
        ) from error
    except (absl_flags.Error, OSError) as error:
        raise UsageError(str(error)) from error
    return Parsed({flag.name: flag_values[flag.name].value for flag in table}, words)


def describe(groups: Groups) -> str:
    """Returns the groups of flags as text for `--help`."""
    lines = []
    for title, group in groups.items():
        lines.append(f"\n{title}:")
        for flag in group:
            choices, text = "|".join(flag.choices), flag.help
            if len(choices) > _LONGEST_CHOICES:
                choices, text = "", f"{text}; one of {', '.join(flag.choices)}"
            kinds = [flag.kind.__name__.upper()] if flag.kind is int or not choices else []
            value = "" if flag.kind is bool else "=" + "|".join([*kinds, *([choices] if choices else [])])
            lines.append(f"  --{'[no]' if flag.kind is bool else ''}{flag.name}{value}")
            lines += textwrap.wrap(text, 100, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(lines)


class _Choice(absl_flags.ArgumentParser):
    """Parses a word of a fixed set, in any case; with `or_number`, also a whole number."""

    syntactic_help = "one of the choices"

    def __init__(self, choices: Sequence[str], *, or_number: bool) -> None:
        super().__init__()
        self._choices = {choice.lower(): choice for choice in choices}
        self._or_number = or_number

    def parse(self, argument: Any) -> Any:
        """Returns the choice as it is spelled in the table, or the number."""
        if str(argument).lower() in self._choices:
            return self._choices[argument.lower()]
        known = list(self._choices.values())
        if not self._or_number:
            raise ValueError(f"there is no '{argument}'.{did_you_mean(argument, known)} Choices: {', '.join(known)}")
        try:
            return int(argument)
        except ValueError as error:
            raise ValueError(f"'{argument}' is not a whole number, and not {' or '.join(known)}.") from error


_PARSERS = {
    bool: absl_flags.BooleanParser,
    int: absl_flags.IntegerParser,
    float: absl_flags.FloatParser,
    str: absl_flags.ArgumentParser,
}


def _parser(flag: Flag) -> absl_flags.ArgumentParser:
    return _Choice(flag.choices, or_number=flag.kind is int) if flag.choices else _PARSERS[flag.kind]()


def presets() -> list[str]:
    """Returns the names of the presets."""
    return sorted(path.stem for path in _PRESETS.glob("*.flags"))


def read_files(arguments: Sequence[str]) -> list[str]:
    """Replaces `--flagfile=FILE` and `--preset=NAME` by the words in the file.

    Raises:
        UsageError: there is no such file.
    """
    words = []
    for argument in arguments:
        name = argument.removeprefix("--preset=")
        if argument == "--preset" or argument != name and name not in presets():
            hint = did_you_mean(name, presets()) if name != argument else ""
            raise UsageError(f"{argument}: write --preset=NAME.{hint} Presets: {', '.join(presets())}.")
        words.append(argument if argument == name else f"--flagfile={_PRESETS / name}.flags")
    try:
        return list(absl_flags.FlagValues().read_flags_from_files(words, force_gnu=True))
    except (absl_flags.Error, OSError) as error:
        raise UsageError(str(error)) from error


def _join_booleans(arguments: Sequence[str], table: Sequence[Flag]) -> list[str]:
    """Turns `--xla true` into `--xla=true` for boolean flags, and boolean spellings into the choices they stand for."""
    values = {f"--{f.name}": ("true", "false", *(f.boolean or ())) for f in table if f.kind is bool or f.boolean}
    joined: list[str] = []
    for argument in arguments:
        if joined and argument.lower() in values.get(joined[-1], ()):
            joined[-1] += f"={argument.lower()}"
        else:
            joined.append(argument)
    spelled: dict[str, str] = {}
    for flag in table:
        if flag.boolean:
            on, off = (f"--{flag.name}={value}" for value in flag.boolean)
            spelled |= {f"--{flag.name}": on, f"--no{flag.name}": off}
            spelled |= {f"--{flag.name}={word}": on for word in ("true", "t", "1")}
            spelled |= {f"--{flag.name}={word}": off for word in ("false", "f", "0")}
    return [spelled.get(argument.lower(), argument) for argument in joined]
