"""Records from elsewhere: a field may hold anything, and its text may be meant for a terminal or a spreadsheet."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from results import loading, store
from results.gate import baseline_check, comparison, session_history, views
from results.gate.comparison import UnlikeError
from results.record import Record, Status
from results.report import published, write
from results.report.contents import Report
from results.report.plots import against
from results.summary import summarize
from results.text import csv_cell, markdown, markdown_with_code
from tests.support.records import FieldPath, fake_input, fake_reduction, fake_run, paths, with_field

HOSTILE = "\x1b[31m=1+1|[a](http://b)$\\frac{$"
ODD = (HOSTILE, {"a": {"b": 1}}, [1, "x"], [], None, 1e308, -1, 0, 10**400, "NaN")
PARTS = {
    "pipeline": {"stages": 2, "micro_batches": 4},
    "modifiers": {"all_reduce_spec": "xring", "local_sgd_steps": 4},
    "input": {"crop": "random", "cycle_length": 4},
    "pauses": {"eval_every_steps": 2},
    "schedule": {"rates": [0.1]},
}
PLACEMENT = {
    **{f"{what}_bytes_per_device": {"/cpu:0": 40} for what in ("variable", "slot", "gradient", "staged")},
    "variable_groups": [{"kind": "weight", "devices": ["/cpu:0"], "variables": [["w", [10], 40]]}],
    "aggregations": [{"operations": [["AddN", "/cpu:0"]], "gradients": ["w"]}],
    "sent_per_step": {"total_bytes": 80, "by_kind": {"device to host": [1, 40]}},
    "measured_per_step": {"by_kind": {"device to host": [1, 40]}, "scalars": [1, 4]},
}
GOOD = {
    "run": fake_run(),
    "parts": replace(fake_run(**PARTS), placement=PLACEMENT),
    "reduction": fake_reduction("psgpu", 1024, 1e-3),
    "input": fake_input(),
}


def fields_of(record: Record) -> Iterator[FieldPath]:
    """Yields the path of every field of a record, and of the first entry of every list."""
    for path, _ in paths(json.loads(record.to_json())):
        if all(isinstance(key, str) or key == 0 for key in path):
            yield path


def odd_records(good: Record, values: tuple[Any, ...] = ODD) -> Iterator[Record]:
    """Yields a record with each field in turn replaced by each value, if it still is a record."""
    for path in fields_of(good):
        for value in values:
            try:
                yield Record.from_json(with_field(good, path, value))
            except ValueError:
                continue


def reported(records: list[Record]) -> str:
    """Returns what a report of these records prints and writes, without its plots."""
    report = Report(records, [published.table("guide2017"), published.table("modern")])
    write.html(report, drawings=[], sources=[])
    assert all(line.isprintable() for line in report.markdown().splitlines())
    return "\n".join([*report.lines, *report.notes])


def judged(records: list[Record], good: Record) -> str:
    """Returns what the gate prints of these records against a good one."""
    texts = []
    for sides in ((records, [good]), ([good], records)):
        for judge in (comparison.compare, baseline_check.check):
            try:
                found = judge(*sides, ("a", "b"), 0.05)
            except UnlikeError as error:
                texts.append(str(error))
                continue
            texts += [views.render_text(found), views.render_markdown(found)]
            views.render_junit(found), views.render_json(found), views.render_github_benchmark(found)
    return "\n".join([*texts, *session_history.as_text(session_history.histories(records))])


def apart(records: list[Record]) -> list[Record]:
    """Returns records each of which is a configuration of its own, as far as the key was not what was changed."""
    return [
        replace(record, identity=replace(record.identity, config_key=f"{number}"))
        for number, record in enumerate(records)
    ]


@pytest.mark.fault(
    "R17",
    "records with one odd field each; report, its page, and every export",
    survives="the good records are shown, the odd ones are skipped or shown as they are",
)
@pytest.mark.parametrize("kind", GOOD)
def test_one_odd_field_breaks_no_view(kind: str) -> None:
    good = GOOD[kind]
    found = list(odd_records(good))
    assert len(found) > 100
    reported([*apart(found), good])
    judged([*apart(found), good], good)
    rows = list(csv.DictReader(io.StringIO(store.as_csv([*found, good]))))
    assert len(rows) == len(found) + 1 and rows[-1]["run_id"] == good.identity.run_id


def test_an_odd_repeat_of_a_good_run_breaks_no_row_and_no_verdict() -> None:
    good = GOOD["run"]
    for odd in odd_records(good, ({}, 1e308, -1, 0, None)):
        (row, *_) = summarize([good, odd])
        assert row.images_per_sec is None or row.rate > 0
        judged([odd, good], good)


@pytest.mark.fault(
    "R17",
    "a record whose texts have escapes of the terminal and formulas",
    survives="none reaches a terminal or a spreadsheet",
)
@pytest.mark.parametrize("kind", GOOD)
def test_text_of_a_record_controls_no_terminal_and_no_spreadsheet(kind: str) -> None:
    good = [GOOD[kind], *([fake_run(status=Status.CRASH, reason="said")] if kind == "run" else [])]
    found = [odd for each in good for odd in odd_records(each, (HOSTILE, f"={HOSTILE}"))]
    printed = reported([*apart(found), *good]) + judged([*apart(found), *good], good[0])
    assert all(line.isprintable() for line in printed.splitlines())
    for row in csv.DictReader(io.StringIO(store.as_csv(found))):
        assert all(cell.isprintable() and not cell.startswith("=") for cell in row.values())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("config", "model"), {"a": 1}),
        (("config", "modifiers"), "psgpu"),
        (("measurement", "step_seconds"), [0.0] * 20),
        (("measurement", "step_seconds"), [0.1, -0.1, 0.1]),
        (("measurement", "step_seconds"), [1e-320] * 20),
        (("measurement", "images_per_step"), 64),
        (("derived", "images_per_sec"), 3200.0),
        (("derived", "images_per_sec"), 0),
        (("derived", "mfu_of_measured_peak"), 1.03),
        (("derived", "images_per_sec_low"), 3200.0),
        (("derived", "images_per_sec_high"), 3.2),
        (("environment", "container_cores"), "many"),
        (("measurement", "losses"), [[1.0]]),
        (("measurement", "worker_step_seconds"), [[0.1], "x"]),
        (("identity", "command"), "--model=vgg16"),
        (("warnings",), "busy"),
        (("kind",), []),
        (("config",), json.loads('{"a":' * 300 + "1" + "}" * 300)),
    ],
)
def test_a_field_of_another_type_is_named_and_its_line_is_skipped(tmp_path: Path, path: Any, value: Any) -> None:
    file = tmp_path / "results.jsonl"
    good = fake_run()
    file.write_text(with_field(fake_run(), path, value) + "\n" + good.to_json() + "\n")
    loaded = loading.load(file)
    assert [record.identity.run_id for record in loaded.records] == [good.identity.run_id]
    (problem,) = loaded.problems
    assert problem.startswith(f"{file}:1: skipped a damaged line (not a record of format 1: ")
    assert str(path[-1]) in problem


def test_numbers_as_other_programs_write_them_are_read(tmp_path: Path) -> None:
    good, file = fake_run(), tmp_path / "results.jsonl"
    (images, loss), whole = (good.measurement.images_per_step, good.measurement.losses[0]), good.to_json()
    assert f'"losses":[{loss},' in whole
    written = whole.replace(f'"losses":[{loss},', '"losses":[1e999,').replace(f'step":{images},', f'step":{images}.0,')
    file.write_text(written + "\n")
    loaded = loading.load(file)
    (record,) = loaded.records
    assert not loaded.problems and type(record.measurement.images_per_step) is int
    assert record.measurement.losses == [None, *good.measurement.losses[1:]]


@pytest.mark.fault("R17", "a results file with odd lines; a run", survives="the run is stored and in the CSV")
def test_a_directory_with_odd_lines_is_appended_to(tmp_path: Path) -> None:
    lines = [with_field(fake_run(), path, HOSTILE) for path in fields_of(fake_run())]
    (tmp_path / "results.jsonl").write_text("\n".join(lines) + "\n")
    run = fake_run()
    problems = store.Store(tmp_path).append(run)
    rows = list(csv.DictReader((tmp_path / "results.csv").read_text().splitlines()))
    assert rows[-1]["run_id"] == run.identity.run_id and len(rows) > 20
    assert len(problems) == 21 and problems[-1].endswith(" more lines have such a problem.")


def test_a_plot_shows_a_dollar_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "PLOTS", [plot for plot in write.PLOTS if plot.name == "batches"])
    runs = [fake_run(model="$\\frac{$", batch_per_device=batch) for batch in (8, 16)]
    report = Report(runs)
    write.write(report, ["x"], tmp_path)
    assert not [note for note in report.notes if "missing" in note]
    assert "$\\frac{$" in (tmp_path / "plots" / "batches.svg").read_text()


@pytest.mark.fault("R17", "a text with images, links and tags", survives="Markdown shows it as it is")
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a | b\n![x](http://y)", "a \\| b !\\[x\\](http:&#47;/y)"),
        ("me@x @user www.x.y _a_ ~~b~~ a_b", "me&#64;x &#64;user www&#46;x.y \\_a\\_ \\~\\~b\\~\\~ a_b"),
        ("[link](x) `code` *bold* <b>", "\\[link\\](x) \\`code\\` \\*bold\\* &lt;b>"),
        ("\\| \x1b[2J\u202egnp", "\\\\\\| \\[2J gnp"),
    ],
)
def test_markdown_shows_text_as_it_is(text: str, shown: str) -> None:
    assert markdown(text) == shown


def test_code_in_a_sentence_stays_code_in_markdown() -> None:
    assert markdown_with_code("`--a=*b*` [x](y) ` z\n`![c](d)`") == "`--a=*b*` \\[x\\](y) ` z `!\\[c\\](d)\\`"


@pytest.mark.fault("R17", "a machine whose name is a picture; report --against", survives="report.md shows its name")
def test_machines_of_others_are_text_in_markdown(tmp_path: Path) -> None:
    theirs = fake_run(hardware="another")
    machine = {"machine": "![x](http://y)"}
    store.Store(tmp_path).append(replace(theirs, environment={**theirs.environment, **machine}))
    table = published.table(str(tmp_path))
    plot = against(table)
    page = Report([fake_run()], [table]).markdown([(plot.title, "x.svg", plot.reading)])
    assert "![x](" not in page and page.count("!\\[x\\](http:&#47;/y)") >= 3


@pytest.mark.fault("R17", "a text that begins as a formula", survives="no cell of results.csv is one")
@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", " =1", "＝1", "＋1", "－1", "＠x"])
def test_a_spreadsheet_computes_nothing_from_text(text: str) -> None:
    assert csv_cell(text).startswith("'")
    assert store.as_csv([fake_run(model=text)]).count("'") == 1


def test_numbers_stay_numbers_in_a_csv() -> None:
    (row,) = csv.DictReader(io.StringIO(store.as_csv([fake_run(seed=-5, batch_per_device=-5)])))
    assert (row["batch_per_device"], row["model"]) == ("-5", "resnet50")


def test_an_integer_that_readers_of_json_would_round_is_kept_as_text() -> None:
    run = Record.from_json(fake_run(seed=2**64 + 1, other=2**64 - 1).to_json())
    assert (run.config["seed"], run.config["other"]) == (str(2**64 + 1), 2**64 - 1)
