"""The verb `allreduce`: the speed and the error of each reduction on these devices. Imports TensorFlow late."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.config import config, device_options
from benchmarks.config.config import Config
from benchmarks.config.flag import Flag, Groups, only
from benchmarks.config.run_flags import RUN_FLAGS, SEVERAL_DEVICES
from benchmarks.config.verb import Verb
from benchmarks.console import progress
from benchmarks.errors import ExitStatus, UsageError
from benchmarks.microbench.allreduce_report import Report, of_size
from benchmarks.process.deadlines import Deadlines, recorded
from benchmarks.process.signals import until_stopped
from benchmarks.process.watchdog import watched
from benchmarks.record_files import open_store
from benchmarks.system import hardware
from benchmarks.system.provenance import of_this_run
from benchmarks.topology.start import start
from models import specs
from variable_mgr.modifiers import why_not
from variable_mgr.reductions.algorithms import ALGORITHMS
from variable_mgr.reductions.all_reduce_spec import UNITS

_DEFAULTS: dict[str, Any] = {
    "variable_update": "replicated",
    "min_bytes": "1K",
    "max_bytes": "64M",
    "num_batches": 20,
    "num_warmup_batches": 2,
}
_ENOUGH_SECONDS = 10.0
_NUMBERS_PER_REDUCTION = 10**6
_SIZE = re.compile(r"(?P<number>\d+)(?P<unit>[kmg]?)", re.IGNORECASE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllReducePlan:
    """The reductions and messages to measure."""

    chosen: Config  # devices, wrappers around the reductions, number of rounds, output
    specs: tuple[str, ...]  # values of `--all_reduce_spec`
    cannot: Mapping[str, str]  # reductions that cannot run here, each with the reason
    sizes_bytes: tuple[int, ...]  # of the messages of one tensor
    models: tuple[str, ...]  # whose gradients are further messages


def resolve(values: Mapping[str, Any], count_gpus: Callable[[], int]) -> AllReducePlan:
    """Turns flag values (None: not given) into a plan.

    Raises:
        UsageError: a value is invalid, a named reduction cannot run here, or there is only one device.
    """
    given: dict[str, Any] = {name: _DEFAULTS.get(name) if value is None else value for name, value in values.items()}
    named = given["all_reduce_spec"].split(",") if given["all_reduce_spec"] else []
    chosen = config.resolve({**given, "all_reduce_spec": None, "model": None}, count_gpus, environ={})
    if chosen.num_devices < 2:
        raise UsageError("allreduce needs several devices: pass --num_gpus=2 or more.")
    cannot = {}
    for spec in named or ALGORITHMS:
        problem = why_not("replicated", dataclasses.replace(chosen.modifiers, all_reduce_spec=spec), chosen.place)
        if problem and named:
            raise UsageError(problem)
        if problem:
            cannot[spec] = problem
    try:
        names = given["model"].split(",") if given["model"] else specs.names()
        models = () if given["model"] == "none" else tuple(specs.find(name).name for name in names)
    except specs.UnknownModelError as error:
        raise UsageError(str(error)) from error
    return AllReducePlan(
        chosen=chosen,
        specs=tuple(dict.fromkeys(spec for spec in named or ALGORITHMS if spec not in cannot)),
        cannot=cannot,
        sizes_bytes=_sizes(given["min_bytes"], given["max_bytes"]),
        models=models,
    )


def _sizes(smallest: str, largest: str) -> tuple[int, ...]:
    """Returns the powers of two from 4 on between two sizes in bytes."""
    limits = []
    for flag, text in (("min_bytes", smallest), ("max_bytes", largest)):
        match = _SIZE.fullmatch(text)
        if not match:
            raise UsageError(f"--{flag}={text}: pass a number of bytes, such as 4096, 64K or 16M.")
        limits.append(int(match["number"]) * UNITS[match["unit"].upper()])
    sizes = tuple(2**power for power in range(2, 41) if limits[0] <= 2**power <= limits[1])
    if not sizes:
        raise UsageError(f"--min_bytes={smallest} --max_bytes={largest}: no power of two from 4 on lies between.")
    return sizes


def run(plan: AllReducePlan, command: Sequence[str]) -> ExitStatus:
    """Measures all messages, saves a record and prints a row for each reduction of each message.

    Raises:
        UsageError: devices are missing, or results cannot be written.
    """
    return until_stopped(lambda: _measure(plan, command), "Stopped: the records of the finished messages are kept.")


def _measure(plan: AllReducePlan, command: Sequence[str]) -> ExitStatus:
    chosen = plan.chosen
    with watched() as watchdog:
        deadlines = Deadlines(watchdog, chosen.step_timeout_seconds)
        deadlines.opening("Opening the results directory")
        store = open_store(chosen.output_dir)
        deadlines.opening("Looking at this machine")
        provenance = of_this_run(command, on_gpus=chosen.device == "gpu")
        deadlines.importing()
        where, session_config = start(chosen.runtime)
    from benchmarks.microbench import allreduce
    from variable_mgr.reductions import wrappers

    report = Report(
        store,
        provenance,
        where.description,
        runtime=chosen.runtime,
        precision=chosen.precision,
        modifiers=chosen.modifiers,
        as_text=chosen.output_format == "text",
    )
    report.open(plan.cannot)
    reductions = {
        spec: wrappers.reduction(where.place, chosen.modifiers, spec, first_number=number * _NUMBERS_PER_REDUCTION)
        for number, spec in enumerate(plan.specs)
    }
    how_long = {"warmup_rounds": chosen.num_warmup_batches, "rounds": chosen.num_batches or 0}
    with recorded(chosen.step_timeout_seconds, lambda error: report.give_up(plan.specs, error)) as deadlines:
        deadlines.preparation("Building the models")
        messages = [of_size(size) for size in plan.sizes_bytes]
        for message in map(allreduce.of_model, plan.models):
            if all(
                message.shapes != other.shapes for other in messages
            ):  # two versions of ResNet-50 have equal gradients
                messages.append(message)
        with progress.counted("reducing messages", len(messages)):
            for message in messages:
                report.begin(message)
                timings = allreduce.measure(
                    message,
                    reductions,
                    where.place,
                    session_config,
                    **how_long,
                    enough_seconds=_ENOUGH_SECONDS,
                    deadlines=deadlines,
                )
                report.add(message, timings)
                progress.advance()
    return report.close()


_AROUND_THE_REDUCTION = ("gradient_repacking", "agg_small_grads_max_", "compact_gradient_")
ALLREDUCE_FLAGS: Groups = {
    "What is reduced, and how": (
        Flag("all_reduce_spec", str, "reductions to compare, such as pscpu,xring#2", default="all that can run here"),
        Flag("min_bytes", str, "smallest message, with K, M or G", default=_DEFAULTS["min_bytes"]),
        Flag(
            "max_bytes",
            str,
            "largest message; the sizes between are powers of two",
            default=_DEFAULTS["max_bytes"],
        ),
        Flag("model", str, "models whose gradients are reduced, such as resnet50,vgg16, or none", default="all models"),
        *(flag for flag in RUN_FLAGS["Variables and gradients"] if flag.name.startswith(_AROUND_THE_REDUCTION)),
    ),
    "Devices": SEVERAL_DEVICES,
    "How long": (
        Flag(
            "num_batches",
            int,
            "measured rounds per message; each round runs every reduction once",
            default=_DEFAULTS["num_batches"],
            at_least=1,
        ),
        Flag(
            "num_warmup_batches",
            int,
            "rounds before measuring",
            default=_DEFAULTS["num_warmup_batches"],
            at_least=0,
        ),
        *only(RUN_FLAGS["Several processes"], "step_timeout_seconds"),
    ),
    "Output": only(RUN_FLAGS["Output"], "output_dir", "output_format"),
}
VERB = Verb(
    "allreduce",
    "how fast is each reduction of gradients, by message size?",
    ALLREDUCE_FLAGS,
    lambda given, command: run(
        resolve(device_options.default_to_all(given.values, hardware.count_gpus()), hardware.count_gpus), command
    ),
    details="Messages are single tensors of each size, and each model's gradients.",
    examples=("allreduce --num_gpus=8", "allreduce --device=cpu --num_gpus=2 --all_reduce_spec=pscpu,xring"),
)
