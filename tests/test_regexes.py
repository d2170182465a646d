"""No regular expression of the product takes more than linear time, whatever text it is given.

Python matches by backtracking: if the end of a text does not match, all other ways to match its beginning are tried.
Each constant pattern is given texts that repeat one or two words, after each beginning of a text that it matches.
"""

from __future__ import annotations

import ast
import importlib
import itertools
import math
import re
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from results.exchange import public_record
from tests.support.commands import ROOT

METHODS = ("search", "match", "fullmatch", "split", "findall", "finditer", "sub", "subn")
# Patterns that are arguments: of a function with the constants that it is called with, and of names of columns.
NOT_CONSTANT = {
    ("results/exchange/public_record.py", "form"): (*public_record._FORMS.values(), *public_record._IDENTITY.values()),
    ("results/exchange/frame.py", "f'\\\\b{column.name}\\\\b'"): (r"\bmodel\b",),
}
# Numbers of letters. Texts that are not fast with the small one are decided by the large one and a quarter of it.
SMALL, LARGE = 1000, 30_000
FAST_SECONDS, MOST_SECONDS, MOST_GROWTH = 0.0005, 0.25, 8.0
ALARM_SECONDS = 1.0
# Of each kind of letters that patterns tell apart.
WORDS = ("a", "0", "A", "-", "/", ":", " ", "[", ",", "@", ".", "\n", "\0")
ENDS = ("\0", " \n", "[")
CATEGORIES = {
    "CATEGORY_DIGIT": r"\d",
    "CATEGORY_NOT_DIGIT": r"\D",
    "CATEGORY_SPACE": r"\s",
    "CATEGORY_NOT_SPACE": r"\S",
    "CATEGORY_WORD": r"\w",
    "CATEGORY_NOT_WORD": r"\W",
}


def sources() -> list[str]:
    folders = ("benchmarks", "results", "variable_mgr", "models")
    found = [ROOT / "run_bench.py", *(file for folder in folders for file in (ROOT / folder).rglob("*.py"))]
    return sorted(str(file.relative_to(ROOT)) for file in found if re.search(r"^import re$", file.read_text(), re.M))


class Names(dict[str, Any]):
    """The names of a module, which is imported only if one is needed."""

    def __init__(self, source: str) -> None:
        super().__init__(re=re)
        self._module = source.removesuffix(".py").replace("/", ".")

    def __missing__(self, name: str) -> Any:
        try:
            return getattr(importlib.import_module(self._module), name)
        except AttributeError:
            raise KeyError(name) from None


def methods_of(name: str, source: str) -> set[str]:
    """Returns the methods of a compiled pattern that are used: in its file or, if its name is public, in any."""
    trees = [ast.parse((ROOT / file).read_text()) for file in ([source] if name.startswith("_") else sources())]
    uses = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    return {node.attr for node in uses if ast.unparse(node.value).rpartition(".")[2] == name} & {*METHODS}


def names_of_compiled(tree: ast.AST) -> dict[ast.AST, str]:
    """Returns the names that values are given, several at once included."""
    pairs: list[tuple[ast.AST, ast.AST]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            ends = (node.targets[0], node.value)
            pairs += zip(*(getattr(end, "elts", [end]) for end in ends), strict=False)
    return {value: ast.unparse(target) for target, value in pairs}


def patterns(source: str) -> Iterator[tuple[int, re.Pattern[Any], str]]:
    """Yields line, pattern and method of each regular expression in a file; of a compiled one, each used method."""
    tree, names = ast.parse((ROOT / source).read_text()), Names(source)
    compiled = names_of_compiled(tree)
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and re.fullmatch(r"re\.[a-z]+", ast.unparse(node.func))):
            continue
        method = ast.unparse(node.func).removeprefix("re.")
        if method == "escape":
            continue
        written = [*node.args, *(word.value for word in node.keywords)]
        flags = [one for one in written if re.fullmatch(r"re\.[A-Z]+( \| re\.[A-Z]+)*+", ast.unparse(one))]
        flag = eval(ast.unparse(flags[0]), {}, names) if flags else 0
        argument = ast.unparse(node.args[0])
        texts = NOT_CONSTANT.get((source, argument)) or [eval(argument, {}, names)]
        methods = methods_of(compiled[node], source) if method == "compile" else {method}
        assert methods, f"{source}:{node.lineno}: by which method is it used?"
        yield from ((node.lineno, re.compile(text, flag), one) for text in texts for one in sorted(methods))


def has(kind: str, value: Any, letter: str) -> bool:
    """Returns whether a letter is in one part of a set such as `[a-z_]`."""
    if kind == "RANGE":
        return value[0] <= ord(letter) <= value[1]
    return bool(re.match(CATEGORIES[str(value)], letter)) if kind == "CATEGORY" else value == ord(letter)


def pieces(parsed: Any, words: set[str]) -> list[str]:
    """Returns the parts of a text that a parsed pattern matches, as far as that is easy; adds those that may repeat."""
    found: list[str] = []
    for code, value in parsed:
        kind = str(code)
        if kind == "LITERAL":
            found.append(chr(value))
        elif kind in ("ANY", "NOT_LITERAL"):
            found.append("a")
        elif kind == "IN":
            parts = [(str(one), of) for one, of in value]
            letters = [*(chr(of) for one, of in parts if one == "LITERAL"), *WORDS]
            isin = {letter: any(has(*part, letter) for part in parts if part[0] != "NEGATE") for letter in letters}
            negated = parts[0][0] == "NEGATE"
            fitting = [letter for letter, inside in isin.items() if inside != negated]
            words.update(letters[:4])
            found.append(fitting[-1] if fitting else "")
        elif kind == "SUBPATTERN":
            found += pieces(value[-1], words)
        elif kind.endswith("REPEAT"):
            body = pieces(value[2], words)
            words.add("".join(body))
            found += body * min(max(1, value[0]), value[1])
        elif kind == "ATOMIC_GROUP":
            found += pieces(value, words)
        elif kind == "BRANCH":
            choices = [pieces(choice, words) for choice in value[1]]
            words.update("".join(choice) for choice in choices[:4])
            found += choices[0]
    runs = re.findall(r"\w+|[^\w]+", "".join(found))
    words.update(runs[:6])
    return found


def texts(pattern: re.Pattern[Any]) -> Iterator[tuple[str, str, str]]:
    """Yields beginnings, words to repeat and ends; together they are unlikely to match."""
    words: set[str] = set()
    parts = pieces(re._parser.parse(pattern.pattern, pattern.flags & ~re.DEBUG), words)  # type: ignore[attr-defined]
    begins = dict.fromkeys("".join(parts[:count]) for count in range(len(parts) + 1))
    own = sorted(word for word in words if word)
    pairs = [(a, b) for a, b in itertools.product([*own, *WORDS], repeat=2) if a in own or b in own]
    yield from itertools.product(begins, dict.fromkeys([*own, *WORDS, *map("".join, pairs)]), ENDS)


def seconds(pattern: re.Pattern[Any], method: str, text: str) -> float:
    """Returns how long a pattern takes by this thread's clock; infinity if it was interrupted."""
    subject: Any = text.encode() if isinstance(pattern.pattern, bytes) else text
    words = (subject[:0], subject) if method in ("sub", "subn") else (subject,)
    signal.setitimer(signal.ITIMER_VIRTUAL, ALARM_SECONDS)
    try:
        begin = time.thread_time()
        found = getattr(pattern, method)(*words)
        if method == "finditer":
            list(found)
        return time.thread_time() - begin
    except TimeoutError:
        return math.inf
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def is_linear(pattern: re.Pattern[Any], method: str, begin: str, word: str, end: str) -> bool:
    if seconds(pattern, method, begin + word * (SMALL // len(word)) + end) < FAST_SECONDS:
        return True

    def grows_little() -> bool:
        large, quarter = (
            min(seconds(pattern, method, begin + word * (count // len(word)) + end) for _ in range(3))
            for count in (LARGE, LARGE // 4)
        )
        return large < min(MOST_SECONDS, MOST_GROWTH * quarter)

    return any(grows_little() for _ in range(3))  # others may slow one measurement, but not all


@pytest.fixture
def _alarm() -> Iterator[None]:
    def interrupt(*_: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGVTALRM, interrupt)
    yield
    signal.signal(signal.SIGVTALRM, before)


def offences(pattern: re.Pattern[Any], method: str) -> str:
    """Returns the first text that takes long; empty if none does."""
    slow = (text for text in texts(pattern) if not is_linear(pattern, method, *text))
    return next((f"{begin!r} + {word!r} * n + {end!r}" for begin, word, end in slow), "")


@pytest.mark.usefixtures("_alarm")
@pytest.mark.parametrize("source", sources())
def test_patterns_take_linear_time(source: str) -> None:
    found = {f"line {line}, {method}": offences(pattern, method) for line, pattern, method in patterns(source)}
    assert {place: text for place, text in found.items() if text} == {}
