"""How data flows in a configuration: where variables live, what is sent, what limits a step. Imports TensorFlow."""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
from collections.abc import Mapping, Sequence

from benchmarks.config.config import Config
from benchmarks.config.variable_update import Pipelining, Variables
from benchmarks.console import say
from benchmarks.errors import UsageError
from benchmarks.explain.step_balance import UNKNOWN, Balance, Rates, how_to_measure
from benchmarks.graph.sent_bytes import manager_on_real_devices, sent_by_divided_layers, sent_in_one_process
from benchmarks.process.tensorflow_setup import Devices
from benchmarks.training import model_facts, model_parallel, pipeline
from benchmarks.training.model_facts import ModelFacts
from models import building, parts, specs
from models.building import Model
from results.text import amount, counted, fact_lines, in_bytes, rounded
from variable_mgr import factory
from variable_mgr.manager import VariableManager
from variable_mgr.modifiers import Modifiers
from variable_mgr.place import Place
from variable_mgr.transfers import FLOAT32_BYTES, Transfer, busiest_server, by_link, total_bytes, weight_elements

_MOST_LINKS = 16  # that are listed


def show_data_flow(config: Config, rates: Rates = UNKNOWN) -> None:
    """Prints where variables live, what is sent and how long that takes, how old the applied gradient is, a diagram.

    Raises:
        UsageError: the model's layers cannot be divided.
    """
    workload, devices, variables, cluster = config.workload, config.devices, config.variables, config.processes.cluster
    batch = workload.batch_per_device
    spec = specs.find_model(workload.model)
    model = building.build(spec, data_format="NHWC", num_classes=workload.num_classes, seed=0)
    each, num_ps = f"{counted(devices.num_devices, 'tower')} of {batch}", config.processes.num_ps
    if variables.pipeline:
        flow = _through_stages(variables.pipeline, config.place.towers, config.batch_global, model)
        stages, number = variables.pipeline.stages, variables.pipeline.micro_batches
        each = f"{counted(stages, 'stage')}, {number} micro-batches of {config.batch_global // number}"
    elif cluster:
        flow = _between_processes(variables, config.place, model)
        each = f"{counted(cluster.num_workers, 'worker')} with {each} each"
    else:
        flow = _between_devices(variables, devices, batch, model)
    explained, elements = flow.manager.explain(config.training.optimizer), weight_elements(model.variables)
    as_one = _arithmetic(variables.modifiers, config.towers_in_total, config.batch_global)
    whole = f"{each}: batch {config.batch_global}" + (f"; {counted(num_ps, 'parameter server')}" if num_ps else "")
    of_rates = {} if variables.pipeline else _of_rates(config, rates, model_facts.of(model, spec), flow)
    described = {
        "Configuration": f"{variables.variable_update}, {workload.model}, {whole}",
        **{name: of_rates.pop(name) for name in ("To expect",) if name in of_rates},
        "Weights": f"{len(elements)}, {in_bytes(FLOAT32_BYTES * sum(elements))}; {explained.weights}",
        "Gradients": explained.gradients,
        "Applied at step t": f"the gradient {explained.applied}",
        "Arithmetic": explained.deviation or as_one,
        **flow.sent,
        **of_rates,
    }
    say(*fact_lines(described), "", explained.diagram)


def _of_rates(config: Config, rates: Rates, model: ModelFacts, flow: _Flow) -> dict[str, str]:
    balance = rates.balance(
        config,
        flops_per_image=model.flops_per_image,
        gradient_bytes=model.gradient_bytes,
        sent_bytes=flow.bytes_at_busiest,
    )
    divides = config.variables.modifiers.fc_model_parallel
    facts = _balance(balance, model, towers=config.towers_in_total, divides=divides)
    if balance.ratio is None:
        in_cluster = config.processes.cluster is not None
        missing = how_to_measure(config.devices, {config.workload.model: balance}, in_cluster=in_cluster)
        facts["Bound by"] = " ".join(["unknown.", *missing])
    return facts


def _balance(balance: Balance, model: ModelFacts, *, towers: int, divides: bool) -> dict[str, str]:
    """Returns whether computing or exchanging takes longer, and the rate to expect, as far as rates are known.

    `divides`: dense layers are divided over towers.
    """
    per_byte = balance.batch_per_device * model.flops_per_image / model.gradient_bytes
    facts = {
        "Computed per step": f"{amount(model.flops_per_image, 'FLOP')} per image, {per_byte:,.0f} per gradient byte"
    }
    rate, link = balance.images_per_sec, balance.link_bytes_per_sec
    if rate and balance.compute_seconds:
        milliseconds = rounded(1e3 * balance.compute_seconds)
        facts["Computed per step"] += f": {milliseconds} ms at {rounded(rate.value)} images/s per device"
        facts["  from"] = rate.source
    if balance.exchange_seconds is not None and link:
        facts["Exchange"] = (
            f"{rounded(1e3 * balance.exchange_seconds)} ms at {rounded(1e-9 * link.value)} GB/s ({link.source})"
        )
    if balance.ratio is not None:
        facts["Bound by"] = f"{balance.bound_by}: exchanging takes {rounded(balance.ratio)} times as long as computing"
        # Divided layers exchange more with more images.
        if balance.exchange_seconds and balance.compute_bound_batch and not divides:
            facts["Bound by"] += f"; compute-bound from a batch of {balance.compute_bound_batch} per device"
    if expected := balance.expected_images_per_sec:
        low, high = expected
        of_all = f", {_span(towers * low, towers * high)} of {counted(towers, 'device')}" if towers > 1 else ""
        facts["To expect"] = f"{_span(low, high)} images/s per device{of_all}"
    return facts


def _span(low: float, high: float) -> str:
    return " to ".join(dict.fromkeys(map(rounded, (low, high))))


def _arithmetic(modifiers: Modifiers, towers: int, batch_global: int) -> str:
    words = [f"as one device with a batch of {batch_global}, without batch-norm statistics"]
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
        sent: what a step sends, as lines of the output.
        bytes_at_busiest: of the link or device that sends most; None if unknown, or if other times matter.
    """

    manager: VariableManager
    sent: Mapping[str, str]
    bytes_at_busiest: float | None


def _through_stages(pipelining: Pipelining, devices: Sequence[str], images: int, model: Model) -> _Flow:
    divided = pipeline.plan(model, **vars(pipelining))
    sent = in_bytes(total_bytes(divided.transfers(images)) or 0)
    return _Flow(
        divided.manager(devices),
        {
            **pipeline.stage_facts(divided.facts(devices, images)),
            "Sent per step": f"{sent}, half of it activations forward, half their gradients back",
        },
        None,
    )


def _between_processes(variables: Variables, place: Place, model: Model) -> _Flow:
    name, modifiers = variables.variable_update, variables.modifiers
    manager = factory.make(name, place, shared_devices=(place.host,), modifiers=modifiers)
    links = by_link(manager.transfers(model.variables))
    return _Flow(manager, _links(links), busiest_server(links) or max(links.values(), default=None))


def _between_devices(variables: Variables, devices: Devices, batch_per_device: int, model: Model) -> _Flow:
    """Returns the flow in one process, with whether --fc_model_parallel pays.

    Raises:
        UsageError: the model's layers cannot be divided, and should be.
    """
    towers, is_divided = devices.num_devices, variables.modifiers.fc_model_parallel

    def sent_if(divided: bool) -> int | None:
        modifiers = dataclasses.replace(variables.modifiers, fc_model_parallel=divided)
        chosen = dataclasses.replace(variables, modifiers=modifiers)
        return total_bytes(sent_in_one_process(devices, chosen, model, batch_per_device))

    split = parts.split(model)
    problem = model_parallel.why_not(split, towers)
    if problem and is_divided:
        raise UsageError(problem)
    sent = sent_in_one_process(devices, variables, model, batch_per_device)
    facts = _bytes(sent, towers)
    if not problem and towers > 1:
        with contextlib.suppress(ValueError):  # the manager does not support it, or not with these modifiers
            activations = total_bytes(sent_by_divided_layers(split, towers, batch_per_device)) or 0
            facts |= _division(sent_if(False), sent_if(True), activations, batch_per_device)
    total = total_bytes(sent)
    return _Flow(manager_on_real_devices(devices, variables), facts, None if total is None else total / towers)


def _division(without: int | None, divided: int | None, activations: float, batch_per_device: int) -> dict[str, str]:
    """Returns whether dividing layers sends less; `activations` are the bytes of them that it sends in a step."""
    if without is None or divided is None:
        return {}
    largest_batch = int((without - divided) / (activations / batch_per_device) + batch_per_device)
    verdict = "sends less up to" if divided < without else "sends more, and would send less only up to"
    return {
        "Divided": f"--fc_model_parallel sends {in_bytes(divided)} per step instead of {in_bytes(without)}; "
        f"it {verdict} a batch of {largest_batch} per device"
    }


def _bytes(sent: Sequence[Transfer], towers: int) -> dict[str, str]:
    """Returns what is sent, in words; a mean per tower, since not every algorithm loads towers evenly."""
    sorts = {
        "weights read": total_bytes(sent, "read"),
        "gradients": total_bytes(sent, "gradient"),
        "weights averaged": total_bytes(sent, "weight"),
        "activations": total_bytes(sent, "activation"),
    }
    total = total_bytes(sent)
    known = "unknown" if total is None else f"{in_bytes(total)}, {in_bytes(total / towers)} per tower on average"
    named = ", ".join(f"{name} {in_bytes(size)}" for name, size in sorts.items() if size)
    return {"Sent per step": known + (f" ({named})" if named else "")}


def _links(sent: Mapping[str, int]) -> dict[str, str]:
    if not sent:
        return {"Sent per step": "unknown by link: it depends on which tower adds which gradient"}
    busiest = busiest_server(sent)
    at_server = f"; {in_bytes(busiest)} in and out of the busiest parameter server" if busiest else ""
    largest = heapq.nlargest(_MOST_LINKS, sent, key=lambda link: sent[link])
    links = {f"  {link}": in_bytes(size) for link, size in sent.items() if link in largest}
    more = {"  others": f"{len(sent) - len(links)} links, each with as much or less"} if len(sent) > len(links) else {}
    return {"Sent per step": f"{in_bytes(sum(sent.values()))} between processes{at_server}", **links, **more}
