"""The verb `recommend`: finds the settings that train fastest on this machine. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.config import config, run_flags
from benchmarks.config.flag import Parsed
from benchmarks.config.run_flags import RUN_FLAGS
from benchmarks.config.verb import Verb
from benchmarks.console import in_words, say, warn
from benchmarks.errors import ExitStatus, UsageError
from benchmarks.machine import gpu_topology
from benchmarks.machine.hardware import count_gpus
from benchmarks.option import Flag, Groups, only
from benchmarks.process.signals import until_stopped
from benchmarks.process.tensorflow_setup import Devices
from benchmarks.sweep.isolated_run import CellRunner, new_session
from benchmarks.tune import search_stages
from benchmarks.tune.batch_size import OF_THE_RUN_ITSELF
from benchmarks.tune.halving import NOT_RUN
from benchmarks.tune.search import (
    DEFAULT_OUTPUT_DIR,
    Answer,
    Finder,
    RecommendPlan,
    StageTable,
    command_line,
    default_budget,
    estimate_run_seconds,
    runs_of,
    unrun,
)
from results import store, text
from results.record import strict
from results.text import counted

# For these flags, `auto` asks to vary them; for other flags it is a value.
_VARIED_IF_AUTO = ("batch_size", "data_format")
# It runs single processes, chooses the length of each run, and none may continue another one's training, or the user's.
# A pipeline fixes the manager and the number of devices.
_OTHER_GROUPS = ("Several processes", *OF_THE_RUN_ITSELF)
_NOT_ASKED = ("check_precision", "log_device_placement", "print_training_accuracy", "pipeline_stages", "micro_batches")
_FLAGFILE = "recommended.flags"
_OWN = ("budget_seconds", "dry_run", "output_dir", "output_format")


def plan_search(values: Mapping[str, Any], count_gpus: Callable[[], int]) -> RecommendPlan:
    """Turns flag values (None: not given) into a plan.

    Raises:
        UsageError: a value is invalid.
    """
    given = {name: value for name, value in values.items() if name not in _OWN and value is not None}
    given = {name: value for name, value in given.items() if value != "auto" or name not in _VARIED_IF_AUTO}
    given = {"model": "resnet50", **given}
    usual = config.resolve(run_flags.unset(given), count_gpus)
    if usual.processes.cluster:
        raise UsageError("recommend searches settings for one process, but TF_CONFIG names a cluster: unset it.")
    fixed = dict(word.removeprefix("--").split("=", 1) for word in run_flags.words(given))
    stages = search_stages.stages(fixed, usual)
    return RecommendPlan(
        fixed=fixed,
        usual=usual,
        stages=stages,
        budget_seconds=values["budget_seconds"] or default_budget(usual, stages),
        output_dir=values["output_dir"] or DEFAULT_OUTPUT_DIR,
        output_format=values["output_format"] or "text",
    )


def run_recommend(plan: RecommendPlan, command: Sequence[str], count_gpus: Callable[[], int]) -> ExitStatus:
    """Finds the best settings and prints them.

    Raises:
        UsageError: the results directory cannot be written.
    """
    provenance = new_session(command, on_gpus=plan.usual.devices.on_gpu)
    finder = Finder(plan, CellRunner(output_dir=plan.output_dir, provenance=provenance), count_gpus)
    status = until_stopped(finder.run_stages)
    answer = finder.answer(is_complete=status is ExitStatus.OK)
    if status is ExitStatus.OK and answer.best is None:
        status = ExitStatus.RUN_FAILED
    _print(plan, answer)
    return status


def _print(plan: RecommendPlan, answer: Answer) -> None:
    by_topology = _by_topology(plan.usual.devices)
    flagfile = _write_flagfile(plan.output_dir, answer.arguments) if answer.is_complete and answer.best else None
    if plan.output_format == "json":
        found = {"command": command_line(answer.arguments), **dataclasses.asdict(answer)}
        say(json.dumps(strict({**found, "by_topology": by_topology, "flagfile": flagfile})))
        return
    for table in answer.tables:
        say(*_table_lines(table), "")
    say(*_conclusion(answer), *answer.notes, f"Records of all runs: {answer.results}")
    if by_topology:
        say(by_topology)
    if flagfile:
        say(f"The same flags: run_bench.py --flagfile={shlex.quote(flagfile)}")


def _table_lines(table: StageTable) -> Iterator[str]:
    late = sum(row.reason.startswith(NOT_RUN) for row in table.rows)
    missing = f", {late} of {len(table.rows)} not run" if late else ""
    yield f"{_title(table)}{missing}:"
    cells = []
    for number, row in enumerate(table.rows, start=1):
        rank = ">" if row.is_taken else "-" if row.reason else "~" if row.is_close else str(number)
        rate, interval = (each.rounded(), each.range()) if (each := row.images_per_sec) else ("", "")
        steps = f"{row.steps} in {counted(row.runs, 'run')}" if row.runs else ""
        cells.append([rank, rate, interval, steps, " ".join(row.arguments) or "as given", row.reason])
    columns = ("", "images/s", "95 % interval", "steps", "settings", "")
    yield from text.Table(columns, cells, ("images/s",)).text(rule=False)
    if any(row.is_taken for row in table.rows):
        yield "> taken" + ("; ~ within its noise" if any(row.is_close for row in table.rows) else "")


def _title(table: StageTable) -> str:
    return f"{table.title[0].upper()}{table.title[1:]}, on {counted(table.devices, 'device')}"


def _conclusion(answer: Answer) -> Iterator[str]:
    best = answer.best
    if not answer.is_complete:
        yield "Interrupted; the best so far:" if best else "Interrupted: there is no answer yet."
    if best is None or best.images_per_sec is None:
        yield "" if not answer.is_complete else "There is no answer: the tables give the reasons."
        return
    interval = f" ({span})" if (span := best.images_per_sec.range()) else ""
    rate = f"{best.images_per_sec.rounded()} images/s on {counted(answer.devices, 'device')}{interval}"
    yield f"Best: {rate}, found in {in_words(answer.seconds)}:"
    yield from ("", command_line(answer.arguments), "")
    if not (best.is_repeated or best.is_default):
        yield "It was not repeated after it was selected, so its rate and interval are biased upwards by the selection."


def _write_flagfile(directory: str, arguments: Sequence[str]) -> str | None:
    """Writes flags into a file for `--flagfile`, and returns its path; None if it cannot be written."""
    path = Path(directory) / _FLAGFILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        store.replace(path, "".join(f"{word}\n" for word in arguments))
    except OSError as error:
        warn(f"{path} cannot be written ({error.strerror}): pass the flags themselves.")
        return None
    return str(path)


def _by_topology(devices: Devices) -> str | None:
    if not devices.on_gpu or devices.virtual_gpus > 1:
        return None
    return gpu_topology.advice(gpu_topology.read_gpu_links().only(devices.gpu_numbers))


def _plan_and_run(given: Parsed, command: Sequence[str]) -> ExitStatus:
    plan = plan_search(given.values, count_gpus)
    warn(*plan.usual.notices)
    runs, each = runs_of(plan.stages), estimate_run_seconds(plan.usual)
    what = f"about {counted(runs, 'run')} of {in_words(each)}: {in_words(runs * each)} by a rough estimate"
    warn(f"The search needs {what}. It ends after {in_words(plan.budget_seconds)} (--budget_seconds).")
    if not given.values["dry_run"]:
        return run_recommend(plan, command, count_gpus)
    tables = list(_tables_without_runs(plan))
    if plan.output_format == "json":
        say(json.dumps({"tables": [dataclasses.asdict(table) for table in tables]}))
    else:
        for table in tables:
            candidates = ("  ".join((" ".join(row.arguments) or "as given", row.reason)) for row in table.rows)
            say(_title(table), *(f"  {line.removesuffix(NOT_RUN).rstrip()}" for line in candidates), "")
    return ExitStatus.OK


def _tables_without_runs(plan: RecommendPlan) -> Iterator[StageTable]:
    """Yields each stage with its candidates on top of the defaults."""
    chosen: search_stages.Texts = {}
    for stage in plan.stages:
        candidates = search_stages.cells(stage, plan.fixed, chosen, count_gpus)
        if stage.title == search_stages.MANAGERS:
            chosen = stage.choices[-1]  # it reduces gradients, as the next stage needs it
        if len(candidates) > 1 or stage.title == search_stages.MANAGERS:
            rows = [unrun(*candidate) for candidate in candidates]
            yield StageTable(title=stage.title, devices=stage.devices, rows=rows)


RECOMMEND_FLAGS: Groups = {
    "The search": (
        Flag(
            "budget_seconds",
            float,
            "time limit of the search; each stage gets a share of it",
            default="what the search needs, by an estimate",
            above=0,
        ),
        Flag("dry_run", bool, "print the candidates and stop"),
        Flag(
            "output_dir",
            str,
            "directory of the records and logs of all runs",
            default=DEFAULT_OUTPUT_DIR,
            path="directory",
        ),
        *only(RUN_FLAGS["Output"], "output_format"),
    ),
    **{
        title: [flag for flag in group if flag.name not in _NOT_ASKED]
        for title, group in RUN_FLAGS.items()
        if title not in _OTHER_GROUPS
    },
}
VERB = Verb(
    "recommend",
    RECOMMEND_FLAGS,
    _plan_and_run,
    details="A flag of a run that is given is not varied. Without --precision, every precision is tried for which GPUs "
    "have tensor cores, or CPUs have instructions. The answer is also a file for --flagfile.",
    examples=(
        "recommend --model=resnet50 --num_gpus=8 --budget_seconds=600",
        "recommend --model=resnet50 --num_gpus=8 --dry_run",
    ),
)
