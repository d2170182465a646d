"""The report from fake records, and its page in a real browser."""

from __future__ import annotations

import csv
import itertools
import json
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from msgspec.structs import replace

from docs import tables
from results.columns import COLUMNS
from results.intervals import Interval
from results.record import Record, Status
from results.report import published, write
from results.report.contents import Report, command
from results.store import as_csv
from results.summary import summarize
from tests.support.records import GOLDEN, fake_input, fake_reduction, fake_run

GUIDE = published.table("guide2017")
pytestmark = pytest.mark.xdist_group("report")  # one report and one browser for all


@pytest.fixture(scope="session")
def written(everything: list[Record], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of everything."""
    output = tmp_path_factory.mktemp("report")
    write.write(Report(everything, [GUIDE]), ["fake.jsonl"], output)
    return output


@pytest.fixture
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out what takes longest, where plots are not the subject."""
    monkeypatch.setattr(write, "drawn", lambda plots, rows, folder: iter(()))


def page_without_scripts(output: Path) -> str:
    """The page as its reader sees it, without the library that draws its chart."""
    return re.sub(r"<script>.*?</script>", "", (output / "report.html").read_text(), flags=re.DOTALL)


def test_every_plot_is_saved_and_on_the_page(written: Path) -> None:
    names = {path.stem for path in (written / "plots").iterdir()}
    assert names == {*(plot.name for plot in write.PLOTS), "reductions_plot", "against_guide2017"}
    assert page_without_scripts(written).count("<svg") == len(names)


def test_how_much_plots_show_at_most_is_said_once(written: Path) -> None:
    for text in (page_without_scripts(written), (written / "report.md").read_text()):
        assert text.count("at most 6 panels, 8 lines a panel, and 24 bars. Error bars are 95 % intervals.") == 1


def test_side_tables_are_on_the_page_and_in_markdown(written: Path) -> None:
    page, markdown = ((written / name).read_text() for name in ("report.html", "report.md"))
    for name, heading in (
        ("published", "Published figures for the same settings"),
        ("reductions", "Reductions"),
        ("input", "Stages of"),
    ):
        assert f'<section id="{name}">' in page and f'<a href="#{name}">' in page
        assert f"## {heading}" in markdown
    assert "| TFDS &lt;records>, 4 files | input | decode | 1000 | 800 | 64 | 1.00 |" in markdown
    assert 'data-label="adds us" class="n">800</td>' in page and "TFDS &lt;records&gt;" in page


def test_markdown_and_csv(written: Path, everything: list[Record]) -> None:
    markdown = (written / "report.md").read_text()
    assert "| resnet50 | independent | 1 | 32 | fp32 | synthetic | 314 | 314 to 314 | 1.00 |" in markdown
    assert "All rows: device gpu." in markdown
    assert "scales to 53%" in markdown and "(plots/scaling.svg)" in markdown
    with (written / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["run_id"] for row in rows] == [record.identity.run_id for record in everything]


@pytest.mark.fault(
    "R17", "a record whose reason has a script; report --output", survives="the page has no such tag, and loads nothing"
)
def test_the_page_needs_nothing_else(written: Path) -> None:
    page = page_without_scripts(written)
    assert page.count("<script") == 1, "the data"
    assert not re.findall(r"""(?:src|href)\s*=\s*["'](?!#|data:)""", page)
    assert not re.findall(r"url\((?!#)", page.replace("url('#", "url(#").replace('url("#', "url(#"))
    assert "<script>alert" not in page, "what records hold is text, never markup"
    assert "&lt;b&gt;1&lt;/b&gt;" in page
    assert page.count("currentColor") > 10, "plots take the page's colours"


def test_no_records_of_runs_make_a_page_too(tmp_path: Path, everything: list[Record]) -> None:
    write.write(Report([r for r in everything if r.kind == "allreduce"]), ["x"], tmp_path)
    page = page_without_scripts(tmp_path)
    assert '<section id="reductions">' in page and page.count("<svg") == 1, "the plot of reductions"


def test_without_runs_the_other_tables_are_printed_and_no_empty_one() -> None:
    report = Report([fake_reduction("psgpu", 2**20, 1e-3), fake_input()])
    headings = [line for line in report.markdown().splitlines() if line.startswith("## ")]
    assert [heading.partition(" of ")[0] for heading in headings] == ["## Reductions", "## Stages"]
    lines = report.lines
    assert "Reductions." in lines and any(line.split()[-5:] == "psgpu 2 1.00 1.05 ok".split() for line in lines)
    assert any(line.startswith("Stages of the input. ") for line in lines)
    assert not any("Reductions" in line for line in Report([fake_run(), fake_reduction("psgpu", 2**20, 1e-3)]).lines)


def test_reductions_are_named_by_what_changes_them_and_by_the_machine() -> None:
    plain, elsewhere = (fake_reduction("psgpu", 2**20, 1e-3) for _ in range(2))
    modifiers = {"all_reduce_spec": "psgpu", "gradient_repacking": 8}
    repacked = replace(plain, config={**plain.config, "modifiers": modifiers})
    elsewhere = replace(elsewhere, identity=replace(elsewhere.identity, hardware_key="another"))
    (table,) = Report([plain, repacked]).tables
    assert [row[2] for row in table.table.rows] == [
        "psgpu",
        "psgpu repacked 8",
    ] and "machine" not in table.table.columns
    (table,) = Report([plain, elsewhere]).tables
    assert table.table.columns[3] == "machine" and len({row[3] for row in table.table.rows}) == 2


def test_the_numbers_of_reductions_and_of_input_stages_by_hand() -> None:
    """2**20 bytes in 1 ms between two devices; the stages reach 5000, 1000 and 800 images/s."""
    reductions, stages = Report([fake_reduction("psgpu", 2**20, 1e-3), fake_input()]).tables
    assert [row[3:6] for row in reductions.table.rows] == [["2", "1.00", "1.05"]]
    numbers = [row[3:] for row in stages.table.rows]
    assert numbers == [["5000", "200", "16", "5.00"], ["1000", "800", "64", "1.00"], ["800", "250", "20", "0.800"]]


def test_a_table_without_a_figure_for_any_row_says_what_it_has(no_plots: None, tmp_path: Path) -> None:
    run = fake_run(num_devices=3)
    assert published.why_none(summarize([fake_run(), run]), GUIDE) is None, "the first has one"
    report = Report([run], [GUIDE])
    write.write(report, ["x"], tmp_path)
    first = report.notes[0]
    assert first.startswith("No row has a figure in guide2017: ") and "inception3," in first
    assert "on 1, 2, 4, 8, 16, 32, 64 devices" in first
    for name in ("report.html", "report.md"):
        assert "No row has a figure in guide2017" in (tmp_path / name).read_text()
    failed = summarize([fake_run(status=Status.CRASH, reason="It broke.", step_seconds=[])])
    assert published.why_none(failed, published.table("modern")), "it has no rate"


def test_the_page_begins_with_the_answer_and_what_it_was_measured_on(written: Path) -> None:
    page = page_without_scripts(written)
    answer = "resnet50, 4 devices: replicated psgpu is 84.5 % faster than parameter_server on gpu (84.5 to 84.5 %)."
    assert (
        page.index(f'<p id="verdict">{answer}') < page.index("<dt>Machine</dt>") < page.index('<section id="results">')
    )
    ends = "91 ok, 1 oom, 1 crash, 1 skipped."
    assert f"65 runs of 26 settings, 28 reductions and 1 measurement of an input: {ends}" in page
    for fact in ("TensorFlow 2.21.0, suite ", "<code>run_bench.py --device=gpu --shared_on=gpu "):
        assert fact in page
    assert "<code>independent</code>" in page and "`" not in re.sub("<svg.*?</svg>", "", page, flags=re.DOTALL)
    known = replace(fake_run(), environment={"gpus": ["NVIDIA H100"] * 2, "cpu_model": "EPYC", "memory_gib": 24})
    facts = dict(Report([known, fake_run(hardware="b")]).facts)
    assert facts["Machine"].startswith("EPYC, 24 GiB, 2 x NVIDIA H100; hardware ")
    assert re.fullmatch(r"20\d\d-\d\d-\d\d \d\d:\d\d UTC", dict(Report([known]).facts)["Date"])


def test_the_command_of_several_runs_is_what_they_have_in_common() -> None:
    runs = [fake_run(), fake_run(num_devices=2)]
    for run, devices in zip(runs, "12", strict=True):
        words = ["--model", "vgg16", f"--num_gpus={devices}", "--xla", "--output_dir=out", "--session_id", "x"]
        run.identity.command[:] = words
    assert command(runs) == "run_bench.py --model vgg16 --xla ..."
    assert command(runs[:1]) == "run_bench.py --model vgg16 --num_gpus=1 --xla"


def test_doubts_come_before_the_chart_and_details_are_folded(written: Path) -> None:
    page = page_without_scripts(written)
    order = [page.index(f'<section id="{name}"') for name in ("results", "notes", "explore", "fastest", "scaling")]
    assert order == sorted(order)
    for name in ("environment", "glossary", "reductions"):
        (section,) = re.findall(f'<section id="{name}".*?</section>', page, flags=re.DOTALL)
        assert ("<details>" in section) == (name != "reductions"), name


def test_the_csv_header_is_what_readers_rely_on() -> None:
    """A column may be added, on purpose; none may be renamed or moved by accident."""
    assert as_csv([]) == (GOLDEN / "header.csv").read_text()
    assert len({column.name for column in COLUMNS}) == len(COLUMNS)


# A browser may be slow on a machine that is shared.
BROWSER_MILLISECONDS = 180_000


def _browser() -> str | None:
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    program = _browser()
    if program is None:
        pytest.skip("no Chromium on this machine: install Debian's package chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox"], timeout=BROWSER_MILLISECONDS
        )
        yield started
        started.close()


@pytest.fixture
def open_report(browser: Any) -> Iterator[Any]:
    """Opens the report of a folder in a window of its own."""
    contexts = []

    def open_in(folder: Path, **options: Any) -> Any:
        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        page.set_default_timeout(BROWSER_MILLISECONDS)
        page.goto(f"file://{folder / 'report.html'}")
        page.locator("#chart canvas").wait_for()
        return page

    yield open_in
    for context in contexts:
        context.close()


# For what depends on the width of the window; other tests have a wide one.
on_a_desk_and_on_a_phone = pytest.mark.parametrize("loaded", [1280, 390], indirect=True)


@pytest.fixture(scope="module")
def loaded(browser: Any, written: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Any, list[str]]]:
    """The report in a window of some width, and what went wrong on it: console messages, errors, requests."""
    context = browser.new_context(viewport={"width": getattr(request, "param", 1280), "height": 900})
    context.set_default_timeout(BROWSER_MILLISECONDS)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = context.new_page()
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda r: problems.append(r.url) if not r.url.startswith("file:") else None)
    page.goto(f"file://{written / 'report.html'}")
    yield page, problems
    context.close()


@pytest.fixture
def page(loaded: tuple[Any, list[str]]) -> Iterator[Any]:
    """The report as it was loaded: neither sorted nor filtered. Nothing may go wrong on it."""
    opened, problems = loaded
    opened.fill("#filter", "")
    opened.select_option("#status", "")
    opened.select_option("#sort", "")
    yield opened
    assert problems == [], "no console message, no error, no request to anywhere"


def _column(page: Any, name: str) -> list[str]:
    return page.locator(f"#table tbody td[data-label='{name}']").all_text_contents()


def test_where_scripts_are_blocked_the_page_says_so(browser: Any, written: Path) -> None:
    """As in Jenkins and in mail, where a browser does not show <noscript>."""
    context = browser.new_context()
    html, blocks = (written / "report.html").read_text(), {"content-security-policy": "script-src 'none'"}
    context.route("**/*", lambda route: route.fulfill(body=html, headers=blocks, content_type="text/html"))
    page = context.new_page()
    page.goto("http://jenkins/")
    assert page.get_by_text("the chart need JavaScript").is_visible()
    context.close()


@on_a_desk_and_on_a_phone
def test_the_table_sorts(page: Any) -> None:
    assert page.get_by_text("need JavaScript").count() == 0
    # On a phone the heads are there for a keyboard and a screen reader alone.
    page.locator("#table thead button", has_text="images/s").evaluate("button => button.click()")
    rates = [float(text) for text in _column(page, "images/s") if text]
    assert rates == sorted(rates, reverse=True) and len(rates) > 10
    assert _column(page, "images/s")[-1] == "", "what is unknown comes last"
    page.locator("#table thead button", has_text="images/s").evaluate("button => button.click()")
    assert [float(text) for text in _column(page, "images/s") if text] == rates[::-1]
    assert page.locator("th[aria-sort=ascending]").count() == 1
    page.select_option("#sort", label="devices")
    assert _column(page, "devices") == sorted(_column(page, "devices"), reverse=True)
    page.locator("#table thead button", has_text="model").focus()
    page.keyboard.press("Enter")
    assert _column(page, "model") == sorted(_column(page, "model"))


def test_the_table_filters(page: Any) -> None:
    total = len(_column(page, "model"))
    page.fill("#filter", "vgg16 independent")
    assert set(_column(page, "model")) == {"vgg16"} and len(_column(page, "model")) == 3
    assert page.locator("#count").text_content() == f"3 of {total} rows"
    page.fill("#filter", "")
    page.select_option("#status", "crash")
    assert _column(page, "status") == ["1 ok, 1 crash (1 of 2)"], "a row with a crash among its repeats"
    page.select_option("#status", "oom")
    assert _column(page, "model") == ["inception3"]
    assert page.locator("#table tr.failed").count() == 1


def test_the_name_of_a_column_of_numbers_ends_where_they_do(page: Any) -> None:
    gaps = page.evaluate(
        """() => [...document.querySelectorAll("#table th.n")].map(head => {
          const text = document.createRange();
          text.selectNodeContents(head.firstChild);
          return head.getBoundingClientRect().right - text.getBoundingClientRect().right;
        })"""
    )
    assert len(gaps) > 3 and max(gaps) < 12, "the padding of a cell"


@on_a_desk_and_on_a_phone
def test_nothing_is_wider_than_the_window(page: Any) -> None:
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_the_head_of_the_table_is_on_every_page_of_paper(open_report: Any, written: Path) -> None:
    """Chromium repeats the text of a head there, but no boxes of buttons."""
    page = open_report(written)
    page.emulate_media(media="print")
    kinds = page.locator("#table th button").evaluate_all("all => all.map(button => getComputedStyle(button).display)")
    assert set(kinds) == {"contents"}


def test_a_link_opens_what_is_folded(page: Any) -> None:
    assert not page.locator("#glossary dl").is_visible()
    page.click("nav a[href='#glossary']")
    page.locator("#glossary dl").wait_for()


@pytest.mark.parametrize(
    "machines", [("Tesla T4 15 GiB",), ("NVIDIA A100-SXM4-40GB 40 GiB", "NVIDIA H100 80GB HBM3 79 GiB")]
)
def test_the_answer_is_seen_without_scrolling(
    open_report: Any, tmp_path: Path, no_plots: None, machines: Sequence[str]
) -> None:
    """Of sweeps over managers, batches and precisions, of which one is on two machines, on a window of 1280 x 900."""
    grid = itertools.product(("replicated", "parameter_server"), (1, 8), (16, 32), ("fp32", "bf16"), machines)
    records = [
        replace(
            fake_run(variable_update=name, num_devices=n, batch_per_device=batch, precision=precision, hardware=gpu),
            environment={"gpus": [gpu] * n},
        )
        for name, n, batch, precision, gpu in grid
        for _ in range(3)
    ]
    write.write(Report(records), ["x"], tmp_path)
    page = open_report(tmp_path, viewport={"width": 1280, "height": 900})
    table = page.locator("#table").locator("..").bounding_box()
    for name in ("images/s", "95 % interval", "speed-up", "status"):
        box = page.locator(f"#table tbody td[data-label='{name}']").first.bounding_box()
        assert box["x"] + box["width"] <= table["x"] + table["width"] and box["y"] < 900, name


@on_a_desk_and_on_a_phone
def test_text_of_plots_is_legible_on_a_phone(loaded: tuple[Any, list[str]]) -> None:
    sizes = loaded[0].evaluate(
        """[...document.querySelectorAll("figure svg")].map(svg => {
            const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
            const sizes = [...svg.querySelectorAll("text")].map(text => parseFloat(getComputedStyle(text).fontSize));
            return scale * Math.min(...sizes);
        })"""
    )
    assert len(sizes) > 5 and min(sizes) >= 8.5


@on_a_desk_and_on_a_phone
def test_no_text_is_wider_than_its_card_or_cell(loaded: tuple[Any, list[str]]) -> None:
    page, _ = loaded
    page.evaluate("document.querySelectorAll('details').forEach(folded => { folded.open = true; })")
    wide = page.evaluate(
        "[...document.querySelectorAll('.cards td')].filter(td => td.scrollWidth > td.clientWidth + 1).length"
    )
    page.evaluate("document.querySelectorAll('details').forEach(folded => { folded.open = false; })")
    assert wide == 0


@on_a_desk_and_on_a_phone
def test_a_command_can_be_copied(page: Any) -> None:
    button = page.locator("#table tbody tr", has_text="vgg16").locator("button.copy").first
    command = button.get_attribute("data-command")
    assert command.startswith("run_bench.py --model=vgg16")
    button.click()
    page.locator("button.copy", has_text="copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == command


@pytest.fixture
def chart(page: Any) -> Any:
    """The chart, with its usual axes, everything shown and nothing chosen."""
    page.locator("#chart canvas").wait_for()
    page.uncheck("#logy")
    for axis, name in (("x", "devices"), ("y", "images/s"), ("colour", "variable manager")):
        page.select_option(f"#{axis}", label=name)
    if page.locator("#clear").is_visible():
        page.click("#clear")
    drawn(page, "images/s over devices")
    return page.locator("#chart")


def drawn(page: Any, what: str, points: int | None = None) -> None:
    """Waits until the chart shows something, and so many points."""
    label = f"Chart of {what}, {points} points" if points else f"Chart of {what},"
    page.locator(f"#chart[aria-label^='{label}']").wait_for()
    page.wait_for_timeout(100)


def shown(page: Any) -> list[float]:
    """Returns the ends of both axes."""
    return page.evaluate(
        "['xmin', 'xmax', 'ymin', 'ymax'].map(name => document.getElementById('chart').view.signal(name))"
    )


def place(page: Any, number: int) -> tuple[float, float]:
    """Returns where on the screen a point is; 0 is the first in the order of the chart's data."""
    page.locator("#chart").scroll_into_view_if_needed()
    x, y = page.evaluate(
        """number => {
            const chart = document.getElementById("chart"), view = chart.view, [left, top] = view.origin();
            const box = chart.querySelector("canvas").getBoundingClientRect(), point = view.data("points")[number];
            return [box.left + left + view.scale("x")(point.x), box.top + top + view.scale("y")(point.y)];
        }""",
        number,
    )
    return x, y


def test_the_chart_has_a_point_per_row_with_a_rate_and_follows_the_filter(page: Any, chart: Any) -> None:
    rated = len([text for text in _column(page, "images/s") if text])
    drawn(page, "images/s over devices", rated)
    assert page.locator("#missing").text_content() == "2 rows have no value to draw."
    page.fill("#filter", "vgg16 independent")
    drawn(page, "images/s over devices", 3)
    points = page.evaluate("document.getElementById('chart').view.data('points').map(p => [p.x, p.y, p.low, p.high])")
    assert [x for x, *_ in points] == [1, 2, 4]
    measured = [Interval(*of_one) for _, *of_one in points]
    assert [one.rounded() for one in measured] == _column(page, "images/s")
    assert [one.range() for one in measured] == _column(page, "95 % interval")


def test_the_axes_of_the_chart_can_be_chosen(page: Any, chart: Any) -> None:
    page.select_option("#x", label="variable manager")
    page.select_option("#y", label="step p50 ms")
    drawn(page, "step p50 ms over variable manager")
    managers = page.evaluate("document.getElementById('chart').view.scale('x').domain()")
    assert set(managers) == {"independent", "replicated psgpu", "parameter_server on gpu"}
    page.select_option("#x", label="batch per device")
    page.check("#logx")
    drawn(page, "step p50 ms over batch per device")
    assert page.evaluate("document.getElementById('chart').view.scale('x').type") == "log"
    page.uncheck("#logx")


def test_the_chart_is_used_with_the_keyboard_alone(page: Any, chart: Any) -> None:
    page.locator("#reset").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "chart"
    whole = shown(page)
    page.keyboard.press("ArrowRight")
    first = page.locator("#detail").text_content()
    assert "devices: 1;" in first and "images/s: " in first
    page.keyboard.press("+")
    closer = shown(page)
    assert closer[1] - closer[0] == pytest.approx((whole[1] - whole[0]) / 1.5)
    page.keyboard.press("0")
    assert shown(page) == pytest.approx(whole)
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert page.locator("#comparison thead th").count() == 3
    assert page.locator("#detail").text_content() != first
    page.keyboard.press("Enter")
    assert page.locator("#comparison thead th").count() == 2, "a second time removes it"
    page.fill("#filter", "no such row")
    page.locator("#chart[aria-label$=', 0 points']").wait_for()
    assert page.locator("#detail").text_content() == "", "nothing has the focus"


def test_the_chart_is_used_with_the_mouse(page: Any, chart: Any) -> None:
    x, y = place(page, 0)
    whole = shown(page)
    page.mouse.move(x, y)
    page.locator("#tip", has_text="images/s: ").wait_for()
    page.mouse.click(x, y)
    page.locator("#chosen").wait_for()
    page.wait_for_timeout(200)
    x, y = place(page, 0)
    page.mouse.move(x, y)
    page.locator("#chart").focus()
    page.mouse.wheel(0, -100)
    page.wait_for_timeout(100)
    closer = shown(page)
    assert closer[1] - closer[0] == pytest.approx((whole[1] - whole[0]) / 1.2)
    page.mouse.down()
    page.mouse.move(x + 60, y, steps=4)
    page.mouse.up()
    moved = shown(page)
    assert moved[0] < closer[0] and moved[1] - moved[0] == pytest.approx(closer[1] - closer[0])
    page.click("#reset")
    assert shown(page) == pytest.approx(whole)


def test_a_finger_near_a_point_chooses_its_row(open_report: Any, written: Path) -> None:
    page = open_report(written, viewport={"width": 390, "height": 900}, has_touch=True, is_mobile=True)
    x, y = place(page, 0)
    page.touchscreen.tap(x + 8, y)
    page.locator("#chosen").wait_for()
    assert page.locator("#comparison thead th").count() == 2


def test_a_choice_keeps_the_zoom_and_the_order_of_the_axis(page: Any, chart: Any) -> None:
    page.click("#in")
    closer = shown(page)
    page.locator("#table input.choose").nth(2).check()
    page.wait_for_timeout(200)
    assert shown(page) == pytest.approx(closer)
    page.select_option("#x", label="model")
    drawn(page, "images/s over model")
    order = "document.getElementById('chart').view.scale('x').domain()"
    before = page.evaluate(order)
    page.locator("#table input.choose").nth(0).check()
    page.wait_for_timeout(200)
    assert page.evaluate(order) == before


@pytest.mark.usefixtures("no_plots")
def test_a_long_path_of_a_model_makes_nothing_wider(open_report: Any, tmp_path: Path) -> None:
    path = f"/home/engineer/{'a_directory_of_models/' * 9}net.keras"
    runs = [fake_run(model=model, num_devices=4) for model in (path, "vgg16") for _ in range(2)]
    write.write(Report(runs), ["x"], tmp_path)
    page = open_report(tmp_path, viewport={"width": 1280, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    box = page.locator("#table tbody td[data-label='images/s']").first.bounding_box()
    assert box["x"] + box["width"] < 1280
    page.set_viewport_size({"width": 620, "height": 900})  # where rows are cards
    cells = "[...document.querySelectorAll('#table tbody td')]"
    assert len(set(page.evaluate(f"{cells}.map(cell => Math.round(cell.getBoundingClientRect().right))"))) == 1


@pytest.mark.usefixtures("no_plots")
def test_a_logarithmic_axis_shows_intervals_that_begin_at_nothing(open_report: Any, tmp_path: Path) -> None:
    """Two repeats that differ widely have an interval from almost 0."""
    wide = [fake_run(step_seconds=seconds) for seconds in (1.0, 60.0)]
    write.write(Report([*wide, fake_run(num_devices=2)]), ["x"], tmp_path)
    page = open_report(tmp_path)
    page.check("#logy")
    page.wait_for_timeout(300)
    *_, low, high = shown(page)
    assert 0 < low < high < float("inf")


def test_machines_have_colours_of_their_own(open_report: Any, tmp_path: Path, no_plots: None) -> None:
    grid = itertools.product(("a", "b"), (1, 8), ("replicated", "parameter_server"))
    records = [fake_run(hardware=name, num_devices=n, variable_update=manager) for name, n, manager in grid]
    write.write(Report(records), ["x"], tmp_path)
    chosen = open_report(tmp_path).locator("#colour option:checked")
    assert chosen.text_content() == "machine"


def test_chosen_rows_stand_side_by_side(page: Any, chart: Any) -> None:
    page.fill("#filter", "vgg16 independent")
    boxes = page.locator("#table input.choose")
    boxes.nth(0).check()
    boxes.nth(2).check()
    data = json.loads(page.locator("#data").text_content())
    shown = [(row["cells"], row["rate"]) for row in data["rows"]]
    of_vgg = [rate[0] for cells, rate in shown if cells[:2] == ["vgg16", "independent"]]
    lines = {
        row.locator("th").text_content(): row.locator("td").all_text_contents()
        for row in page.locator("#comparison tbody tr").all()
    }
    assert lines["devices"] == ["1", "4"] and "model" not in lines, "only what differs"
    assert lines["images/s over that of the first"] == ["1.000", f"{of_vgg[2] / of_vgg[0]:.3f}"]
    heads = page.locator("#comparison thead th div").all_text_contents()
    assert [head.split(", ")[:3] for head in heads] == [["vgg16", "independent", number] for number in ("1", "4")]
    page.locator("#comparison button").first.focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("Remove vgg16, independent, 4")
    assert not boxes.nth(0).is_checked() and boxes.nth(2).is_checked()
    page.click("#clear")
    assert page.locator("#chosen").is_hidden()


@pytest.mark.usefixtures("no_plots")
def test_a_large_page_is_small_and_shows_more_on_demand(open_report: Any, tmp_path: Path) -> None:
    flags = {f"a_flag_of_all_{number}": "with a long value" for number in range(8)}
    records = [fake_run(batch_per_device=batch, step_seconds=0.001 * batch, **flags) for batch in range(1, 1201)]
    write.write(Report(records), ["many.jsonl"], tmp_path)
    assert (tmp_path / "report.html").stat().st_size < 2.5e6
    page = open_report(tmp_path)
    assert len(page.locator("#data").text_content()) < 300 * len(records), "of 10,000 rows a third of 10 MB"
    last = page.locator("#table tbody tr").last.locator("button.copy").get_attribute("data-command")
    assert last == records[149].command_line
    assert page.locator("#table tbody tr").count() == 150
    page.click("#more")
    assert page.locator("#table tbody tr").count() == 300
    page.fill("#filter", "1200")
    data = json.loads(page.locator("#data").text_content())
    found = sum("1200" in " ".join(row["cells"]) for row in data["rows"])
    assert 0 < page.locator("#table tbody tr").count() == found < 10


def test_a_record_fits_its_schema(everything: list[Record]) -> None:
    schema = json.loads(tables.record_schema())
    validator = jsonschema.validators.validator_for(schema)(schema)
    different = {(r.kind, r.status, r.config.get("model")): r for r in everything}
    for record in different.values():
        validator.validate(json.loads(record.to_json()))
    broken = json.loads(everything[0].to_json()) | {"status": "fine"}
    with pytest.raises(jsonschema.ValidationError, match="'fine' is not one of"):
        validator.validate(broken)


def test_unlike_runs_are_not_on_one_line() -> None:
    rows = summarize([fake_run(), fake_run(precision="fp16"), fake_run(data_name="imagenet"), fake_run(hardware="b")])
    assert len({row.setting() for row in rows}) == 4
