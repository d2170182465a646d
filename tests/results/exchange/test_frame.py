"""Records as pandas data frames: columns, types, units, and conditions on them."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from msgspec.structs import replace

import results
from results.columns import COLUMNS
from results.exchange.frame import FilterError, Results
from results.store import Store, as_csv
from tests.support.records import fake_run, make_record


@pytest.fixture
def three() -> Results:
    oldest = fake_run(model="vgg16", num_devices=1)
    return Results(
        [
            replace(oldest, identity=replace(oldest.identity, time_utc="2001-02-03T04:05:06+00:00")),
            fake_run(model="alexnet", num_devices=2, step_seconds=0.2),
            fake_run(model="resnet50", num_devices=4, step_seconds=0.05),
        ]
    )


def test_files_and_directories_are_read_once_and_lines_that_are_no_records_warn(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.append(make_record(), make_record())
    with store.jsonl_path.open("a") as file:
        file.write("{torn\n")
    with pytest.warns(UserWarning, match="skipped a damaged line"):
        loaded = results.load(tmp_path, store.jsonl_path)
    assert len(loaded) == 2
    assert len(loaded.problems) == 2  # the line was read twice
    with pytest.raises(FileNotFoundError):
        results.load(tmp_path / "nowhere")


def test_a_frame_has_the_columns_of_the_csv_in_their_types(tmp_path: Path) -> None:
    record = make_record()
    (tmp_path / "results.csv").write_text(as_csv([record]))
    frame, text = Results([record]).to_frame(), pd.read_csv(tmp_path / "results.csv")
    assert list(frame) == list(text) == [column.name for column in COLUMNS]
    for name in (
        "images_per_sec",
        "step_ms_p50",
        "num_gpus",
        "batch_per_device",
        "loss_last",
        "model",
        "measured_steps",
    ):
        assert frame[name][0] == text[name][0]
    assert frame["num_gpus"].dtype == "Int64"
    assert frame["images_per_sec"].dtype == "float64"
    assert frame["xla"].isna().all()
    assert str(frame["time_utc"].dtype).endswith(", UTC]")
    assert frame.attrs["units"]["step_ms_p99"] == "ms"


def test_types_do_not_depend_on_the_values(three: Results) -> None:
    odd = replace(three.records[0], config={"model": 5, "num_devices": "many", "batch_per_device": None})
    dtypes = three.to_frame().dtypes.drop("time_utc")
    assert Results([]).to_frame().dtypes.drop("time_utc").equals(dtypes)
    frame = Results([odd]).to_frame()
    assert frame.dtypes.drop("time_utc").equals(dtypes)
    assert frame["model"][0] == "5"
    assert frame["num_gpus"].isna()[0]


def test_integers_that_are_none_are_missing() -> None:
    numbers = [2, 2.0, 2.5, True, 2**63, -(2**63) - 1, math.inf, math.nan, "2", None]
    found = Results([make_record(config={"num_devices": number}) for number in numbers]).to_frame()["num_gpus"]
    assert found[:2].tolist() == [2, 2]
    assert found[2:].isna().all()


def test_steps_have_their_phase_time_rate_and_loss() -> None:
    record = make_record()
    steps = Results([record]).steps()
    assert steps["phase"].tolist() == ["first", "warmup", *["measured"] * 6]
    assert steps["step"].tolist() == list(range(1, 9))
    assert steps["seconds"].tolist() == [1.0, 0.3, *[0.1] * 6]
    assert steps["loss"].tolist() == [7.0, 6.5, 6.0, 5.5, 5.0, 4.5, 4.0, 3.5]
    assert steps["images_per_sec"].iloc[-1] == pytest.approx(160)
    assert set(steps["run_id"]) == {record.identity.run_id}
    assert steps.attrs["units"]["seconds"] == "s"


def test_what_is_measured_of_steps_is_beside_the_measured_ones() -> None:
    record = make_record()
    taken = replace(record.measurement, top_1_accuracies=[0.1, 0.2, 0.3, 0.4, 0.5, 0.6], input_wait_seconds=[0.01] * 6)
    steps = Results([replace(record, measurement=taken)]).steps()
    assert steps["top_1_accuracy"].isna().tolist() == [True, True, *[False] * 6]
    assert steps.query("phase == 'measured'")["top_1_accuracy"].tolist() == list(taken.top_1_accuracies)
    assert steps["input_wait_seconds"].sum() == pytest.approx(0.06)


def test_workers_have_their_own_times() -> None:
    record = make_record()
    taken = replace(
        record.measurement, worker_step_seconds=[[0.1, 0.2], [0.3, 0.4]], worker_compute_seconds=[[0.05, 0.06], []]
    )
    workers = Results([replace(record, measurement=taken), make_record()]).workers()
    assert workers["worker"].tolist() == [0, 0, 1, 1]
    assert workers["step"].tolist() == [1, 2, 1, 2]
    assert workers["seconds"].tolist() == [0.1, 0.2, 0.3, 0.4]
    assert workers["compute_seconds"].isna().tolist() == [False, False, True, True]


def test_telemetry_has_a_row_for_the_host_and_each_gpu() -> None:
    record = make_record()
    telemetry = [
        {"cpu_cores_used": 1.5, "gpus": [{"index": 0, "power_watts": {"mean": 300.0}}, {"index": 1}]},
        {"cpu_cores_used": 2.5, "gpus": []},
    ]
    taken = replace(record.measurement, telemetry=telemetry)
    frame = Results([replace(record, measurement=taken)]).telemetry()
    assert list(zip(frame["worker"], frame["device"], strict=True)) == [
        (0, "host"),
        (0, "GPU 0"),
        (0, "GPU 1"),
        (1, "host"),
    ]
    assert frame["power_watts.mean"].dropna().tolist() == [300.0]
    assert frame["cpu_cores_used"].dropna().tolist() == [1.5, 2.5]
    assert Results([record]).telemetry().empty


def test_the_configuration_has_a_column_for_each_field() -> None:
    record = replace(make_record(), config={"model": "trivial", "input": {"cycle_length": 10}})
    frame = Results([record, make_record()]).configuration()
    assert frame["input.cycle_length"][0] == 10
    assert frame["input.cycle_length"].isna()[1]
    assert frame["model"].tolist() == ["trivial", "trivial"]


@pytest.mark.parametrize(
    ("condition", "models"),
    [
        ("model=VGG16", ["vgg16"]),
        ("model = vgg16, num_gpus=1", ["vgg16"]),
        ("num_gpus > 1", ["alexnet", "resnet50"]),
        ("num_gpus > 1 and model in ['alexnet', 'vgg16']", ["alexnet"]),
        ("images_per_sec_per_device.notna() and not (num_gpus == 1)", ["alexnet", "resnet50"]),
        ("eval_only", []),  # unknown for all of them
        ("time_utc < '2001-02-04' and num_gpus == 1", ["vgg16"]),
        ("'2001-02-03T04:05:06' <= time_utc < '2001-02-03 05:00'", ["vgg16"]),
        ("time_utc<'2001-02-03T04:05:06'", []),
        ("time_utc=2001-02-03", ["vgg16"]),
        ("time_utc=2001-02-03T04", ["vgg16"]),
        ("time_utc=2001-02-03T04:05:06+00:00", ["vgg16"]),
        ("model='vgg16', num_gpus=1", ["vgg16"]),
    ],
)
def test_conditions_select_records(three: Results, condition: str, models: list[str]) -> None:
    assert [record.config["model"] for record in three.where(condition).records] == models


@pytest.mark.parametrize(
    ("condition", "why"),
    [
        ("modell=vgg16", "there is no column 'modell'"),
        ("num_gpus >", "invalid syntax"),
        ("model", "true or false for each run"),
        ("model > 1", "."),
        ("@three", "."),
        ("time_utc > 'yesterday'", "unable to parse: yesterday"),
        ("time_utc > '2026-01-31T12:00+02:00'", "Invalid comparison"),
        ("images_per_sec=>100", "."),
        ("", "."),
    ],
)
def test_what_is_no_condition_is_a_sentence(three: Results, condition: str, why: str) -> None:
    with pytest.raises(FilterError, match=why):
        three.where(condition)


def test_records_are_read_and_stored_without_pandas() -> None:
    script = (
        "import sys, results, results.store, results.summary, results.report.headline\n"
        "assert 'pandas' not in sys.modules\n"
        "results.load\n"
        "assert 'pandas' in sys.modules\n"
        "assert {'Results', 'load'} <= set(dir(results))\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=100)


def test_losses_stay_with_their_steps_if_those_of_the_warm_up_are_missing() -> None:
    steps = results.Results([fake_run()]).steps()
    measured = steps["phase"] == "measured"
    assert steps.loc[measured, "loss"].notna().all() and steps.loc[~measured, "loss"].isna().all()
