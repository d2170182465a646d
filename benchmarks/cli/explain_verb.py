"""The verb `explain`: how data flows in a configuration, in words and bytes. Runs nothing and needs no devices."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.cli import explain_cluster
from benchmarks.config.config import Config
from benchmarks.console import say
from benchmarks.errors import ExitStatus, UsageError, did_you_mean
from benchmarks.process import tensorflow_setup
from models import specs
from variable_mgr.catalog import BASELINES, MANAGERS, NEED_A_CLUSTER, SHORTHANDS
from variable_mgr.modifiers import why_not
from variable_mgr.place import Place
from variable_mgr.reductions.algorithms import ALGORITHMS
from variable_mgr.reductions.all_reduce_spec import parse
from variable_mgr.traffic import FLOAT32_BYTES, Traffic

if TYPE_CHECKING:
    from models.building import Model

_COPIES = """\
    tower 0        tower 1        ...
    [weights]      [weights]      one copy each
       |              |
    gradients      gradients
       |              |
       {exchange}
       |              |
    update         update         each its own copy"""
_SHARED = """\
    tower 0        tower 1        ...
     ^    |         ^    |
     |    gradients |    gradients
     |    v         |    v
    [weights: {update}]   {where}"""

_DIVIDED = """\
    and of the dense layers, which are divided:
    features  <---all--->  features      of the images of all towers
    [columns]              [columns]     each its own, for all images
    outputs   <---all--->  outputs       ... to the logits, and back the same way"""

_STALENESS = {
    "staged": "computed in step t-1 from weights read in step t-2",
    "asynchronous": "of whatever the weights were when its tower read them: with N equal towers, about N-1 updates ago "
    "(the record of a run has a histogram)",
    "relaxed": "computed in step t-1 (zeros in the first step)",
    "plain": "computed in step t itself",
}


def with_manager(words: Sequence[str], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the flag values with the manager that was named as a word.

    Raises:
        UsageError: there is no such manager, two are named, or there is nothing to explain.
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
    values = {**values, "onednn": None}  # about kernels of CPUs, and here may be any devices
    chosen = {**values, "variable_update": words[0]} if words else values
    smallest = NEED_A_CLUSTER.get(chosen["variable_update"])
    hosts = ("local_cluster", "worker_hosts", "cluster_spec")
    return {**chosen, "local_cluster": smallest} if smallest and not any(chosen[name] for name in hosts) else chosen


def run(config: Config) -> ExitStatus:
    """Prints where variables live, what is sent, how old the applied gradient is, and a diagram.

    Raises:
        UsageError: the configuration is none of this suite's managers.
    """
    if config.variable_update in BASELINES:
        raise UsageError(
            f"explain knows variable managers, and {config.variable_update} is the training loop of others: "
            f"name one of {', '.join(MANAGERS)}."
        )
    tensorflow_setup.prepare(device="cpu", visible_gpus=None)
    tensorflow_setup.import_tensorflow()
    from benchmarks.training.traffic import dense_share, model_traffic
    from models import building, splitting

    spec = specs.find(config.model)
    model = building.build(spec, data_format="NHWC", num_classes=config.num_classes, seed=0)
    if config.cluster:
        sizes = [(v.kind, FLOAT32_BYTES * math.prod(v.shape)) for v in model.variables]
        _say_facts(explain_cluster.facts(config, config.cluster, sizes), explain_cluster.diagram(config))
        return ExitStatus.OK
    dense = dense_share(model, config.batch_per_device)
    if config.modifiers.fc_model_parallel and (
        problem := splitting.why_not(splitting.split(model), config.num_devices)
    ):
        raise UsageError(problem)
    weights = sum(variable.kind == "weight" for variable in model.variables)
    facts = {
        "Configuration": f"{config.variable_update}, {config.model}, {config.num_devices} tower"
        f"{'s' * (config.num_devices > 1)} of {config.batch_per_device}: batch {config.batch_global}",
        "Weights": f"{weights}, {_megabytes(4 * dense.all_weights)}; {_copies(config)}",
        "Gradients": _gradients(config),
        "Applied at step t": f"the gradient {_STALENESS[_mode(config)]}",
        "Arithmetic": _arithmetic(config),
        **_bytes(model_traffic(config, model), config.num_devices),
        f"Last {len(dense.layers.outputs)} dense": f"{dense.weights / dense.all_weights:.0%} of the weights, "
        f"{2e-9 * dense.kernel_weights / spec.gflop_per_image:.1%} of the operations of {config.model}",
        **_dividing(config, model),
    }
    _say_facts(facts, _diagram(config))
    return ExitStatus.OK


def _say_facts(facts: Mapping[str, str], diagram: str) -> None:
    width = max(map(len, facts)) + 1
    for name, value in facts.items():
        say(f"{name + ':':{width}} {value}")
    say("\n" + diagram)


def _dividing(config: Config, model: Model) -> dict[str, str]:
    """Returns whether --fc_model_parallel pays: what it would send, and up to which batch that is less."""
    from benchmarks.training.traffic import dense_share, model_traffic
    from models import splitting

    def with_dividing(fc_model_parallel: bool) -> Traffic:
        modifiers = dataclasses.replace(config.modifiers, fc_model_parallel=fc_model_parallel)
        return model_traffic(dataclasses.replace(config, modifiers=modifiers), model)

    place = Place(tuple(f"/cpu:{tower}" for tower in range(config.num_devices)), "/cpu:0")
    if splitting.why_not(splitting.split(model), config.num_devices):
        return {}
    wanted = dataclasses.replace(config.modifiers, fc_model_parallel=True, all_reduce_spec=None)
    if config.num_devices == 1 or why_not(config.variable_update, wanted, place):
        return {}
    without, divided = with_dividing(False).total_bytes, with_dividing(True).total_bytes
    if without is None or divided is None:
        return {}
    of_activations = dense_share(model, config.batch_per_device).layers.activation_bytes(config.num_devices)
    largest_batch = int((without - divided + of_activations) / (of_activations / config.batch_per_device))
    verdict = "sends less up to" if divided < without else "sends more, and would send less only up to"
    return {
        "Divided": f"--fc_model_parallel sends {_megabytes(divided)} per step instead of {_megabytes(without)}; "
        f"it {verdict} a batch of {largest_batch} per device"
    }


def _mode(config: Config) -> str:
    if config.modifiers.asynchronous and config.num_devices > 1:
        return "asynchronous"
    if config.modifiers.staged_vars:
        return "staged"
    return "relaxed" if config.modifiers.relaxed_consistency else "plain"


def _shared_place(config: Config) -> str:
    return "on the host" if config.shared_on == "cpu" else "spread over the towers' devices by bytes"


def _copies(config: Config) -> str:
    if config.variable_update == "parameter_server":
        where = f"one copy, {_shared_place(config)}"
        return f"{where}; of the dense layers each tower holds some columns" if _divides(config) else where
    divided = ", but of the dense layers each holds some columns" if _divides(config) else ""
    return f"{config.num_devices} copies, one per tower{divided}"


def _divides(config: Config) -> bool:
    return config.modifiers.fc_model_parallel and config.num_devices > 1


def _gradients(config: Config) -> str:
    if _mode(config) == "asynchronous":
        return "not combined: each is applied where the weight lives as soon as it is there"
    if config.variable_update == "parameter_server":
        where = "averaged where the weight lives, and applied there once"
        return f"{where}; those of the dense layers stay on their tower" if _divides(config) else where
    if config.variable_update == "independent":
        return "not exchanged: the towers train apart"
    if config.variable_update == "local_sgd":
        return f"not exchanged; the weights are averaged after every {config.modifiers.local_sgd_steps} step(s)"
    spec = config.modifiers.all_reduce_spec or "collective"
    meanings = dict.fromkeys(ALGORITHMS[item.algorithm].meaning for item in parse(spec))
    return "; ".join([f"{spec}: " + "; ".join(meanings), *_around_the_reduction(config)])


def _around_the_reduction(config: Config) -> list[str]:
    """Returns what is done to the gradients before they are reduced, and undone after."""
    modifiers = config.modifiers
    words = {
        f"packed into {modifiers.gradient_repacking} equal chunks": modifiers.gradient_repacking,
        f"those of at most {modifiers.agg_small_grads_max_bytes} bytes in groups of at most "
        f"{modifiers.agg_small_grads_max_group}": modifiers.agg_small_grads_max_bytes,
        f"sent as {modifiers.wire_dtype}": modifiers.compact_gradient_transfer,
    }
    return [text for text, used in words.items() if used]


def _arithmetic(config: Config) -> str:
    plain = f"as one device with a batch of {config.batch_global}, batch-norm statistics aside"
    if config.variable_update in ("independent", "local_sgd") and config.num_devices > 1:
        every_step = config.variable_update == "local_sgd" and config.modifiers.local_sgd_steps == 1
        if every_step and config.optimizer == "sgd":
            return plain
        return "every tower steps by its own gradient: not what one device with the whole batch does"
    if _mode(config) == "asynchronous":
        return "not plain SGD: one update per tower, of weights that others have updated meanwhile"
    if _mode(config) != "plain":
        return "not plain SGD: the gradient is of earlier weights, see above"
    if _divides(config):
        plain += ", but dropout draws other units"
    rounded = config.modifiers.compact_gradient_transfer and config.num_devices > 1
    return f"{plain}, but gradients are rounded to {config.modifiers.wire_dtype}" if rounded else plain


def _bytes(sent: Traffic, towers: int) -> dict[str, str]:
    """Returns what is sent, in words; a mean per tower, since not every algorithm loads towers evenly."""
    parts = {
        "weights read": sent.read_bytes,
        "gradients": sent.gradient_bytes,
        "weights averaged": sent.weight_bytes,
        "activations": sent.activation_bytes,
    }
    total = sent.total_bytes
    known = "not known" if total is None else f"{_megabytes(total)}, {_megabytes(total / towers)} per tower on average"
    named = ", ".join(f"{name} {_megabytes(size)}" for name, size in parts.items() if size)
    return {"Sent per step": known + (f" ({named})" if named else "")}


def _diagram(config: Config) -> str:
    if config.variable_update == "parameter_server":
        update = "an update per tower" if _mode(config) == "asynchronous" else "mean of the gradients, one update"
        diagram = _SHARED.format(update=update, where=_shared_place(config))
    else:
        exchange = {"independent": "   (nothing)", "local_sgd": "   (weights, every few steps)"}
        diagram = _COPIES.format(exchange=exchange.get(config.variable_update, "+---- mean ----+"))
    return f"{diagram}\n\n{_DIVIDED}" if _divides(config) else diagram


def _megabytes(size_bytes: float) -> str:
    return f"{size_bytes / 1e6:.1f} MB"
