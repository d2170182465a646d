"""Curves of rows: which rows form one, what is left out of the fit, and how they are shown in a report."""

from __future__ import annotations

import math
from collections.abc import Sequence

import matplotlib.style
import numpy as np
import pytest
from msgspec.structs import replace

from results.exchange.public_table import Figure
from results.intervals import Interval
from results.record import Record, Status
from results.report import figures, plots, scalability
from results.report.published import FigureTable
from results.report.side_tables import side_tables
from results.summary import summarize
from tests.support.records import fake_run


def run(devices: int, sigma: float = 0.1, factor: float = 1.0, workers: int = 1, **config: object) -> Record:
    """A run of that many devices or workers, whose rate one device alone has as 320 images/s."""
    seconds = factor * 0.1 * (1 + sigma * (devices * workers - 1))
    return fake_run(num_devices=devices, num_workers=workers, step_seconds=seconds, **config)


def repeated(*numbers: int, **config: object) -> list[Record]:
    return [run(number, factor=factor, **config) for number in numbers for factor in (0.98, 1.0, 1.02)]


def curve_of(records: Sequence[Record], least: int = 3) -> scalability.Curve:
    (curve,) = scalability.curves(summarize(records), least=least)
    return curve


def table_of(records: Sequence[Record]) -> list[Sequence[str]]:
    found = [side for side in side_tables(records, summarize(records)) if side.name == "scalability"]
    return [row for side in found for row in side.table.rows]


def test_a_report_has_a_line_for_each_curve_of_three_points_or_more() -> None:
    records = [*repeated(1, 2, 4), *repeated(1, 2, 8, variable_update="independent"), *repeated(1, 2, model="vgg16")]
    first, second = table_of(records)
    assert first[:2] == ["resnet50, batch 32 per device, replicated psgpu", "1, 2, 4 devices"]
    assert second[:2] == ["resnet50, batch 32 per device, independent", "1, 2, 8 devices"]
    assert first[2].startswith("10.0 % (") and first[4] == "8 devices" and first[5].startswith("58.8 % (")
    assert table_of(repeated(1, 2)) == []


def test_the_law_stands_beside_what_a_table_predicts_for_the_same_setting() -> None:
    records = repeated(1, 2, 4)
    fields = {"machine": "8 x T4", "model": "resnet50", "batch_per_device": 32, "variable_update": "replicated psgpu"}
    predicted = [Figure(**fields, devices=number, images_per_sec=100.0 * number) for number in (4, 8, 16, 32)]
    other = Figure(**{**fields, "variable_update": "replicated nccl"}, devices=8, images_per_sec=900.0)
    tables = [FigureTable(name="predicted.csv", source="", figures=(*predicted, other))]
    (side,) = (s for s in side_tables(records, summarize(records), tables) if s.name == "law_and_figures")
    devices = [(row[1], row[2] != "", row[6], row[8]) for row in side.table.rows]
    of = "8 x T4, replicated psgpu, batch 32"  # what of it is stated, as it may be in another precision
    assert devices == [("4", True, "400", of), ("8", False, "800", of), ("16", False, "1600", of)]
    assert [row[4] for row in side.table.rows] == ["985", "1510", "2050"], "320 n / (1 + 0.1 (n - 1)), rounded"
    workers = [run(2, workers=n) for n in (1, 2, 4)]
    (side,) = (s for s in side_tables(workers, summarize(workers), tables) if s.name == "law_and_figures")
    assert [(row[1], row[6]) for row in side.table.rows[:2]] == [("2", "400"), ("4", "800")], "of two devices each"


def test_workers_and_devices_of_each_worker_are_different_curves() -> None:
    records = [run(devices, workers=workers) for devices in (1, 2, 4) for workers in (1, 2, 4)]
    found = list(scalability.curves(summarize(records)))
    assert [(curve.noun, list(curve.rows)) for curve in found] == [
        *[("device", [1, 2, 4])] * 3,
        *[("worker", [1, 2, 4])] * 3,
    ]
    assert [curve.rows[4].devices for curve in found] == [4, 8, 16, 4, 8, 16]


def test_parameter_servers_are_a_setting_on_one_host_and_grow_with_hosts() -> None:
    here = [run(1, workers=n, num_ps=ps, num_hosts=1) for ps in (1, 2) for n in (1, 2, 4)]
    assert [list(curve.rows) for curve in scalability.curves(summarize(here))] == [[1, 2, 4]] * 2
    on_hosts = [run(1, workers=n, num_ps=n, num_hosts=n) for n in (1, 2, 4)]
    curve = curve_of(on_hosts)
    assert list(curve.rows) == [1, 2, 4] and "num_hosts" not in curve.title


def test_repeats_of_all_numbers_show_how_processes_differ() -> None:
    curve = curve_of(repeated(1, 2, 4))
    pooled = np.std(np.log([0.98, 1.0, 1.02]), ddof=1)
    assert curve.degrees == 6
    assert list(curve.spreads.values()) == pytest.approx([0.02 / math.sqrt(3)] * 3, rel=1e-2)
    alone, two = curve.speed_up(1), curve.speed_up(2)
    assert alone == Interval(1, 1, 1), "a device is exactly as fast as itself"
    # 97.5 % of a t distribution with 6 degrees of freedom are below 2.447.
    assert two is not None
    assert two.high == pytest.approx(2 / 1.1 * math.exp(2.447 * 0.02 * math.sqrt(2 / 3)), rel=1e-3)
    assert pooled == pytest.approx(0.02, rel=1e-2)
    quiet = curve_of([run(number) for number in (1, 2, 4) for _ in range(3)])
    assert list(quiet.spreads.values()) == pytest.approx([0.02 / math.sqrt(3)] * 3), "processes differ by 2 % at least"
    once = curve_of([run(number) for number in (1, 2, 4)])
    assert once.degrees == 0 and list(once.spreads.values()) == pytest.approx([0.1] * 3)
    assert "assumed to differ by 10%" in scalability.verdict(once)[-1]


def test_steps_of_a_single_run_add_to_its_spread() -> None:
    noisy = [fake_run(num_devices=n, step_seconds=[0.05, 0.2] * 10) for n in (1, 2, 4)]
    curve = curve_of(noisy)
    steps = curve.rows[1].measured.log_half_width / 1.96  # a 95 % interval; the 10 % of processes are assumed
    assert curve.spreads[1] == pytest.approx(math.hypot(0.1, steps), rel=1e-3) and curve.spreads[1] > 0.12


@pytest.mark.parametrize(
    ("config", "shared"),
    [
        ({"device": "gpu"}, []),
        ({"device": "gpu", "virtual_gpus": 4}, [1, 2, 4]),
        ({"device": "cpu"}, [2, 4]),
    ],
)
def test_devices_that_share_hardware_are_not_fitted(config: dict[str, object], shared: list[int]) -> None:
    curve = curve_of(repeated(1, 2, 4, **config))
    assert sorted(curve.shared) == shared
    assert (curve.fit is None) == bool(shared)
    assert ("share" in scalability.verdict(curve)[1]) == bool(shared)
    assert (table_of(repeated(1, 2, 4, **config)) == []) == bool(shared)


@pytest.mark.parametrize(
    ("threads", "servers", "hosts", "shared"),
    [(1, 0, False, []), (2, 0, False, [4]), (0, 0, False, [2, 4]), (1, 1, False, [4]), (4, 0, True, [])],
)
def test_processes_share_a_host_if_they_have_more_threads_than_cores(
    threads: int, servers: int, hosts: bool, shared: list[int]
) -> None:
    records = [
        run(
            1,
            workers=n,
            device="cpu",
            num_ps=servers,
            num_hosts=n if hosts else 1,
            num_intra_threads=threads,
            num_inter_threads=1,
        )
        for n in (1, 2, 4)
    ]
    records = [replace(record, environment={"cpu_cores_usable": 4}) for record in records]
    assert sorted(curve_of(records).shared) == shared


def test_verdicts_name_what_limits() -> None:
    assert "The first limit is contention" in scalability.verdict(curve_of(repeated(1, 2, 4, 8, 16)))[1]
    pairs = [run(n, sigma=0.05 + 0.01 * n, factor=factor) for n in (1, 2, 4, 8, 16) for factor in (0.99, 1.0, 1.01)]
    said = scalability.verdict(curve_of(pairs))
    assert "The first limit is coherence" in said[1] and "--variable_update=replicated,independent" in said[1]
    assert "The rate is highest with 10 (" in said[2]
    none = scalability.verdict(curve_of(repeated(1, 2, 4, sigma=0.0)))
    assert "No limit can be told from noise: with 16 devices it costs at most " in none[1]
    assert "is 50 % with more than 16" in none[2]
    both = [run(n, sigma=0.03 + 0.01 * n, factor=factor) for n in (1, 2, 4) for factor in (0.97, 1.0, 1.03)]
    between = scalability.verdict(curve_of(both))
    assert "whether it is contention or coherence" in between[1]
    alone = scalability.verdict(curve_of(repeated(1, 2, 4, variable_update="independent")))
    assert "upper bound" in alone[3]


def test_a_verdict_is_three_lines_and_what_they_assume() -> None:
    measured, law, predicted, assumed = scalability.verdict(curve_of(repeated(1, 2, 4)))
    assert measured.startswith("Measured: 1, 2, 4 devices; 4 are 3.08 (")
    assert law.startswith("Law: sigma = 10.0 % (") and " and kappa = 0 % (" in law
    assert predicted.startswith("Predicted: with 8 devices, 1510 images/s (")
    assert assumed.startswith("Assumed: ") and assumed.count(". ") == 0, "one sentence if nothing is unusual"


@pytest.mark.parametrize("second", [4.48, 2.3, 2.05])
def test_points_above_linear_fit_no_law_and_predict_nothing(second: float) -> None:
    """The law, which is linear at best, would predict less per device than was measured."""
    curve = curve_of(falling({1: 100.0, 2: second * 100, 4: second * 199}))
    clear = second > 2.2
    assert (curve.fit is None) == clear
    assert any("(predicted)" in row[0] for row in scalability.table(curve).rows) != clear
    if clear:
        measured, why = scalability.verdict(curve)
        assert measured.startswith("Measured: 1, 2, 4 devices; 4 are ")
        assert why.startswith("Nothing is predicted. The points do not fit the law: the rate per device rises")


def test_a_small_rise_that_no_noise_explains_fits_no_law() -> None:
    rates = {1: 100.0, 2: 214.0, 4: 428.0}
    once = [fake_run(rate=rate, num_devices=n) for n, rate in rates.items()]
    thrice = [fake_run(rate=rate * f, num_devices=n) for n, rate in rates.items() for f in (0.999, 1.0, 1.001)]
    assert curve_of(once).fit is not None and curve_of(thrice).fit is None


def test_what_makes_a_prediction_doubtful_is_a_sentence() -> None:
    jump = [run(n, sigma=0.1 if n > 4 else 0.0, factor=f) for n in (1, 2, 3, 4, 8) for f in (0.999, 1.0, 1.001)]
    assert "times as far from the curve as repeats do" in scalability.verdict(curve_of(jump))[3]
    assert "Too uncertain to decide on" in scalability.verdict(curve_of([run(n) for n in (1, 2, 4)]))[3]
    warned = repeated(1, 2, 4)
    warned[0] = replace(warned[0], warnings=["The machine was busy."])
    assert "looks like contention" in scalability.verdict(curve_of(warned))[3]


def test_predictions_continue_the_table_with_what_each_more_adds() -> None:
    table = scalability.table(curve_of(repeated(1, 2, 4)))
    lines = table.rows
    assert table.columns[0] == "devices" and table.columns[3] == "per device"
    assert [line[0] for line in lines] == ["1", "2", "4", "8 (predicted)", "16 (predicted)"]
    one = 20 * 3 * 32 / (20 * 0.1 * 3)
    rates = {number: one * number / (1 + 0.1 * (number - 1)) for number in (1, 2, 4, 8, 16)}
    assert [float(line[1]) for line in lines] == pytest.approx(list(rates.values()), rel=5e-3)
    assert float(lines[3][-1]) == pytest.approx((rates[8] - rates[4]) / 4, rel=3e-2)
    assert [line[5] for line in lines] == ["100", "90.9", "76.9", "58.8", "40"]


def test_odd_records_cost_no_other_curve() -> None:
    odd = [replace(run(n, device="cpu", workers=n), environment={"cpu_cores_usable": 4}) for n in (1, 2, 4)]
    odd = [replace(one, config={**one.config, "num_devices": 1, "num_ps": "y"}) for one in odd]
    assert len(table_of([*odd, *repeated(1, 2, 4, model="vgg16")])) == 1


def test_the_plot_has_points_a_curve_a_band_and_a_dashed_prediction() -> None:
    (plot,) = [plot for plot in plots.PLOTS if plot.name == "scaling"]
    with matplotlib.style.context(figures.STYLE, after_reset=True):
        figure = plot.draw(
            summarize([*repeated(1, 2, 4), *repeated(1, 2, 4, variable_update="independent", sigma=0.0)])
        )
        of_two = plot.draw(summarize(repeated(1, 2)))
    assert figure is not None and of_two is not None
    assert not any(line.get_linestyle() == "--" for axis in of_two.axes for line in axis.lines), "nothing is predicted"
    rates, shares = (axis for axis in figure.axes if axis.get_visible())
    labels = [str(text.get_text()) for text in shares.get_legend().get_texts()]
    assert sorted(labels) == ["ideal", "independent", "replicated psgpu"]
    shared = plots.of_curves([curve_of(repeated(1, 2, 4, device="cpu"))])
    assert shared is not None and len(shared.axes[0].lines) == 2 + 2, "points with caps and the ideal, but no curve"
    assert "replicated psgpu, sharing hardware" in [t.get_text() for t in shared.axes[1].get_legend().get_texts()]
    ends = {line.get_linestyle(): (line.get_xdata()[-1], line.get_ydata()[-1]) for line in shares.lines}
    assert ends["--"][0] == 16 and ends[":"] == (16, 100)
    dashed = [line.get_ydata()[-1] for line in shares.lines if line.get_linestyle() == "--"]
    assert dashed == pytest.approx([40, 100], abs=0.5)
    assert len(rates.collections) >= 4, "a band for what is measured and for what is predicted, of each"


def test_a_failed_number_is_no_point() -> None:
    records = [*repeated(1, 2, 4), fake_run(num_devices=8, num_workers=1, status=Status.CRASH, reason="It fell.")]
    assert list(curve_of(records).rows) == [1, 2, 4]


def falling(rates: dict[int, float]) -> list[Record]:
    return [fake_run(num_devices=n, rate=rate) for n, rate in rates.items() for _ in range(3)]


def test_a_curve_whose_rate_collapses_is_shown_and_not_taken_for_noise() -> None:
    """As with a slow second host: contention and coherence do not explain it."""
    curve = curve_of(falling({1: 1000.0, 2: 1900.0, 4: 3500.0, 8: 100.0}))
    assert curve.fit is not None and curve.fit.misfit > 10
    said = " ".join(scalability.verdict(curve))
    assert "The points do not follow it, so it shows no limit" in said and "noise" not in said
    assert not {"nan", "inf", "inf %"} & set(said.split())


@pytest.mark.parametrize("rates", [{2: 100.0, 4: 40.0}, {2: 100.0, 4: 40.0, 8: 10.0}])
def test_without_a_law_nothing_is_predicted_and_the_reason_is_given(rates: dict[int, float]) -> None:
    curve = curve_of(falling(rates), least=2)
    assert curve.fit is None and len(scalability.table(curve).rows) == len(rates)
    _, said = scalability.verdict(curve)
    assert "Nothing is predicted. The points do not fit the law" in said and "falls faster" in said
    assert scalability.to_report(summarize(falling(rates))) == []


@pytest.mark.parametrize("order", [1, -1])
def test_of_rows_of_one_number_that_on_real_devices_counts_and_then_the_fastest(order: int) -> None:
    rows = [fake_run(num_devices=2), fake_run(num_devices=2, virtual_gpus=2, step_seconds=0.05)]
    rows += [fake_run(num_devices=2, visible_gpus="0,1", step_seconds=0.09), fake_run(), fake_run(num_devices=4)]
    (curve,) = scalability.curves(summarize(rows[::order]), ["device"])
    assert curve.rows[2].rate == pytest.approx(64 / 0.09)
