"""From the words of the command line to a verb and its exit status."""

from __future__ import annotations

import json
from collections.abc import Sequence

from benchmarks import config, data_job, flags, hardware, main_job, verify_job
from benchmarks.errors import ExitStatus, UsageError, did_you_mean

_VERBS = {
    "run": "train (or, with --forward_only, infer) and say images/sec; the default",
    "verify": "is the arithmetic of every variable manager right on these devices?",
    "data": "make data sets",
}
_FLAGS = {"run": flags.RUN_FLAGS, "verify": flags.VERIFY_FLAGS, "data": flags.DATA_FLAGS}
_HELP_WORDS = ("--help", "-h", "--helpfull", "--helpshort")


def dispatch(arguments: Sequence[str]) -> ExitStatus:
    """Does what the arguments ask for.

    Args:
        arguments: the command line without the program's name.

    Raises:
        BenchError: what was asked for cannot be done; the message says why.
    """
    verb, rest = "run", list(arguments)
    if rest and not rest[0].startswith("-"):
        verb = rest.pop(0)
        if verb not in _VERBS:
            raise UsageError(
                f"There is no verb '{verb}'.{did_you_mean(verb, _VERBS)} Verbs: {', '.join(_VERBS)}; "
                "everything else is spelled --flag=value."
            )
    groups = _FLAGS[verb]
    if any(word in _HELP_WORDS for word in rest):
        print(_help(verb, groups))
        return ExitStatus.OK
    parsed = flags.parse(rest, groups)
    if verb == "data":
        return data_job.run(parsed.words, parsed.values)
    _refuse_words(rest, parsed.words)
    values = flags.unset(parsed.values)
    if verb == "verify":
        return verify_job.run(config.resolve(verify_job.with_defaults(values, _count_gpus()), _count_gpus))
    resolved = config.resolve(values, _count_gpus)
    if parsed.values["print_config"]:
        print(json.dumps(resolved.to_dict(), indent=2))
        return ExitStatus.OK
    return main_job.run(resolved, arguments)


def _count_gpus() -> int:
    return len(hardware.gpu_inventory().gpus)


def _refuse_words(arguments: Sequence[str], words: Sequence[str]) -> None:
    """Refuses words that are no flags, with the fix if a flag stands before."""
    if not words:
        return
    before = arguments[list(arguments).index(words[0]) - 1] if words[0] in arguments[1:] else ""
    fix = f" Did you mean {before}={words[0]}?" if before.startswith("--") and "=" not in before else ""
    raise UsageError(f"'{words[0]}' is no flag.{fix} Flags are spelled --name=value, or --name and --noname.")


def _help(verb: str, groups: flags.Groups) -> str:
    verbs = "\n".join(f"  {name:6} {meaning}" for name, meaning in _VERBS.items())
    return (
        "How fast does a CNN train on these devices and this TensorFlow build, and why?\n\n"
        f"usage: run_bench.py [verb] --flag=value ...\n\nVerbs:\n{verbs}\n\nFlags of '{verb}' "
        f"(also --flagfile=FILE; run_bench.py VERB --help for other verbs'):\n{flags.describe(groups)}"
    )
