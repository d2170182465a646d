"""What the pages of documentation contain: commands, flags, files and links, each with its page and line."""

from __future__ import annotations

import dataclasses
import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

_INLINE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"#+\s+(.*)")
_FENCE = "```"
# Presets that train on images, and evaluate.
RECIPES = ("cifar10-resnet20", "digits", "imagenet-resnet50")


def also_given(preset: str) -> list[str]:
    return ["--data_dir=data"] if preset in RECIPES else []


@dataclasses.dataclass(frozen=True)
class Code:
    """Code in a page: a line of a block, with the lines that continue it, or a piece of inline code."""

    page: Path
    line: int
    text: str
    inline: bool

    @property
    def place(self) -> str:
        """Returns where it is, as compilers print it."""
        return f"{self.page}:{self.line}"


def pages(root: Path) -> list[Path]:
    """Returns every page that a user or contributor reads; the changelog describes what once was."""
    return [
        root / "README.md",
        root / "CONTRIBUTING.md",
        *(
            page
            for folder in ("contributing", "docs", "deploy", "tests")
            for page in sorted((root / folder).rglob("*.md"))
        ),
    ]


def code_of(page: Path) -> Iterator[Code]:
    """Yields the code of a page in its order."""
    for number, line, in_block in _lines(page):
        if in_block:
            yield Code(page, number, line.strip(), inline=False)
        else:
            # In a table, a bar is written with a backslash.
            yield from (Code(page, number, text.replace(r"\|", "|"), True) for text in _INLINE.findall(line))


def blocks_of(page: Path, first_line: str) -> Iterator[tuple[int, str]]:
    """Yields the number of the first line, and the text, of the blocks that begin with a line."""
    begin, block = 0, list[str]()
    for number, line, in_block in [*_lines(page), (0, "", False)]:
        if in_block:
            begin = begin or number
            block.append(line)
            continue
        if block and block[0].strip() == first_line:
            yield begin, "\n".join(block)
        begin, block = 0, []


def links_of(page: Path) -> Iterator[tuple[int, str]]:
    for number, line, in_block in _lines(page):
        if not in_block:
            yield from ((number, target) for target in _LINK.findall(_INLINE.sub("", line)))


def anchors_of(page: Path) -> set[str]:
    headings = (_HEADING.fullmatch(line) for _, line, in_block in _lines(page) if not in_block)
    return {re.sub(r"[^\w\- ]", "", found[1].lower()).replace(" ", "-") for found in headings if found}


def _lines(page: Path) -> Iterator[tuple[int, str, bool]]:
    """Yields number, text and whether it is in a block; lines of a block that end with a backslash are joined."""
    in_block, begin, continued = False, 0, ""
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        if line.lstrip().startswith(_FENCE):
            in_block = not in_block
            yield number, "", False
        elif in_block and line.endswith("\\"):
            begin, continued = begin or number, continued + line.removesuffix("\\")
        else:
            yield begin or number, continued + line, in_block
            begin, continued = 0, ""


def words_of(command: str) -> list[str]:
    """Splits the first command of a line of shell into words: no prompt, comment, redirection or next command.

    What is no line of shell, such as a sentence with an apostrophe, has no words.
    """
    lexer = shlex.shlex(command.removeprefix("$ "), posix=True, punctuation_chars=";&<>")
    lexer.whitespace_split = True
    try:
        return list(itertools.takewhile(lambda word: not set(word) <= set(";&<>"), lexer))
    except ValueError:
        return []


def spellings(text: str) -> list[str]:
    """Returns what a pattern of a command stands for.

    Brackets around what is optional are dropped with its words that are no flags, `a|b` outside quotes becomes one
    command for each, an ellipsis nothing, and a placeholder of one capital letter a number.
    """
    text = re.sub(r"\[((?:[^\]\[]|\[\w*\])*)\]", lambda found: found[1] if found[1].startswith("--") else "", text)
    text = re.sub(r"(?<![\w.])\.\.\.(?!\w)", "", text)
    text = re.sub(r"=([A-Z])(?=[\s\"'|]|$)", "=2", text)
    text = text.replace("=PERCENT", "=5")
    chosen = re.search(r"=(?P<values>[^\s'\"=|]+(?:\|[^\s'\"|]+)+)", text)
    if not chosen:
        return [text.strip()]
    begin, end = chosen.span("values")
    return [text[:begin] + value + text[end:].strip() for value in chosen["values"].split("|")]
