"""What is proposed for the end of a line, and that real shells show it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.cli import completion_verb
from tests.support.commands import ROOT, RunBench

# bash splits words at the `=` of a flag.
BASH = r"""
compopt() { :; }
COMP_LINE=$1 COMP_POINT=${#1}
_run_bench run-bench
printf '%s\n' "${COMPREPLY[@]}"
"""
# In place of the functions that show proposals, which need a terminal.
ZSH = r"""
compset() { PREFIX=${PREFIX#*=} }
compadd() { while [[ $1 != -- ]]; do shift; done; shift; [[ $# == 0 ]] || print -l -- $* }
_files() { print -l -- ${PREFIX}*(N) }
typeset -a words; words=(${(z)1})
CURRENT=${#words} PREFIX=$words[-1]
_run_bench
"""


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("run-bench swe", ["sweep"]),
        ("./run_bench.py co", ["compare", "completion"]),
        ("run-bench help rec", ["recommend"]),
        ("run-bench --data_for", ["--data_format="]),
        ("run-bench --device=", ["--device=auto", "--device=cpu", "--device=gpu"]),
        ("run-bench sweep --batch_size=8 --model=vgg1", [f"--model=vgg{n}" for n in (11, 16, 19)]),
        ("run-bench sweep --resu", ["--resume"]),
        ("run-bench --resu", []),
        ("run-bench --nocross", ["--nocross_replica_sync"]),
        ("run-bench --preset=q", ["--preset=quick"]),
        ("run-bench explain rep", ["replicated"]),
        ("run-bench track l", ["list"]),
        ("run-bench track check --thr", ["--threshold="]),
        ("run-bench track list --thr", []),
        ("run-bench track check pr", []),
        ("run-bench data make-mnist --over", ["--overwrite"]),
        ("run-bench export-model --keras", ["--keras_file="]),
        ("run-bench completion z", ["zsh"]),
        ("run-bench report fil", []),
        ("run-bench nothing --mod", []),
    ],
)
def test_what_is_proposed(line: str, words: list[str]) -> None:
    assert completion_verb.proposals(line) == words


@pytest.mark.process
@pytest.mark.parametrize("shell", completion_verb.SHELLS)
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("run-bench track l", ["list"]),
        ("run-bench --data_for", ["--data_format="]),
        ("run-bench --model=vgg1", ["vgg11", "vgg16", "vgg19"]),
    ],
)
def test_a_shell_shows_it(shell: str, line: str, words: list[str], tmp_path: Path) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"no {shell} here")
    run_bench = tmp_path / "run-bench"
    run_bench.write_text(f'#!/bin/sh\nexec {sys.executable} {ROOT / "run_bench.py"} "$@"\n')
    run_bench.chmod(0o755)
    for file in ("list.txt", "vgg1.keras"):
        (tmp_path / file).touch()
    script = tmp_path / f"script.{shell}"
    script.write_text(completion_verb.SHELLS[shell])
    command = {
        "bash": [program, "--norc", "-c", f". {script}\n{BASH}", "bash", line],
        "zsh": [program, "-f", "-c", f"compdef() {{ }}\n. {script}\n{ZSH}", "zsh", line],
        "fish": [program, "--no-config", "-c", f"source {script}; complete -C {shlex.quote(line)}"],
    }[shell]
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stderr == "" and done.returncode == 0, done.stderr
    found = [re.sub("^--model=", "", shown) for shown in done.stdout.splitlines() if shown]
    assert found == words


def test_nothing_is_printed_where_the_shell_proposes_files(
    run_bench: RunBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMP_LINE", "run-bench --data_dir=fol")
    assert run_bench("completion", "words").stdout == ""
    monkeypatch.setenv("COMP_LINE", "run-bench rep")
    assert run_bench("completion", "words").stdout == "report\n"


def test_a_script_is_printed_or_the_shells_are_named(run_bench: RunBench) -> None:
    assert "complete -o default -F _run_bench run-bench run_bench.py" in run_bench("completion", "bash").stdout
    for words, problem in (
        ([], "completion needs a subcommand. Subcommands: bash, zsh, fish, words."),
        (["tcsh"], "completion has no subcommand 'tcsh'."),
        (["bash", "zsh"], "'zsh' is not a flag."),
    ):
        done = run_bench("completion", *words)
        assert (done.status, done.stdout) == (2, "") and problem in done.stderr
