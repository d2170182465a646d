"""The verb `models`: what of each model is computed and exchanged, and which takes longer. Needs no devices."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.config import config as config_rules
from benchmarks.config.config import Config
from benchmarks.config.flag import Parsed
from benchmarks.config.run_flags import RUN_FLAGS
from benchmarks.config.verb import Verb
from benchmarks.config.workload import Workload
from benchmarks.console import say, warn
from benchmarks.devices import options
from benchmarks.errors import ExitStatus
from benchmarks.explain import model_counts
from benchmarks.explain.step_balance import RATE_FLAGS, Balance, Rates, how_to_measure, known_rates
from benchmarks.machine import hardware
from benchmarks.option import Flag, Groups, only
from benchmarks.training.model_facts import ModelFacts
from models import specs
from results.text import counted, table
from variable_mgr.catalog import MANAGERS, SHORTHANDS

_DEFAULT_MANAGER = "replicated"


def models_options(words: Sequence[str], values: Mapping[str, Any]) -> list[Config]:
    """Returns the configuration of each model that words or --model name; without any, of all.

    Raises:
        UsageError: there is no such model, or the flags cannot go together.
    """
    given = options.default_to_all(values, hardware.count_gpus())
    given["variable_update"] = given["variable_update"] or _DEFAULT_MANAGER
    named = [*words, *(given["model"].split(",") if given["model"] else ())] or specs.names()
    configs = [
        config_rules.resolve({**given, "model": name}, lambda: config_rules.ANY_NUMBER_OF_GPUS, environ={})
        for name in named
    ]
    return list({config.workload.model: config for config in configs}.values())


def run_models(configs: Sequence[Config], rates: Rates) -> ExitStatus:
    """Prints a row for each model, the most communication-bound first, and what the rates mean for it.

    Raises:
        UsageError: operations of a model cannot be counted.
    """
    rows, balances = [], {}
    for config, (facts, sent) in zip(configs, model_counts.of(configs), strict=True):
        balance = rates.balance(
            config,
            flops_per_image=facts.flops_per_image,
            gradient_bytes=facts.gradient_bytes,
            sent_bytes=None if sent is None else sent / config.devices.num_devices,
        )
        balances[config.workload.model] = balance
        rows.append({**_of_model(config.workload, facts), **_of_balance(balance)})
    rows.sort(key=lambda row: (-(row["exchange_to_compute"] or 0), row["flops_per_image"] / row["gradient_bytes"]))
    devices, variables, precision = configs[0].devices, configs[0].variables, configs[0].computing.precision
    count, manager = devices.num_devices, variables.variable_update
    if configs[0].output.output_format == "json":
        say(json.dumps({"num_devices": count, "variable_update": manager, "models": rows}))
    else:
        _say_models(rows)
        if any(row["compute_seconds"] is not None or row["exchange_seconds"] is not None for row in rows):
            spec = f" ({variables.modifiers.all_reduce_spec})" if variables.modifiers.all_reduce_spec else ""
            on = f"{counted(count, 'device')} ({devices.device}, {precision})"
            say(f"\nA step on {on} under {manager}{spec}, per device:")
            _say_balances(rows)
    for sentence in how_to_measure(devices, balances, in_cluster=False):
        warn(sentence)
    return ExitStatus.OK


def _of_model(workload: Workload, facts: ModelFacts) -> dict[str, Any]:
    shares = {
        f"{kind}_share_of_{of}": count / sum(counts.values())
        for of, counts in (("flops", facts.flops_by_kind), ("parameters", facts.parameters_by_kind))
        for kind, count in counts.items()
    }
    return {
        "model": workload.model,
        "parameters": facts.parameters,
        "gradient_bytes": facts.gradient_bytes,
        "flops_per_image": facts.flops_per_image,
        **shares,
        "batch_per_device": workload.batch_per_device,
        "flops_per_gradient_byte": workload.batch_per_device * facts.flops_per_image / facts.gradient_bytes,
    }


def _of_balance(balance: Balance) -> dict[str, Any]:
    rates = {"images_per_sec": balance.images_per_sec, "link_bytes_per_sec": balance.link_bytes_per_sec}
    return {
        "sent_bytes_per_device": balance.sent_bytes,
        **{name: rate and rate.value for name, rate in rates.items()},
        **{f"source_of_{name}": rate and rate.source for name, rate in rates.items()},
        "compute_seconds": balance.compute_seconds,
        "exchange_seconds": balance.exchange_seconds,
        "exchange_to_compute": balance.ratio,
        "bound_by": balance.bound_by,
        "compute_bound_from_batch": balance.compute_bound_batch,
    }


def _say_models(rows: Sequence[Mapping[str, Any]]) -> None:
    columns: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
        "model": lambda row: row["model"],
        "parameters": lambda row: f"{row['parameters']:,}",
        "grad. MB": lambda row: _number(row["gradient_bytes"], 1e-6),
        "GFLOP/image": lambda row: _number(row["flops_per_image"], 1e-9),
        "FLOP/B, 1": lambda row: _number(row["flops_per_gradient_byte"] / row["batch_per_device"]),
        "batch": lambda row: str(row["batch_per_device"]),
        "FLOP/B": lambda row: _number(row["flops_per_gradient_byte"]),
        "dense FLOP": lambda row: f"{row['dense_share_of_flops']:.1%}",
        "conv par.": lambda row: f"{row['convolution_share_of_parameters']:.1%}",
        "dense par.": lambda row: f"{row['dense_share_of_parameters']:.1%}",
    }
    for line in table([list(columns), *([shown(row) for shown in columns.values()] for row in rows)]):
        say(line)
    say(
        "\nFLOP: of convolutions and dense layers, forward and backward, 2 per multiply-add; par.: parameters. "
        "FLOP/B: per byte of\none device's gradients (float32), for 1 image and for the batch: the fewer, the sooner a "
        "link is the limit."
    )


def _say_balances(rows: Sequence[Mapping[str, Any]]) -> None:
    columns: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
        "model": lambda row: row["model"],
        "batch": lambda row: str(row["batch_per_device"]),
        "images/s": lambda row: _number(row["images_per_sec"]),
        "compute ms": lambda row: _number(row["compute_seconds"], 1e3),
        "sent MB": lambda row: _number(row["sent_bytes_per_device"], 1e-6),
        "GB/s": lambda row: _number(row["link_bytes_per_sec"], 1e-9),
        "exchange ms": lambda row: _number(row["exchange_seconds"], 1e3),
        "exchange/compute": lambda row: _number(row["exchange_to_compute"]),
        "bound by": lambda row: row["bound_by"],
        "compute-bound from batch": lambda row: _number(row["compute_bound_from_batch"]),
    }
    for line in table([list(columns), *([shown(row) for shown in columns.values()] for row in rows)]):
        say(line)
    say("")
    for rate, name in (("images/s", "source_of_images_per_sec"), ("GB/s", "source_of_link_bytes_per_sec")):
        for source in dict.fromkeys(row[name] for row in rows if row[name]):
            models = [row["model"] for row in rows if row[name] == source]
            of = "" if len(models) == len(rows) else f" of {', '.join(models)}"
            say(f"{rate}{of}: {source}")
    say("A step takes at least the longer of both times, and at most their sum.")


def _number(value: float | None, factor: float = 1.0) -> str:
    """Returns a number with three digits, or all before the point; `?` if it is unknown."""
    if value is None:
        return "?"
    scaled = factor * value
    return f"{scaled:,.0f}" if scaled >= 100 else f"{scaled:.3g}"


_MANAGER = dataclasses.replace(
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
        _MANAGER,
        *only(RUN_FLAGS["Variables and gradients"], *_ASSUMED),
    ),
    "Rates": RATE_FLAGS,
    "Output": only(RUN_FLAGS["Output"], "output_format"),
}


def _resolve_and_run(given: Parsed, command: Sequence[str]) -> ExitStatus:
    configs = models_options(given.words, given.values)
    return run_models(configs, known_rates(given.values, configs[0].devices, configs[0].computing.precision))


VERB = Verb(
    "models",
    "which models are bound by communication? needs no devices",
    MODELS_FLAGS,
    _resolve_and_run,
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
