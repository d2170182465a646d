"""All verbs, as `--help` groups them. The module of a verb is imported when the verb is used: most need a while."""

from __future__ import annotations

import dataclasses
import functools
import pkgutil
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from benchmarks.config import run_flags
from benchmarks.config.verb import Verb
from benchmarks.errors import UsageError, did_you_mean
from benchmarks.option import Groups
from benchmarks.sweep import grid

FULL_HELP = "--helpfull"
_VARIABLE = re.compile("[A-Z][A-Z0-9_]+=")
HELP_WORDS = ("--help", "--h", "--helpshort", FULL_HELP)


class Listed(NamedTuple):
    """A verb of the list: what it does, as a phrase or a question, and where in `benchmarks`, as `module:name`."""

    meaning: str
    address: str


# The first screen of the help, and what else `help --all` has; by title and name.
FIRST_VERBS: Mapping[str, Mapping[str, Listed]] = {
    "How fast does it train?": {
        "run": Listed("train, and print images per second (the default)", "run.run_verb:VERB"),
        "sweep": Listed("run every combination of flag values", "sweep.sweep_verb:VERB"),
        "scaling": Listed("measure scaling efficiency, and predict larger device counts", "sweep.scaling_verb:VERB"),
        "recommend": Listed(
            "find the batch size, layout, manager ... that are fastest here", "tune.recommend_verb:VERB"
        ),
    },
    "What limits it?": {
        "doctor": Listed("is the machine quiet, and where does the step time go?", "doctor.doctor_verb:VERB"),
        "explain": Listed("where variables live, what is sent, which rate to expect", "explain.explain_verb:VERB"),
        "verify": Listed("check the results of every variable manager against references", "verify.verify_verb:VERB"),
        "devices": Listed("what is here: CPU, GPUs, their links, the tasks of a cluster", "devices.devices_verb:VERB"),
    },
    "Did it get slower?": {
        "ab": Listed("is this revision, or environment, slower than that one?", "compare.ab_verb:VERB"),
        "track": Listed("store results, and check whether today's are slower", "compare.track_verb:VERB"),
    },
    "Results and data": {
        "report": Listed("tables, plots and a web page of results", "cli.report_verb:REPORT"),
        "data": Listed("make, convert and check data sets", "data.data_verb:VERB"),
    },
}
VERBS_BY_TITLE: Mapping[str, Mapping[str, Listed]] = {
    **FIRST_VERBS,
    "How fast would it be elsewhere?": {
        "predict": Listed("how fast would it be on hardware that is not here?", "predict.predict_verb:VERB"),
    },
    "More about records": {
        "publish": Listed("make or check a folder of results to put online", "cli.publish_verb:VERB"),
        "diff": Listed("show what differs between two records", "cli.report_verb:DIFF"),
        "rerun": Listed("repeat the command of a record", "cli.report_verb:RERUN"),
        "compare": Listed("is one file of records slower than another?", "compare.compare_verb:VERB"),
    },
    "Parts of a step": {
        "allreduce": Listed("measure each reduction of gradients by message size", "microbench.allreduce_verb:VERB"),
        "input": Listed("measure each stage of the input pipeline, and find the slowest", "data.input_verb:VERB"),
    },
    "Other tools": {
        "server": Listed("start a bare TensorFlow server: one task of a cluster", "cluster.server_verb:VERB"),
        "export_model": Listed(
            "write the model of a checkpoint for Keras or TensorFlow Serving", "checkpoints.export_model_verb:VERB"
        ),
        "completion": Listed("print a script that completes commands in a shell", "cli.completion_verb:VERB"),
    },
}
_LISTED = {name: listed for verbs in VERBS_BY_TITLE.values() for name, listed in verbs.items()}
NAMES = tuple(_LISTED)


@functools.cache
def load(name: str) -> Verb:
    """Returns a verb of NAMES."""
    listed = _LISTED[name]
    return dataclasses.replace(pkgutil.resolve_name(f"benchmarks.{listed.address}"), meaning=listed.meaning)


@functools.cache
def commands() -> Mapping[str, Verb]:
    """Returns every command line by name: that of a verb, or those of its subcommands."""
    return {part.name: part for verb in map(load, NAMES) for part in verb.parts or (verb,)}


def flags_of(verb: Verb) -> Groups:
    """Returns all flags that a verb takes, by title."""
    return grid.help_groups(verb.flags) if verb.takes == "lists" else verb.flags


def chosen(words: Sequence[str]) -> tuple[Verb, list[str]]:
    """Returns the verb that the first words name, `run` if they name none, and the words after it.

    Of a verb with subcommands it is the subcommand, or the verb itself before a request for help.

    Raises:
        UsageError: there is no such verb, or not such a subcommand.
    """
    if not words or words[0].startswith("-"):
        return load("run"), list(words)
    name, *rest = words
    if name.replace("-", "_") not in NAMES:
        raise UsageError(_no_verb(name))
    verb = load(name.replace("-", "_"))
    parts = {part.word: part for part in verb.parts}
    word = rest[0] if rest and not rest[0].startswith("-") else ""
    if not parts or not word and set(rest) & {*HELP_WORDS}:
        return verb, rest
    if part := parts.get(word.replace("-", "_")):
        return part, rest[1:]
    problem = f"has no subcommand '{word}'.{did_you_mean(word, parts)}" if word else "needs a subcommand."
    raise UsageError(f"{name} {problem} Subcommands: {', '.join(parts)}. See {name} --help.")


def misplaced(word: str) -> str:
    """Returns a sentence on a word that belongs to another place of a command line, else nothing."""
    if word in (*NAMES, "help"):
        return f"'{word}' is a verb, which comes first, before all flags."
    if _VARIABLE.match(word):
        return f"'{word}' sets an environment variable: write it before the program, or after `env`."
    return ""


def _no_verb(name: str) -> str:
    """Returns a sentence on a first word that is no verb, but perhaps a flag without its dashes."""
    word, *_ = name.split("=")
    if flag := run_flags.FLAGS.get(word):
        return f"'{word}' is not a verb, but a flag: {flag.spelling} ({flag.help.partition(';')[0]})."
    for flag in (run_flags.FLAGS["model"], run_flags.FLAGS["variable_update"]):
        if name.lower() in flag.words:
            return f"'{name}' is not a verb, but a value of --{flag.name}: run_bench.py --{flag.name}={name.lower()}"
    if problem := misplaced(name):
        return problem
    parts = [f"'{command.name}'" for command in commands().values() if command.word == name]
    hint = f" Did you mean {' or '.join(parts)}?" if parts else did_you_mean(name, [*NAMES, "help"])
    known = ", ".join(name for verbs in FIRST_VERBS.values() for name in verbs)
    return f"There is no verb '{name}'.{hint} Verbs: {known}, and more in help --all. Flags are spelled --flag=value."
