"""The verb `completion`: a script that completes command lines in a shell, made from the verbs and their flags.

`options` is the one table of what can be completed. The scripts of bash and zsh search it, as text; for fish, each line
of it becomes a command. No TensorFlow.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from benchmarks.config import flag
from benchmarks.config.verb import Verb
from benchmarks.console import say
from benchmarks.errors import ExitStatus, UsageError, did_you_mean
from benchmarks.option import Flag, Groups

_PROGRAMS = "run-bench run_bench.py"
_HELP = "help"
_OF_ANY_VERB = (
    Flag("flagfile", str, "read flags from a file", path="file"),
    Flag("preset", str, "read flags from a file of this suite", tuple(flag.presets())),
)


@dataclasses.dataclass(frozen=True)
class Option:
    """What can be completed: a flag, or the first word after a verb if `name` is empty.

    Attributes:
        name: with `--`, and with `=` if it takes a value.
        words: the values that are known.
        path: what its value names in the file system, if it does.
        meaning: a phrase.
    """

    name: str
    words: tuple[str, ...]
    path: Literal["file", "directory"] | None
    meaning: str

    @property
    def values(self) -> str:
        """The values, in the tables of bash and zsh."""
        return f"<{self.path}>" if self.path else " ".join(self.words)


def options(verbs: Iterable[Verb], flags_of: Callable[[Verb], Groups]) -> dict[Option, list[str]]:
    """Returns all that can be completed, each with the names of its verbs."""
    found: dict[Option, list[str]] = {}
    for verb in verbs:
        own = [Option("", verb.known_words, None, "")] if verb.known_words else []
        own += [Option("", (), "file", "")] if verb.takes == "words" and not verb.known_words else []
        own += [Option("--help", (), None, "the flags of this verb"), Option("--helpfull", (), None, "all flags")]
        for one in (*(one for group in flags_of(verb).values() for one in group), *_OF_ANY_VERB):
            meaning = one.help.partition(";")[0].replace("|", "/")
            if one.kind is not bool:
                own.append(Option(f"--{one.name}=", one.words, one.path, meaning))
                continue
            own.append(Option(f"--{one.name}", (), None, meaning))
            if one.default is not None:
                own.append(Option(f"--no{one.name}", (), None, f"not: {meaning}"))
        for option in own:
            found.setdefault(option, []).append(verb.name)
    return found


def script(shell: str, verbs: Sequence[Verb], flags_of: Callable[[Verb], Groups]) -> str:
    """Returns the script for a shell."""
    of_help = Verb(_HELP, "what a verb does, and its flags", {}, lambda *_: ExitStatus.OK, takes="words")
    of_help = dataclasses.replace(of_help, known_words=tuple(verb.name for verb in verbs))
    table = options([*verbs, of_help], flags_of)
    meanings = {verb.name: verb.meaning for verb in (*verbs, of_help)}
    if shell == "fish":
        return _FISH.replace("@COMPLETE@", "\n".join(_fish_lines(meanings, table)))
    lines = [f"{option.name}|{option.values}|{' '.join(names)}|{option.meaning}" for option, names in table.items()]
    data = {"@OPTIONS@": lines, "@VERBS@": [f"{name}|{meaning}" for name, meaning in meanings.items()]}
    text = SHELLS[shell]
    for mark, rows in data.items():
        text = text.replace(mark, shlex.quote("\n".join(rows)))
    return text


def run_completion(words: Sequence[str]) -> ExitStatus:
    """Prints the script for the shell that is named.

    Raises:
        UsageError: none is named, or there is no script for it.
    """
    from benchmarks.cli.verbs import VERBS, flags_of  # where this verb is listed, too

    if len(words) != 1 or words[0] not in SHELLS:
        hint = did_you_mean(words[0], SHELLS) if words else ""
        problem = f"there is no script for '{' '.join(words)}'.{hint}" if words else "name a shell."
        raise UsageError(f"completion: {problem} Shells: {', '.join(SHELLS)}.")
    say(script(words[0], [*VERBS.values()], flags_of))
    return ExitStatus.OK


def _fish_lines(meanings: Mapping[str, str], table: Mapping[Option, Sequence[str]]) -> list[str]:
    """Returns the commands that declare the table; `$program` is the program."""
    lines = [
        f"complete -c $program -n __run_bench_wants_verb -a {_quoted(name)} -d {_quoted(meaning)}"
        for name, meaning in meanings.items()
    ]
    for option, names in table.items():
        first = f"complete -c $program -n {_quoted('__run_bench_takes ' + ' '.join(names))}"
        of_value = {"file": "-F", "directory": "-x -a '(__fish_complete_directories)'", None: ""}[option.path]
        of_value += f"-x -a {_quoted(' '.join(option.words))}" if option.words else ""
        name, takes_value, _ = option.name.removeprefix("--").partition("=")
        flag = f"-l {name} -d {_quoted(option.meaning)}" + (" -r" if takes_value else "") if name else ""
        lines.append(" ".join(filter(None, (first, flag, of_value))))
    return lines


def _quoted(text: str) -> str:
    """Returns a text as one word of fish, whose quotes differ from those of other shells."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_BASH = f"""# Completes commands of {_PROGRAMS}. To use it: eval "$(run-bench completion bash)"
_run_bench_verbs=@VERBS@
_run_bench_options=@OPTIONS@
_run_bench() {{
    local line="${{COMP_LINE:0:COMP_POINT}}" verb=run name="" option values verbs meaning
    local cur="${{line##*[[:space:]]}}"
    COMPREPLY=()
    if [[ $COMP_CWORD -gt 1 && ${{COMP_WORDS[1]}} != -* ]]; then
        verb="${{COMP_WORDS[1]}}"
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
_run_bench() {{
    local verb=run name="" option values verbs meaning
    local -a plain valued
    if (( CURRENT > 2 )) && [[ $words[2] != -* ]]; then
        verb=$words[2]
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
    contains -- $words[2] $argv
end
for program in {_PROGRAMS}
    complete -c $program -e
    complete -c $program -f
@COMPLETE@
end"""
SHELLS: Mapping[str, str] = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
VERB = Verb(
    "completion",
    "print a script that completes commands in a shell",
    {},
    lambda given, command: run_completion(given.words),
    takes="words",
    words="|".join(SHELLS),
    known_words=tuple(SHELLS),
    details='For bash and zsh: eval "$(run_bench.py completion bash)"; for fish: run_bench.py completion fish | source',
    examples=("completion bash",),
)
