"""What trackers get of a record, worked out by hand."""

from __future__ import annotations

from msgspec.structs import replace

from benchmarks.trackers.tracked_run import tracked
from results.measurement import Measurement, derive
from results.record import Status
from tests.support.records import make_record


def at_1000_seconds(**changes: object):
    made = make_record(**changes)
    return replace(made, identity=replace(made.identity, time_utc="1970-01-01T00:16:40+00:00"))


def test_steps_have_their_phase_their_loss_and_their_time() -> None:
    points = tracked(at_1000_seconds()).points
    assert [point.step for point in points] == list(range(1, 9))
    rate = 16 / 0.1
    assert points[0].values == {"first/step_seconds": 1.0, "first/images_per_sec": 16.0, "loss": 7.0}
    assert points[1].values == {"warmup/step_seconds": 0.3, "warmup/images_per_sec": 16 / 0.3, "loss": 6.5}
    assert points[-1].values == {"measured/step_seconds": 0.1, "measured/images_per_sec": rate, "loss": 3.5}
    assert abs(points[-1].at - 1000) < 1e-9
    assert abs(points[0].at - (1000 - 0.6 - 0.3)) < 1e-9


def test_accuracies_waits_evaluations_and_steps_aside_are_at_their_steps() -> None:
    taken = replace(
        make_record().measurement,
        top_1_accuracies=[0.5] * 6,
        loss_scales=[128.0] * 6,
        input_wait_seconds=[0.01] * 6,
        unmeasured_steps=[3],
        unmeasured_losses=[6.25],
        evaluations=[{"step": 4, "epochs": 1.0, "top_1_accuracy": 0.75, "loss": None, "seconds": 2.0}],
    )
    values = {point.step: point.values for point in tracked(make_record(measurement=taken)).points}
    assert values[3] == {"loss": 6.25}
    assert values[4]["loss"] == 6.0 and values[4]["evaluation/top_1_accuracy"] == 0.75
    assert "evaluation/loss" not in values[4]
    assert (values[4]["top_1_accuracy"], values[4]["loss_scale"], values[4]["input_wait_seconds"]) == (0.5, 128.0, 0.01)
    assert "top_1_accuracy" not in values[2]


def test_times_follow_from_the_end_and_steps_are_numbered_as_in_the_training() -> None:
    evaluation = {"step": 13, "top_1_accuracy": 0.25, "seconds": 4.0}
    taken = Measurement(
        images_per_step=8,
        startup_seconds=10.0,
        first_step_seconds=3.0,
        step_seconds=[1.0, 1.0, 2.0],
        steps_before=10,
        unmeasured_steps=[12],
        evaluations=[evaluation],
    )
    run = tracked(at_1000_seconds(measurement=taken))
    assert (run.began, run.ended) == (979.0, 1000.0)
    assert [(point.step, point.at) for point in run.points] == [(11, 992.0), (13, 993.0), (14, 998.0), (15, 1000.0)]
    assert run.points[1].values["evaluation/top_1_accuracy"] == 0.25
    alone = tracked(at_1000_seconds(measurement=taken, config={"eval_only": True}))
    assert (alone.began, alone.points[-1].at) == (983.0, 1000.0), "its steps are the evaluation"


def test_rates_with_their_interval_and_telemetry_of_each_device_are_metrics() -> None:
    gpu = {"index": 3, "uuid": "u", "power_watts": {"mean": 250.0}, "throttled": None}
    telemetry = [{"samples": 5, "gpus": [gpu]}]
    taken = replace(make_record().measurement, step_seconds=[0.1] * 8, telemetry=telemetry)
    run = tracked(make_record(measurement=taken, derived=derive(replace(taken, telemetry=[]), 2)))
    assert abs(run.metrics["images_per_sec"] - 160) < 1e-9
    assert abs(run.metrics["images_per_sec_low"] - 160) < 1e-9 and run.metrics["measured_steps"] == 8
    assert run.metrics["telemetry/GPU 3/power_watts.mean"] == 250.0 and run.metrics["telemetry/host/samples"] == 5.0
    assert "synthetic_ratio" not in run.metrics


def test_the_configuration_is_flat() -> None:
    config = {"model": "m", "input": {"cycle_length": 4}, "notices": ["a"], "empty": None}
    run = tracked(make_record(config=config))
    assert run.parameters["input.cycle_length"] == 4 and run.parameters["notices"] == '["a"]'
    assert "empty" not in run.parameters


def test_status_reason_and_warnings_are_tags_and_notes() -> None:
    run = tracked(
        make_record(status=Status.CRASH, reason="A [link](http://x).", warnings=["Slow."], environment={"a": 1})
    )
    assert (run.is_ok, run.tags["status"], run.tags["environment.a"]) == (False, "crash", "1")
    assert run.labels == ["crash", "run", "trivial"] and run.notes == r"A \[link\](http:&#47;/x)." + "\n\nSlow."


def test_a_hostile_record_names_no_other_directory() -> None:
    made = make_record(config={"a\n'; DROP": "x" * 10_000})
    run = tracked(replace(made, identity=replace(made.identity, run_id="../../'a")))
    assert run.run_id == "_______a" and list(run.parameters) == ["a___ DROP"]
    assert len(run.parameters["a___ DROP"]) < 5100
