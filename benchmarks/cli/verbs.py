"""All verbs, as `--help` groups them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.checkpoints import export_model_verb
from benchmarks.cli import completion_verb, publish_verb, report_verb
from benchmarks.cluster import server_verb
from benchmarks.compare import ab_verb, compare_verb, track_verb
from benchmarks.config import run_flags
from benchmarks.config.verb import Verb
from benchmarks.data import data_verb, input_verb
from benchmarks.devices import devices_verb
from benchmarks.doctor import doctor_verb
from benchmarks.errors import UsageError, did_you_mean
from benchmarks.explain import explain_verb
from benchmarks.microbench import allreduce_verb
from benchmarks.option import Groups
from benchmarks.predict import predict_verb
from benchmarks.run import run_verb
from benchmarks.sweep import grid, scaling_verb, sweep_verb
from benchmarks.tune import recommend_verb
from benchmarks.verify import verify_verb

FULL_HELP = "--helpfull"
HELP_WORDS = ("--help", "-h", "--helpshort", FULL_HELP)
# The first screen of the help, and what else `help --all` has.
FIRST_VERBS: Mapping[str, Sequence[Verb]] = {
    "How fast does it train?": (
        run_verb.VERB,
        sweep_verb.VERB,
        scaling_verb.VERB,
        recommend_verb.VERB,
    ),
    "What limits it?": (
        doctor_verb.VERB,
        explain_verb.VERB,
        verify_verb.VERB,
        devices_verb.VERB,
    ),
    "Did it get slower?": (
        ab_verb.VERB,
        track_verb.VERB,
    ),
    "Results and data": (
        report_verb.REPORT,
        data_verb.VERB,
    ),
}
VERBS_BY_TITLE: Mapping[str, Sequence[Verb]] = {
    **FIRST_VERBS,
    "How fast would it be elsewhere?": (predict_verb.VERB,),
    "More about records": (
        publish_verb.VERB,
        report_verb.DIFF,
        report_verb.RERUN,
        compare_verb.VERB,
    ),
    "Parts of a step": (
        allreduce_verb.VERB,
        input_verb.VERB,
    ),
    "Other tools": (
        server_verb.VERB,
        export_model_verb.VERB,
        completion_verb.VERB,
    ),
}
VERBS: Mapping[str, Verb] = {verb.name: verb for verbs in VERBS_BY_TITLE.values() for verb in verbs}
# Every command line: that of a verb, or those of its subcommands.
COMMANDS: Mapping[str, Verb] = {part.name: part for verb in VERBS.values() for part in verb.parts or (verb,)}


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
        return VERBS["run"], list(words)
    name, *rest = words
    verb = VERBS.get(name.replace("-", "_"))
    if verb is None:
        raise UsageError(_no_verb(name))
    parts = {part.word: part for part in verb.parts}
    word = rest[0] if rest and not rest[0].startswith("-") else ""
    if not parts or not word and set(rest) & {*HELP_WORDS}:
        return verb, rest
    if part := parts.get(word.replace("-", "_")):
        return part, rest[1:]
    problem = f"has no subcommand '{word}'.{did_you_mean(word, parts)}" if word else "needs a subcommand."
    raise UsageError(f"{name} {problem} Subcommands: {', '.join(parts)}. See {name} --help.")


def _no_verb(name: str) -> str:
    """Returns a sentence on a first word that is no verb, but perhaps a flag without its dashes."""
    word, *_ = name.split("=")
    if flag := run_flags.FLAGS.get(word):
        return f"'{word}' is not a verb, but a flag: {flag.spelling} ({flag.help.partition(';')[0]})."
    for flag in (run_flags.FLAGS["model"], run_flags.FLAGS["variable_update"]):
        if name.lower() in flag.words:
            return f"'{name}' is not a verb, but a value of --{flag.name}: run_bench.py --{flag.name}={name.lower()}"
    if word == "version":
        return "'version' is not a verb, but a flag: --version."
    parts = [f"'{part.name}'" for verb in VERBS.values() for part in verb.parts if part.word == name]
    hint = f" Did you mean {' or '.join(parts)}?" if parts else did_you_mean(name, [*VERBS, "help"])
    known = ", ".join(verb.name for verbs in FIRST_VERBS.values() for verb in verbs)
    return f"There is no verb '{name}'.{hint} Verbs: {known}, and more in help --all. Flags are spelled --flag=value."
