"""The scripts in real shells: what they propose for what is typed."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.cli import completion_verb
from benchmarks.cli.verbs import commands, flags_of
from tests.support.commands import RunBench

pytestmark = pytest.mark.process
# bash splits words at these characters, and so at the `=` of a flag.
BASH = r"""
compopt() { :; }
COMP_LINE=$1 COMP_POINT=${#1} COMP_CWORD=$2; shift 2; COMP_WORDS=("$@")
_run_bench
printf '%s\n' "${COMPREPLY[@]}"
"""
# In place of the functions that show proposals, which need a terminal.
ZSH = r"""
compset() { PREFIX=${PREFIX#*=} }
compadd() { shift; print -l -- ${(M)@:#$PREFIX*} }
_describe() { local array word; for array in ${@:#-*}; do for word in ${(P)array}; do print -- ${word%%:*}; done; done }
_files() { print -l -- ${PREFIX}*(N$([[ $1 == -/ ]] && print /)) }
typeset -a words; words=(${(z)1}); [[ $1 == *" " ]] && words+=("")
CURRENT=${#words} PREFIX=$words[-1]
_run_bench
"""


def proposed(shell: str, line: str, directory: Path) -> list[str]:
    """Returns the words that a shell proposes for the end of a line."""
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"no {shell} here")
    script = directory / f"script.{shell}"
    script.write_text(completion_verb.script(shell))
    command = {
        "bash": [program, "--norc", "-c", f". {script}\n{BASH}", "bash", line],
        "zsh": [program, "-f", "-c", f"compdef() {{ }}\n. {script}\n{ZSH}", "zsh", line],
        "fish": [program, "--no-config", "-c", f"source {script}; complete -C {shlex.quote(line)}"],
    }[shell]
    if shell == "bash":
        words = [word for word in re.split(r"\s+|(=)", line) if word is not None]
        words = [word for word in words[:-1] if word] + words[-1:]
        command += [str(len(words) - 1), *words]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=60)
    assert done.stderr == "" and done.returncode == 0, done.stderr
    found = [line.partition("\t")[0] for line in done.stdout.splitlines() if line]
    typed = line.rpartition(" ")[2]
    flag, equals, _ = typed.partition("=")
    found = [word.removeprefix(flag + equals) if equals else word for word in found]  # fish repeats the flag
    return [word for word in found if word.startswith(typed.partition("=")[2] if equals else typed)]


@pytest.mark.parametrize("shell", completion_verb.SHELLS)
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("run-bench swe", ["sweep"]),
        ("./run_bench.py co", ["compare", "completion"]),
        ("run-bench help rec", ["recommend"]),
        ("run-bench --data_for", ["--data_format="]),
        ("run-bench --device=", ["auto", "cpu", "gpu"]),
        ("run-bench --model=vgg", ["vgg11", "vgg16", "vgg19"]),
        ("run-bench sweep --model=resnet5", ["resnet50", "resnet50_v1.5", "resnet50_v2", "resnet56", "resnet56_v2"]),
        ("run-bench sweep --resu", ["--resume"]),
        ("run-bench --resu", []),
        ("run-bench --nocross", ["--nocross_replica_sync"]),
        ("run-bench --preset=q", ["quick"]),
        ("run-bench explain rep", ["replicated"]),
        ("run-bench track l", ["list"]),
        ("run-bench track check --thr", ["--threshold="]),
        ("run-bench track list --thr", []),
        ("run-bench track calibrate --model=vgg1", ["vgg11", "vgg16", "vgg19"]),
        ("run-bench data make-mnist --over", ["--overwrite"]),
        ("run-bench export-model --keras", ["--keras_file="]),
        ("run-bench completion z", ["zsh"]),
        ("run-bench report fil", ["file.jsonl"]),
        ("run-bench track check --markdown_file=fil", ["file.jsonl"]),
        ("run-bench --data_dir=fol", ["folder"]),
        ("run-bench --data_dir=fil", []),
        ("run-bench nothing --mod", []),
    ],
)
def test_what_a_shell_proposes(shell: str, line: str, words: list[str], tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file.jsonl").touch()
    found = [word.rstrip("/").removesuffix("=") for word in proposed(shell, line, tmp_path)]
    assert sorted(found) == sorted(word.removesuffix("=") for word in words)


def test_every_verb_and_flag_is_in_every_script() -> None:
    for shell in completion_verb.SHELLS:
        text = completion_verb.script(shell)
        for verb in commands().values():
            flags = [flag for group in flags_of(verb).values() for flag in group]
            assert all(re.search(rf"(--|-l ){flag.name}\b", text) for flag in flags), verb.name
        assert "@" not in text.replace("[@]", ""), "a mark of the template is left"


def test_a_script_is_printed_or_the_shells_are_named(run_bench: RunBench) -> None:
    assert "complete -F _run_bench run-bench run_bench.py" in run_bench("completion", "bash").stdout
    for words, problem in (
        ([], "completion needs a subcommand. Subcommands: bash, zsh, fish."),
        (["tcsh"], "completion has no subcommand 'tcsh'."),
        (["bash", "zsh"], "'zsh' is not a flag."),
    ):
        done = run_bench("completion", *words)
        assert (done.status, done.stdout) == (2, "") and problem in done.stderr
