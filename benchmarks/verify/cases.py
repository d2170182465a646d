"""Compares every manager, reduction and modifier that can run on these devices with the references."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.cluster.member import Alone
from benchmarks.config.variable_update import Variables
from benchmarks.devices import device_plan as device_planning
from benchmarks.errors import headline
from benchmarks.process.tensorflow_setup import Devices
from benchmarks.process.watchdog import Watchdog
from benchmarks.training.options import Training
from benchmarks.verify import oracle
from variable_mgr import expected, factory
from variable_mgr.catalog import IN_ONE_PROCESS, MANAGERS
from variable_mgr.expected import SGD, WITH_MOMENTUM, Rule
from variable_mgr.modifiers import Modifiers, why_not
from variable_mgr.reductions.algorithms import ALGORITHMS

# Wrappers of a reduction, by the name that the table shows.
TRANSFERS: dict[str, dict[str, Any]] = {
    "": {},
    "relaxed": {"relaxed_consistency": True},
    "repacked": {"gradient_repacking": 2},
    "small aggregated": {"agg_small_grads_max_bytes": 1024},
    "compact": {"compact_gradient_transfer": True},
    "compact bfloat16": {"compact_gradient_transfer": True, "compact_gradient_dtype": "bfloat16"},
    "relaxed repacked compact": {
        "relaxed_consistency": True,
        "gradient_repacking": 1,
        "compact_gradient_transfer": True,
    },
}
NO_CHANGE = "no change"
TOWERS = "towers"
_PLAIN = Modifiers()
# Of a step's change. Up to 7e-3 was seen on CPUs with 3 towers of ResNet-50, EfficientNetB0, MobileNetV3Small and
# Inception-v3, whose batch normalisation amplifies rounding; a lost or doubled gradient gives 0.1 and more.
_OF_ANY_MODEL = 2e-2
# Managers of which one tower tests something: where variables live, or nothing that is exchanged.
_WITH_ONE_TOWER = [name for name, entry in MANAGERS.items() if entry.one_copy or not entry.modifiers]


@dataclasses.dataclass(frozen=True)
class Case:
    """One comparison: a manager with modifiers against a reference.

    Attributes:
        manager: its name.
        modifiers: of the manager.
        shared_on: where shared variables are: `cpu` for the host, `gpu` for the towers' own devices.
        reference: `sgd`, `momentum` or another rule's name: two scalars in NumPy; `whole batch`: one device with the
            images of all towers; `no change`: the variables before a step's gradients were computed; `towers`: see
            `model_oracle`.
        title: of the row.
        micro_batches: of a pipeline, whose stages are on the first devices; 0: there is none.
        chosen_rule: updates the weights; None: that of `reference`, which is momentum for networks.
    """

    manager: str
    modifiers: Modifiers
    shared_on: str
    reference: str
    title: str
    micro_batches: int = 0
    chosen_rule: Rule | None = None

    @property
    def rule(self) -> Rule:
        """Returns what updates the weights."""
        return self.chosen_rule or (SGD if self.reference == "sgd" else WITH_MOMENTUM)

    @property
    def tolerance(self) -> float:
        """Returns the largest error that passes."""
        fixed = {"whole batch": expected.AFTER_CONVOLUTIONS, NO_CHANGE: expected.NO_CHANGE}
        least = _OF_ANY_MODEL if self.reference == TOWERS else 0.0
        return fixed.get(self.reference, max(least, expected.tolerance(self.modifiers)))


@dataclasses.dataclass(frozen=True)
class CaseResult:
    """The result of a case: the error, or the sentence why it cannot run here."""

    case: Case
    error: float | None
    reason: str = ""

    @property
    def passed(self) -> bool:
        """Returns whether the error is within the tolerance; a case that cannot run here has not failed."""
        return self.error is None or self.error <= self.case.tolerance


PIPELINE = Case("parameter_server", _PLAIN, "gpu", "whole batch", "pipeline of 3 micro-batches", micro_batches=3)


def cases() -> Iterator[Case]:
    """Yields every comparison in one process; it follows from the catalogs of managers and of algorithms."""
    for optimizer, manager in itertools.product(("sgd", "momentum"), MANAGERS):
        if manager in IN_ONE_PROCESS:
            yield from _scalars(manager, optimizer)
        else:  # a row with the reason
            yield Case(manager, Modifiers(), "cpu", optimizer, manager)
    for manager, (transfer, fields) in itertools.product(IN_ONE_PROCESS, TRANSFERS.items()):
        if "gradient_repacking" in MANAGERS[manager].modifiers:
            for algorithm in MANAGERS[manager].reductions or ALGORITHMS:
                modifiers = Modifiers(all_reduce_spec=algorithm, **fields)
                yield Case(manager, modifiers, "cpu", "sgd", " ".join(filter(None, (manager, algorithm, transfer))))
    for manager in IN_ONE_PROCESS:
        yield from _whole_batch(manager)
        yield without_applying(manager)
    yield PIPELINE


def rule_of(training: Training) -> Rule | None:
    """Returns the update rule that the user chooses; None for plain SGD, which is always compared."""
    rule = Rule(training.optimizer, training.clipping.value, training.clipping.norm)
    return None if rule == SGD else rule


def under(rule: Rule | None, found: Iterable[Case]) -> Iterator[Case]:
    """Yields comparisons with this rule instead of SGD and momentum; None: as they are."""
    for case in found:
        if rule is None or case.reference == NO_CHANGE:
            yield case
        elif case.reference != "momentum":  # there is one with SGD for each of these
            reference = rule.optimizer if case.reference == "sgd" else case.reference
            yield dataclasses.replace(case, reference=reference, chosen_rule=rule)


def why_not_under(case: Case) -> str | None:
    """Returns why a comparison cannot be made with its rule."""
    if case.modifiers.fc_model_parallel and (case.rule.optimizer == "lars" or case.rule.clip_norm):
        return "LARS and the limit of the norm need whole gradients, and fc_model_parallel divides some."
    return None


def without_applying(manager: str, modifiers: Modifiers = _PLAIN, shared_on: str = "cpu") -> Case:
    """Returns the comparison of all variables before and after gradients are computed and not applied."""
    return Case(manager, modifiers, shared_on, NO_CHANGE, f"{manager} computing gradients without applying them")


def of_setting(variables: Variables) -> list[Case]:
    """Returns the comparisons of one manager with its modifiers, in one process or in a cluster, or of a pipeline."""
    if variables.pipeline:
        return [PIPELINE]
    manager, modifiers, shared_on = variables.variable_update, variables.modifiers, variables.shared_on
    title = titled(manager, modifiers)
    references = [] if modifiers.fc_model_parallel else ["sgd", "momentum"]  # the layers of scalars are not divided
    if MANAGERS[manager].exchanges_gradients and expected.is_plain_sgd(modifiers):
        references.append("whole batch")
    found = [Case(manager, modifiers, shared_on, reference, title) for reference in references]
    return [*found, without_applying(manager, modifiers, shared_on)]


def titled(manager: str, modifiers: Modifiers) -> str:
    """Returns a manager's name and the modifiers that are set, such as `replicated all_reduce_spec=xring`."""
    changed = {name: value for name, value in vars(modifiers).items() if value != getattr(_PLAIN, name)}
    return " ".join([manager, *(name if value is True else f"{name}={value}" for name, value in changed.items())])


def _scalars(manager: str, optimizer: str) -> Iterator[Case]:
    entry = MANAGERS[manager]
    for shared_on in ("cpu", "gpu") if entry.one_copy else ("cpu",):
        title = f"{manager} variables on {shared_on}" if entry.one_copy else manager
        yield Case(manager, Modifiers(), shared_on, optimizer, title)
        if "staged_vars" in entry.modifiers:
            yield Case(manager, Modifiers(staged_vars=True), shared_on, optimizer, f"{title} staged")
    if "asynchronous" in entry.modifiers:
        title = f"{manager} asynchronous, towers in turn"
        yield Case(manager, Modifiers(asynchronous=True), "cpu", optimizer, title)
    for steps in (2, 3) if "local_sgd_steps" in entry.modifiers else ():
        yield Case(manager, Modifiers(local_sgd_steps=steps), "gpu", optimizer, f"{manager} every {steps} steps")


def _whole_batch(manager: str) -> Iterator[Case]:
    entry = MANAGERS[manager]
    if entry.exchanges_gradients and "all_reduce_spec" in entry.modifiers:
        # Shards and sizes matter only for tensors that are not scalars.
        for spec in entry.reductions or [*ALGORITHMS, "xring#2", "psgpu#3", "pscpu:16:xring"]:
            yield Case(manager, Modifiers(all_reduce_spec=spec), "cpu", "whole batch", f"{manager} {spec}")
    elif entry.exchanges_gradients:
        yield Case(manager, Modifiers(), "gpu", "whole batch", manager)
    if "fc_model_parallel" in entry.modifiers:
        title = f"{manager} with dense layers divided over towers"
        yield Case(manager, Modifiers(fc_model_parallel=True), "gpu", "whole batch", title)


def results(
    devices: Devices,
    chosen: Sequence[Case] | None = None,
    rule: Rule | None = None,
    *,
    watchdog: Watchdog | None = None,
    step_timeout_seconds: float = 600.0,
) -> Iterator[CaseResult]:
    """Runs cases with one tower on each device and yields their results.

    Args:
        devices: of this process.
        chosen: what to compare; None: everything.
        rule: see `under`.
        watchdog: ends the process if a step takes longer than `step_timeout_seconds`; None: no limit.
        step_timeout_seconds: the limit.
    """
    tf.config.experimental.enable_tensor_float_32_execution(False)  # as in a run: fp32 means fp32
    limited: dict[str, Any] = {"team": Alone(watchdog), "step_timeout_seconds": step_timeout_seconds}

    towers, session_config = devices.num_devices, device_planning.session_config(devices)

    @functools.cache  # trained when the first case needs it
    def weights_of_one_device() -> dict[str, np.ndarray]:
        one = dataclasses.replace(devices, num_devices=1)
        alone, config = device_planning.plan(one, shared_on="cpu"), device_planning.session_config(one)
        make = maker("replicated", alone, Modifiers())
        return oracle.convolutional_weights(make, alone, towers, config, rule=rule or WITH_MOMENTUM, **limited)

    for case in under(rule, cases() if chosen is None else chosen):
        count = min(towers, oracle.MOST_STAGES) if case.micro_batches else towers
        plan = device_planning.plan(dataclasses.replace(devices, num_devices=count), shared_on=case.shared_on)
        reason = why_not(case.manager, case.modifiers, plan.place) or why_not_under(case)
        if towers == 1 and chosen is None and case.manager not in _WITH_ONE_TOWER:
            reason = "one tower has nothing to exchange; use --num_gpus=2 (on one GPU with --virtual_gpus=2)."
        if reason:
            yield CaseResult(case, None, reason)
            continue
        make = maker(case.manager, plan, case.modifiers)
        try:
            if case.reference == "whole batch":
                divided = case.modifiers.fc_model_parallel
                how: dict[str, Any] = {"divided": divided, "micro_batches": case.micro_batches, "rule": case.rule}
                weights = oracle.convolutional_weights(make, plan, towers, session_config, **how, **limited)
                error = largest_difference(weights, weights_of_one_device())
            elif case.reference == NO_CHANGE:
                error = oracle.changed_by_gradients(make, plan, session_config, **limited)
            else:
                wanted = expected.of_manager(case.manager, case.modifiers, case.rule, towers)
                error = oracle.trained(make, plan, case.rule, session_config, **limited).error(wanted)
            yield CaseResult(case, error)
        except tf.errors.OpError as failure:
            yield CaseResult(case, float("inf"), headline(failure))


def maker(manager: str, devices: device_planning.DevicePlan, modifiers: Modifiers) -> oracle.MakeManager:
    """Returns a function that makes a manager on these devices."""
    return functools.partial(factory.make, manager, devices.place, shared_devices=devices.shared, modifiers=modifiers)


def largest_difference(got: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> float:
    """Returns the largest relative difference of weights by name, absolute below 1."""
    if got.keys() != wanted.keys():
        return float("inf")
    return max(expected.relative_error(got[name], wanted[name]) for name in wanted)
