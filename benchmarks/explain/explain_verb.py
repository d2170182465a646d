"""The verb `explain`: how data flows in a configuration, a table of models, or the placement of variables."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.cluster import discovery, launch_plan
from benchmarks.config import outside_models
from benchmarks.config.config import ANY_NUMBER_OF_GPUS, Config, resolve
from benchmarks.config.flag import Parsed
from benchmarks.config.run_flags import RUN_FLAGS
from benchmarks.config.variable_update import refuse_reference_loop
from benchmarks.config.verb import Verb
from benchmarks.config.workload import Length
from benchmarks.console import say, warn
from benchmarks.devices import options
from benchmarks.devices.start_tensorflow import start
from benchmarks.errors import ExitStatus, UsageError, did_you_mean
from benchmarks.explain import model_table
from benchmarks.explain.known_gpus import find_gpu
from benchmarks.explain.step_balance import RATE_FLAGS, known_rates
from benchmarks.machine import hardware
from benchmarks.machine.hardware import Inventory
from benchmarks.measure.display import Display
from benchmarks.option import Flag
from benchmarks.process.deadlines import Deadlines
from benchmarks.process.tensorflow_setup import Runtime
from benchmarks.process.watchdog import watched
from benchmarks.run import cluster_launch
from benchmarks.run.run_record import empty_log
from models import specs
from results import placement_tables
from results.text import Table
from variable_mgr.catalog import MANAGERS, SHORTHANDS

_DEFAULT_MANAGER = "replicated"
_OF_SEVERAL_MODELS = frozenset(
    {
        *("model", "batch_size", "precision", "device", "num_gpus", "variable_update", "local_parameter_device"),
        *("all_reduce_spec", "compact_gradient_transfer", "compact_gradient_dtype", "output_format"),
        *(flag.name for flag in RATE_FLAGS),
    }
)
# A few steps are taken, and no record is kept.
_NOT_OF_PLACEMENT = (
    *("check_precision", "print_training_accuracy", "display_every", "session_id"),
    *(flag.name for flag in (*RUN_FLAGS["How long"], *RATE_FLAGS)),
)
# The GPUs of a machine that is not here.
_USUAL_GPUS = 8


def _explain(given: Parsed, command: Sequence[str]) -> ExitStatus:
    """Shows what flags ask for: names of models, a placement, a table of several models, or one data flow."""
    if given.values["list_models"]:
        return _list_models(command)
    values = _with_manager(given.words, given.values)
    if values["placement"]:
        return _placement(values, command)
    assumed = _assumed_machine(values)
    if values["model"] == "all" or "," in (values["model"] or ""):
        return _several_models(values, assumed)
    if values["output_format"] == "json" and not values["print_config"]:
        raise UsageError("explain has JSON of --placement, or of several models, such as --model=resnet50,vgg16.")
    if values["forward_only"]:
        raise UsageError("explain is about gradients and updates, and --forward_only has none: leave it out.")
    entry = MANAGERS.get(values["variable_update"])
    if entry and entry.smallest_cluster and discovery.find_cluster(values, os.environ, of_run=True) is None:
        values["local_cluster"] = entry.smallest_cluster
    values["onednn"] = None  # about kernels of CPUs, and the devices need not exist here
    config = resolve(values, _count_gpus(values), assumed=assumed)
    if values["print_config"]:
        say(json.dumps(config.to_dict(), indent=2))
        return ExitStatus.OK
    warn(*config.notices)
    rates = known_rates(values, config.devices, config.computing.precision)
    start(Runtime())
    from benchmarks.explain import data_flow

    data_flow.show_data_flow(config, rates)
    return ExitStatus.OK


def _assumed_machine(values: Mapping[str, Any]) -> Inventory | None:
    """Returns the machine with the GPUs that --gpu and --link assume; None: GPUs are those of this machine.

    Raises:
        UsageError: there is no such GPU, or other flags are about the devices here.
    """
    if not values["gpu"]:
        return None
    if other := "device=cpu" if values["device"] == "cpu" else values["gpus"] and f"gpus={values['gpus']}":
        raise UsageError(f"--gpu={values['gpu']} and --{other} contradict each other: pass one of them.")
    gpu = find_gpu(values["gpu"])
    return gpu.machine(_USUAL_GPUS, values["link"] or gpu.link)


def _count_gpus(values: Mapping[str, Any]) -> Callable[[], int]:
    """Returns what counts GPUs: as many as flags name need not exist; without such flags, those of a run are meant."""
    names_gpus = values["device"] == "gpu" or values["num_gpus"] is not None or values["gpus"] is not None
    return (lambda: ANY_NUMBER_OF_GPUS) if names_gpus else hardware.count_gpus


def _list_models(command: Sequence[str]) -> ExitStatus:
    if len(command) > 2:
        raise UsageError("explain --list_models prints the names of all models: leave out what is beside it.")
    rows = [
        [spec.name, f"{spec.image_size}", f"{spec.parameters:,}", f"{spec.gflop_per_image:.3g}", spec.title]
        for spec in specs.MODELS
    ]
    columns = ("model", "pixels", "parameters", "GFLOP/image, forward", "")
    say(*Table(columns, rows, columns[1:4]).text(rule=False))
    return ExitStatus.OK


def _with_manager(words: Sequence[str], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the flag values with the manager that was named as a word.

    Raises:
        UsageError: there is no such manager, two are named, or it is a reference loop.
    """
    managers = [*MANAGERS, *SHORTHANDS]
    for word in words:
        if word not in managers or len(words) > 1:
            raise UsageError(
                f"explain: there is no variable manager '{' '.join(words)}'.{did_you_mean(word, managers)} "
                f"Managers: {', '.join(managers)}."
            )
    if words and values["variable_update"] not in (None, words[0]):
        raise UsageError(f"explain: '{words[0]}' and --variable_update={values['variable_update']} name two managers.")
    manager = words[0] if words else values["variable_update"]
    refuse_reference_loop("explain", manager)
    return {**values, "variable_update": manager}


def _several_models(values: Mapping[str, Any], gpus: Inventory | None) -> ExitStatus:
    """Shows a table of the models that --model names, or of all.

    Raises:
        UsageError: there is no such model, or the flags cannot go together.
    """
    if others := [name for name, value in values.items() if value is not None and name not in _OF_SEVERAL_MODELS]:
        raise UsageError(f"--{others[0]} is about one configuration: name one --model.")
    assumed = {**values, "num_gpus": values["num_gpus"] or (_USUAL_GPUS if gpus else None)}
    given = options.default_to_all(assumed, hardware.count_gpus())
    given["variable_update"] = given["variable_update"] or _DEFAULT_MANAGER
    names = specs.names() if given["model"] == "all" else outside_models.names_in(given["model"])
    configs = [
        resolve({**given, "model": name}, lambda: ANY_NUMBER_OF_GPUS, environ={}, assumed=gpus) for name in names
    ]
    configs = list({config.workload.model: config for config in configs}.values())
    rates = known_rates(values, configs[0].devices, configs[0].computing.precision)
    model_table.show_models(configs, rates)
    return ExitStatus.OK


def _placement(values: Mapping[str, Any], command: Sequence[str]) -> ExitStatus:
    """Shows where variables are: of a cluster that this command starts, or of this process.

    Raises:
        UsageError: a flag has no effect on a placement, or the flags cannot go together.
    """
    if others := [name for name in _NOT_OF_PLACEMENT if values[name] is not None]:
        raise UsageError(f"--{others[0]} has no effect with --placement, which takes a few steps: leave it out.")
    config = resolve(values, hardware.count_gpus)
    if values["print_config"]:
        say(json.dumps(config.to_dict(), indent=2))
        return ExitStatus.OK
    if launch_plan.is_asked_for(values):
        return cluster_launch.launch_cluster(config, values, command, saves_record=False)
    show_placement(config)
    return ExitStatus.OK


def show_placement(config: Config) -> None:
    """Takes a few steps, the last of them traced, and prints the placement; in a cluster the leader prints that of all.

    Raises:
        BenchError: the steps cannot be taken.
    """
    warn(*config.notices)
    # Asynchronous workers take turns as they like: so many steps of the fastest one are a step of all.
    length = Length(num_batches=config.processes.num_workers, num_warmup_batches=0)
    config = dataclasses.replace(config, length=length)
    log = empty_log(config)
    log.traced_always = True
    with watched() as watchdog:
        deadlines = Deadlines(watchdog, config.processes.step_timeout_seconds)
        start(config.runtime, deadlines)
        from benchmarks.run import cluster_run

        cluster_run.join_and_run(config, log, Display(), deadlines.silent())
    if config.processes.leads:
        placement = log.placement_of_all()
        if config.output.output_format == "json":
            say(json.dumps(placement))
        else:
            _say_placement(placement, placement_tables.transfer_notes(placement))


def _say_placement(placement: Mapping[str, Any], notes: Sequence[str]) -> None:
    say(f"{placement['manager']}\n")
    sums = placement_tables.aggregation_table(placement)
    for title, table, empty in (
        ("Variables", placement_tables.variable_table(placement), "none"),
        ("Sums of gradients over towers", sums, "none: no operation adds gradients of several towers"),
        ("Transfers per step", placement_tables.transfer_table(placement), "none"),
        ("Bytes per device", placement_tables.device_table(placement), "none"),
    ):
        say(title, *(f"  {line}" for line in (table.text() if table.rows else [empty])), "")
    say(*notes)


VERB = Verb(
    "explain",
    {
        "What is explained": (
            Flag("placement", bool, "take a few steps, and show the placement that they had"),
            Flag("list_models", bool, "print the names of the models"),
        ),
        **RUN_FLAGS,
        "Rates": RATE_FLAGS,
    },
    _explain,
    takes="words",
    words="[MANAGER]",
    known_words=(*MANAGERS, *SHORTHANDS),
    details="It needs no devices, except with --placement, and explains what `run` with the same flags would do. With "
    "--model=all or several models: a table of what each computes and sends. With --gpu: the configuration and rate "
    "of a run on a machine with such GPUs.",
    examples=(
        "explain replicated --num_gpus=8 --model=vgg16",
        "explain replicated --gpu=H100 --num_gpus=8 --model=resnet50_v1.5",
        "explain --model=alexnet,vgg16,resnet50 --num_gpus=8 --gpu=A100 --precision=fp16",
        "explain replicated --placement --model=vgg16 --device=cpu --num_gpus=2",
    ),
)
