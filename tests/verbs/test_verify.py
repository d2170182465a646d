from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import tensorflow as tf

from benchmarks import device_options, devices, verify
from tests.support.commands import Finished
from variable_mgr.algorithms import ALGORITHMS, Algorithm, Place, Turn, register
from variable_mgr.modifiers import Modifiers


def test_everything_that_is_registered_is_a_case() -> None:
    titles = {case.title for case in verify.cases()}
    assert {f"replicated {name}" for name in ALGORITHMS} <= titles
    assert len(list(verify.cases())) >= 40


def _only(monkeypatch: pytest.MonkeyPatch, case: verify.Case) -> verify.Verdict:
    monkeypatch.setattr(verify, "cases", lambda: iter([case]))
    (verdict,) = verify.verdicts("cpu", 2, 1, lambda count: devices.session_config("cpu", count))
    return verdict


@pytest.mark.parametrize("reference", ["sgd", "whole batch"])
@pytest.mark.parametrize(("wrong_by", "passes"), [(0.0, True), (1e-2, False), (float("nan"), False)])
def test_a_reduction_that_is_a_little_wrong_is_found(
    monkeypatch: pytest.MonkeyPatch, reference: str, wrong_by: float, passes: bool
) -> None:
    def biased(values: Sequence[tf.Tensor], place: Place, turn: Turn) -> list[tf.Tensor]:
        with tf.device(place.host):
            return [tf.reduce_mean(tf.stack(values), axis=0) + wrong_by] * len(values)

    register(Algorithm("biased", "a mean that is off", biased))
    try:
        case = verify.Case("replicated", Modifiers(all_reduce_spec="biased"), "cpu", reference, "biased")
        verdict = _only(monkeypatch, case)
    finally:
        del ALGORITHMS["biased"]
    assert verdict.error is not None
    assert verdict.passed == passes


def test_what_cannot_run_is_a_row_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    case = verify.Case("replicated", Modifiers(all_reduce_spec="nccl"), "cpu", "sgd", "replicated nccl")
    verdict = _only(monkeypatch, case)
    assert verdict.error is None and verdict.passed
    assert "NVIDIA" in verdict.reason


def test_the_verb_prints_a_row_for_each(run_bench: Callable[..., Finished]) -> None:
    done = run_bench("verify", "--device=cpu", "--num_gpus=3")
    assert done.status == 0, done.stdout + done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith(("ok ", "- "))]
    assert len([row for row in rows if row.startswith("ok")]) >= 40
    assert any("rechd" in row and "2, 4, 8" in row for row in rows)
    assert " 0 failed" in done.stdout


def test_one_tower_proves_no_reduction(monkeypatch: pytest.MonkeyPatch) -> None:
    for verdict in verify.verdicts("cpu", 1, 1, lambda count: devices.session_config("cpu", count)):
        assert verdict.passed
        if verdict.case.manager in ("replicated", "collective_all_reduce", "local_sgd"):
            assert verdict.error is None and verdict.reason


def test_an_operation_that_fails_is_a_failed_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(values: Sequence[tf.Tensor], place: Place, turn: Turn) -> list[tf.Tensor]:
        with tf.device("/cpu:7"):
            return [tf.add_n(values)] * len(values)

    register(Algorithm("broken", "on a device that is not there", broken))
    try:
        case = verify.Case("replicated", Modifiers(all_reduce_spec="broken"), "cpu", "sgd", "broken")
        verdict = _only(monkeypatch, case)
    finally:
        del ALGORITHMS["broken"]
    assert not verdict.passed and verdict.reason


@pytest.mark.parametrize(
    ("given", "gpus", "device", "count"),
    [
        ({}, 0, "cpu", 2),
        ({}, 4, None, 4),
        ({"gpus": "0,2"}, 4, None, 2),
        ({}, 1, None, 2),
        ({"virtual_gpus": "3"}, 2, None, 6),
        ({"device": "auto"}, 0, "cpu", 2),
        ({"device": "cpu"}, 4, "cpu", 2),
        ({"num_gpus": 3}, 0, None, 3),
        ({"device": "gpu"}, 0, "gpu", 1),
    ],
)
def test_without_a_number_all_gpus_or_two_cpu_devices(given: dict, gpus: int, device: str | None, count: int) -> None:
    values = device_options.default_to_all(
        {"num_gpus": None, "device": None, "gpus": None, "virtual_gpus": None} | given, gpus
    )
    assert (values["device"], values["num_gpus"]) == (device, count)


def test_the_verb_takes_devices_only(run_bench: Callable[..., Finished]) -> None:
    done = run_bench("verify", "--model=vgg16")
    assert done.status == 2
    assert "no flag --model" in done.stderr
