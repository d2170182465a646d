"""From the words of the command line to a verb and its exit status."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.cli import explain_verb, report_verb, server_verb
from benchmarks.config import config, device_options, run_flags
from benchmarks.datasets import data_verb
from benchmarks.doctor import doctor_verb
from benchmarks.errors import BenchError, ExitStatus, Terminated, UsageError, did_you_mean
from benchmarks.microbench import allreduce_verb, input_verb
from benchmarks.regression import ab_verb, baseline_verb, calibrate_verb, compare_verb
from benchmarks.run import cluster_launch, runner
from benchmarks.sweep import grid, sweep_verb
from benchmarks.system import hardware
from benchmarks.topology import discovery, launch_plan
from benchmarks.tune import batch_size, recommend_verb
from benchmarks.verify import verify_verb
from results.version import SUITE_VERSION

_VERBS = {
    "run": "train (or, with --forward_only, infer) and say images/sec; the default",
    "sweep": "many runs: every flag of run takes a comma list, each combination runs in a process of its own",
    "recommend": "which batch size, layout, manager ... are fastest here? recommend --model=M --time_limit_seconds=600",
    "ab": "is the candidate slower than the base? Runs two revisions, or two environments, in turn: ab --base=REVISION",
    "calibrate": "how much do equal runs differ on this machine, and which drop can it show?",
    "report": "tables, plots and a page from records: report FILE ... --output=DIR",
    "rerun": "the exact command of a record again: rerun RUN_ID [FILE ...]",
    "diff": "what differs between two records: diff RUN_ID RUN_ID [FILE ...]",
    "compare": "is a build slower than another? compare BASE CANDIDATE, files of records; status 1 if it is",
    "baseline": "results that are kept to be compared with: baseline promote FILE, list, show KEY, prune",
    "check": "is today slower than the stored sessions? check FILE; status 1 if it is",
    "history": "the rate session by session, of baselines or files; where it changed; --plot=FILE.png draws it",
    "verify": "is the arithmetic of every variable manager right on these devices?",
    "doctor": "is this machine quiet, and where does the time go? With a cluster: does every task answer, how fast is "
    "the network between two?",
    "server": "a bare TensorFlow server, one task of a cluster, for any client's session",
    "allreduce": "how fast is each reduction on these devices, by size of message and for each model's gradients?",
    "input": "how fast is each stage of the input, and which one limits it?",
    "explain": "how data flows: explain MANAGER --flag=value ...; needs no devices",
    "data": "make, check and convert data sets",
}
FLAGS_OF: Mapping[str, run_flags.Groups] = {
    "run": run_flags.RUN_FLAGS,
    "sweep": grid.help_groups(run_flags.SWEEP_FLAGS),
    "recommend": recommend_verb.RECOMMEND_FLAGS,
    "ab": grid.help_groups(ab_verb.AB_FLAGS),
    "calibrate": grid.help_groups(ab_verb.CALIBRATE_FLAGS),
    "report": report_verb.REPORT_FLAGS,
    "rerun": report_verb.RERUN_FLAGS,
    "diff": report_verb.DIFF_FLAGS,
    "compare": compare_verb.COMPARE_FLAGS,
    "baseline": baseline_verb.BASELINE_FLAGS,
    "check": baseline_verb.CHECK_FLAGS,
    "history": baseline_verb.HISTORY_FLAGS,
    "verify": run_flags.VERIFY_FLAGS,
    "doctor": doctor_verb.DOCTOR_FLAGS,
    "server": run_flags.SERVER_FLAGS,
    "allreduce": run_flags.ALLREDUCE_FLAGS,
    "input": run_flags.INPUT_FLAGS,
    "explain": run_flags.RUN_FLAGS,
    "data": data_verb.DATA_FLAGS,
}
_ANY_NUMBER_OF_GPUS = 10**6
_HELP_WORDS = ("--help", "-h", "--helpfull", "--helpshort")
_VERSION_WORD = "--version"


def main(arguments: Sequence[str]) -> int:
    """Does what the arguments ask for and returns the exit status; an error that is understood is one line on stderr.

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
        return ExitStatus.RUN_FAILED  # Python's own status would be 1, which says that the gate has found something


def dispatch(arguments: Sequence[str]) -> ExitStatus:
    """Does what the arguments ask for.

    Args:
        arguments: the command line without the program's name.

    Raises:
        BenchError: what was asked for cannot be done; the message says why.
    """
    if list(arguments) == [_VERSION_WORD]:
        print(f"cnn-train-bench {SUITE_VERSION}")
        return ExitStatus.OK
    verb, rest = "run", list(arguments)
    if rest and not rest[0].startswith("-"):
        verb = rest.pop(0)
        if verb not in _VERBS:
            raise UsageError(
                f"There is no verb '{verb}'.{did_you_mean(verb, _VERBS)} Verbs: {', '.join(_VERBS)}; "
                "everything else is spelled --flag=value."
            )
    groups = FLAGS_OF[verb]
    if any(word in _HELP_WORDS for word in rest):
        print(_help(verb, groups))
        return ExitStatus.OK
    if verb in _OF_GRIDS:
        return _OF_GRIDS[verb](rest, arguments)
    parsed = run_flags.parse(rest, groups)
    if verb in _WITH_WORDS:
        return _WITH_WORDS[verb](parsed.words, parsed.values)
    values = run_flags.unset(parsed.values)
    if verb == "explain":
        chosen = config.resolve(explain_verb.with_manager(parsed.words, values), lambda: _ANY_NUMBER_OF_GPUS)
        return _print_config(chosen) if values["print_config"] else explain_verb.run(chosen)
    _refuse_words(rest, parsed.words)
    if verb == "allreduce":
        values = device_options.default_to_all(values, _count_gpus())
    return _MEASURING[verb](values, arguments)


def _allreduce(values: dict[str, Any], command: Sequence[str]) -> ExitStatus:
    return allreduce_verb.run(allreduce_verb.resolve(values, _count_gpus), command)


def _input(values: dict[str, Any], command: Sequence[str]) -> ExitStatus:
    seconds = values.pop("seconds")
    return input_verb.run(input_verb.resolve(values, seconds, _count_gpus), command)


def _run(values: dict[str, Any], command: Sequence[str]) -> ExitStatus:
    find_batch = values["batch_size"] == batch_size.AUTO
    resolved = batch_size.resolve(values, command, _count_gpus) if find_batch else config.resolve(values, _count_gpus)
    if values["print_config"]:
        return _print_config(resolved)
    if launch_plan.is_asked_for(values):
        return cluster_launch.run(resolved, values, command, _count_gpus, keeps_record=True)
    return runner.run(resolved, cluster_launch.command_of_user(command, values))


def _verify(values: dict[str, Any], command: Sequence[str]) -> ExitStatus:
    cluster, _ = discovery.resolve(values, os.environ)
    if cluster:
        values["variable_update"] = discovery.manager_for(cluster)
    else:
        values = device_options.default_to_all(values, _count_gpus())
    return _start_or(verify_verb.run, config.resolve(values, _count_gpus), values, command)


def _doctor(values: dict[str, Any], command: Sequence[str]) -> ExitStatus:
    plan = doctor_verb.resolve(values, _count_gpus)
    return _start_or(lambda _: doctor_verb.run(plan, command), plan.chosen, values, command)


def _recommend(values: dict[str, Any], command: Sequence[str]) -> ExitStatus:
    return recommend_verb.run(recommend_verb.resolve(values, _count_gpus), command, _count_gpus)


def _server(values: dict[str, Any], command: Sequence[str]) -> ExitStatus:
    return server_verb.run(server_verb.resolve(values, _count_gpus))


def _start_or(
    work: Callable[[config.Config], ExitStatus],
    resolved: config.Config,
    values: dict[str, Any],
    command: Sequence[str],
) -> ExitStatus:
    """Starts the cluster that the flags ask for, each task of which then works."""
    if launch_plan.is_asked_for(values):
        return cluster_launch.run(resolved, values, command, _count_gpus, keeps_record=False)
    return work(resolved)


_WITH_WORDS = {
    "report": report_verb.run,
    "rerun": report_verb.rerun,
    "diff": report_verb.diff,
    "compare": compare_verb.run,
    "baseline": baseline_verb.run,
    "check": baseline_verb.check,
    "history": baseline_verb.history,
    "data": data_verb.run,
}
_MEASURING = {
    "run": _run,
    "recommend": _recommend,
    "server": _server,
    "allreduce": _allreduce,
    "input": _input,
    "verify": _verify,
    "doctor": _doctor,
}


def _sweep(arguments: Sequence[str], command: Sequence[str]) -> ExitStatus:
    values = _lists(arguments, run_flags.SWEEP_FLAGS)
    return sweep_verb.run(sweep_verb.resolve(values, _count_gpus), command)


def _ab(arguments: Sequence[str], command: Sequence[str]) -> ExitStatus:
    values = _lists(arguments, ab_verb.AB_FLAGS)
    return ab_verb.run(ab_verb.resolve(values, _count_gpus), command, values)


def _calibrate(arguments: Sequence[str], command: Sequence[str]) -> ExitStatus:
    values = _lists(arguments, ab_verb.CALIBRATE_FLAGS)
    return calibrate_verb.run(calibrate_verb.resolve(values, _count_gpus), command)


_OF_GRIDS = {"sweep": _sweep, "ab": _ab, "calibrate": _calibrate}


def _lists(arguments: Sequence[str], own: run_flags.Groups) -> Mapping[str, Any]:
    """Returns the values of flags where each of `run`'s may be a list."""
    parsed = run_flags.parse(grid.spell_out_booleans(arguments), grid.sweep_groups(own))
    _refuse_words(arguments, parsed.words)
    return parsed.values


def _print_config(resolved: config.Config) -> ExitStatus:
    print(json.dumps(resolved.to_dict(), indent=2))
    return ExitStatus.OK


def _count_gpus() -> int:
    return len(hardware.gpu_inventory().gpus)


def _refuse_words(arguments: Sequence[str], words: Sequence[str]) -> None:
    """Refuses words that are no flags, with the fix if a flag stands before."""
    if not words:
        return
    before = arguments[list(arguments).index(words[0]) - 1] if words[0] in arguments[1:] else ""
    fix = f" Did you mean {before}={words[0]}?" if before.startswith("--") and "=" not in before else ""
    raise UsageError(f"'{words[0]}' is no flag.{fix} Flags are spelled --name=value, or --name and --noname.")


def _help(verb: str, groups: run_flags.Groups) -> str:
    verbs = "\n".join(f"  {name:9} {meaning}" for name, meaning in _VERBS.items())
    presets = "|".join(run_flags.presets())
    return (
        "How fast does a CNN train on these devices and this TensorFlow build, and why?\n\n"
        f"usage: run_bench.py [verb] --flag=value ...\n       run_bench.py {_VERSION_WORD}\n\n"
        f"Verbs:\n{verbs}\n\nFlags of '{verb}' "
        f"(also --flagfile=FILE, --preset={presets}; run_bench.py VERB --help for other verbs'):\n"
        f"{run_flags.describe(groups)}"
    )
