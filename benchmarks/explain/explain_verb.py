"""The verb `explain`: how data flows in a configuration, a table of models, or the placement of variables.

The verbs `models` and `placement` are the second and the third, with fewer flags.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.cluster import launch_plan
from benchmarks.config.config import ANY_NUMBER_OF_GPUS, Config, resolve
from benchmarks.config.flag import Parsed
from benchmarks.config.run_flags import RUN_FLAGS
from benchmarks.config.verb import Verb
from benchmarks.config.workload import Length
from benchmarks.console import say, warn
from benchmarks.devices import options
from benchmarks.devices.start_tensorflow import start
from benchmarks.errors import ExitStatus, UsageError, did_you_mean
from benchmarks.explain import data_flow, model_table
from benchmarks.explain.step_balance import RATE_FLAGS, known_rates
from benchmarks.machine import hardware
from benchmarks.measure.display import Display
from benchmarks.option import Flag, Groups, only
from benchmarks.process.deadlines import Deadlines
from benchmarks.process.watchdog import watched
from benchmarks.run import cluster_launch
from benchmarks.run.run_record import empty_log
from models import specs
from results import placement_tables
from variable_mgr.catalog import MANAGERS, REFERENCE_LOOPS, SHORTHANDS

_DEFAULT_MANAGER = "replicated"
_CLUSTERS = ("local_cluster", "worker_hosts", "cluster_spec")
_MANAGER_OF_MODELS = dataclasses.replace(
    only(RUN_FLAGS["Variables and gradients"], "variable_update")[0],
    help="variable manager whose traffic is assumed",
    choices=(*(name for name, entry in MANAGERS.items() if entry.smallest_cluster is None), *SHORTHANDS),
    default=_DEFAULT_MANAGER,
)
_ASSUMED = ("local_parameter_device", "all_reduce_spec", "compact_gradient_transfer", "compact_gradient_dtype")
MODELS_FLAGS: Groups = {
    "What is trained": (
        Flag(
            "model",
            str,
            "models, such as alexnet,vgg16; also as words, and those of other code, see run",
            default="all",
        ),
        Flag("batch_size", int, "images per device and step", default="the model's, smaller on a CPU", at_least=1),
        *only(RUN_FLAGS["What is trained"], "precision"),
    ),
    "Devices and managers": (
        *only(RUN_FLAGS["Devices"], "device"),
        Flag("num_gpus", int, "devices, which need not exist", default="all GPUs, or two", at_least=1),
        _MANAGER_OF_MODELS,
        *only(RUN_FLAGS["Variables and gradients"], *_ASSUMED),
    ),
    "Rates": RATE_FLAGS,
    "Output": only(RUN_FLAGS["Output"], "output_format"),
}
# A few steps are taken, and no record is kept.
_NOT_HERE = ("check_precision", "print_training_accuracy", "display_every", "session_id")
PLACEMENT_FLAGS: Groups = {
    title: [flag for flag in group if flag.name not in _NOT_HERE]
    for title, group in RUN_FLAGS.items()
    if title != "How long"
}


def _explain(given: Parsed, command: Sequence[str]) -> ExitStatus:
    """Shows what flags ask for: a placement, or of several models a table, or of one configuration its data flow."""
    values = _with_manager("explain", given.words, given.values)
    if values["placement"]:
        return _placement(values, command)
    names = (values["model"] or "").split(",")
    if names == ["all"] or len(names) > 1 or not (values["model"] or values["variable_update"]):
        known = {flag.name for group in MODELS_FLAGS.values() for flag in group}
        if others := [name for name, value in values.items() if value is not None and name not in known]:
            raise UsageError(f"--{others[0]} is about one configuration: name its --model.")
        return _models((), values)
    if values["forward_only"]:
        raise UsageError("explain is about gradients and updates, and --forward_only has none: leave it out.")
    entry = MANAGERS.get(values["variable_update"])
    if entry and entry.smallest_cluster and not any(values[name] for name in _CLUSTERS):
        values["local_cluster"] = entry.smallest_cluster
    values["onednn"] = None  # about kernels of CPUs, and the devices need not exist here
    config = resolve(values, lambda: ANY_NUMBER_OF_GPUS)
    if values["print_config"]:
        say(json.dumps(config.to_dict(), indent=2))
        return ExitStatus.OK
    data_flow.show_data_flow(config, known_rates(values, config.devices, config.computing.precision))
    return ExitStatus.OK


def _with_manager(verb: str, words: Sequence[str], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the flag values with the manager that was named as a word.

    Raises:
        UsageError: there is no such manager, two are named, or it is a reference loop.
    """
    managers = [*MANAGERS, *SHORTHANDS]
    for word in words:
        if word not in managers or len(words) > 1:
            raise UsageError(
                f"{verb}: there is no variable manager '{' '.join(words)}'.{did_you_mean(word, managers)} "
                f"Managers: {', '.join(managers)}."
            )
    if words and values["variable_update"] not in (None, words[0]):
        raise UsageError(f"{verb}: '{words[0]}' and --variable_update={values['variable_update']} name two managers.")
    manager = words[0] if words else values["variable_update"]
    if manager in REFERENCE_LOOPS:
        raise UsageError(
            f"{verb} knows variable managers, and {manager} is a reference training loop: name one of "
            f"{', '.join(MANAGERS)}."
        )
    return {**values, "variable_update": manager}


def _models(words: Sequence[str], values: Mapping[str, Any]) -> ExitStatus:
    """Shows a table of the models that words and --model name, or of all.

    Raises:
        UsageError: there is no such model, or the flags cannot go together.
    """
    given = options.default_to_all(values, hardware.count_gpus())
    given["variable_update"] = given["variable_update"] or _DEFAULT_MANAGER
    named = [*words, *(given["model"].split(",") if given["model"] else ())]
    configs = [
        resolve({**given, "model": name}, lambda: ANY_NUMBER_OF_GPUS, environ={})
        for name in (specs.names() if named in ([], ["all"]) else named)
    ]
    configs = list({config.workload.model: config for config in configs}.values())
    rates = known_rates(values, configs[0].devices, configs[0].computing.precision)
    model_table.show_models(configs, rates)
    return ExitStatus.OK


def _placement(values: Mapping[str, Any], command: Sequence[str]) -> ExitStatus:
    """Shows where variables are: of a cluster that this command starts, or of this process."""
    config = resolve(values, hardware.count_gpus)
    if values["print_config"]:
        say(json.dumps(config.to_dict(), indent=2))
        return ExitStatus.OK
    if launch_plan.is_asked_for(values):
        return cluster_launch.launch_cluster(config, values, command, hardware.count_gpus, saves_record=False)
    show_placement(config)
    return ExitStatus.OK


def show_placement(config: Config) -> None:
    """Takes a few steps, the last of them traced, and prints the placement; in a cluster the leader prints that of all.

    Raises:
        BenchError: the steps cannot be taken.
    """
    for notice in config.notices:
        warn(notice)
    # Asynchronous workers take turns as they like: so many steps of the fastest one are a step of all.
    length = Length(num_batches=config.processes.num_workers, num_warmup_batches=0)
    config, cluster = dataclasses.replace(config, length=length), config.processes.cluster
    log = empty_log(config)
    log.traced_always = True
    with watched() as watchdog:
        deadlines = Deadlines(watchdog, config.processes.step_timeout_seconds)
        deadlines.importing()
        start(config.runtime)
        deadlines.none()
        from benchmarks.cluster.member import Alone
        from benchmarks.run import cluster_run, train

        if cluster:
            cluster_run.carry_out_task(config, cluster, log, Display(), watchdog)
        else:
            train.carry_out(config, log, Display(), Alone(watchdog))
    if config.processes.leads:
        placement = log.placement_of_all()
        if config.output.output_format == "json":
            say(json.dumps(placement))
        else:
            _say_placement(placement, placement_tables.transfer_notes(placement, config.to_dict()))


def _say_placement(placement: Mapping[str, Any], notes: Sequence[str]) -> None:
    say(f"{placement['manager']}\n")
    sums = placement_tables.aggregation_table(placement)
    for title, table, empty in (
        ("Variables", placement_tables.variable_table(placement), "none"),
        ("Sums of gradients over towers", sums, "none: no operation adds gradients of several towers"),
        ("Transfers per step", placement_tables.transfer_table(placement), "none"),
        ("Bytes per device", placement_tables.device_table(placement), "none"),
    ):
        for line in [title, *(f"  {line}" for line in (table.text() if table.rows else [empty])), ""]:
            say(line)
    for note in notes:
        say(note)


EXPLAIN = Verb(
    "explain",
    "where variables live, what is sent, which models are bound by that",
    {
        "What is explained": (Flag("placement", bool, "take a few steps, and show the placement that they had"),),
        **RUN_FLAGS,
        "Rates": RATE_FLAGS,
    },
    _explain,
    takes="words",
    words="[MANAGER]",
    known_words=(*MANAGERS, *SHORTHANDS),
    details="With --model=all, with several models, or with neither a manager nor a model: a table of models. "
    "It needs no devices, except with --placement.",
    examples=(
        "explain replicated --num_gpus=8 --model=vgg16",
        "explain replicated --num_gpus=8 --model=vgg16 --peak_tflops=100 --link_gbytes_per_second=10",
        "explain --model=alexnet,vgg16,resnet50 --num_gpus=8",
        "explain replicated --placement --model=vgg16 --device=cpu --num_gpus=2",
    ),
)
MODELS = Verb(
    "models",
    "which models are bound by communication? needs no devices",
    MODELS_FLAGS,
    lambda given, command: _models(given.words, given.values),
    takes="words",
    words="[MODEL ...]",
    known_words=tuple(specs.names()),
    details="Parameters and operations by kind of layer and, with measured rates, the times to compute and exchange. "
    "Counts are kept in the user's cache directory until the code or a version changes.",
    examples=(
        "models",
        "models alexnet vgg16 resnet50 --num_gpus=8 --peak_tflops=100 --link_gbytes_per_second=10",
        "models resnet50 keras:EfficientNetB0 keras:MobileNetV3Small",
    ),
)
PLACEMENT = Verb(
    "placement",
    "where variables are and gradients are summed; what a step sends",
    PLACEMENT_FLAGS,
    lambda given, command: _placement(_with_manager("placement", (), given.values), command),
    details="Takes a few steps and keeps no record. --output_format=json prints it as a record would have it.",
    examples=(
        "placement --model=vgg16 --device=cpu --num_gpus=2 --variable_update=parameter_server",
        "placement --model=mlp --device=cpu --local_cluster=ps:2,worker:2",
    ),
)
