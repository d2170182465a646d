"""What the plots of a report show: the numbers in their bars and lines, for runs whose rates are known."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import matplotlib.style
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from msgspec.structs import replace
from PIL import Image

from results.record import Record, Status
from results.report import figures, published
from results.report.plots import PLOTS, against, reductions
from results.summary import summarize
from results.text import rounded
from tests.support.records import fake_reduction, fake_run, golden_records

NAMED = {plot.name: plot for plot in PLOTS}
MANAGERS = ("parameter_server", "distributed_replicated")
RATES = {"trivial": 120_000.0, "resnet152": 3.0}


def panels(plot: figures.Plot, records: Sequence[Record]) -> list[Axes]:
    """Draws a plot and returns its visible panels."""
    with matplotlib.style.context(figures.STYLE, after_reset=True):
        figure = plot.draw(summarize(records))
    assert figure is not None
    return [axis for axis in figure.axes if axis.get_visible()]


def curves(axis: Axes) -> dict[str, list[tuple[float, float]]]:
    """Returns the points of each line that the legend names, with or without intervals."""
    intervals = {each.get_label(): each.lines[0] for each in axis.containers}
    lines = {line.get_label(): line for line in axis.lines if not str(line.get_label()).startswith("_")}
    return {
        str(label): [(float(x), float(y)) for x, y in zip(*line.get_data(), strict=True)]
        for label, line in {**intervals, **lines}.items()
    }


def bars(axis: Axes) -> dict[str, dict[str, tuple[float, float]]]:
    """Returns for each kind of horizontal bar, by its label, where each bar begins and how long it is."""
    names = [tick.get_text() for tick in axis.get_yticklabels()]
    return {
        str(kind.get_label()): {
            name: (float(bar.get_x()), float(bar.get_width())) for name, bar in zip(names, kind, strict=True)
        }
        for kind in axis.containers
        if hasattr(kind, "patches")
    }


def run(devices: int, rate: float, **config: object) -> Record:
    """A run at a rate."""
    return fake_run(num_devices=devices, rate=rate, **config)


@pytest.fixture
def scaled() -> list[Record]:
    """Two managers on 1, 2 and 4 devices, of which one scales to 100 %, 90 % and 60 %."""
    rates = {1: 300.0, 2: 540.0, 4: 720.0}
    made = [run(devices, rate) for devices, rate in rates.items()]
    return [*made, run(1, 280.0, variable_update="independent"), run(4, 1100.0, variable_update="independent")]


def points(*wanted: tuple[float, float]) -> list[object]:
    return [pytest.approx(point) for point in wanted]


def test_scaling_has_a_line_per_manager_and_one_of_the_best_single_device(scaled: list[Record]) -> None:
    rates, shares = panels(NAMED["scaling"], scaled[::-1])
    assert rates.get_title() == "images/s: resnet50, batch 32 per device"
    assert curves(rates) == {
        "replicated psgpu": points((1, 300), (2, 540), (4, 720)),
        "independent": points((1, 280), (4, 1100)),
        "ideal": points((1, 300), (16, 4800)),
    }
    assert list(rates.get_xticks()) == [1, 2, 4, 8, 16], "what was measured, and what is predicted from three numbers"
    assert shares.get_title().startswith("efficiency %")


def test_inference_is_not_drawn_among_training(scaled: list[Record]) -> None:
    rates, _ = panels(NAMED["scaling"], [*scaled, *(run(n, 9000.0 * n, forward_only=True) for n in (1, 2))])
    assert max(rate for line in curves(rates).values() for _, rate in line) == pytest.approx(4800)


def _cluster(workers: int, rate: float, *, servers: int = 0, devices: int = 1, **config: object) -> Record:
    """A run of workers with so many devices each, at a rate."""
    made = run(devices, rate, num_workers=workers, num_ps=servers, cluster="hosts", **config)
    return replace(made, config_not_in_key=[*made.config_not_in_key, "cluster"])


def test_lines_of_scaling_do_not_join_devices_of_a_process_and_workers(scaled: list[Record]) -> None:
    one, two = ({n: rate * n for n in (1, 2, 4)} for rate in (100.0, 150.0))
    servers = [_cluster(n, of[n], servers=number) for number, of in ((1, one), (2, two)) for n in of]
    of_devices, _, of_workers, _ = panels(NAMED["scaling"], [*scaled, *servers])
    assert curves(of_devices)["replicated psgpu"] == points((1, 300), (2, 540), (4, 720))
    found = curves(of_workers)
    assert found["replicated psgpu, 1 parameter server"] == points(*one.items())
    assert found["replicated psgpu, 2 parameter servers"] == points(*two.items())


def test_an_interval_that_reaches_too_far_is_cut_with_an_arrow_and_its_bound() -> None:
    rates = {"replicated": (100.0, 101.0), "parameter_server": (60.0, 240.0), "independent": (90.0, 110.0)}
    runs = [run(2, rate, variable_update=name) for name, both in rates.items() for rate in both]
    rows = {row.config["variable_update"]: row for row in summarize(runs)}
    (axis,) = panels(NAMED["managers"], runs)
    shown = [row.measured.high for name, row in rows.items() if name != "parameter_server"]
    assert max(shown) < axis.get_xlim()[1] < rows["parameter_server"].measured.high
    assert [text.get_text() for text in axis.texts] == [f"to {rows['parameter_server'].measured.range().split()[-1]}"]
    others = [run(2, 50.0, variable_update=name, batch_per_device=8) for name in rates]
    (axis,) = panels(NAMED["batches"], [*runs, *others])
    assert max(shown) < axis.get_ylim()[1] < rows["parameter_server"].measured.high and len(axis.texts) == 1
    farther = [run(2, rate, variable_update="distributed_replicated") for rate in (50.0, 280.0)]
    (axis,) = panels(
        NAMED["batches"],
        [*runs, *others, *farther, run(2, 50.0, variable_update="distributed_replicated", batch_per_device=8)],
    )
    bound = max(row.measured.high for row in summarize(farther))
    assert [text.get_text() for text in axis.texts] == [f"to {rounded(bound, bound)}"], "one text at a place"

    wide = [run(n, rate * n) for n in (1, 2, 4) for rate in (50.0, 200.0)]
    _, efficiencies = panels(NAMED["scaling"], wide)
    assert 100 < efficiencies.get_ylim()[1] < 400 and len(efficiencies.texts) == 2, "of 2 and 4 devices"


def test_batches_of_very_different_rates_have_a_logarithmic_scale() -> None:
    runs = [fake_run(model=model, batch_per_device=n, rate=rate) for model, rate in RATES.items() for n in (8, 16)]
    (axis,) = panels(NAMED["batches"], runs)
    assert axis.get_yscale() == "log" and axis.get_ylim()[0] > 0
    (axis,) = panels(NAMED["batches"], runs[:2])
    assert axis.get_yscale() == "linear" and axis.get_ylim()[0] == 0


def test_a_logarithmic_axis_has_numbers_also_within_a_decade() -> None:
    records = [fake_reduction("psgpu", 2**n, 2**n / speed) for n, speed in ((10, 2.1e9), (20, 4.5e9), (24, 6.8e9))]
    (axis,) = panels(reductions(records), [])
    axis.get_figure().draw_without_rendering()
    low, high = axis.get_ylim()
    labels = [
        tick.get_text() for tick, at in zip(axis.get_yticklabels(), axis.get_yticks(), strict=True) if low <= at <= high
    ]
    assert len([label for label in labels if label]) >= 2
    places = [tick.label1.get_window_extent() for tick in axis.xaxis.get_major_ticks() if tick.label1.get_text()]
    assert all(one.x1 < other.x0 for one, other in itertools.pairwise(places)), "its numbers do not overlap"
    assert "1.00 MB" in [tick.get_text() for tick in axis.get_xticklabels()]


def test_managers_are_ranked_at_the_most_devices(scaled: list[Record]) -> None:
    (axis,) = panels(NAMED["managers"], scaled)
    assert axis.get_title().replace("\n", " ").endswith(", 4 devices")
    (lengths,) = bars(axis).values()
    assert {name: length for name, (_, length) in lengths.items()} == pytest.approx(
        {"replicated psgpu": 720, "independent": 1100}
    )
    assert list(lengths) == ["replicated psgpu", "independent"], "the fastest on top"
    (axis,) = panels(NAMED["managers"], [_cluster(2, 100.0 * servers, servers=servers) for servers in (1, 2)])
    (lengths,) = bars(axis).values()
    assert [name.replace("\n", " ") for name in lengths] == [f"replicated psgpu, {n} ps, 2 workers" for n in (1, 2)]
    axes = panels(NAMED["managers"], [*scaled, *(run(4, 900.0, variable_update=m, precision="bf16") for m in MANAGERS)])
    colours = [[figures.COLOURS.index(to_hex(bar.get_facecolor()).upper()) for bar in axis.patches] for axis in axes]
    assert colours == [[0, 1], [0, 0]], "in orange what is not ranked with the others of its panel"


def test_a_batch_has_a_point_and_a_single_one_no_line() -> None:
    records = [run(1, 300.0), fake_run(batch_per_device=8, rate=200.0), run(1, 90.0, model="vgg16")]
    (axis,) = panels(NAMED["batches"], records)
    assert curves(axis) == {"resnet50, replicated psgpu, 1 GPU": points((8, 200), (32, 300))}
    assert axis.get_xscale() == "log"


def test_a_model_whose_name_begins_with_an_underscore_is_in_the_legend() -> None:
    (axis,) = panels(NAMED["batches"], [run(1, 100.0, model="_net.py:build", batch_per_device=n) for n in (8, 16)])
    (text,) = axis.get_legend().get_texts()
    assert text.get_text().strip().startswith("_net.py:build")


def test_lines_of_batches_do_not_join_data_or_processes() -> None:
    made = [
        *(run(1, 100.0 + batch, batch_per_device=batch, data_name=data) for batch in (8, 16) for data in ("a", "b")),
        *(_cluster(2, 100.0 + batch, batch_per_device=batch, servers=n) for batch in (8, 16) for n in (1, 2)),
    ]
    (axis,) = panels(NAMED["batches"], made)
    assert [len(line) for line in curves(axis).values()] == [2] * 4


def test_the_parts_of_a_step_are_shares_one_after_the_other() -> None:
    # Computing alone takes 80 ms, with the exchange 100 ms, and with photos 125 ms.
    records = [
        fake_run(num_devices=2, step_seconds=0.08, variable_update="independent"),
        fake_run(num_devices=2, step_seconds=0.1),
        fake_run(num_devices=2, step_seconds=0.125, data_name="imagenet"),
    ] * 2
    (axis,) = panels(NAMED["time"], records)
    found = bars(axis)
    (photos,) = (name for name in found["computing"] if "imagenet" in name)
    assert {part: found[part][photos] for part in found} == {
        "computing": pytest.approx((0, 64)),
        "exchange": pytest.approx((64, 16)),
        "input": pytest.approx((80, 20)),
    }
    assert [text.get_text() for text in axis.texts] == ["100 ms", "125 ms"]


def test_steps_that_only_compute_are_no_plot_of_where_time_goes(tmp_path: Path) -> None:
    """By chance, a step that exchanges may be shorter than one that does not."""
    rates = {"independent": (80.0, 120.0), "replicated": (90.0, 125.0)}
    records = [run(2, rate, variable_update=name) for name, both in rates.items() for rate in both]
    assert list(figures.drawn([NAMED["time"]], summarize(records), tmp_path)) == []


def test_bytes_are_stacked_by_kind() -> None:
    sent = {"read_bytes": 3_000_000, "gradient_bytes": 5_000_000, "total_bytes": 8_000_000}
    sends = replace(fake_run(num_devices=2), placement={"sent_per_step": sent})
    (axis,) = panels(NAMED["sent"], [sends, fake_run()])
    ((read,), (gradient,)) = (kind.values() for kind in bars(axis).values())
    assert (list(bars(axis)), read, gradient) == (["read", "gradient"], pytest.approx((0, 3)), pytest.approx((3, 5)))


def test_bytes_of_a_cluster_are_between_processes() -> None:
    (axis,) = panels(NAMED["sent"], [golden_records()[2]])
    ((label, of_kind),) = bars(axis).items()
    assert (label, *of_kind.values()) == ("between processes", pytest.approx((0, 68.222032)))


def test_real_over_synthetic_is_the_ratio_of_two_rates() -> None:
    (axis,) = panels(NAMED["real_over_synthetic"], [run(2, 400.0), run(2, 320.0, data_name="imagenet")] * 2)
    (bar,) = axis.patches
    assert bar.get_width() == pytest.approx(0.8)
    assert axis.get_xlim() == pytest.approx((0, 1.1))


def test_steps_are_a_trace_with_the_warm_up_shaded() -> None:
    # The first step takes 1 s, the warm-up 200 and 150 ms.
    seconds = [0.1, 0.12] * 10
    trace, spread = panels(NAMED["steps"], [fake_run(step_seconds=seconds), fake_run(status=Status.CRASH)])
    (line,) = trace.lines
    assert list(line.get_ydata()) == pytest.approx([1000, 200, 150, *(1000 * second for second in seconds)])
    assert list(line.get_xdata()) == list(range(1, 24))
    (shade,) = trace.patches
    assert (shade.get_x(), shade.get_width()) == pytest.approx((0.5, 3))
    assert trace.get_ylim()[1] == pytest.approx(1.2 * 120)
    counts = [bar.get_height() for bar in spread.patches]
    assert (counts[0], counts[-1], sum(counts)) == (10, 10, 20), "the warm-up is not in the distribution"
    assert len(spread.get_xticks()) <= 5, "their labels have room, also those of minutes"


def test_steps_are_titled_by_what_distinguishes_their_runs_and_have_one_scale() -> None:
    repeats = [fake_run(num_devices=2, step_seconds=seconds) for seconds in (0.1, 0.2)]
    first, _, second, _, third, _ = panels(NAMED["steps"], [*repeats, fake_run(step_seconds=0.3)])
    titles = [trace.get_title(loc="left") for trace in (first, second, third)]
    assert titles == ["2 devices, repeat 1", "2 devices, repeat 2", "1 device"]
    assert [trace.get_ylim()[1] for trace in (first, second, third)] == pytest.approx([360, 360, 360])


def test_reductions_are_by_size_and_those_of_a_model_are_left_out() -> None:
    # 1 MiB in 1 ms on two devices is 1.05 GB/s, and as much on the bus.
    records = [fake_reduction("psgpu", 2**20, 1e-3), fake_reduction("psgpu", 2**10, 1e-5)]
    of_model = fake_reduction("psgpu", 2**22, 1e-3)
    of_model = replace(of_model, config={**of_model.config, "message": "resnet50"})
    (axis,) = panels(reductions([*records, of_model]), [])
    assert curves(axis) == {"psgpu": points((2**10, 0.1024), (2**20, 1.048576))}


def test_reductions_that_are_changed_or_on_other_machines_are_lines_of_their_own() -> None:
    plain = fake_reduction("psgpu", 2**20, 1e-3)
    modifiers = {"all_reduce_spec": "psgpu", "compact_gradient_transfer": True}
    compact = replace(plain, config={**plain.config, "modifiers": modifiers})
    elsewhere = replace(plain, identity=replace(plain.identity, hardware_key="another"))
    first, second = panels(reductions([plain, compact, elsewhere]), [])
    assert [set(curves(axis)) for axis in (first, second)] == [{"psgpu", "psgpu compact"}, {"psgpu"}]
    assert second.get_title().endswith("devices, anot") and first.get_title() != second.get_title()


def test_published_figures_are_those_of_the_table() -> None:
    plot = against(published.table("guide2017"))
    slower = run(8, 900.0, variable_update="parameter_server")
    (axis,) = panels(plot, [run(1, 200.0), run(8, 1500.0), slower, run(1, 99.0, model="trivial")])
    found = {label.replace("\n", " "): line for label, line in curves(axis).items()}
    assert found.pop("yours") == points((1, 200), (8, 1500)), "the fastest with so many devices"
    of_table = published.lines_of(published.table("guide2017"), "resnet50")
    assert found == {name: points(*((f.devices, f.images_per_sec) for f in of_table[name])) for name in found}
    assert len(found) == min(len(of_table), figures.MOST_LINES - 1)
    assert points((1, 219))[0] in [line[0] for line in found.values()], "the first row of ResNet-50"
    h100 = [replace(run(n, 2000.0), environment={"gpus": ["NVIDIA H100 80GB HBM3 79 GiB"] * n}) for n in (1, 8)]
    (axis,) = panels(against(published.table("modern")), h100)
    assert next(iter(curves(axis))).startswith("H100 SXM 80GB"), "those of the own GPU come first"


def test_the_names_of_published_figures_fit_below_their_panels() -> None:
    records = [run(devices, 200.0, model=model) for devices in (1, 8) for model in ("resnet50", "vgg16")]
    left, right = panels(against(published.table("guide2017")), records)
    left.get_figure().draw_without_rendering()
    mine, others = (axis.get_legend().get_window_extent() for axis in (left, right))
    assert 0 <= mine.x0 and mine.x1 <= others.x0 and others.x1 <= left.get_figure().bbox.x1


@pytest.mark.parametrize("name", NAMED)
def test_a_plot_without_anything_to_show_is_left_out(name: str, tmp_path: Path) -> None:
    assert list(figures.drawn([NAMED[name]], summarize([fake_run(status=Status.CRASH)]), tmp_path)) == []


def test_the_largest_groups_are_drawn_if_not_all_can_be() -> None:
    sizes = [(f"model{number}", 3 if number else 2) for number in range(8)]
    many = [run(1, 100.0, model=name, variable_update=f"m{n}") for name, size in sizes for n in range(size)]
    found = [axis.get_title().split(",")[0] for axis in panels(NAMED["managers"], many)]
    assert found == [f"model{number}" for number in range(1, figures.MOST_PANELS + 1)]


def test_a_figure_is_saved_dark_on_white_and_takes_the_pages_colours_on_a_page(tmp_path: Path) -> None:
    figure = Figure(figsize=(2, 1))
    figure.text(0.5, 0.5, "some text 模型", color=figures.INK)
    with figures.styled():  # a letter that the font lacks is no warning, which would fail the test
        on_page = figures.save(figure, tmp_path / "plot")
    with Image.open(tmp_path / "plot.png") as picture:
        assert picture.size == (240, 120)
        assert picture.convert("RGBA").getpixel((0, 0)) == (255, 255, 255, 255)
        assert picture.convert("L").getextrema()[0] < 50
    on_disk = (tmp_path / "plot.svg").read_text()
    assert on_disk.startswith("<?xml") and ElementTree.fromstring(on_disk)[0].attrib["fill"] == "white"
    assert "some text" in on_disk and figures.INK in on_disk and "currentColor" not in on_disk
    assert on_page.startswith("<svg") and "currentColor" in on_page and figures.INK not in on_page


def test_a_matplotlibrc_changes_no_plot(scaled: list[Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = [svg for _, svg in figures.drawn(PLOTS, summarize(scaled), tmp_path)]
    for name, value in {"text.usetex": True, "font.size": 40, "savefig.transparent": True}.items():
        monkeypatch.setitem(matplotlib.rcParams, name, value)
    assert [svg for _, svg in figures.drawn(PLOTS, summarize(scaled), tmp_path)] == usual != []


@pytest.mark.parametrize("name", ["sent", "time", "real_over_synthetic"])
def test_long_labels_are_wrapped_and_leave_room_for_the_panel(name: str) -> None:
    """Where there is none, matplotlib warns, which fails the test."""
    long = {f"option_{number}": "a value of some length, " * 3 for number in range(6)}
    options: list[dict[str, object]] = [{}, long]
    records = [
        fake_run(
            num_devices=devices,
            sent=10**6,
            variable_update=manager,
            data_name=data,
            step_seconds=0.1 if manager == "independent" else 0.2,
            **extra,
        )
        for devices in (1, 2)
        for manager in ("independent", "replicated")
        for data in ("synthetic", "imagenet")
        for extra in options
    ] * 2
    axis = panels(NAMED[name], records)[0]
    figures.as_svg(axis.get_figure())
    labels = [tick.get_text() for tick in axis.get_yticklabels()]
    assert any("option_0" in label and "\n" in label for label in labels)
    assert max(len(line) for label in labels for line in label.splitlines()) <= 50


def test_a_panel_has_eight_lines_at_most() -> None:
    runs = [run(devices, 100.0 * devices, variable_update=f"m{n}") for n in range(9) for devices in (1, 2)]
    axis, _ = panels(NAMED["scaling"], runs)
    assert len(set(curves(axis)) - {"ideal"}) == 8


def test_titles_over_long_labels_are_inside_the_picture() -> None:
    records = [
        fake_run(model=model, variable_update=manager, num_ps=1, num_workers=2, cluster="hosts", batch_per_device=4)
        for model in ("alexnet", "A MODEL WHOSE NAME IS IN CAPITALS AND LONG")
        for manager in MANAGERS
    ]
    axes = panels(NAMED["managers"], records)
    (picture,) = {axis.get_figure() for axis in axes}
    picture.draw_without_rendering()
    places = [axis.title.get_window_extent() for axis in axes]
    assert len(axes) == 2 and all(place.x1 < picture.bbox.x1 and place.width < picture.bbox.x1 / 2 for place in places)
