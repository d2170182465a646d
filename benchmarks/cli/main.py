"""Runs a command line: finds the verb, parses its flags, and turns errors into exit statuses."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

from benchmarks.cli.verbs import VERBS, flags_of
from benchmarks.config import flag, run_flags
from benchmarks.config.verb import Verb
from benchmarks.errors import BenchError, ExitStatus, Terminated, UsageError, did_you_mean
from benchmarks.sweep import grid
from results.version import SUITE_VERSION

_HELP_WORDS = ("--help", "-h", "--helpfull", "--helpshort")
_VERSION_WORD = "--version"


def main(arguments: Sequence[str]) -> int:
    """Runs a command line and returns its exit status; an expected error is one line on stderr.

    Args:
        arguments: the command line without the program's name.
    """
    try:
        return dispatch(arguments)
    except BenchError as error:
        print(f"run_bench: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        return ExitStatus.INTERRUPTED
    except Terminated:
        return ExitStatus.TERMINATED
    except BrokenPipeError:  # the reader of stdout has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return ExitStatus.RUN_FAILED
    except Exception:
        traceback.print_exc()
        return ExitStatus.RUN_FAILED  # Python's own status would be 1, which means that the gate found a regression


def dispatch(arguments: Sequence[str]) -> ExitStatus:
    """Runs a command line.

    Args:
        arguments: the command line without the program's name.

    Raises:
        BenchError: it cannot be run; the message says why.
    """
    if list(arguments) == [_VERSION_WORD]:
        print(f"cnn-train-bench {SUITE_VERSION}")
        return ExitStatus.OK
    name, rest = "run", list(arguments)
    if rest and not rest[0].startswith("-"):
        name = rest.pop(0)
    if name not in VERBS:
        raise UsageError(
            f"There is no verb '{name}'.{did_you_mean(name, VERBS)} Verbs: {', '.join(VERBS)}; "
            "everything else is spelled --flag=value."
        )
    verb = VERBS[name]
    if any(word in _HELP_WORDS for word in rest):
        print(_help(verb))
        return ExitStatus.OK
    if verb.takes == "lists":
        parsed = flag.parse(grid.spell_out_booleans(rest), grid.sweep_groups(verb.flags))
    else:
        parsed = flag.parse(rest, verb.flags)
    if verb.takes != "words":
        _refuse_words(rest, parsed.words)
    return verb.run(flag.Parsed(run_flags.unset(parsed.values), parsed.words), arguments)


def _refuse_words(arguments: Sequence[str], words: Sequence[str]) -> None:
    """Refuses words that are not flags; suggests `=` where a flag stands before the word."""
    if not words:
        return
    before = arguments[list(arguments).index(words[0]) - 1] if words[0] in arguments[1:] else ""
    fix = f" Did you mean {before}={words[0]}?" if before.startswith("--") and "=" not in before else ""
    raise UsageError(f"'{words[0]}' is not a flag.{fix} Flags are spelled --name=value, or --name and --noname.")


def _help(verb: Verb) -> str:
    verbs = "\n".join(f"  {each.name:9} {each.meaning}" for each in VERBS.values())
    presets = "|".join(flag.presets())
    return (
        "How fast does a CNN train on these devices and this TensorFlow build, and why?\n\n"
        f"usage: run_bench.py [verb] --flag=value ...\n       run_bench.py {_VERSION_WORD}\n\n"
        f"Verbs:\n{verbs}\n\nFlags of '{verb.name}' "
        f"(also --flagfile=FILE, --preset={presets}; run_bench.py VERB --help for other verbs'):\n"
        f"{flag.describe(flags_of(verb))}"
    )
