"""The verb `completion`: a script that completes command lines in a shell, made from the verbs and their flags.

The scripts of bash and zsh search one table of what can be completed, as text; for fish, each line of it becomes a
command. No TensorFlow.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from benchmarks.cli import verbs
from benchmarks.config import flag
from benchmarks.config.flag import Parsed
from benchmarks.config.verb import Verb
from benchmarks.console import say
from benchmarks.errors import ExitStatus
from benchmarks.option import Flag

_PROGRAMS = "run-bench run_bench.py"
_OF_ANY_VERB = (
    Flag("flagfile", str, "read flags from a file", path="file"),
    Flag("preset", str, "read flags from a file of this suite", tuple(flag.presets())),
)
_FISH_VALUES = {"": "", "<file>": "-F", "<directory>": "-x -a '(__fish_complete_directories)'"}


class _Word(NamedTuple):
    """What can be completed: a flag, with `=` if it takes a value, or the first word after a verb if `name` is empty.

    `values` are the known ones with blanks between them, or `<file>` or `<directory>`.
    """

    name: str
    values: str = ""
    meaning: str = ""


def _words_of(verb: Verb) -> Iterator[_Word]:
    if verb.parts or verb.takes == "words":
        yield _Word("", " ".join(part.word for part in verb.parts) or " ".join(verb.known_words) or "<file>")
    yield from (_Word("--help", "", "the flags of this verb"), _Word("--helpfull", "", "all flags"))
    if verb.parts:
        return
    for one in (*(one for group in verbs.flags_of(verb).values() for one in group), *_OF_ANY_VERB):
        meaning = one.help.partition(";")[0].replace("|", "/")
        if one.kind is not bool:
            yield _Word(f"--{one.name}=", f"<{one.path}>" if one.path else " ".join(one.words), meaning)
            continue
        yield _Word(f"--{one.name}", "", meaning)
        if one.default is not None:
            yield _Word(f"--no{one.name}", "", f"not: {meaning}")


def _key(verb: Verb) -> str:
    return verb.name.replace(" ", "/")


def script(shell: str) -> str:
    """Returns the script for a shell."""
    every = {name: verbs.load(name) for name in verbs.NAMES}
    flags_of_help = {"Help": (Flag("all", bool, "list all verbs"),)}
    of_help = Verb("help", flags_of_help, takes="words", known_words=verbs.NAMES, meaning="what a verb does, its flags")
    table: dict[_Word, list[str]] = {}
    for verb in {**every, **verbs.commands(), "help": of_help}.values():
        for word in _words_of(verb):
            table.setdefault(word, []).append(_key(verb))
    meanings = {verb.name: verb.meaning for verb in (*every.values(), of_help)}
    if shell == "fish":
        return _FISH.replace("@COMPLETE@", "\n".join(_fish_lines(meanings, table)))
    options = [f"{word.name}|{word.values}|{' '.join(names)}|{word.meaning}" for word, names in table.items()]
    text = SHELLS[shell].replace("@OPTIONS@", shlex.quote("\n".join(options)))
    parts = " ".join(_key(part) for verb in every.values() for part in verb.parts)
    text = text.replace("@PARTS@", shlex.quote(parts))
    return text.replace("@VERBS@", shlex.quote("\n".join(f"{name}|{meaning}" for name, meaning in meanings.items())))


def _fish_lines(meanings: Mapping[str, str], table: Mapping[_Word, Sequence[str]]) -> Iterator[str]:
    """Yields the commands that declare the table; `$program` is the program."""
    for name, meaning in meanings.items():
        yield f"complete -c $program -n __run_bench_wants_verb -a {_quoted(name)} -d {_quoted(meaning)}"
    for word, names in table.items():
        parts = [f"complete -c $program -n {_quoted('__run_bench_takes ' + ' '.join(names))}"]
        name, takes_value, _ = word.name.removeprefix("--").partition("=")
        if name:
            parts.append(f"-l {name} -d {_quoted(word.meaning)}" + (" -r" if takes_value else ""))
        parts.append(_FISH_VALUES.get(word.values, f"-x -a {_quoted(word.values)}"))
        yield " ".join(filter(None, parts))


def _quoted(text: str) -> str:
    """Returns a text as one word of fish, whose quotes differ from those of other shells."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_BASH = f"""# Completes commands of {_PROGRAMS}. To use it: eval "$(run-bench completion bash)"
_run_bench_verbs=@VERBS@
_run_bench_options=@OPTIONS@
_run_bench_parts=@PARTS@
_run_bench() {{
    local line="${{COMP_LINE:0:COMP_POINT}}" verb=run part name="" option values verbs meaning
    local cur="${{line##*[[:space:]]}}"
    COMPREPLY=()
    if [[ $COMP_CWORD -gt 1 && ${{COMP_WORDS[1]}} != -* ]]; then
        verb="${{COMP_WORDS[1]//-/_}}"
        part="$verb/${{COMP_WORDS[2]//-/_}}"
        [[ $COMP_CWORD -gt 2 && " $_run_bench_parts " == *" $part "* ]] && verb="$part"
    elif [[ $cur != -* ]]; then
        while IFS='|' read -r option meaning; do
            [[ $option == "$cur"* ]] && COMPREPLY+=("$option")
        done <<<"$_run_bench_verbs"
        return
    fi
    [[ $cur == --*=* ]] && name="${{cur%%=*}}="
    while IFS='|' read -r option values verbs meaning; do
        [[ " $verbs " == *" $verb "* ]] || continue
        if [[ -z $name && $cur == -* ]]; then
            [[ -n $option && $option == "$cur"* ]] && COMPREPLY+=("$option")
        elif [[ $option == "$name" ]]; then
            cur="${{cur#"$name"}}"
            case "$values" in
            "<file>") compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
            "<directory>") compopt -o filenames; mapfile -t COMPREPLY < <(compgen -d -- "$cur") ;;
            *) mapfile -t COMPREPLY < <(compgen -W "$values" -- "$cur") ;;
            esac
            break
        fi
    done <<<"$_run_bench_options"
    [[ ${{#COMPREPLY[@]}} -eq 1 && ${{COMPREPLY[0]}} == *= ]] && compopt -o nospace
    [[ -n $name && $COMP_WORDBREAKS != *=* ]] && COMPREPLY=("${{COMPREPLY[@]/#/$name}}")
    return 0
}}
complete -F _run_bench {_PROGRAMS}"""

_ZSH = f"""#compdef {_PROGRAMS}
# Completes commands of {_PROGRAMS}. To use it: eval "$(run-bench completion zsh)"
_run_bench_verbs=@VERBS@
_run_bench_options=@OPTIONS@
_run_bench_parts=@PARTS@
_run_bench() {{
    local verb=run part name="" option values verbs meaning
    local -a plain valued
    if (( CURRENT > 2 )) && [[ $words[2] != -* ]]; then
        verb=${{words[2]//-/_}}
        part=$verb/${{words[3]//-/_}}
        (( CURRENT > 3 )) && [[ " $_run_bench_parts " == *" $part "* ]] && verb=$part
    elif [[ $PREFIX != -* ]]; then
        while IFS='|' read -r option meaning; do plain+=("$option:$meaning"); done <<<"$_run_bench_verbs"
        _describe verb plain
        return
    fi
    if [[ $PREFIX == --*=* ]]; then
        name="${{PREFIX%%=*}}="
        compset -P '*='
    fi
    while IFS='|' read -r option values verbs meaning; do
        [[ " $verbs " == *" $verb "* ]] || continue
        if [[ -z $name && $PREFIX == -* ]]; then
            case $option in
            *=) valued+=("$option:$meaning") ;;
            ?*) plain+=("$option:$meaning") ;;
            esac
        elif [[ $option == "$name" ]]; then
            case $values in
            "<file>") _files ;;
            "<directory>") _files -/ ;;
            *) compadd -- ${{=values}} ;;
            esac
            return
        fi
    done <<<"$_run_bench_options"
    _describe flag valued -S "" -- plain
}}
(( $+functions[compdef] )) || {{ autoload -Uz compinit && compinit }}
compdef _run_bench {_PROGRAMS}"""

_FISH = f"""# Completes commands of {_PROGRAMS}. To use it: run-bench completion fish | source
function __run_bench_wants_verb
    test (count (commandline -opc)) -eq 1
end
function __run_bench_takes
    set -l words (commandline -opc) run
    string match -q -- '-*' $words[2]; and set words[2] run
    set -l verb (string replace -a -- - _ $words[2])
    contains -- $verb/(string replace -a -- - _ $words[3]) $argv
    or contains -- $verb $argv
end
for program in {_PROGRAMS}
    complete -c $program -e
    complete -c $program -f
@COMPLETE@
end"""
SHELLS: Mapping[str, str] = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def _part(shell: str, installed: str) -> Verb:
    def run(given: Parsed, command: Sequence[str]) -> ExitStatus:
        say(script(shell))
        return ExitStatus.OK

    return Verb(f"completion {shell}", run=run, examples=(f"completion {shell}",), meaning=f"for {shell}: {installed}")


VERB = Verb(
    "completion",
    examples=("completion bash",),
    parts=(
        _part("bash", 'eval "$(run-bench completion bash)" in ~/.bashrc'),
        _part("zsh", 'eval "$(run-bench completion zsh)" in ~/.zshrc'),
        _part("fish", "run-bench completion fish | source, in config.fish"),
    ),
)
