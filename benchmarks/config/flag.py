"""How flags are read and described; which there are stands in `benchmarks.config.run_flags`."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags as absl_flags

from benchmarks.errors import UsageError, did_you_mean

_LONGEST_CHOICES = 90
_TRUE_OR_FALSE = ("true", "false")
_PRESETS = Path(__file__).resolve().parent / "presets"


@dataclasses.dataclass(frozen=True)
class Flag:
    """One flag. `kind` is bool, int, float or str; with `choices` it is a word of them, in any case; an int, or a word.

    With `boolean`, a pair of values, the flag may be spelled as a boolean, too: `--name` stands for the first,
    `--noname` for the second.
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
    """What the command line said: every flag's value (None: not given), and the words that are no flags."""

    values: Mapping[str, Any]
    words: Sequence[str]


def parse(arguments: Sequence[str], groups: Groups) -> Parsed:
    """Reads flags.

    Besides absl's forms (`--name=value`, `--name value`, `--name`, `--noname`, `--flagfile=FILE`), a boolean may be
    followed by the word true or false, which is common in scripts for tf_cnn_benchmarks; and `--preset=NAME` stands for
    a file of flags that comes with the suite.

    Raises:
        UsageError: an unknown flag, or a value that the flag does not take.
    """
    table = [flag for group in groups.values() for flag in group]
    flag_values = absl_flags.FlagValues()
    for flag in table:
        absl_flags.DEFINE(_parser(flag), flag.name, None, flag.help, flag_values=flag_values, **_form(flag))
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
    """A word of a fixed set, in any case; a miss names the nearest."""

    syntactic_help = "one of the choices"

    def __init__(self, choices: Sequence[str]) -> None:
        super().__init__()
        self.choices = {choice.lower(): choice for choice in choices}

    def parse(self, argument: str) -> str:
        """Returns the choice as it is spelled in the table."""
        if argument.lower() not in self.choices:
            known = list(self.choices.values())
            raise ValueError(f"there is no '{argument}'.{did_you_mean(argument, known)} Choices: {', '.join(known)}")
        return self.choices[argument.lower()]


class _IntegerOrChoice(_Choice):
    """A whole number, or a word of a fixed set."""

    def parse(self, argument: Any) -> Any:
        """Returns the number, or the word."""
        try:
            return int(argument)
        except ValueError as error:
            if argument.lower() in self.choices:
                return super().parse(argument)
            raise ValueError(f"'{argument}' is no whole number, and not {' or '.join(self.choices)}.") from error


def _parser(flag: Flag) -> absl_flags.ArgumentParser:
    if flag.choices and flag.kind is int:
        return _IntegerOrChoice(flag.choices)
    if flag.choices:
        return _Choice(flag.choices)
    parsers = {
        bool: absl_flags.BooleanParser,
        int: absl_flags.IntegerParser,
        float: absl_flags.FloatParser,
        str: absl_flags.ArgumentParser,
    }
    return parsers[flag.kind]()


def _form(flag: Flag) -> dict[str, Any]:
    return {"boolean": True} if flag.kind is bool else {}


def presets() -> list[str]:
    """Returns the names of the presets."""
    return sorted(path.stem for path in _PRESETS.glob("*.flags"))


def read_files(arguments: Sequence[str]) -> list[str]:
    """Puts the words of `--flagfile=FILE` and `--preset=NAME` in their places.

    Raises:
        UsageError: there is no such file.
    """
    try:
        return list(absl_flags.FlagValues().read_flags_from_files(_read_presets(arguments), force_gnu=True))
    except (absl_flags.Error, OSError) as error:
        raise UsageError(str(error)) from error


def _read_presets(arguments: Sequence[str]) -> list[str]:
    """Turns `--preset=NAME` into `--flagfile=` and its file."""
    words = []
    for argument in arguments:
        name = argument.removeprefix("--preset=")
        if argument == "--preset" or argument != name and name not in presets():
            hint = did_you_mean(name, presets()) if name != argument else ""
            raise UsageError(f"{argument}: say --preset=NAME.{hint} Presets: {', '.join(presets())}.")
        words.append(argument if argument == name else f"--flagfile={_PRESETS / name}.flags")
    return words


def _join_booleans(arguments: Sequence[str], table: Sequence[Flag]) -> list[str]:
    """Turns `--xla true` into `--xla=true` for flags that are or may be boolean, and spells out these."""
    may_be_boolean = [flag for flag in table if flag.kind is bool or flag.boolean]
    values = {f"--{flag.name}": (*_TRUE_OR_FALSE, *(flag.boolean or ())) for flag in may_be_boolean}
    joined: list[str] = []
    for argument in arguments:
        if joined and argument.lower() in values.get(joined[-1], ()):
            joined[-1] += f"={argument.lower()}"
        else:
            joined.append(argument)
    spelled = _spellings(table)
    return [spelled.get(argument.lower(), argument) for argument in joined]


def _spellings(table: Sequence[Flag]) -> dict[str, str]:
    """Returns what the boolean spellings of flags with two choices stand for."""
    spelled: dict[str, str] = {}
    for flag in table:
        if flag.boolean:
            on, off = (f"--{flag.name}={value}" for value in flag.boolean)
            spelled |= {f"--{flag.name}": on, f"--no{flag.name}": off}
            spelled |= {f"--{flag.name}={word}": on for word in ("true", "t", "1")}
            spelled |= {f"--{flag.name}={word}": off for word in ("false", "f", "0")}
    return spelled
