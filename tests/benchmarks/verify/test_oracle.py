"""Every manager against arithmetic in NumPy that was written independently of the code under test.

See `benchmarks.verify.oracle`, which `run_bench.py verify` uses on the user's devices.
"""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from benchmarks.cluster.cluster_spec import place
from benchmarks.process.tensorflow_setup import Devices
from benchmarks.verify import cases, comparisons
from benchmarks.verify.cases import TRANSFERS, Case
from tests.support.arithmetic import scalar_error
from tests.support.rotation import rotating
from variable_mgr import expected
from variable_mgr.catalog import IN_ONE_PROCESS, MANAGERS
from variable_mgr.expected import EXACT, SGD, Rule
from variable_mgr.modifiers import Modifiers, why_not
from variable_mgr.reductions.algorithm_catalog import ALGORITHMS

# In every build each number of towers meets one optimizer.
on_every_count = rotating(
    ("towers", "optimizer"),
    [
        (1, "momentum"),
        (2, "sgd"),
        (3, "momentum"),
        (4, "sgd"),
        *((1, "sgd"), (2, "momentum"), (3, "sgd"), (4, "momentum")),
    ],
    first=4,
)
# Only these keep anything on shared devices.
WHERE_SHARED = [
    (manager, shared_on)
    for manager in IN_ONE_PROCESS
    for shared_on in (("cpu", "gpu") if manager in ("parameter_server", "local_sgd") else ("cpu",))
]
SEVERAL_TOWERS = (2, 3, 4)
REFUSED_ON_CPUS = {("nccl", towers): "NVIDIA GPUs only" for towers in SEVERAL_TOWERS} | {("rechd", 3): "2, 4, 8"}
ON_CPUS = [pair for pair in itertools.product(ALGORITHMS, SEVERAL_TOWERS) if pair not in REFUSED_ON_CPUS]


@on_every_count
@pytest.mark.parametrize(("manager", "shared_on"), WHERE_SHARED)
def test_manager_does_the_arithmetic(manager: str, towers: int, optimizer: str, shared_on: str) -> None:
    assert scalar_error(manager, towers, optimizer, shared_on=shared_on) <= EXACT


def test_only_what_cannot_run_on_cpus_is_left_out() -> None:
    for spec, towers in itertools.product(ALGORITHMS, SEVERAL_TOWERS):
        sentence = why_not("replicated", Modifiers(all_reduce_spec=spec), place("cpu", towers))
        if (spec, towers) in ON_CPUS:
            assert sentence is None
        else:
            assert sentence is not None and REFUSED_ON_CPUS[spec, towers] in sentence


@pytest.mark.parametrize("transfer", [name for name in TRANSFERS if name])
@rotating(
    ("spec", "towers"),
    [*((spec, 2) for spec, towers in ON_CPUS if towers == 2), *((spec, 4) for spec, towers in ON_CPUS if towers == 4)],
    first=len(ALGORITHMS) // 2,
)
def test_reduction_does_the_arithmetic_of_what_is_transferred(spec: str, towers: int, transfer: str) -> None:
    modifiers = Modifiers(all_reduce_spec=spec, **TRANSFERS[transfer])
    assert scalar_error("replicated", towers, "sgd", modifiers=modifiers) <= expected.tolerance(modifiers)


@pytest.mark.parametrize("transfer", TRANSFERS)
def test_one_tower_has_nothing_to_transfer_but_may_defer(transfer: str) -> None:
    modifiers = Modifiers(all_reduce_spec="xring", **TRANSFERS[transfer])
    assert scalar_error("replicated", 1, "sgd", modifiers=modifiers) <= EXACT


@pytest.mark.row("G3.6")
@pytest.mark.parametrize("shared_on", ["cpu", "gpu"])
@on_every_count
def test_staging_delays_exactly_as_it_says(towers: int, optimizer: str, shared_on: str) -> None:
    modifiers = Modifiers(staged_vars=True)
    assert scalar_error("parameter_server", towers, optimizer, shared_on=shared_on, modifiers=modifiers) <= EXACT


@pytest.mark.row("S3.10")
@pytest.mark.parametrize("steps", [2, 3])
@on_every_count
def test_local_sgd_averages_weights_when_it_says(towers: int, optimizer: str, steps: int) -> None:
    assert scalar_error("local_sgd", towers, optimizer, modifiers=Modifiers(local_sgd_steps=steps)) <= EXACT


@pytest.mark.row("S3.10")
def test_averaging_weights_after_every_step_of_sgd_is_averaging_gradients() -> None:
    weights = expected.of_manager("local_sgd", Modifiers(local_sgd_steps=1), SGD, 3)
    assert weights.error(expected.of_manager("replicated", Modifiers(), SGD, 3)) < 1e-12


def test_the_oracle_by_hand() -> None:
    """One tower, one step: x = -1, 0; loss = -0.5 * 1 * 2; gradients -0.5 * 2 + 1/16 and -0.5 * 1 + 2/16."""
    first = expected.of_manager("replicated", Modifiers(), SGD, 1)
    assert first.loss[0] == -1.0
    assert first.a[0] == [1.0 - (-1.0 + 1 / 16) / 32]
    assert first.b[0] == [2.0 - (-0.5 + 2 / 16) / 32]
    # Two towers: x = -1, 0 and 1, 2; the mean of the gradients.
    second = expected.of_manager("replicated", Modifiers(), SGD, 2)
    assert second.a[0] == [1.0 - (0.5 * (-1.0 + 3.0) + 1 / 16) / 32] * 2


def test_the_oracle_tells_everything_apart() -> None:
    """A check that cannot fail checks nothing."""
    kinds = [
        expected.of_manager(manager, modifiers, rule, 2)
        for rule in (SGD, expected.WITH_MOMENTUM, expected.Rule("nesterov"), expected.Rule("sgd", clip_norm=0.5))
        for manager in ("replicated", "independent")
        for modifiers in (Modifiers(), Modifiers(relaxed_consistency=True), Modifiers(staged_vars=True))
    ]
    for index, one in enumerate(kinds):
        for other in kinds[index + 1 :]:
            assert one.error(other) > 0.01
    assert kinds[0].error(expected.Trajectory()) == float("inf")


@pytest.mark.parametrize("rule", [Rule("nesterov"), Rule("momentum", clip_value=1.0), Rule("lars", clip_norm=0.5)])
@pytest.mark.parametrize("modifiers", [Modifiers(), Modifiers(asynchronous=True), Modifiers(staged_vars=True)], ids=str)
def test_every_rule_does_the_arithmetic_of_its_name(rule: Rule, modifiers: Modifiers) -> None:
    case = Case("parameter_server", modifiers, "cpu", rule.optimizer, "", chosen_rule=rule)
    (result,) = comparisons.results(Devices(num_devices=2), chosen=[case])
    assert result.passed, result
    plain = expected.of_manager(case.manager, modifiers, SGD, 2)
    assert plain.error(expected.of_manager(case.manager, modifiers, rule, 2)) > 0.01, "the rule matters"


def test_a_chosen_rule_replaces_the_usual_ones_and_divided_layers_refuse_norms() -> None:
    rule = Rule("lars")
    found = list(cases.under(rule, cases.cases()))
    assert {case.reference for case in found} == {"lars", "whole batch", "no change"}
    assert len(found) < len(list(cases.cases()))
    divided = [case for case in found if case.modifiers.fc_model_parallel]
    assert divided and all("LARS" in str(case.why_not(place("cpu", 2))) for case in divided)


def test_wrappers_around_the_only_reduction_of_a_manager_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of docs/howto/add-a-manager.md: no flag names its reduction."""
    modifiers = tuple(name for name in MANAGERS["replicated"].modifiers if name != "all_reduce_spec")
    monkeypatch.setitem(MANAGERS, "replicated", dataclasses.replace(MANAGERS["replicated"], modifiers=modifiers))
    found = [case for case in cases.cases() if case.manager == "replicated"]
    rows = [(case.title, case.reference) for case in found]
    assert len(set(rows)) == len(rows)
    assert {title for title, _ in rows} >= {f"replicated {transfer}" for transfer in TRANSFERS if transfer}
    assert not [reason for case in found if (reason := why_not(case.manager, case.modifiers, place("cpu", 2)))]


def test_layers_are_not_divided_over_more_devices_than_they_have_columns() -> None:
    case = Case("replicated", Modifiers(fc_model_parallel=True), "gpu", cases.WHOLE_BATCH, "6 towers for 5 classes")
    (result,) = comparisons.results(Devices(num_devices=6), chosen=[case])
    assert result.error is None and "fewer than the 6 towers" in result.reason
