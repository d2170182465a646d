"""The verb `completion`: a script that completes command lines in a shell. No TensorFlow.

The script of a shell runs `completion words`, which prints what the end of the line in the variable COMP_LINE may be.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from benchmarks.cli import verbs
from benchmarks.config import flag
from benchmarks.config.verb import Verb
from benchmarks.console import say
from benchmarks.errors import ExitStatus, UsageError
from benchmarks.option import Flag

_PRESET = Flag("preset", str, "read flags from a file of this suite", tuple(flag.presets()))
_FLAGFILE = Flag("flagfile", str, "read flags from a file", path="file")


def proposals(line: str) -> list[str]:
    """Returns what the last word of a line may be; nothing where that is a path, which the shell completes itself."""
    *before, word = f"{line}|".split()
    word, words = word.removesuffix("|"), before[1:]
    try:
        return [choice for choice in _choices(words, word) if choice.startswith(word)]
    except UsageError:  # there is no such verb
        return []


def _choices(before: Sequence[str], word: str) -> Sequence[str]:
    is_flag = word.startswith("-")
    if before[:1] == ["help"] or not (before or is_flag):
        return (*verbs.NAMES, "help")
    if not is_flag and len(before) == 1 and before[0] in verbs.NAMES and (parts := verbs.load(before[0]).parts):
        return [part.word for part in parts]
    verb, given = verbs.chosen(before)
    return list(_flags(verb, word)) if is_flag else () if given else verb.known_words


def _flags(verb: Verb, word: str) -> Iterator[str]:
    yield from ("--help", "--helpfull")
    for one in (*(one for group in verbs.flags_of(verb).values() for one in group), _PRESET, _FLAGFILE):
        if word.startswith(f"--{one.name}="):
            yield from (f"--{one.name}={value}" for value in one.words)
        elif one.kind is bool:
            yield from (f"--{one.name}", f"--no{one.name}")
        else:
            yield f"--{one.name}="


_BASH = """# Completes commands of run-bench. To use it: eval "$(run-bench completion bash)"
_run_bench() {
    local line="${COMP_LINE:0:COMP_POINT}"
    mapfile -t COMPREPLY < <(COMP_LINE="$line" "$1" completion words 2>/dev/null)
    [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace
    [[ ${line##*[[:space:]]} == *=* && $COMP_WORDBREAKS == *=* ]] && COMPREPLY=("${COMPREPLY[@]#*=}")
    return 0
}
complete -o default -F _run_bench run-bench run_bench.py"""

_ZSH = """#compdef run-bench run_bench.py
# Completes commands of run-bench. To use it: eval "$(run-bench completion zsh)"
_run_bench() {
    local -a found=(${(f)"$(COMP_LINE="${words[1,CURRENT-1]} $PREFIX" $words[1] completion words 2>/dev/null)"})
    if (( $#found )); then
        compadd -S "" -- ${(M)found:#*=}
        compadd -- ${found:#*=}
    else
        compset -P "*="
        _files
    fi
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
compdef _run_bench run-bench run_bench.py"""

_FISH = """# Completes commands of run-bench. To use it: run-bench completion fish | source
for program in run-bench run_bench.py
    complete -c $program -e
    # Its condition finds the words, so that files are proposed only where there are none.
    complete -c $program -f -a '$run_bench_words' -n 'set -g run_bench_words (
        env COMP_LINE=(commandline -cp) (commandline -opc)[1] completion words 2>/dev/null); test -n "$run_bench_words"'
end"""
SHELLS: Mapping[str, str] = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def _print(*lines: str) -> ExitStatus:
    say(*lines)
    return ExitStatus.OK


def _shell(shell: str, installed: str) -> Verb:
    return Verb(
        f"completion {shell}",
        run=lambda given, command: _print(SHELLS[shell]),
        examples=(f"completion {shell}",),
        meaning=f"for {shell}: {installed}",
    )


VERB = Verb(
    "completion",
    examples=("completion bash",),
    parts=(
        _shell("bash", 'eval "$(run-bench completion bash)" in ~/.bashrc'),
        _shell("zsh", 'eval "$(run-bench completion zsh)" in ~/.zshrc'),
        _shell("fish", "run-bench completion fish | source, in config.fish"),
        Verb(
            "completion words",
            run=lambda given, command: _print(*proposals(os.environ.get("COMP_LINE", ""))),
            examples=("completion words",),
            meaning="called by these scripts: the words that can complete the line in COMP_LINE",
        ),
    ),
)
