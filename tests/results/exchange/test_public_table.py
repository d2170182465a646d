"""The public table: what it holds, what is written and read again, and what is refused with file, line and column."""

from __future__ import annotations

import csv
import dataclasses
import re

import pytest
from msgspec.structs import replace

from results.environment import published_table
from results.exchange import public_table
from results.exchange.public_table import COLUMNS, Figure, TableError
from results.summary import summarize
from tests.support.records import fake_run

HEADER = "machine,model,devices,batch_per_device,images_per_sec,images_per_sec_low,images_per_sec_high,forward_only"


def test_a_figure_that_is_written_is_read_again() -> None:
    run = fake_run(num_devices=2, step_seconds=[0.1, 0.2] * 5, xla="jit")
    (figure,) = public_table.of_rows(summarize([run]))
    machine = f"hardware {run.identity.hardware_key}"
    assert (figure.machine, figure.model, figure.devices, figure.batch_per_device) == (machine, "resnet50", 2, 32)
    # 640 images in 1.5 s of ten steps
    assert figure.images_per_sec == pytest.approx(640 / 1.5) and figure.xla is True and figure.forward_only is False
    assert figure.variable_update == "replicated psgpu" and figure.command.startswith("run_bench.py --model=resnet50")
    (again,) = public_table.parsed(public_table.written([figure]), "t.csv")
    assert again.images_per_sec == pytest.approx(figure.images_per_sec, rel=1e-5)
    rounded = ("images_per_sec", "images_per_sec_low", "images_per_sec_high")
    assert dataclasses.replace(again, **{name: getattr(figure, name) for name in rounded}) == figure


def test_a_figure_is_of_the_valid_repeats_and_dated_by_the_last() -> None:
    runs = [fake_run(), fake_run(), fake_run(status="crash")]
    days = ["2026-01-02", "2026-01-01", "2026-01-03"]
    identities = [replace(run.identity, time_utc=f"{day}T00:00:00+00:00") for run, day in zip(runs, days, strict=True)]
    rows = summarize(replace(run, identity=identity) for run, identity in zip(runs, identities, strict=True))
    (figure,) = public_table.of_rows(rows)
    assert (figure.repeats, figure.date) == (2, "2026-01-02")


def test_order_of_columns_other_columns_and_empty_cells_do_not_matter() -> None:
    text = "extra, images_per_sec, devices, model, machine, precision\n?,10, 2,vgg16, M,\n"
    (figure,) = public_table.parsed(text, "t.csv")
    assert figure == Figure(machine="M", model="vgg16", devices=2, images_per_sec=10.0)


def test_a_table_of_a_spreadsheet_with_decimal_commas_is_read() -> None:
    head, cells = "machine,model,devices,images_per_sec", '"A, B",vgg16,2,"1234,5"'
    expected = (Figure(machine="A, B", model="vgg16", devices=2, images_per_sec=1234.5),)
    for separator in (";", "\t"):
        line = separator.join(["A, B", "vgg16", "2", "1234,5"])
        text = f"{head.replace(',', separator)}\r\n{line}\r\n"
        assert public_table.parsed(text, "t.csv") == expected
        assert public_table.parsed(f"sep={separator}\r\n{text}", "t.csv") == expected
    semicolons = head.replace(",", ";")
    (figure,) = public_table.parsed(f"{semicolons};xla\nA;vgg16;2;426,667;WAHR\n", "t.csv")
    assert (figure.images_per_sec, figure.xla) == (426.667, True)
    for number, separator in (("1.234", ";"), ("12.345.678", ";"), ("1.234", "\t"), ("1,234", "\t")):
        text = f"{semicolons}\nA;vgg16;2;{number}\n".replace(";", separator)
        with pytest.raises(TableError, match="may have a mark of thousands or of decimals"):
            public_table.parsed(text, "t.csv")
    with pytest.raises(TableError, match=re.escape("is '1.234,5'. Write a number above 0, as 1234.5")):
        public_table.parsed(f"{semicolons}\nA;vgg16;2;1.234,5\n", "t.csv")
    with pytest.raises(TableError, match="column images_per_sec is '1234,5'"):
        public_table.parsed(f"{head}\n{cells}\n", "t.csv")


@pytest.mark.parametrize(
    ("separator", "first", "second", "expected"),
    [
        ("\t", "269.491", "12.5", 269.491),
        ("\t", "269.491", "1234.567", 269.491),
        ("\t", "269.491", "1.23457e+06", 269.491),
        ("\t", "269,491", "12,5", 269.491),
        (";", "269.491", "12.5", 269.491),
        (";", "269,491", "12,5", 269.491),
        (";", "269,491", "12.5", None),  # thousands, as it seems
        ("\t", "269,491", "12.5", None),
        ("\t", "269.491", "12,5", None),
        (";", "269.491", "12,5", None),
        ("\t", "269.491", "268.113", None),
        (";", "269.491", "268.113", None),
        ("\t", "269.491", "12", None),
    ],
)
def test_other_numbers_of_the_file_show_which_mark_is_that_of_decimals(
    separator: str, first: str, second: str, expected: float | None
) -> None:
    lines = [["machine", "model", "devices", "images_per_sec"], ["A", "vgg16", "1", first], ["A", "vgg16", "2", second]]
    text = "\n".join(map(separator.join, lines))
    if expected:
        assert public_table.parsed(text, "t.tsv")[0].images_per_sec == expected
        return
    with pytest.raises(TableError, match=f"^t.tsv:2: column images_per_sec is '{first}', which may have a mark of"):
        public_table.parsed(text, "t.tsv")


def test_names_of_columns_are_compared_without_case_and_blanks() -> None:
    (figure,) = public_table.parsed("MACHINE,Model, devices ,Images_Per_Sec \nM,VGG16,2,10.5\n", "t.csv")
    assert figure == Figure(machine="M", model="VGG16", devices=2, images_per_sec=10.5)


def test_rows_and_numbers_are_read_as_spreadsheets_and_pandas_save_them() -> None:
    text = f"{HEADER},,\nM,m,8.0,64.0,10.5,,,,,\n,,,,,,,,,\n\n"
    (figure,) = public_table.parsed(text, "t.csv")
    assert (figure.devices, figure.batch_per_device) == (8, 64)
    with pytest.raises(TableError, match=r"column devices is '8\.5'"):
        public_table.parsed(f"{HEADER}\nM,m,8.5,64,10.5,,,\n", "t.csv")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("M,m,0,8,1,,,", "t.csv:2: column devices is '0'. Write a whole number above 0"),
        ("M,m,1,many,1,,,", "column batch_per_device is 'many'"),
        ("M,m,1,8,nan,,,", "column images_per_sec is 'nan'. Write a number above 0, as 1234.5"),
        ("M,m,1,8,,,,", "column images_per_sec is empty"),
        ("M,m,1,8,1,,,maybe", "column forward_only is 'maybe'. Write true, false or nothing"),
        ("M,m,1,8,1,2,,", "images_per_sec_low is 2.0 and images_per_sec_high is None"),
        ("M,m,1,8,1,3,2,", "Give the lower and the higher bound"),
        ("M,m,1,8,1,,,,", "it has more cells than the first line"),
        ("M,m,1", "it has fewer cells than the first line"),
        ('M,"m,1', "this is no CSV"),
    ],
)
def test_a_wrong_line_is_named(line: str, words: str) -> None:
    with pytest.raises(TableError) as caught:
        public_table.parsed(f"{HEADER}\n{line}\n", "t.csv")
    assert words in str(caught.value) and str(caught.value).startswith("t.csv:")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *((text, "t.csv:1: there is no column machine, model, devices") for text in ("", "a,b\n1,2\n", "\0")),
        ("run_id,session_id,model\na,b,c\n", "t.csv is results.csv of a report: name results.jsonl"),
        (f"{HEADER},devices\nM,m,1,8,1,,,,2\n", "t.csv:1: there are several columns devices. Keep one"),
    ],
)
def test_a_table_without_its_columns_is_refused(text: str, words: str) -> None:
    with pytest.raises(TableError, match=re.escape(words)):
        public_table.parsed(text, "t.csv")


def test_text_of_a_table_controls_no_terminal_and_is_no_formula() -> None:
    text = f'{HEADER}\n"A \x1b[2J\nB",=m,1,8,1,,,\n'
    (figure,) = public_table.parsed(text, "t.csv")
    assert figure.machine == "A [2J B"
    (line,) = csv.DictReader(public_table.written([figure]).splitlines())
    assert line["model"] == "'=m"


@pytest.mark.parametrize("name", ["guide2017", "modern"])
def test_the_tables_of_the_suite_are_public_tables(name: str) -> None:
    lines = published_table(name)
    assert lines and set(lines[0]) <= {column.name for column in COLUMNS}
