"""The verb `explain`: how data flows in a configuration, in words and bytes. It trains nothing and needs no devices."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.config import config as config_rules
from benchmarks.config.config import Config
from benchmarks.config.flag import Parsed
from benchmarks.config.run_flags import RUN_FLAGS
from benchmarks.config.verb import Verb
from benchmarks.console import say
from benchmarks.errors import ExitStatus, UsageError, did_you_mean
from benchmarks.explain.step_balance import RATE_FLAGS, UNKNOWN, Rates, how_to_measure, known_rates
from benchmarks.microbench.roofline import amount
from benchmarks.process.tensorflow_setup import Runtime
from benchmarks.topology.start import start
from models import specs
from models.model_spec import ModelSpec
from results.text import counted
from variable_mgr.catalog import MANAGERS, REFERENCE_LOOPS, SHORTHANDS
from variable_mgr.modifiers import Modifiers
from variable_mgr.traffic import FLOAT32_BYTES, Transfer, busiest_server, by_link, total_bytes, weight_elements

if TYPE_CHECKING:
    from benchmarks.training.model_facts import ModelFacts
    from models.building import Model
    from variable_mgr.manager import VariableManager


def with_manager(words: Sequence[str], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the flag values with the manager that was named as a word.

    Raises:
        UsageError: there is no such manager, two are named, or nothing is updated.
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
    if values["forward_only"]:
        raise UsageError("explain is about gradients and updates, and --forward_only has none: leave it out.")
    values = {**values, "onednn": None}  # about kernels of CPUs, and the devices need not exist here
    chosen = {**values, "variable_update": words[0]} if words else values
    entry = MANAGERS.get(chosen["variable_update"])
    hosts = ("local_cluster", "worker_hosts", "cluster_spec")
    if entry is None or entry.smallest_cluster is None or any(chosen[name] for name in hosts):
        return chosen
    return {**chosen, "local_cluster": entry.smallest_cluster}


def run(config: Config, rates: Rates = UNKNOWN) -> ExitStatus:
    """Prints where variables live, what is sent and how long that takes, how old the applied gradient is, a diagram.

    Raises:
        UsageError: the configuration has no variable manager, or its layers cannot be divided.
    """
    if config.variables.variable_update in REFERENCE_LOOPS:
        raise UsageError(
            f"explain knows variable managers, and {config.variables.variable_update} is a reference training loop: "
            f"name one of {', '.join(MANAGERS)}."
        )
    start(Runtime())
    from benchmarks.training import model_facts
    from models import building

    spec = specs.find(config.workload.model)
    model = building.build(spec, data_format="NHWC", num_classes=config.workload.num_classes, seed=0)
    if config.variables.pipeline:
        flow = _through_stages(config, model)
    elif config.processes.cluster:
        flow = _between_processes(config, model)
    else:
        flow = _between_devices(config, model, spec)
    explained = flow.manager.explain(config.training.optimizer)
    elements = weight_elements(model.variables)
    facts = {
        "Configuration": f"{config.variables.variable_update}, {config.workload.model}, {flow.parts}: batch {config.batch_global}"
        + (f"; {counted(config.processes.num_ps, 'parameter server')}" if config.processes.num_ps else ""),
        "Weights": f"{len(elements)}, {_megabytes(FLOAT32_BYTES * sum(elements))}; {explained.weights}",
        "Gradients": explained.gradients,
        "Applied at step t": f"the gradient {explained.applied}",
        "Arithmetic": explained.deviation
        or _arithmetic(config.variables.modifiers, config.towers_in_total, config.batch_global),
        **flow.sent,
        **(
            {}
            if config.variables.pipeline
            else _balance(config, model_facts.of(model, spec), flow.bytes_at_busiest, rates)
        ),
    }
    width = max(map(len, facts)) + 1
    for fact, value in facts.items():
        say(f"{fact + ':':{width}} {value}")
    say("\n" + explained.diagram)
    return ExitStatus.OK


def _balance(config: Config, model: ModelFacts, sent_bytes: float | None, rates: Rates) -> dict[str, str]:
    """Returns whether computing or exchanging takes longer, as far as rates are known."""
    per_byte = config.workload.batch_per_device * model.flops_per_image / model.gradient_bytes
    facts = {
        "Computed per step": f"{amount(model.flops_per_image, 'FLOP')} per image, {per_byte:,.0f} per gradient byte"
    }
    balance = rates.balance(
        config, flops_per_image=model.flops_per_image, gradient_bytes=model.gradient_bytes, sent_bytes=sent_bytes
    )
    if balance.compute_seconds is not None and balance.images_per_sec:
        facts["Computed per step"] += (
            f": {1e3 * balance.compute_seconds:.3g} ms at {balance.images_per_sec.value:,.0f} images/s per device "
            f"({balance.images_per_sec.source})"
        )
    if balance.exchange_seconds is not None and balance.link_bytes_per_sec:
        link = balance.link_bytes_per_sec
        facts["Exchange"] = f"{1e3 * balance.exchange_seconds:.3g} ms at {link.value / 1e9:.3g} GB/s ({link.source})"
    if balance.ratio is None:
        facts["Bound by"] = " ".join(["unknown.", *how_to_measure(config, {config.workload.model: balance})])
    else:
        facts["Bound by"] = f"{balance.bound_by}: exchanging takes {balance.ratio:.3g} times as long as computing"
        if balance.ratio and not config.variables.modifiers.fc_model_parallel:  # else more images are more to exchange
            facts["Bound by"] += f"; compute-bound from a batch of {balance.compute_bound_batch:,} per device"
    return facts


def _arithmetic(modifiers: Modifiers, towers: int, batch_global: int) -> str:
    """Returns what a step computes if the manager itself does not deviate."""
    words = [f"as one device with a batch of {batch_global}, batch-norm statistics aside"]
    if modifiers.fc_model_parallel and towers > 1:
        words.append("but dropout draws other units")
    if modifiers.compact_gradient_transfer and towers > 1:
        words.append(f"but gradients are rounded to {modifiers.wire_dtype}")
    return ", ".join(words)


@dataclasses.dataclass(frozen=True)
class _Flow:
    """How data flows in a configuration.

    Attributes:
        manager: which explains itself.
        parts: the towers or stages, in words.
        sent: what a step sends, as lines of the output.
        bytes_at_busiest: of the link or device that sends most; None if unknown, or if other times matter.
    """

    manager: VariableManager
    parts: str
    sent: Mapping[str, str]
    bytes_at_busiest: float | None


def _through_stages(config: Config, model: Model) -> _Flow:
    from benchmarks.training import pipeline
    from variable_mgr.managers.pipelined import Pipelined

    assert config.variables.pipeline is not None, "the caller has looked"
    parts = pipeline.plan(model, **vars(config.variables.pipeline))
    facts = parts.facts(config.place.towers, config.batch_global)
    sent = _megabytes(total_bytes(parts.transfers(config.batch_global)) or 0)
    return _Flow(
        Pipelined(parts.homes(config.place.towers)),
        f"{counted(config.devices.num_devices, 'stage')}, {facts['micro_batches']} micro-batches of "
        f"{facts['images_per_micro_batch']}",
        {
            **pipeline.stage_facts(facts),
            "Sent per step": f"{sent}, half of it activations forward, half their gradients back",
        },
        None,
    )


def _between_processes(config: Config, model: Model) -> _Flow:
    from variable_mgr import factory

    manager = factory.make(
        config.variables.variable_update,
        config.place,
        shared_devices=(config.place.host,),
        modifiers=config.variables.modifiers,
    )
    links = by_link(manager.transfers(model.variables))
    return _Flow(
        manager,
        f"{counted(config.processes.num_workers, 'worker')} with {_towers(config)} each",
        _links(links),
        busiest_server(links) or max(links.values(), default=None),
    )


def _between_devices(config: Config, model: Model, spec: ModelSpec) -> _Flow:
    """Returns the flow in one process, with whether --fc_model_parallel pays.

    Raises:
        UsageError: the model's layers cannot be divided, and should be.
    """
    from benchmarks.training.traffic import dense_share, manager_on_real_devices, model_transfers
    from models import splitting

    towers, is_divided = config.devices.num_devices, config.variables.modifiers.fc_model_parallel

    def make(divided: bool) -> VariableManager:
        return manager_on_real_devices(
            config.variables.variable_update,
            dataclasses.replace(config.variables.modifiers, fc_model_parallel=divided),
            device=config.devices.device,
            towers=towers,
            shared_on=config.variables.shared_on,
        )

    def transfers(divided: bool) -> list[Transfer]:
        return model_transfers(
            make(divided), model, config.workload.batch_per_device, divided_over=towers if divided else 0
        )

    problem = splitting.why_not(splitting.split(model), towers)
    if problem and is_divided:
        raise UsageError(problem)
    dense, sent = dense_share(model, config.workload.batch_per_device), transfers(is_divided)
    facts = _bytes(sent, towers)
    share = f"{2e-9 * dense.kernel_weights / spec.gflop_per_image:.1%}" if spec.gflop_per_image else "an unknown share"
    facts[f"Last {len(dense.layers.outputs)} dense"] = (
        f"{dense.weights / dense.all_weights:.0%} of the weights, {share} of the operations of {spec.name}"
    )
    if not problem and towers > 1:
        with contextlib.suppress(ValueError):  # the manager does not support it, or not with these modifiers
            activations = (total_bytes(dense.layers.transfers(towers)) or 0) / config.workload.batch_per_device
            facts |= _division(total_bytes(transfers(False)), total_bytes(transfers(True)), activations, config)
    total = total_bytes(sent)
    return _Flow(make(is_divided), _towers(config), facts, None if total is None else total / towers)


def _division(without: int | None, divided: int | None, activations: float, config: Config) -> dict[str, str]:
    """Returns whether dividing layers sends less; `activations` are the bytes that it sends per image of a tower."""
    if without is None or divided is None:
        return {}
    largest_batch = int((without - divided) / activations + config.workload.batch_per_device)
    verdict = "sends less up to" if divided < without else "sends more, and would send less only up to"
    return {
        "Divided": f"--fc_model_parallel sends {_megabytes(divided)} per step instead of {_megabytes(without)}; "
        f"it {verdict} a batch of {largest_batch} per device"
    }


def _towers(config: Config) -> str:
    return f"{counted(config.devices.num_devices, 'tower')} of {config.workload.batch_per_device}"


def _bytes(sent: Sequence[Transfer], towers: int) -> dict[str, str]:
    """Returns what is sent, in words; a mean per tower, since not every algorithm loads towers evenly."""
    parts = {
        "weights read": total_bytes(sent, "read"),
        "gradients": total_bytes(sent, "gradient"),
        "weights averaged": total_bytes(sent, "weight"),
        "activations": total_bytes(sent, "activation"),
    }
    total = total_bytes(sent)
    known = "unknown" if total is None else f"{_megabytes(total)}, {_megabytes(total / towers)} per tower on average"
    named = ", ".join(f"{name} {_megabytes(size)}" for name, size in parts.items() if size)
    return {"Sent per step": known + (f" ({named})" if named else "")}


def _links(sent: Mapping[str, int]) -> dict[str, str]:
    if not sent:
        return {"Sent per step": "unknown by link: it depends on which tower adds which gradient"}
    busiest = busiest_server(sent)
    at_server = f"; {_megabytes(busiest)} in and out of the busiest parameter server" if busiest else ""
    links = {f"  {link}": _megabytes(size) for link, size in sent.items()}
    return {"Sent per step": f"{_megabytes(sum(sent.values()))} between processes{at_server}", **links}


def _megabytes(size_bytes: float) -> str:
    return f"{size_bytes / 1e6:.1f} MB"


def _resolve_and_run(given: Parsed, command: Sequence[str]) -> ExitStatus:
    chosen = config_rules.resolve(with_manager(given.words, given.values), lambda: config_rules.ANY_NUMBER_OF_GPUS)
    if given.values["print_config"]:
        say(json.dumps(chosen.to_dict(), indent=2))
        return ExitStatus.OK
    return run(chosen, known_rates(given.values, chosen))


VERB = Verb(
    "explain",
    "where variables live and what is sent; needs no devices",
    {**RUN_FLAGS, "Rates": RATE_FLAGS},
    _resolve_and_run,
    takes="words",
    words="[MANAGER]",
    known_words=(*MANAGERS, *SHORTHANDS),
    examples=(
        "explain replicated --num_gpus=8 --model=vgg16",
        "explain replicated --num_gpus=8 --model=vgg16 --peak_tflops=100 --link_gbytes_per_second=10",
    ),
)
