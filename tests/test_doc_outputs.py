"""The outputs that pages show are those that their commands print (docs/outputs.py)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs import outputs
from tests.support.commands import ROOT

SHOWING = [ROOT / "README.md", ROOT / "docs" / "start.md", *sorted((ROOT / "docs" / "howto").glob("*.md"))]
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
PROGRAMS = r"cd|python[\d.]*|make|git|gh|docker|kubectl|mpirun|sbatch|sed|nft|iptables|bencher|pip"
COMMAND = re.compile(rf"\s*(?:#|[A-Z_]+=\S+ |(?:/\S+/)?(?:{PROGRAMS})\b)")
OF_A_RUN = re.compile(r"images/s|^run_bench: |^-{3,}  -{3,}|^ok  ", re.MULTILINE)


def _unmarked(page: str) -> list[str]:
    """Returns the blocks of a page that show an output which no command makes."""
    found = []
    for _, language, block in FENCE.findall(outputs.without(page)):
        lines = re.sub(r"\\\n", "", block).splitlines()
        is_output = (
            OF_A_RUN.search(block) if language == "text" else not all(map(COMMAND.match, filter(str.strip, lines)))
        )
        found += [block] if is_output and language in ("", "text") else []
    return found


@pytest.mark.parametrize("page", SHOWING, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_output_on_a_page_is_made_by_a_command(page: Path) -> None:
    assert not _unmarked(page.read_text(encoding="utf-8")), "mark it as docs/outputs.py says"


def test_an_output_that_no_command_makes_is_found() -> None:
    made = "<!-- output of: echo 1 images/s -->\n\n```text\n1 images/s\n```\n\n<!-- end -->\n"
    assert not _unmarked(f"{made}```\npython run_bench.py \\\n    --xla\n```\n```text\na line of code\n```\n")
    assert _unmarked(made + "```\ntotal images/sec: 3\n```\n") == ["total images/sec: 3\n"]
    assert _unmarked("```text\n3 images/s\n```\n") == ["3 images/s\n"]


def test_numbers_and_widths_are_no_part_of_a_shape_and_words_are() -> None:
    page = "<!-- output of: {} -->\n```text\n{}\n```\n<!-- end -->"
    explain, run = "python run_bench.py explain", "python run_bench.py --xla"
    assert outputs.shape(page.format(explain, "rate   1.9k  a")) == outputs.shape(page.format(explain, "rate  12 a"))
    assert outputs.shape(page.format(explain, "rate 1 a")) != outputs.shape(page.format(explain, "rate 1 b"))
    assert outputs.shape(page.format(run, "rate: slow")) == outputs.shape(page.format(run, "rate: fast"))
    assert outputs.shape(page.format(run, "rate: slow")) != outputs.shape(page.format(run, "speed: slow"))


def test_commands_of_a_page_run_in_one_copy_of_the_checkout_and_name_no_place() -> None:
    commands = ("pwd; echo 1 >> LICENSE", "git diff --stat")
    page = outputs.fresh("".join(f"<!-- output of: {text} -->\n<!-- end -->\n" for text in commands))
    assert "\n```text\n~/cnn-train-bench\n```\n" in page and "1 file changed, 1 insertion" in page


PAGES = [(page, page.read_text(encoding="utf-8")) for page in outputs.pages()]


@pytest.mark.process
@pytest.mark.parametrize(
    ("page", "text"),
    [
        pytest.param(page, text, id=page.name, marks=[pytest.mark.rotates] if outputs.trains(text) else [])
        for page, text in PAGES
    ],
)
def test_outputs_on_a_page_have_the_lines_that_its_commands_print(page: Path, text: str) -> None:
    assert outputs.shape(text) == outputs.shape(outputs.fresh(text)), f"run: python -m docs.outputs {page}"
