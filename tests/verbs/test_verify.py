from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import pytest
import tensorflow as tf

from benchmarks.config.variable_update import Variables
from benchmarks.errors import ExitStatus
from benchmarks.process.tensorflow_setup import Devices
from benchmarks.verify import cases as verify
from benchmarks.verify import comparisons
from tests.support.commands import RunBench
from variable_mgr import variables
from variable_mgr.catalog import IN_ONE_PROCESS, MANAGERS
from variable_mgr.managers.replicated import Replicated
from variable_mgr.modifiers import Modifiers
from variable_mgr.place import Place, Turn
from variable_mgr.reductions import wrappers
from variable_mgr.reductions.algorithm_catalog import ALGORITHMS, Algorithm


def test_everything_that_is_registered_is_a_case() -> None:
    titles = {case.title for case in verify.cases()}
    assert {f"replicated {name}" for name in ALGORITHMS} <= titles
    assert len(list(verify.cases())) >= 40


def _only(monkeypatch: pytest.MonkeyPatch, case: verify.Case) -> verify.CaseResult:
    monkeypatch.setattr(verify, "cases", lambda: iter([case]))
    (verdict,) = comparisons.results(Devices(num_devices=2))
    return verdict


@pytest.mark.parametrize("reference", ["sgd", "whole batch"])
@pytest.mark.parametrize(("wrong_by", "passes"), [(0.0, True), (1e-2, False), (float("nan"), False)])
def test_a_reduction_that_is_a_little_wrong_is_found(
    monkeypatch: pytest.MonkeyPatch, reference: str, wrong_by: float, passes: bool
) -> None:
    def biased(values: Sequence[tf.Tensor], place: Place, turn: Turn) -> list[tf.Tensor]:
        with tf.device(place.host):
            return [tf.reduce_mean(tf.stack(values), axis=0) + wrong_by] * len(values)

    monkeypatch.setitem(ALGORITHMS, "biased", Algorithm("biased", "a mean that is off", biased))
    case = verify.Case("replicated", Modifiers(all_reduce_spec="biased"), "cpu", reference, "biased")
    verdict = _only(monkeypatch, case)
    assert verdict.error is not None
    assert verdict.passed == passes


def test_packed_gradients_that_get_a_wrong_shape_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two scalars do not show it."""

    def transposed(packed: Sequence[tf.Tensor], like: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return [tf.transpose(tf.reshape(part, part.shape[::-1])) for part in unpack(packed, like)]

    unpack = wrappers.unpack
    monkeypatch.setattr(wrappers, "unpack", transposed)
    packed = [case for case in verify.cases() if case.title in ("replicated repacked", "replicated small aggregated")]
    assert [result.passed for result in comparisons.results(Devices(num_devices=2), packed)] == [False, False]


def test_an_error_that_is_no_number_does_not_pass() -> None:
    assert not verify.CaseResult(_case("replicated"), float("nan")).passed


def test_what_cannot_run_is_a_row_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    case = verify.Case("replicated", Modifiers(all_reduce_spec="nccl"), "cpu", "sgd", "replicated nccl")
    verdict = _only(monkeypatch, case)
    assert verdict.error is None and verdict.passed
    assert "NVIDIA" in verdict.reason


def _case(manager: str, reference: str = "sgd", **modifiers: object) -> verify.Case:
    return verify.Case(manager, Modifiers(**modifiers), "cpu", reference, f"{manager} {reference}")


@pytest.mark.row("S3.8")
def test_every_manager_is_checked_for_changes_while_gradients_are_computed() -> None:
    checked = {case.manager for case in [*verify.cases(), *verify.cluster_cases()] if case.reference == "no change"}
    assert checked == set(MANAGERS)


def test_a_variable_that_changes_while_gradients_are_computed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    case = verify.without_applying("replicated")
    assert _only(monkeypatch, case).error == 0.0
    values = Replicated.tower_values

    def counting(manager: Replicated, tower: int) -> list[tf.Tensor]:
        first, *others = values(manager, tower)
        with tf.device(manager._copies[0]["product/a"].device):
            return [manager._copies[tower]["product/a"].assign_add(2.0**-20).read_value(), *others]

    monkeypatch.setattr(Replicated, "tower_values", counting)
    found = _only(monkeypatch, case)
    assert found.error == 2.0**-20 and not found.passed


def test_a_step_that_changes_what_is_not_trained_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assign_all = variables.assign_all

    def drifting(copy: dict[str, tf.Variable], values: dict[str, tf.Tensor]) -> list[tf.Operation]:
        return assign_all(copy, {name: value + 2.0**-10 for name, value in values.items()})

    monkeypatch.setattr(variables, "assign_all", drifting)
    found = _only(monkeypatch, _case("replicated"))
    assert found.error == pytest.approx(5 * 2.0**-10) and not found.passed


def _rows(modifiers: Modifiers, manager: str = "replicated") -> list[str]:
    return [
        case.reference
        for case in verify.of_setting(Variables(variable_update=manager, modifiers=modifiers, shared_on="cpu"))
    ]


def test_a_setting_is_compared_with_what_it_must_equal() -> None:
    everything = ["sgd", "momentum", "whole batch", "no change"]
    assert _rows(Modifiers(all_reduce_spec="xring")) == everything
    assert _rows(Modifiers(staged_vars=True), "parameter_server") == ["sgd", "momentum", "no change"]
    assert _rows(Modifiers(relaxed_consistency=True)) == ["sgd", "momentum", "no change"]
    assert _rows(Modifiers(compact_gradient_transfer=True)) == ["sgd", "momentum", "no change"]
    assert _rows(Modifiers(), "independent") == ["sgd", "momentum", "no change"]
    assert _rows(Modifiers(fc_model_parallel=True)) == ["whole batch", "no change"]


def test_one_manager_is_verified_with_its_modifiers(run_bench: RunBench) -> None:
    flags = ("--variable_update=replicated", "--all_reduce_spec=xring", "--output_format=json")
    done = run_bench("verify", "--device=cpu", "--num_gpus=2", *flags).succeeded()
    report = json.loads(done.stdout)
    assert [row["against"] for row in report["rows"]] == ["sgd", "momentum", "whole batch", "no change"]
    assert {row["result"] for row in report["rows"]} == {"ok"}
    assert report["rows"][0]["what"] == "replicated all_reduce_spec=xring"
    assert report["counts"] == {"ok": 4, "FAIL": 0, "-": 0}


@pytest.mark.parametrize(("last_error", "status"), [(1e-6, 0), (2e-6, ExitStatus.RUN_FAILED)])
def test_the_verb_prints_a_row_for_each_verdict(
    run_bench: RunBench, monkeypatch: pytest.MonkeyPatch, last_error: float, status: int
) -> None:
    asked = []

    def results(on: Devices, *others: object, **limits: object) -> Iterator[verify.CaseResult]:
        asked.append(on)
        yield verify.CaseResult(_case("independent", compact_gradient_transfer=True), 5e-3)
        yield verify.CaseResult(_case("replicated"), None, "It cannot run.")
        yield verify.CaseResult(_case("local_sgd", "whole batch"), 1e-5)
        yield verify.CaseResult(_case("parameter_server"), last_error)

    monkeypatch.setattr(comparisons, "results", results)
    monkeypatch.setenv("TF_NUM_INTEROP_THREADS", "2")
    done = run_bench("verify", "--device=cpu", "--num_gpus=3")
    assert "TF_NUM_INTEROP_THREADS=2: it sets TensorFlow's threads" in done.stderr
    assert asked == [Devices(num_devices=3)]
    assert done.status == status
    failed = status != 0
    word = "FAIL" if failed else "ok  "
    assert done.stdout.splitlines()[-6:] == [
        "ok     5.0e-03     1e-02  sgd          independent sgd",
        "-                  1e-06  sgd          replicated sgd: It cannot run.",
        "ok     1.0e-05     1e-05  whole batch  local_sgd whole batch",
        f"{word}   {last_error:.1e}     1e-06  sgd          parameter_server sgd",
        "",
        f"{'2 ok, 1' if failed else '3 ok, 0'} failed, 1 cannot run here.",
    ]
    assert ("The failed rows compute wrongly on these devices, or not at all" in done.stderr) == failed


@pytest.mark.row("S3.7")
@pytest.mark.slow
def test_every_comparison_passes(run_bench: RunBench) -> None:
    done = run_bench("verify", "--device=cpu", "--num_gpus=3").succeeded()
    rows = [line for line in done.stdout.splitlines() if line.startswith(("ok ", "- "))]
    assert len(rows) == len(list(verify.cases()))
    for row in rows:
        assert row.startswith("-") == any(word in row for word in ("nccl", "rechd", "distributed_", "in_graph")), row


def test_one_tower_proves_no_reduction(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [_case(manager, "momentum") for manager in IN_ONE_PROCESS]
    cases.append(_case("parameter_server", "momentum", staged_vars=True))
    monkeypatch.setattr(verify, "cases", lambda: iter(cases))
    for verdict in comparisons.results(Devices()):
        assert verdict.passed
        if verdict.case.manager in ("independent", "parameter_server"):
            assert verdict.error is not None
        else:
            assert verdict.error is None and "nothing to exchange" in verdict.reason
    (asked_for,) = comparisons.results(Devices(), [_case("replicated")])
    assert asked_for.error is not None and asked_for.passed


def test_an_operation_that_fails_is_a_failed_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(values: Sequence[tf.Tensor], place: Place, turn: Turn) -> list[tf.Tensor]:
        with tf.device("/cpu:7"):
            return [tf.add_n(values)] * len(values)

    monkeypatch.setitem(ALGORITHMS, "broken", Algorithm("broken", "on a device that is not there", broken))
    case = verify.Case("replicated", Modifiers(all_reduce_spec="broken"), "cpu", "sgd", "broken")
    verdict = _only(monkeypatch, case)
    assert not verdict.passed and verdict.reason

    def refuse(*_: object) -> float:
        raise tf.errors.InternalError(
            None, None, "NCCL: unhandled system error (run with NCCL_DEBUG=INFO for details)."
        )

    monkeypatch.setattr(comparisons, "_error", refuse)
    assert "NCCL: unhandled system error" in (reason := _only(monkeypatch, case).reason) and "--ipc=host" in reason


def test_managers_are_verified_on_models_by_name(run_bench: RunBench) -> None:
    flags = ("--variable_update=replicated", "--all_reduce_spec=xring", "--output_format=json")
    done = run_bench("verify", "--device=cpu", "--num_gpus=2", "--model=mlp,lenet_mnist,mlp", *flags).succeeded()
    report = json.loads(done.stdout)
    assert [(row["result"], row["against"], row["what"]) for row in report["rows"]] == [
        ("ok", "towers", "mlp under replicated all_reduce_spec=xring"),
        ("ok", "towers", "lenet_mnist under replicated all_reduce_spec=xring"),
    ]


@pytest.mark.seldom
@pytest.mark.parametrize("model", ["resnet20", "keras:MobileNetV3Small"])
def test_every_manager_is_verified_on_a_model(run_bench: RunBench, model: str) -> None:
    done = run_bench("verify", "--device=cpu", "--num_gpus=2", f"--model={model}").succeeded()
    assert "gradients computed one tower at a time" in done.stdout
    for manager in MANAGERS:
        (row,) = [line for line in done.stdout.splitlines() if f"{model} under {manager}" in line]
        assert row.startswith("ok" if manager in IN_ONE_PROCESS else "-")
