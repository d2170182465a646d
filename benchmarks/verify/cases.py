"""What `verify` compares: every manager, reduction and modifier, in one process, in a cluster, or on models."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from benchmarks.config.variable_update import Pipelining, Variables
from benchmarks.training.options import Training
from variable_mgr import expected
from variable_mgr.catalog import IN_GRAPH, IN_ONE_PROCESS, MANAGERS, WorksIn
from variable_mgr.expected import SGD, WITH_MOMENTUM, Rule
from variable_mgr.modifiers import Modifiers, why_not
from variable_mgr.place import Place
from variable_mgr.reductions.algorithm_catalog import ALGORITHMS

SharedOn = Literal["cpu", "gpu"]
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
WHOLE_BATCH, NO_CHANGE, TOWERS = "whole batch", "no change", "towers"
_PLAIN = Modifiers()
# Of a step's change. Up to 7e-3 was seen on CPUs with 3 towers of ResNet-50, EfficientNetB0, MobileNetV3Small and
# Inception-v3, whose batch normalisation amplifies rounding; a lost or doubled gradient gives 0.1 and more.
_OF_ANY_MODEL = 2e-2
_OF_ONE_CLIENT = ("xring", "psgpu", "pscpu/pscpu", "pscpu/xring", "xring/rechd", "hierarchical")
_LOCAL_STEPS = 2  # so that the weights of towers differ after some steps


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
    shared_on: SharedOn
    reference: str
    title: str
    micro_batches: int = 0
    chosen_rule: Rule | None = None

    @property
    def rule(self) -> Rule:
        """What updates the weights."""
        return self.chosen_rule or (SGD if self.reference == "sgd" else WITH_MOMENTUM)

    @property
    def tolerance(self) -> float:
        """The largest error that passes."""
        fixed = {WHOLE_BATCH: expected.AFTER_CONVOLUTIONS, NO_CHANGE: 0.0}
        least = _OF_ANY_MODEL if self.reference == TOWERS else 0.0
        return fixed.get(self.reference, max(least, expected.tolerance(self.modifiers)))

    def variables(self, stages: int) -> Variables:
        """Returns its manager as a run configures it, or a pipeline of so many stages."""
        pipeline = Pipelining(stages=stages, micro_batches=self.micro_batches) if self.micro_batches else None
        return Variables(
            variable_update=self.manager, shared_on=self.shared_on, modifiers=self.modifiers, pipeline=pipeline
        )

    def why_not(self, place: Place) -> str | None:
        """Returns why it cannot be compared on these devices or with its rule; None if it can."""
        if reason := why_not(self.manager, self.modifiers, place):
            return reason
        if self.modifiers.fc_model_parallel and (self.rule.optimizer == "lars" or self.rule.clip_norm):
            return "LARS and the limit of the norm need whole gradients, and fc_model_parallel divides some."
        return None


@dataclasses.dataclass(frozen=True)
class CaseResult:
    """The result of a case: the error, or the sentence why it cannot run here."""

    case: Case
    error: float | None
    reason: str = ""

    @property
    def passed(self) -> bool:
        """Whether the error is within the tolerance; a case that cannot run here has not failed."""
        return self.error is None or self.error <= self.case.tolerance


PIPELINE = Case("parameter_server", _PLAIN, "gpu", WHOLE_BATCH, "pipeline of 3 micro-batches", micro_batches=3)


def cases() -> Iterator[Case]:
    """Yields every comparison in one process; it follows from the catalogs of managers and of algorithms."""
    for optimizer, manager in itertools.product(("sgd", "momentum"), MANAGERS):
        if manager in IN_ONE_PROCESS:
            yield from _scalars(manager, optimizer)
        else:  # a row with the reason
            yield Case(manager, Modifiers(), "cpu", optimizer, manager)
    for manager, (transfer, fields) in itertools.product(IN_ONE_PROCESS, TRANSFERS.items()):
        entry = MANAGERS[manager]
        if "gradient_repacking" in entry.modifiers:
            for algorithm in (entry.reductions or ALGORITHMS) if "all_reduce_spec" in entry.modifiers else (None,):
                title = " ".join(filter(None, (manager, algorithm, transfer)))
                if title != manager:  # which is compared already
                    yield Case(manager, Modifiers(all_reduce_spec=algorithm, **fields), "cpu", "sgd", title)
    for manager in IN_ONE_PROCESS:
        yield from _whole_batch(manager)
        yield without_applying(manager)
    yield PIPELINE


def rule_of(training: Training) -> Rule | None:
    """Returns the update rule that the user chooses; None for plain SGD, which is always compared."""
    rule = Rule(training.optimizer, training.gradient_clip, training.gradient_clip_norm)
    return None if rule == SGD else rule


def under(rule: Rule | None, comparisons: Iterable[Case]) -> Iterator[Case]:
    """Yields comparisons with this rule instead of SGD and momentum; None: as they are."""
    for case in comparisons:
        if rule is None or case.reference == NO_CHANGE:
            yield case
        elif case.reference != "momentum":  # there is one with SGD for each of these
            reference = rule.optimizer if case.reference == "sgd" else case.reference
            yield dataclasses.replace(case, reference=reference, chosen_rule=rule)


def without_applying(manager: str, modifiers: Modifiers = _PLAIN, shared_on: SharedOn = "cpu") -> Case:
    """Returns the comparison of all variables before and after gradients are computed and not applied."""
    return Case(manager, modifiers, shared_on, NO_CHANGE, f"{manager} computing gradients without applying them")


def of_setting(variables: Variables) -> list[Case]:
    """Returns the comparisons of one manager with its modifiers, in one process or in a cluster, or of a pipeline."""
    if variables.pipeline:
        return [PIPELINE]
    manager, modifiers, shared_on = variables.variable_update, variables.modifiers, variables.shared_on
    title = titled(manager, modifiers)
    references = [] if modifiers.fc_model_parallel else ["sgd", "momentum"]  # the layers of scalars are not divided
    delayed = modifiers.asynchronous or modifiers.staged_vars or modifiers.relaxed_consistency
    if MANAGERS[manager].exchanges_gradients and not delayed and modifiers.wire_dtype == "float32":
        references.append(WHOLE_BATCH)
    comparisons = [Case(manager, modifiers, shared_on, reference, title) for reference in references]
    return [*comparisons, without_applying(manager, modifiers, shared_on)]


def titled(manager: str, modifiers: Modifiers) -> str:
    """Returns a manager's name and the modifiers that are set, such as `replicated all_reduce_spec=xring`."""
    changed = {name: value for name, value in vars(modifiers).items() if value != getattr(_PLAIN, name)}
    return " ".join([manager, *(name if value is True else f"{name}={value}" for name, value in changed.items())])


def _scalars(manager: str, optimizer: str, *, in_cluster: bool = False) -> Iterator[Case]:
    entry = MANAGERS[manager]
    may_be_on_towers = entry.one_copy and not in_cluster
    places: tuple[SharedOn, ...] = ("cpu", "gpu") if may_be_on_towers else ("cpu",)
    for shared_on in places:
        title = f"{manager} variables on {shared_on}" if may_be_on_towers else manager
        yield Case(manager, Modifiers(), shared_on, optimizer, title)
        if "staged_vars" in entry.modifiers:
            yield Case(manager, Modifiers(staged_vars=True), shared_on, optimizer, f"{title} staged")
    if "asynchronous" in entry.modifiers:
        title = f"{manager} asynchronous, {'workers' if in_cluster and manager not in IN_GRAPH else 'towers'} in turn"
        yield Case(manager, Modifiers(asynchronous=True), "cpu", optimizer, title)
    for steps in (2, 3) if "local_sgd_steps" in entry.modifiers else ():
        yield Case(manager, Modifiers(local_sgd_steps=steps), "gpu", optimizer, f"{manager} every {steps} steps")


def _whole_batch(manager: str) -> Iterator[Case]:
    entry = MANAGERS[manager]
    if entry.exchanges_gradients and "all_reduce_spec" in entry.modifiers:
        # Shards and sizes matter only for tensors that are not scalars.
        for spec in entry.reductions or [*ALGORITHMS, "xring#2", "psgpu#3", "pscpu:16:xring"]:
            yield Case(manager, Modifiers(all_reduce_spec=spec), "cpu", WHOLE_BATCH, f"{manager} {spec}")
        for transfer in ("repacked", "small aggregated"):
            yield Case(manager, Modifiers(**TRANSFERS[transfer]), "cpu", WHOLE_BATCH, f"{manager} {transfer}")
    elif entry.exchanges_gradients:
        yield Case(manager, Modifiers(), "gpu", WHOLE_BATCH, manager)
    if "fc_model_parallel" in entry.modifiers:
        title = f"{manager} with dense layers divided over towers"
        yield Case(manager, Modifiers(fc_model_parallel=True), "gpu", WHOLE_BATCH, title)


def cluster_cases() -> Iterator[Case]:
    """Yields every comparison between processes; it follows from the catalog of managers."""
    managers = {name: entry for name, entry in MANAGERS.items() if entry.processes != WorksIn.ONE}
    for manager, entry in managers.items():
        for optimizer in ("sgd", "momentum"):
            yield from _scalars(manager, optimizer, in_cluster=True)
        for transfer, fields in TRANSFERS.items():
            if transfer and not set(fields) - {*entry.modifiers, "compact_gradient_dtype"}:
                yield Case(manager, Modifiers(**fields), "cpu", "sgd", f"{manager} {transfer}")
        if entry.exchanges_gradients and "all_reduce_spec" in entry.modifiers:
            for spec in ("nccl",) if entry.reductions else _OF_ONE_CLIENT:
                yield Case(manager, Modifiers(all_reduce_spec=spec), "cpu", "sgd", f"{manager} {spec}")
        if entry.exchanges_gradients:
            yield Case(manager, Modifiers(), "cpu", WHOLE_BATCH, manager)
        yield without_applying(manager)


def model_cases(model: str, setting: Variables | None = None) -> list[Case]:
    """Returns the comparisons of a model: under one manager with its modifiers, or under all managers."""
    if setting:
        settings = [(setting.variable_update, setting.modifiers, setting.shared_on)]
    else:
        local = Modifiers(local_sgd_steps=_LOCAL_STEPS)
        settings = [
            (name, local if "local_sgd_steps" in entry.modifiers else Modifiers(), "cpu")
            for name, entry in MANAGERS.items()
        ]
    return [
        Case(manager, modifiers, shared_on, TOWERS, f"{model} under {titled(manager, modifiers)}")
        for manager, modifiers, shared_on in settings
    ]
