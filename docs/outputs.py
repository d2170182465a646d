"""Runs the commands whose outputs the documentation shows, and writes these anew: `python -m docs.outputs [PAGE ...]`.

A page marks where the output of a line of shell goes. What stands between the marks is replaced:

    <!-- output of: python run_bench.py explain replicated --num_gpus=8 -->
    <!-- end -->

The commands of a page run in their order in one copy of the checkout, a git repository of one commit, so `report` finds
the runs before it. Output is stdout; a command redirects or shortens it itself (`2>&1`, `| head -5`).
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.errors import ExitStatus
from tools.mutation import copy_tree

ROOT = Path(__file__).resolve().parent.parent
_MARKED = re.compile(r"(<!-- output of: (?P<command>.+?) -->\n)(?P<block>.*?)(<!-- end -->)", re.DOTALL)
# What has none of these neither trains nor measures.
_VERBS = "--|run|sweep|scaling|recommend|ab|track calibrate|doctor|verify|explain --placement|input|allreduce"
_TRAINS = re.compile(rf"run_bench\.py (?:{_VERBS})")
_ANSWERS = (ExitStatus.OK, ExitStatus.REGRESSED, ExitStatus.UNDECIDED)
_NUMBERS = re.compile(r"\b(?=[a-f]*\d)[\da-f]{7,}\b|[-+]?\d[\d.,:]*(?:[kMG]\b)?")


def pages() -> list[Path]:
    """Returns the pages that show outputs."""
    listed = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in listed if _MARKED.search(page.read_text(encoding="utf-8"))]


def trains(page: str) -> bool:
    """Returns whether a command of the text of a page trains or measures."""
    return any(_TRAINS.search(mark["command"]) for mark in _MARKED.finditer(page))


def without(page: str) -> str:
    """Returns the text of a page without its outputs."""
    return _MARKED.sub("", page)


def shape(page: str) -> list[str]:
    """Returns the lines of all outputs of a page as far as they do not depend on the machine.

    Numbers and widths of columns are masked. If a command measures, only the first words of a line count.
    """
    lines = "\n".join(mark["block"] for mark in _MARKED.finditer(page)).splitlines()
    masked = [re.sub(r"\s+|-{3,}", " ", _NUMBERS.sub("#", line)).strip() for line in lines]
    return [re.sub(r"^(#? ?[^#:]*).*", r"\1", line).strip() for line in masked] if trains(page) else masked


def fresh(page: str) -> str:
    """Runs the commands of the text of a page and returns the text with what they print.

    Raises:
        RuntimeError: a command failed; "slower" and "undecided" are answers.
    """
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory, "cnn-train-bench")
        _copy_checkout(copy)
        return _MARKED.sub(lambda mark: f"{mark[1]}\n```text\n{_output(mark['command'], copy)}\n```\n\n{mark[4]}", page)


def _copy_checkout(copy: Path) -> None:
    copy_tree(copy)
    identity = ("-c", "user.name=docs", "-c", "user.email=docs@localhost")
    for words in (["init", "--quiet"], ["add", "--all"], [*identity, "commit", "--quiet", "--message=checkout"]):
        _run(["git", *words], copy)


def _output(command: str, copy: Path) -> str:
    text = _run(["bash", "-c", command], copy)
    for private, shown in ((str(copy), "~/cnn-train-bench"), (str(Path.home()), "~"), (socket.gethostname(), "host")):
        text = text.replace(private, shown)
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())


def _run(words: list[str], directory: Path) -> str:
    hidden = ("TF_CONFIG", "GITHUB_STEP_SUMMARY")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment |= {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "XDG_CACHE_HOME": str(directory / "cache"),
    }
    done = subprocess.run(words, cwd=directory, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode not in _ANSWERS or (done.returncode and not done.stdout):
        raise RuntimeError(f"{shlex.join(words)} ended with status {done.returncode}.")
    return done.stdout


def main(names: list[str]) -> None:
    """Rewrites the outputs of the named pages, or of all."""
    for page in [Path(name).resolve() for name in names] or pages():
        print(f"{page.relative_to(ROOT)} ...", flush=True)
        page.write_text(fresh(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
