"""Each export is read back by the program that it is for, or by that program's library."""

from __future__ import annotations

import io
import json
from collections.abc import Callable

import pandas as pd
import prometheus_client.openmetrics.parser as openmetrics
import prometheus_client.parser as prometheus
import pytest
from msgspec.structs import replace

from results.exchange import formats
from results.exchange.frame import Results
from results.gate.findings import lasting_name
from results.record import STEPS_PER_SLICE, Record, Status
from results.summary import summarize
from tests.support.records import at_minutes, fake_run, golden_records

MACHINE = fake_run().identity.hardware_key[:6]
HOSTILE = 'a "quoted" \\ name\nwith a line | <b>x</b>'


@pytest.fixture
def records() -> list[Record]:
    return [
        fake_run(num_devices=2, step_seconds=[0.1, 0.2] * 10),
        fake_run(num_devices=2, step_seconds=[0.1, 0.2] * 10),
        fake_run(model="vgg16", step_seconds=0.5),
        fake_run(model="alexnet", status=Status.CRASH, reason="=1+1"),
    ]


def measured() -> list[Record]:
    """Records of real runs; the first with telemetry."""
    first, *others = golden_records()[:3]
    seen = {"cpu_cores_used": 1.5, "gpus": [{"index": 0, "power_watts": {"mean": 300.0}, "throttled": ["a", "b"]}]}
    taken = replace(first.measurement, telemetry=[seen])
    return [replace(first, measurement=taken), *others]


both_parsers = pytest.mark.parametrize(
    "parse", [openmetrics.text_string_to_metric_families, prometheus.text_string_to_metric_families]
)


def families(text: str, parse: Callable[[str], object]) -> dict[str, list[tuple[dict[str, str], float]]]:
    return {family.name: [(s.labels, s.value) for s in family.samples] for family in parse(text)}  # type: ignore[attr-defined]


@both_parsers
def test_prometheus_reads_a_gauge_of_every_configuration(records: list[Record], parse: Callable[[str], object]) -> None:
    found = families(formats.render_openmetrics(records), parse)
    rates = {labels["model"]: value for labels, value in found["cnn_train_bench_images_per_second"]}
    assert rates == {"resnet50": pytest.approx(64 / 0.15), "vgg16": pytest.approx(32 / 0.5)}
    assert {labels["devices"] for labels, _ in found["cnn_train_bench_images_per_second"]} == {"1", "2"}
    steps = {labels["model"]: value for labels, value in found["cnn_train_bench_step_seconds"]}
    assert steps == {"resnet50": pytest.approx(0.15), "vgg16": pytest.approx(0.5)}
    runs = {(labels["model"], labels["status"]): value for labels, value in found["cnn_train_bench_runs"]}
    assert runs == {("resnet50", "ok"): 2, ("vgg16", "ok"): 1, ("alexnet", "crash"): 1}
    last = [value for _, value in found["cnn_train_bench_last_run_timestamp_seconds"]]
    assert last == pytest.approx([pd.Timestamp.now(tz="UTC").timestamp()] * 3, abs=600)


@both_parsers
def test_prometheus_reads_a_label_that_a_hostile_record_has(parse: Callable[[str], object]) -> None:
    found = families(formats.render_openmetrics([fake_run(model=HOSTILE)]), parse)
    ((labels, _),) = found["cnn_train_bench_images_per_second"]
    assert labels["model"] == HOSTILE.replace("\n", " ")


def test_a_rate_and_the_time_of_a_step_agree_whatever_the_lengths_of_the_repeats() -> None:
    runs = [fake_run(step_seconds=[0.1] * 1000), fake_run(step_seconds=[0.2] * 10)]
    found = families(formats.render_openmetrics(runs), openmetrics.text_string_to_metric_families)
    rate, step = (found[f"cnn_train_bench_{name}"][0][1] for name in ("images_per_second", "step_seconds"))
    assert rate * step == pytest.approx(32)


def test_gauges_have_both_bounds_all_devices_and_the_last_run() -> None:
    runs = at_minutes([fake_run(rate=rate, num_devices=2, num_workers=2) for rate in (90.0, 110.0)], (5, 3))
    found = families(formats.render_openmetrics(runs), openmetrics.text_string_to_metric_families)
    names = ("lower_images_per_second", "upper_images_per_second", "last_run_timestamp_seconds")
    ((labels, low),), ((_, high),), ((_, last),) = (found[f"cnn_train_bench_{name}"] for name in names)
    (row,) = summarize(runs)
    assert (low, high) == (row.measured.low, row.measured.high) and low < 90 < 110 < high
    assert labels["devices"] == "4" and last == runs[0].ended


def test_no_two_samples_of_a_gauge_have_the_same_labels(records: list[Record]) -> None:
    """Prometheus rejects the whole file otherwise. Two machines differ only in a key, runs of `ab` in their steps."""
    interleaved = replace(records[0], environment={**records[0].environment, STEPS_PER_SLICE: 3})
    text = formats.render_openmetrics([*records, interleaved, fake_run(num_devices=2, hardware="another")])
    samples = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(samples) == len(set(samples)) > 15


def test_bencher_gets_the_rate_and_the_time_of_a_step_with_their_intervals(records: list[Record]) -> None:
    found = json.loads(formats.render_bencher(records))
    assert list(found) == [
        lasting_name([records[0]]),
        f"vgg16, replicated psgpu, 1 GPU, batch 32, machine {MACHINE} ({records[2].identity.config_key})",
    ], "runs without a rate are left out"
    for measures in found.values():
        assert set(measures) == {"throughput", "latency"}
        assert all(set(metric) == {"value", "lower_value", "upper_value"} for metric in measures.values())
        for metric in measures.values():
            assert metric["lower_value"] <= metric["value"] * (1 + 1e-12)
            assert metric["value"] <= metric["upper_value"] * (1 + 1e-12)
    one = found[lasting_name([records[0]])]
    assert one["throughput"]["value"] == pytest.approx(64 / 0.15)
    assert one["latency"]["value"] == pytest.approx(0.15e9)
    assert one["latency"]["upper_value"] == pytest.approx(64e9 / one["throughput"]["lower_value"])


def test_bencher_gets_no_bounds_of_a_run_with_few_steps_and_other_names_for_alike_rows() -> None:
    found = json.loads(formats.render_bencher([fake_run(step_seconds=[0.1] * 3, seed=seed) for seed in (1, 2)]))
    assert len(found) == 2
    assert all(set(metric) == {"value"} for measures in found.values() for metric in measures.values())


def test_the_name_of_a_benchmark_does_not_depend_on_other_rows() -> None:
    """Else its history would begin anew."""
    run = fake_run(optimizer="sgd")
    (name,) = json.loads(formats.render_bencher([run]))
    later = replace(run.identity, software_key="another")
    others = [fake_run(hardware="another"), fake_run(num_devices=2), fake_run(optimizer="adam")]
    assert name in json.loads(formats.render_bencher([run, *others]))
    assert [name] == list(json.loads(formats.render_bencher([replace(run, identity=later)])))
    of_later_software = json.loads(formats.render_bencher([run, replace(run, identity=later)]))
    assert len(of_later_software) == 2 and all(each.startswith(f"{name}, software ") for each in of_later_software)
    interleaved = replace(run, environment={**run.environment, STEPS_PER_SLICE: 3})
    assert list(json.loads(formats.render_bencher([run, interleaved]))) == [
        name,
        *json.loads(formats.render_bencher([interleaved])),
    ]


@pytest.mark.parametrize(
    "odd",
    [
        {"identity": {"time_utc": "yesterday"}},
        {"identity": {"time_utc": "2026-01-01T00:00:00"}},
        {"measurement": {"startup_seconds": 1e15, "warmup_step_seconds": [-1e15]}},
        {"config": {"=1+1|x": 1, "run_id": "evil", "model": HOSTILE}},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", list(formats.FORMATS))
def test_an_odd_record_costs_no_other_in_any_format(name: str, odd: dict[str, dict[str, object]]) -> None:
    fields = json.loads(fake_run(model="vgg16").to_json())
    for part, values in odd.items():
        fields[part] |= values
    strange = Record.from_json(json.dumps(fields))
    form = formats.FORMATS[name]
    for table in formats.TABLES if form.has_tables else ("runs",):
        rendered = form.render([strange, fake_run(model="resnet50")], table)
        assert isinstance(rendered, bytes) or table not in ("runs", "configuration") or "resnet50" in rendered


def test_no_cell_of_a_csv_is_a_formula() -> None:
    run = fake_run(model="=HYPERLINK(1)", **{"=1+1": 2, "run_id": "evil"})
    text = formats.render_csv([run], "configuration")
    assert "'=HYPERLINK(1)" in text and ",=HYPERLINK" not in text
    assert ",'=1+1\n" in text and text.splitlines()[1].startswith(f"{run.identity.run_id},")


@pytest.mark.parametrize("table", formats.TABLES)
def test_what_is_exported_has_the_rows_the_columns_and_the_types_of_the_data_frame(table: str) -> None:
    runs = measured()
    frame = getattr(Results(runs), "to_frame" if table == "runs" else table)()
    as_csv = pd.read_csv(io.StringIO(formats.render_csv(runs, table)))
    as_json = json.loads(formats.render_json(runs, table))
    as_parquet = pd.read_parquet(io.BytesIO(formats.render_parquet(runs, table)))
    assert len(as_csv) == len(as_json["rows"]) == len(as_parquet) == len(frame) > 0
    assert list(as_csv.columns) == list(as_json["rows"][0]) == list(as_parquet.columns) == list(frame.columns)
    assert as_json["table"] == table and as_json["units"] == frame.attrs.get("units", {})
    if table in ("runs", "steps", "workers"):
        pd.testing.assert_frame_equal(as_parquet, frame)
        assert as_parquet.attrs["units"] == frame.attrs["units"]


def test_json_has_types_and_null_for_what_is_unknown() -> None:
    runs = measured()
    first = json.loads(formats.render_json(runs))["rows"][0]
    assert first["images_per_sec"] == runs[0].derived.images_per_sec and first["num_gpus"] == 1
    assert first["time_utc"] == runs[0].identity.time_utc and first["staged_vars"] is False
    assert None in first.values()


def test_markdown_is_the_report_without_plots_and_shows_hostile_text_as_it_is(records: list[Record]) -> None:
    text = formats.FORMATS["md"].render([*records, fake_run(model=HOSTILE)], "runs")
    assert text.startswith("# CNN training benchmark\n") and "plots/" not in text
    assert "| resnet50 | 2 |" in text and "variable manager replicated psgpu" in text
    assert "<b>" not in text and "\\| &lt;b>x" in text
