"""What a user can set: flags, and the parts of a configuration, whose fields declare the flags that set them.

A part is a frozen dataclass. `option` declares a field and its flag at once, so that name, type, range, default and
help are written once:

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Training:
        label_smoothing: float = option("share of a label that all classes get", default=0.0, at_least=0, at_most=1)

`flags_of` returns the flags of a part, and `filled` makes one from their values. A field that no flag sets alone is an
ordinary one, or is declared by `decided`; the code that decides on the part passes its value to `filled`.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

_LONGEST_CHOICES = 60
_MOST_IN_BRIEF = 20
_NO_RANGE = {int: "whole number", float: "number"}
# Larger numbers, or products of them, overflow what counts bytes, images and time; none is meant.
_LARGEST, _LARGEST_SECONDS = 10**12, 10**9
_Part = TypeVar("_Part")


@dataclasses.dataclass(frozen=True)
class Flag:
    """One flag.

    Attributes:
        name: as on the command line.
        kind: bool, int, float or str.
        help: what it means, the most important first, up to a semicolon; values and default are added to it.
        choices: the words that a str may be, in any case; an int may be one of them instead of a number.
        boolean: the value that `--name` stands for, and that of `--noname`.
        default: the value if it is not given, or a phrase if that depends on something; None: nothing, or false.
        at_least, above, at_most: the range of a number.
        known: values that exist, where the code behind the flag decides which it takes.
        path: what kind of path a str is.
        addresses: whether the path may also be one of another storage, such as gs://bucket/x.
        same_as: the flag that this is another spelling of. Parsed values have that one only.
        stands_for: of a bool that is `same_as` another flag: its value for true, and that for false; an empty word only
            says that it has not the other one.
        unset: the value that means the same as no value; a str that has none is never empty.
        gone: words that are no choice any more, each with a sentence on what to use instead.
        other_words: words that mean a choice, each with that choice. Parsed values have the choice only.
    """

    name: str
    kind: type
    help: str
    choices: tuple[str, ...] = ()
    boolean: tuple[str, str] | None = None
    _: dataclasses.KW_ONLY
    default: bool | int | float | str | None = None
    at_least: int | None = None
    above: int | None = None
    at_most: int | None = None
    known: tuple[str, ...] = ()
    path: Literal["file", "directory"] | None = None
    addresses: bool = False
    same_as: str = ""
    stands_for: tuple[str | bool, str | bool] | None = None
    unset: int | float | str | None = None
    gone: tuple[tuple[str, str], ...] = ()
    other_words: tuple[tuple[str, str], ...] = ()

    @property
    def usual(self) -> Any:
        """The value that holds if it is not given; None if that is nothing, or depends on something."""
        is_phrase = isinstance(self.default, str) and self.default not in (*self.choices, *self.known)
        return bool(self.default) if self.kind is bool and not is_phrase else None if is_phrase else self.default

    @property
    def is_switch(self) -> bool:
        """Whether it needs no value, and has a form `--noname`."""
        return self.kind is bool or self.boolean is not None

    @property
    def words(self) -> tuple[str, ...]:
        """The words that its value may be, in the order of the table."""
        return ("true", "false") if self.kind is bool else self.choices or self.known

    @property
    def default_text(self) -> str:
        """What holds if it is not given; empty if that is nothing."""
        if self.default is None:
            return "false" if self.kind is bool else ""
        return spelled(self.default)

    @property
    def spelling(self) -> str:
        """How it is written, such as `--name=INT`, `--name=text|json` or `--[no]name`."""
        if self.kind is bool:
            return f"--[no]{self.name}"
        choices = "|".join(self.choices)
        if len(choices) > _LONGEST_CHOICES or self.known:
            return f"--{self.name}=NAME"
        words = [self.kind.__name__] if self.kind is not str else [] if choices else [self.path or "text"]
        return f"--{self.name}=" + "|".join([*map(str.upper, words), *self.choices])

    def described(self, *, brief: bool = False) -> str:
        """Returns its help with the values, unless its spelling shows them, and the default.

        Args:
            brief: only the first clause of the help, and neither a range nor many words.
        """
        facts = []
        if self.kind not in (bool, str):
            facts += [] if brief or self.range_text in _NO_RANGE.values() else [self.range_text]
        elif self.kind is str and self.words and not self.spelling.endswith("|".join(self.words)):
            facts += [] if brief and len(self.words) > _MOST_IN_BRIEF else [", ".join(self.words)]
        if self.default_text not in ("", "false"):
            facts.append(f"default: {self.default_text}")
        return (self.help.partition(";")[0] if brief else self.help) + (f" ({'; '.join(facts)})" if facts else "")

    def why_not(self, value: Any) -> str | None:
        """Returns a sentence if a number is out of range; None, and words, are not numbers."""
        if not isinstance(value, int | float) or isinstance(value, bool):
            return None
        largest = _LARGEST if self.kind is int else sys.float_info.max
        most = self.at_most or (_LARGEST_SECONDS if self.name.endswith(("_seconds", "_secs")) else largest)
        least = -largest if self.at_least is None else self.at_least
        if least <= value <= most and (self.above is None or value > self.above):
            return None
        low = f"at least {least}" if self.above is None else f"above {self.above}"
        return f"--{self.name}={value} is out of range: it must be {low} and at most {most} ({self.help})."

    @property
    def range_text(self) -> str:
        """The range of a number, such as `1 or more`."""
        if self.at_least is not None:
            return f"{self.at_least} or more" if self.at_most is None else f"{self.at_least} to {self.at_most}"
        limits = {"above": self.above, "at most": self.at_most}
        named = ", ".join(f"{word} {limit}" for word, limit in limits.items() if limit is not None)
        return named or _NO_RANGE[self.kind]


Groups = Mapping[str, Sequence[Flag]]


def spelled(value: Any) -> str:
    """Returns a flag's value as it is written on a command line."""
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def only(group: Sequence[Flag], *names: str) -> list[Flag]:
    """Returns the flags of a group that have these names."""
    return [flag for flag in group if flag.name in names]


def option(
    help: str,
    *,
    default: Any = dataclasses.MISSING,
    default_text: str = "",
    flag: str = "",
    in_key: bool = True,
    **of_flag: Any,
) -> Any:
    """Declares a field of a part, and the flag that sets it.

    Args:
        help: what it means, as in `Flag`.
        default: the value if the flag is not given. Without it, the code that decides on the part passes the value.
        default_text: in the help instead of the default, where that is nothing or depends on something.
        flag: the flag's name, if it is not the field's.
        in_key: whether the value can change what is measured, so that results of unlike values are not compared.
        of_flag: further attributes of `Flag`, such as `at_least`.
    """
    declared = {"help": help, "default_text": default_text, "flag": flag, **of_flag}
    return dataclasses.field(default=default, metadata={"option": declared, "in_key": in_key})


def decided(*, default: Any = dataclasses.MISSING, in_key: bool = True) -> Any:
    """Declares a field of a part that no flag sets alone; see `option`."""
    return dataclasses.field(default=default, metadata={"in_key": in_key})


@functools.cache
def flags_of(part: Any) -> tuple[Flag, ...]:
    """Returns the flags that set fields of a part, and of the parts in it, in the order of the fields."""
    return tuple(flag for _, flag, inner in _fields(part) for flag in ([flag] if flag else inner))


def filled(part: Callable[..., _Part], given: Mapping[str, Any], **decided: Any) -> _Part:
    """Returns a part.

    Args:
        part: its class.
        given: flag values by name; None: not given.
        decided: fields that are decided otherwise; every other one has the value of its flag, or its default.
    """
    values = dict(decided)
    for field, flag, inner in _fields(part):
        if field.name not in values and inner:
            values[field.name] = filled(_hints(part)[field.name], given)
        elif field.name not in values and flag and given[flag.name] is not None:
            values[field.name] = given[flag.name]
    return part(**values)


def _fields(part: Any) -> Iterator[tuple[dataclasses.Field[Any], Flag | None, Sequence[Flag]]]:
    """Yields each field with its flag, or the flags of the part that it holds."""
    for field in dataclasses.fields(part):
        hint = _hints(part)[field.name]
        inner = flags_of(hint) if isinstance(hint, type) and dataclasses.is_dataclass(hint) else ()
        yield field, _flag(field, hint), inner


@functools.cache
def _hints(part: Any) -> Mapping[str, Any]:
    return typing.get_type_hints(part)


def _flag(field: dataclasses.Field[Any], hint: Any) -> Flag | None:
    """Returns the flag that sets a field; None if none does alone."""
    if "option" not in field.metadata:
        return None
    attributes = dict(field.metadata["option"])
    name, text = (attributes.pop(key) for key in ("flag", "default_text"))
    hints = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    (hint,) = (type_ for type_ in hints if type_ is not types.NoneType)
    if typing.get_origin(hint) is Literal:
        attributes.setdefault("choices", typing.get_args(hint))
    kind = hint if hint in (bool, int, float) else str
    default = text or (None if field.default is dataclasses.MISSING else field.default)
    return Flag(name or field.name, kind, default=default, **attributes)
