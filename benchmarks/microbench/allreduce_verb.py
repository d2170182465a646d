"""The verb `allreduce`: the speed and the error of each reduction on these devices. Imports TensorFlow late."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.cluster import ranks
from benchmarks.config import config, outside_models
from benchmarks.config.config import Config
from benchmarks.config.flag import Parsed
from benchmarks.config.run_flags import RUN_FLAGS, SEVERAL_DEVICES
from benchmarks.config.verb import Verb
from benchmarks.console import progress, warn
from benchmarks.devices import options
from benchmarks.devices.start_tensorflow import start
from benchmarks.errors import ExitStatus, UsageError
from benchmarks.machine import hardware
from benchmarks.machine.provenance import of_this_run
from benchmarks.microbench.allreduce_report import Message, ReductionReport, of_size
from benchmarks.option import Flag, Groups, only
from benchmarks.outside_text import counts
from benchmarks.process.deadlines import Deadlines, recorded
from benchmarks.process.signals import until_stopped
from benchmarks.process.watchdog import watched
from benchmarks.record_files import open_store
from variable_mgr.modifiers import why_not
from variable_mgr.place import Place
from variable_mgr.reductions.algorithm_catalog import ALGORITHMS
from variable_mgr.reductions.all_reduce_spec import SpecError, canonical, parse_size

if TYPE_CHECKING:
    from variable_mgr.reductions.all_reduce import Reduction

_DEFAULTS: dict[str, Any] = {
    "variable_update": "replicated",
    "min_bytes": "1K",
    "max_bytes": "64M",
    "num_batches": 20,
    "num_warmup_batches": 5,
}
# Their gradients differ in size and number.
_USUAL_MODELS = "alexnet,inception3,resnet50,vgg16"
_ENOUGH_SECONDS = 10.0
_NUMBERS_PER_REDUCTION = 10**6
_MOST_DEVICES = 64  # a ring of n devices has 2 n (n-1) operations for each tensor


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllReducePlan:
    """The reductions and messages to measure."""

    chosen: Config  # all devices, wrappers around the reductions, number of steps, output
    places: Mapping[int, Place]  # of towers that reduce together, by their number, ascending
    specs: tuple[str, ...]  # values of `--all_reduce_spec`
    cannot: Mapping[int, Mapping[str, str]]  # by number of devices, reductions that cannot run, each with the reason
    sizes_bytes: tuple[int, ...]  # of the messages of one tensor
    models: tuple[str, ...]  # whose gradients are further messages
    budget_seconds: float  # for all messages together


def allreduce_options(values: Mapping[str, Any], count_gpus: Callable[[], int]) -> AllReducePlan:
    """Turns flag values (None: not given) into a plan.

    Raises:
        UsageError: a value is invalid, a named reduction can run on none of the devices, or they are one or too many.
    """
    given: dict[str, Any] = {name: _DEFAULTS.get(name) if value is None else value for name, value in values.items()}
    named = list(map(canonical, given["all_reduce_spec"].split(","))) if given["all_reduce_spec"] else []
    numbers = counts(str(given["num_gpus"] or 1))
    if numbers is None:
        raise UsageError(f"--num_gpus={given['num_gpus']}: pass one or more numbers of devices, such as 8 or 1,2,4,8.")
    chosen = config.resolve({**given, "num_gpus": numbers[-1], "all_reduce_spec": None, "model": None}, count_gpus, {})
    if chosen.devices.num_devices < 2:
        raise UsageError("allreduce needs several devices, as one has nothing to exchange: pass --num_gpus=2 or more.")
    if numbers[-1] > _MOST_DEVICES:
        raise UsageError(
            f"--num_gpus={given['num_gpus']}: graphs of so many devices take too long to build: pass at most "
            f"{_MOST_DEVICES}."
        )
    if 1 in numbers:
        warn("1 device has nothing to exchange: nothing is measured on it.")
    specs = tuple(dict.fromkeys(named or ALGORITHMS))
    places = {count: chosen.place_of(count) for count in numbers if count > 1}
    cannot: dict[int, dict[str, str]] = {}
    for count, place in places.items():
        reasons = {
            spec: why_not("replicated", dataclasses.replace(chosen.variables.modifiers, all_reduce_spec=spec), place)
            for spec in specs
        }
        cannot[count] = {spec: reason for spec, reason in reasons.items() if reason}
    nowhere = [spec for spec in specs if all(spec in reasons for reasons in cannot.values())]
    if named and nowhere:
        raise UsageError(cannot[numbers[-1]][nowhere[0]])
    names = outside_models.names_in(given["model"] or _USUAL_MODELS)
    models = () if given["model"] == "none" else tuple(outside_models.find_any_model(name).name for name in names)
    return AllReducePlan(
        chosen=chosen,
        places=places,
        specs=tuple(spec for spec in specs if spec not in nowhere),
        cannot=cannot,
        sizes_bytes=_sizes(given["min_bytes"], given["max_bytes"]),
        models=models,
        budget_seconds=given["budget_seconds"] or math.inf,
    )


def _sizes(smallest: str, largest: str) -> tuple[int, ...]:
    """Returns the powers of two from 4 on between two sizes in bytes."""
    try:
        low, high = map(parse_size, (smallest, largest))
    except SpecError as error:
        raise UsageError(f"--min_bytes={smallest} --max_bytes={largest}: {error}") from error
    sizes = tuple(2**power for power in range(2, 41) if low <= 2**power <= high)
    if not sizes:
        raise UsageError(f"--min_bytes={smallest} --max_bytes={largest}: no power of two from 4 on lies between.")
    return sizes


def run_allreduce(plan: AllReducePlan, command: Sequence[str]) -> ExitStatus:
    """Measures all messages, saves a record and prints a row for each reduction of each message.

    Raises:
        UsageError: devices are missing, or results cannot be written.
    """
    chosen = plan.chosen
    warn(*chosen.notices)
    with watched() as watchdog:
        deadlines = Deadlines(watchdog, chosen.processes.step_timeout_seconds)
        deadlines.opening("Opening the results directory")
        store = open_store(chosen.output.output_dir)
        deadlines.opening("Looking at this machine")
        provenance = of_this_run(command, on_gpus=chosen.devices.on_gpu)
        _, session_config = start(chosen.runtime, deadlines)
        deadlines.preparation("Building the models")
        comparisons = list(itertools.product(_messages(plan), plan.places))
    from benchmarks.devices import device_plan
    from benchmarks.microbench import allreduce

    report = ReductionReport(
        store,
        provenance,
        {
            count: device_plan.plan(dataclasses.replace(chosen.devices, num_devices=count), shared_on="cpu").description
            for count in plan.places
        },
        devices=chosen.devices,
        precision=chosen.computing.precision,
        modifiers=chosen.variables.modifiers,
        as_text=chosen.output.output_format == "text",
    )
    report.open(plan.cannot)
    reductions = _reductions(plan)
    how_long = {"warmup_rounds": chosen.length.num_warmup_batches, "rounds": chosen.length.num_batches or 0}
    limit, begun, number = plan.budget_seconds, time.monotonic(), len(comparisons)
    with progress.counted("reducing messages", number):
        for done, (message, count) in enumerate(comparisons):
            left = limit - (time.monotonic() - begun)
            if left <= 0:
                warn(f"--budget_seconds={limit:g} is over: {number - done} of {number} are left out.")
                break
            give_up = functools.partial(report.give_up, message, count, reductions[count])
            with recorded(chosen.processes.step_timeout_seconds, give_up) as deadlines:
                timings = allreduce.measure(
                    message,
                    reductions[count],
                    plan.places[count],
                    session_config,
                    **how_long,
                    enough_seconds=min(_ENOUGH_SECONDS, left / (number - done)),
                    deadlines=deadlines,
                )
            report.add(message, count, timings)
            progress.advance()
    return report.close()


def _reductions(plan: AllReducePlan) -> dict[int, dict[str, Reduction]]:
    """Returns the reductions that each number of devices can run, by spec."""
    from variable_mgr.reductions import wrappers

    numbers = itertools.count(step=_NUMBERS_PER_REDUCTION)
    return {
        count: {
            spec: wrappers.reduction(place, plan.chosen.variables.modifiers, spec, first_number=next(numbers))
            for spec in plan.specs
            if spec not in plan.cannot[count]
        }
        for count, place in plan.places.items()
    }


def _messages(plan: AllReducePlan) -> list[Message]:
    from benchmarks.microbench import allreduce

    return [*map(of_size, plan.sizes_bytes), *map(allreduce.of_model, plan.models)]


_AROUND_THE_REDUCTION = ("gradient_repacking", "agg_small_grads_max_", "compact_gradient_")
_NUMBERS_OF_DEVICES = dataclasses.replace(
    *only(SEVERAL_DEVICES, "num_gpus"),
    kind=str,
    help=f"number of devices, at most {_MOST_DEVICES}; 1,2,4,8 compares several",
    at_least=None,
)
ALLREDUCE_FLAGS: Groups = {
    "What is reduced, and how": (
        Flag("all_reduce_spec", str, "reductions to compare, such as pscpu,xring#2", default="all that can run here"),
        Flag("min_bytes", str, "smallest message in bytes, such as 4096, 64K or 1M", default=_DEFAULTS["min_bytes"]),
        Flag(
            "max_bytes",
            str,
            "largest message in bytes; sizes in between are powers of two",
            default=_DEFAULTS["max_bytes"],
        ),
        Flag("model", str, "models whose gradients are reduced, too; none: no model", default=_USUAL_MODELS),
        *(flag for flag in RUN_FLAGS["Variables and gradients"] if flag.name.startswith(_AROUND_THE_REDUCTION)),
    ),
    "Devices": [_NUMBERS_OF_DEVICES if flag.name == "num_gpus" else flag for flag in SEVERAL_DEVICES],
    "How long": (
        Flag(
            "num_batches",
            int,
            "measured steps per message; in each, every reduction runs once",
            default=_DEFAULTS["num_batches"],
            at_least=1,
        ),
        Flag(
            "num_warmup_batches",
            int,
            "warm-up steps, in which graphs are optimised and NCCL connects the GPUs",
            default=_DEFAULTS["num_warmup_batches"],
            at_least=0,
        ),
        Flag(
            "budget_seconds",
            float,
            "time budget of all messages, in equal shares; each takes at least three steps, and none begins later",
            above=0,
        ),
        *only(RUN_FLAGS["Several processes"], "step_timeout_seconds"),
    ),
    "Output": only(RUN_FLAGS["Output"], "output_dir", "output_format"),
}


def _resolve_and_run(given: Parsed, command: Sequence[str]) -> ExitStatus:
    warn(*ranks.refuse_copies(os.environ, can_join=False))
    plan = allreduce_options(options.default_to_all(given.values, hardware.count_gpus()), hardware.count_gpus)
    return until_stopped(
        lambda: run_allreduce(plan, command), "Stopped: the records of the finished messages are kept."
    )


VERB = Verb(
    "allreduce",
    ALLREDUCE_FLAGS,
    _resolve_and_run,
    details="Messages are single tensors of each size, and each model's gradients. Unless a flag packs them, gradients "
    "travel one by one, also with nccl, under which `run` groups them.",
    examples=(
        "allreduce --num_gpus=8",
        "allreduce --num_gpus=1,2,4,8 --budget_seconds=120",
        "allreduce --device=cpu --num_gpus=2 --all_reduce_spec=pscpu,xring",
    ),
)
