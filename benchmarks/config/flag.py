"""Parses flags. Those of a run are in `benchmarks.config.run_flags`."""

from __future__ import annotations

import dataclasses
import errno
import os
import re
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags as absl_flags

from benchmarks import console
from benchmarks.cluster import restarts
from benchmarks.config.peer_flags import REPLACED, instead_of
from benchmarks.errors import UsageError, did_you_mean
from benchmarks.option import Flag, Groups
from benchmarks.outside_text import shortened
from benchmarks.process import private_network
from results.loading import read_small

_PRESETS = Path(__file__).resolve().parent / "presets"
# Characters of patterns, queries and fragments, and passwords: no address of a storage needs them.
_UNSUITABLE = re.compile(r"[?*\[\]\\#]|//[^/]*:[^/]*@")
_ADDRESS = re.compile("([A-Za-z][A-Za-z0-9+.-]+):(?://(?P<host>[^/]*))?(?P<path>/.*|$)", re.DOTALL)
# Variables of a shell, of Kubernetes and of templates; quotes; a comment, or the end of a line that continues.
_OF_A_SHELL = re.compile(
    r"\$[{(]?[A-Za-z_]|`|\{\{|^['\"\u2018-\u201f].*['\"\u2018-\u201f]$|\s#+(?:\s|$)|[\\\s]$", re.DOTALL
)
_OF_WINDOWS = re.compile(r"[A-Za-z]:[\\/]|\\\\|%\w+%[\\/]")
# Also with the dashes of a web page, blanks of a line that was pasted, and `--name value` as a line of a file.
_FLAG = re.compile(r"\s*[-\u2010-\u2015\u2212]{1,2}([A-Za-z][\w-]*)(?:\s*(=)\s*(.*)|\s+(\S.*)|\s*)", re.DOTALL)
_NEXT_FLAG = re.compile(r"[\s=]--[A-Za-z]")
SHORT_FLAGS = {"m": "model", "b": "batch_size", "g": "num_gpus"}


class ContradictionError(UsageError):
    """Two spellings of a flag have unlike values, each of which is possible."""


@dataclasses.dataclass(frozen=True)
class Parsed:
    """A parsed command line: every flag's value (None: not given), and the words that are not flags."""

    values: Mapping[str, Any]
    words: Sequence[str]


def parse(arguments: Sequence[str], groups: Groups) -> Parsed:
    """Reads flags.

    Besides absl's forms (`--name=value`, `--name value`, `--name`, `--noname`, `--flagfile=FILE`; one dash is as good
    as two, and dashes in names as underscores), a boolean may be followed by a word such as true or off, as in scripts
    for tf_cnn_benchmarks, and `--preset=NAME` is a file of flags that comes with the suite.

    Raises:
        UsageError: an unknown flag, or a value that the flag does not take.
    """
    table = [flag for group in groups.values() for flag in group]
    flag_values = absl_flags.FlagValues()
    for flag in table:
        form = {"boolean": True} if flag.is_switch else {}
        absl_flags.DEFINE(_Parser(flag), flag.name, None, flag.help, flag_values, module_name=__name__, **form)
    flag_values.set_gnu_getopt(True)
    joined = _joined(read_files(arguments), table)
    try:
        words = flag_values(["run_bench.py", *joined])[1:]
    except absl_flags.UnrecognizedFlagError as error:
        name, names = f"--{error.flagname}", [flag.name for flag in table]
        suggested = [f"--{flag.name}" for flag in table if flag not in REPLACED]
        hint = instead_of(error.flagname, names) or did_you_mean(name, suggested)
        raise UsageError(f"There is no flag {name}.{hint} See --helpfull for all flags.") from error
    except (absl_flags.Error, ValueError) as error:
        raise UsageError(str(error)) from error
    except RecursionError as error:  # absl compares an unknown name with each flag
        raise UsageError("There is no flag with so long a name. See --helpfull for all flags.") from error
    if not (restarts.inherited().run or private_network.is_entered()):  # else the command that started this has warned
        _warn_of_repeats(_joined([*map(spelled, arguments)], table))  # those of a file may be overridden
    values = _without_aliases({flag.name: _meant(flag, flag_values[flag.name].value) for flag in table}, table)
    for problem in filter(None, (flag.why_not(values[flag.name]) for flag in table if not flag.same_as)):
        raise UsageError(problem)
    return Parsed(values, words)


def _meant(flag: Flag, value: Any) -> Any:
    """Returns a value as its flag means it; None where that is as if not given.

    Raises:
        UsageError: it is empty, as after a variable of a shell that is not set, and the flag is none of
            tf_cnn_benchmarks, whose default may be an empty text; or it is a path that cannot be.
    """
    if isinstance(value, str) and not value.strip():
        if flag.unset != "":
            raise UsageError(f"--{flag.name} is empty: give a value, or leave it out for the default.")
        console.warn_once(f"--{flag.name} is empty, so as if not given.")
        return None
    if flag.unset is not None and value == flag.unset:
        return None
    if flag.path == "file" and value == "-":
        raise UsageError(
            f"--{flag.name}=-: '-' is not a file: use /dev/stdin or /dev/stdout, or ./- for a file of that name."
        )
    return local_path(value, f"--{flag.name}: ", or_address=flag.addresses) if flag.path and value else value


def _without_aliases(values: Mapping[str, Any], table: Sequence[Flag]) -> dict[str, Any]:
    """Returns the values by the flags' own names.

    Raises:
        ContradictionError: two spellings of a flag have unlike values.
    """
    merged = {flag.name: values[flag.name] for flag in table if not flag.same_as}
    spelled = {name: f"--{name}={value}" for name, value in merged.items()}
    for alias in table:
        if not alias.same_as or values[alias.name] is None:
            continue
        name, value = alias.same_as, values[alias.name]
        spelling = f"--{alias.name}={value}"
        if alias.stands_for:
            value = alias.stands_for[0 if value else 1]
            if value == "" and merged[name] != alias.stands_for[0]:
                continue
            if alias.unset is False and merged[name] == alias.stands_for[1]:
                console.warn_once(
                    f"{spelled[name]} and {spelling.lower()}: either turns it on, as in tf_cnn_benchmarks."
                )
                merged[name] = None
        if merged[name] not in (None, value):
            raise ContradictionError(
                f"{spelling.lower()} and {spelled[name].lower()} contradict each other: drop one of them."
            )
        merged[name], spelled[name] = value, spelling
    return merged


class _Parser(absl_flags.ArgumentParser):
    """Parses the value of a flag: one of its words, in any case, or what its kind is."""

    def __init__(self, flag: Flag) -> None:
        super().__init__()
        self._flag, self._gone = flag, dict(flag.gone)
        self._words: dict[str, Any] = {word.lower(): word for word in flag.choices} | dict(flag.other_words)
        if flag.is_switch:
            meanings: tuple[Any, Any] = flag.boolean or (True, False)
            for words, meaning in zip(_BOOLEANS, meanings, strict=True):
                self._words |= dict.fromkeys(words, meaning)

    def parse(self, argument: Any) -> Any:
        """Returns the value, a word as it is spelled in the table.

        Raises:
            UsageError: it is none; absl would repeat all of a long value.
        """
        word, text, known = str(argument).lower(), shortened(argument), ", ".join(self._flag.choices)
        if word in self._words:
            return self._words[word]
        where = f"--{self._flag.name}={text}: "
        if word in self._gone:
            raise UsageError(where + self._gone[word])
        several = " Lists are for `sweep`." if "," in text else ""
        if self._flag.kind is str:
            if known and argument.strip():
                hint = did_you_mean(text, self._flag.choices)
                raise UsageError(f"{where}there is no '{text}'.{hint} Choices: {known}.{several}")
            return argument
        parser, wanted = _KINDS[self._flag.kind]
        try:
            return parser.parse(text)
        except (TypeError, ValueError) as error:
            also = f", and not {' or '.join(self._flag.choices)}" if known else ""
            raise UsageError(f"{where}'{text}' is not {wanted}{also}.{several}") from error


_BOOLEANS = (("true", "t", "1", "yes", "on"), ("false", "f", "0", "no", "off"))
_KINDS = {
    bool: (absl_flags.BooleanParser(), "true or false"),
    int: (absl_flags.IntegerParser(), "a whole number"),
    float: (absl_flags.FloatParser(), "a number"),
}


def local_path(text: str, where: str = "", *, or_address: bool = False) -> str:
    """Returns a path as users of a shell mean it: `~` and `~user` are homes, and `file:///x` is `/x`.

    Raises:
        UsageError: there is no such home, no file can have that name, a shell should have changed the text, or it is an
            address of another storage, without `or_address` or not of the form scheme://host/path; the message begins
            with `where`.
    """
    address = _ADDRESS.fullmatch(text)
    if address and address[1].lower() == "file" and address["host"] in (None, "", "localhost") and address["path"]:
        path = urllib.parse.unquote(address["path"])
    elif address and or_address and address["host"] and not _UNSUITABLE.search(text):
        return address[1].lower() + text[len(address[1]) :]
    elif address and (address["host"] is not None or address["path"]):  # the rest may hold a password: not repeated
        raise UsageError(
            f"{where}{address[1]}://... is an address of another storage. --data_dir of TFRecords, --train_dir and "
            "checkpoints may be one, as scheme://host/path without passwords and any of ?*[]\\#. For everything else "
            "copy the data, or mount the storage and name the directory."
        )
    else:
        path = os.path.expanduser(text)
    if path.startswith("~"):
        user = text[1:].partition("/")[0]
        why_not = (
            f"there is no user '{user}' with a home directory" if user else "this user has no home directory: set HOME"
        )
        raise UsageError(f"{where}'{text}': {why_not}, or write the path itself.")
    if _OF_A_SHELL.search(path) and not os.path.lexists(path):
        raise UsageError(
            f"{where}'{shortened(text)}': only a shell replaces $NAME and takes away quotes, comments and what ends a "
            "line: write the path itself."
        )
    if _OF_WINDOWS.match(path) and not os.path.lexists(path):
        raise UsageError(
            f"{where}'{shortened(text)}' is a path of Windows. Write one of this system; in WSL, C:\\ is /mnt/c/."
        )
    try:
        os.lstat(path)
    except (OSError, ValueError) as error:  # a ValueError: a character that no name may have
        if isinstance(error, ValueError) or error.errno == errno.ENAMETOOLONG:
            raise UsageError(f"{where}'{shortened(text)}' cannot be the path of a file.") from error
    return path


def presets() -> list[str]:
    """Returns the names of the presets."""
    return sorted(path.stem for path in _PRESETS.glob("*.flags"))


def read_files(arguments: Sequence[str], inside: Sequence[str] = ()) -> list[str]:
    """Replaces `--flagfile=FILE` and `--preset=NAME` by the lines of the file, and flags by their `spelled` form.

    `inside` are such words that led to the arguments.

    Raises:
        UsageError: there is no such file, it is no text, or names itself; or a word has several flags, as where quotes,
            a line of a file, or an item of a list in YAML hold two.
    """
    words: list[str] = []
    following = iter(map(spelled, arguments))
    for word in following:
        flag = word if word.startswith("-") or not words else words[-1]
        # The value of a flag such as --base_command may have flags of its own.
        if _NEXT_FLAG.search(word) and not flag.partition("=")[0].endswith("command"):
            raise UsageError(
                f"{f'{inside[-1]}: ' if inside else ''}'{shortened(word)}' has several flags, or a flag and a comment: "
                "quote each flag by itself; in a list, such as a container's arguments, make each a separate item, "
                "and in a file write each on its own line."
            )
        name, equals, value = word.partition("=")
        if name not in ("--flagfile", "--preset"):
            words.append(word)
            continue
        value = value if equals else next(following, "")
        if not value or value.startswith("-"):
            raise UsageError(f"{name} has no value: write {name}={'FILE' if name == '--flagfile' else 'NAME'}.")
        source = f"{name}={value}"
        if source in inside:
            raise UsageError(f"{source} is a line of the file itself: take it out.")
        words += read_files(_lines(name, value), (*inside, source))
    return words


def _lines(name: str, value: str) -> list[str]:
    is_preset = name == "--preset"
    file = _PRESETS / f"{Path(value).name}.flags" if is_preset else Path(local_path(value, f"{name}: "))
    try:
        lines = [line.strip() for line in read_small(file).decode("utf-8-sig").splitlines()]
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        instead = " Name a text file with one --name=value per line."
        if is_preset:
            instead = f"{did_you_mean(value, presets())} Presets: {', '.join(presets())}."
        raise UsageError(f"{name}={value} cannot be read: {reason}.{instead}") from error
    return [line for line in lines if line and not line.startswith(("#", "//"))]


def spelled(word: str) -> str:
    """Returns a word with its flag as the table spells it: `-xla` is `--xla`, `--no-sync` `--nosync`."""
    flag = _FLAG.fullmatch(word)
    if flag is None:
        return word
    name = re.sub("^no-", "no", flag[1]).replace("-", "_")
    value = flag[3] if flag[2] else flag[4]
    return f"--{SHORT_FLAGS.get(name, name)}" + (f"={value}" if value is not None else "")


def _joined(arguments: Sequence[str], table: Sequence[Flag]) -> list[str]:
    """Turns `--model vgg16` into `--model=vgg16`, and `--xla true` for boolean flags, in a sweep also a list of such.

    Raises:
        UsageError: a flag follows one that lacks its value, or one such as `--noxla` has one.
    """
    truths = {word for words in _BOOLEANS for word in words}
    values = {f"--{flag.name}": truths | {*(flag.boolean or ())} for flag in table if flag.is_switch}
    needing = {f"--{flag.name}" for flag in table} - values.keys()
    negated = {f"--no{name.removeprefix('--')}": name for name in values}
    values |= dict.fromkeys(negated, truths)
    joined: list[str] = []
    for argument in arguments:
        before = joined[-1] if joined else ""
        if before in needing and argument.startswith("--"):  # as after a variable that is empty
            raise UsageError(f"{before} has no value: {argument} follows it. Write {before}=VALUE.")
        if before in needing or {*argument.lower().split(",")} <= values.get(before, set()):
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    for name, equals, value in (word.partition("=") for word in joined):
        if equals and name in negated:
            raise UsageError(f"{name} takes no value, such as {value}. Write {name}, or {negated[name]}=true.")
    return joined


def _warn_of_repeats(joined: Sequence[str]) -> None:
    """Warns of flags with several values, of which the last counts: a shell makes these of `--num_gpus={1,2}`."""
    seen: dict[str, list[str]] = {}
    for name, equals, value in (word.partition("=") for word in joined):
        if equals and name.startswith("--"):
            seen.setdefault(name, []).append(shortened(value))
    for name, (*others, last) in seen.items():
        if unlike := ", ".join(dict.fromkeys(other for other in others if other != last)):
            console.warn(f"Of {name}, only the last value counts ({last}), not {unlike}.")
