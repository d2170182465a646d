"""Runs a command line: finds the verb, parses its flags, and turns errors into exit statuses."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from benchmarks import console
from benchmarks.cli import help_text, verbs
from benchmarks.cli.verbs import FIRST_VERBS, NAMES, VERBS_BY_TITLE, flags_of
from benchmarks.config import flag, peer_flags, run_flags
from benchmarks.config.verb import Verb
from benchmarks.console import say, warn, warn_of_exception
from benchmarks.errors import BenchError, ExitStatus, UsageError, headline, stopped
from benchmarks.outside_text import shortened
from benchmarks.process import requirements, signals
from benchmarks.sweep import grid


def main(arguments: Sequence[str]) -> int:
    """Runs a command line and returns its exit status; an expected error is one line on stderr.

    Output that could not be written is a failure, whatever else succeeded.
    """
    console.output_is_lost = False
    try:
        status = dispatch(arguments)
        return status or (ExitStatus.RUN_FAILED if console.output_is_lost else ExitStatus.OK)
    except BenchError as error:
        warn(str(error))
        return error.exit_status
    except KeyboardInterrupt as error:
        signals.ignore()  # another one, while Python ends, would print a traceback
        return stopped(error).exit_status
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and (problem := requirements.missing(error)):
            warn(problem)
            return ExitStatus.USAGE
        if isinstance(error, FileNotFoundError | PermissionError) and error.filename == sys.executable:
            warn(f"{sys.executable or 'Python'} cannot be started: {error.strerror}. Install it again for all users.")
            return ExitStatus.USAGE
        place = str(error.filename or "") if isinstance(error, OSError) else ""
        if place.startswith("/proc/") and "/fd/" not in place:  # users may pass /proc/self/fd/9
            warn(f"{error}: a run reads clocks and memory there. Mount /proc, or run on Linux.")
            return ExitStatus.USAGE
        if isinstance(error, PermissionError) and error.filename:  # such as a look into a directory of another user
            warn(f"{error.filename}: {error.strerror}. Choose another path, or ask for access to this one.")
            return ExitStatus.USAGE
        if isinstance(error, FileNotFoundError) and error.strerror and not place:
            what = "TMPDIR" if "temporary" in str(error) else "The working directory"
            warn(f"{what}: {error.strerror}. Name, or change to, a directory that exists and can be written.")
            return ExitStatus.USAGE
        backend = os.environ.get("MPLBACKEND", "")
        if isinstance(error, ValueError) and f"backend: {backend!r}" in str(error):  # matplotlib was imported
            warn(f"MPLBACKEND={backend} is no backend of matplotlib: unset it, or choose one, such as agg.")
            return ExitStatus.USAGE
        warn_of_exception()
        warn(f"{type(error).__name__}: {headline(error)}")
        return ExitStatus.RUN_FAILED  # Python's own status would be 1, which means that the gate found a regression


def dispatch(arguments: Sequence[str]) -> ExitStatus:
    """Runs a command line.

    Raises:
        BenchError: it cannot be run; the message says why.
    """
    if any(word.endswith("\r") for word in arguments):  # part of a value, or the next line is a command of its own
        raise UsageError("The script of this command has lines as on Windows: convert it, as with sed -i 's/\\r$//'.")
    arguments = [flag.spelled(word) for word in arguments]
    if any(word.partition("=")[0] == "--version" for word in arguments) or arguments[:1] == ["version"]:
        say(help_text.versions())
        return ExitStatus.OK
    rest = list(arguments)
    if rest[1:] and rest[0] in verbs.HELP_WORDS and not rest[1].startswith("-"):
        rest = [*rest[1:], rest[0]]
    while rest[:1] == ["help"]:  # `help VERB` and `--help VERB` are `VERB --help`
        rest = [*rest[1:], "--help"]
    names_verb = bool(rest) and not rest[0].startswith("-")
    verb, rest = verbs.chosen(rest)
    names = {word.partition("=")[0] for word in rest}
    if names & {*verbs.HELP_WORDS}:
        full = verbs.FULL_HELP in names
        if names_verb or full:
            say(help_text.of_verb(verb, flags_of(verb), full=full))
        else:
            say(help_text.of_program(VERBS_BY_TITLE if "--all" in rest else FIRST_VERBS))
        return ExitStatus.OK
    _refuse_words_of_others(verb, rest)
    groups = grid.sweep_groups if verb.takes == "lists" else peer_flags.groups_to_parse
    parsed = flag.parse(rest, groups(verb.flags))
    if verb.takes != "words":
        _refuse_words(rest, parsed.words)
    words = [flag.local_path(word) for word in parsed.words]  # of which some may be paths
    return verb.run(flag.Parsed(run_flags.unset(parsed.values), words), arguments)


def _refuse_words_of_others(verb: Verb, arguments: Sequence[str]) -> None:
    """Refuses words such as `--explain`, with how the verb is written, and flags that only other verbs have."""
    flags = {one.name for group in flags_of(verb).values() for one in group}
    for word in arguments:
        name = word.removeprefix("--").partition("=")[0]
        spellings = {name, name.removeprefix("no")}
        if not word.startswith("--") or spellings & flags:
            continue
        if instead := peer_flags.instead_of(name, flags):
            raise UsageError(f"{verb.name} has no flag --{name}.{instead} See {verb.name} --helpfull.")
        if name in NAMES:
            raise UsageError(
                f"{word}: {name} is a verb, which comes first: run_bench.py {verbs.load(name).examples[0]}"
            )
        owners = ["a run"]
        if not spellings & run_flags.FLAGS.keys():
            owners = [
                name
                for name, other in verbs.commands().items()
                if any(one.name in spellings for group in other.flags.values() for one in group)
            ]
        if owners:
            raise UsageError(
                f"{verb.name} has no flag --{name}, which is one of {' or '.join(owners)}. See {verb.name} --helpfull."
            )


def _refuse_words(arguments: Sequence[str], words: Sequence[str]) -> None:
    if not words:
        return
    if problem := verbs.misplaced(words[0]):
        raise UsageError(problem)
    fix = f" Did you mean --{words[0].lstrip('-')}?" if "--" in arguments else ""
    if words[0] and not words[0].strip(" \t\\"):
        fix = " A backslash that continues a line must be its last character."
    raise UsageError(
        f"'{shortened(words[0])}' is not a flag.{fix} Flags are spelled --name=value, or --name and --noname."
    )
