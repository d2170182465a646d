"""What of each model is computed and exchanged in a step, and which takes longer, as a table. It needs no devices."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.config.config import Config
from benchmarks.config.workload import Workload
from benchmarks.console import progress, say, warn
from benchmarks.devices.start_tensorflow import start
from benchmarks.explain.step_balance import Balance, Rates, how_to_measure
from benchmarks.process.tensorflow_setup import Runtime
from benchmarks.training.model_facts import ModelFacts
from models import specs
from results.text import Table, counted, rounded

_Row = Mapping[str, Any]
_Columns = Mapping[str, Callable[[_Row], str]]


def show_models(configs: Sequence[Config], rates: Rates) -> None:
    """Prints a row for each model, the most communication-bound first, and what the rates mean for it.

    Raises:
        UsageError: operations of a model cannot be counted.
    """
    rows, balances = [], {}
    for config, (facts, sent) in zip(configs, _counts_of(configs), strict=True):
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
    warn(*how_to_measure(devices, balances, in_cluster=False))


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
    low, high = balance.expected_images_per_sec or (None, None)
    return {
        "sent_bytes_per_device": balance.sent_bytes,
        **{name: rate and rate.value for name, rate in rates.items()},
        **{f"source_of_{name}": rate and rate.source for name, rate in rates.items()},
        "compute_seconds": balance.compute_seconds,
        "exchange_seconds": balance.exchange_seconds,
        "exchange_to_compute": balance.ratio,
        "expected_images_per_sec_low": low,
        "expected_images_per_sec_high": high,
        "bound_by": balance.bound_by,
        "compute_bound_from_batch": balance.compute_bound_batch,
    }


def _say_models(rows: Sequence[_Row]) -> None:
    columns: _Columns = {
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
    _say_table(rows, columns)
    say(
        "\nFLOP: of convolutions and dense layers, forward and backward, 2 per multiply-add; par.: parameters. "
        "FLOP/B: per byte of\none device's gradients (float32), for 1 image and for the batch: the fewer, the sooner a "
        "link is the limit."
    )


def _say_balances(rows: Sequence[_Row]) -> None:
    columns: _Columns = {
        "model": lambda row: row["model"],
        "batch": lambda row: str(row["batch_per_device"]),
        "images/s": lambda row: _number(row["images_per_sec"]),
        "compute ms": lambda row: _number(row["compute_seconds"], 1e3),
        "sent MB": lambda row: _number(row["sent_bytes_per_device"], 1e-6),
        "GB/s": lambda row: _number(row["link_bytes_per_sec"], 1e-9),
        "exchange ms": lambda row: _number(row["exchange_seconds"], 1e3),
        "exchange/compute": lambda row: _number(row["exchange_to_compute"]),
        "bound by": lambda row: row["bound_by"],
        "compute-bound from batch": lambda row: str(row["compute_bound_from_batch"] or "?"),
    }
    _say_table(rows, columns)
    say("")
    for rate, name in (("images/s", "source_of_images_per_sec"), ("GB/s", "source_of_link_bytes_per_sec")):
        for source in dict.fromkeys(row[name] for row in rows if row[name]):
            models = [row["model"] for row in rows if row[name] == source]
            of = "" if len(models) == len(rows) else f" of {', '.join(models)}"
            say(f"{rate}{of}: {source}")
    say("A step takes at least the longer of both times, and at most their sum.")


def _say_table(rows: Sequence[_Row], columns: _Columns) -> None:
    numbers = [name for name in columns if name not in ("model", "bound by")]
    cells = [[cell(row) for cell in columns.values()] for row in rows]
    say(*Table(list(columns), cells, numbers).text(rule=False))


def _number(value: float | None, factor: float = 1.0) -> str:
    return "?" if value is None else rounded(factor * value)


def _counts_of(configs: Sequence[Config]) -> Iterator[tuple[ModelFacts, int | None]]:
    """Yields the facts of each configuration's model, and the bytes that its manager sends in a step; None: unknown.

    Raises:
        UsageError: operations of a model cannot be counted.
    """
    start(Runtime())
    from benchmarks.graph.sent_bytes import sent_in_one_process
    from benchmarks.training import model_facts
    from models import building
    from variable_mgr.transfers import total_bytes

    with progress.counted("counting operations", len(configs)):
        for config in configs:
            workload, spec = config.workload, specs.find_model(config.workload.model)
            model = building.build(spec, data_format="NHWC", num_classes=workload.num_classes, seed=0)
            sent = sent_in_one_process(config.devices, config.variables, model, workload.batch_per_device)
            yield model_facts.of(model, spec), total_bytes(sent)
            progress.advance()
