"""The verb `publish`, and `report --against` with what they wrote."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from results import loading
from results.record import Status
from results.store import Store
from tests.results.exchange.test_publication import run
from tests.support.commands import RunBench
from tests.support.records import fake_run


def test_runs_are_published_checked_and_compared_with(run_bench: RunBench, tmp_path: Path) -> None:
    Store(tmp_path / "out").append(
        run(), run(), run(model="vgg16"), fake_run(status=Status.CRASH, reason="At /home/x.")
    )
    done = run_bench("publish", "public", "out", "--machine=my A&B box", "--where=model=resnet50")
    assert done.stdout.index("- Machine: my A&amp;B box, ") < done.stdout.index("public is ready"), (
        "the folder is shown"
    )
    assert done.status == 0 and "2 runs: public is ready: results.jsonl, table.csv, README.md." in done.stdout
    assert "Removed or replaced private fields: " in done.stdout and "config.data_dir" in done.stdout
    assert "1 record left out: it is not a completed run: its status is crash" in done.stderr
    folder = tmp_path / "public"
    assert {path.name for path in folder.iterdir()} == {"results.jsonl", "table.csv", "README.md"}
    assert not list(tmp_path.glob(".public*")) and folder.stat().st_mode & 0o777 != 0o700
    readme = (folder / "README.md").read_text()
    assert "- Machine: my A&amp;B box, " in readme and "run --model=resnet50 --batch_size 32" in readme
    assert {record.environment["machine"] for record in loading.load(folder / "results.jsonl").records} == {
        "my A&B box"
    }
    done = run_bench("publish", "--check", "public")
    assert done.status == 0 and "2 runs: valid." in done.stdout
    for own in ("public", "public/table.csv"):
        done = run_bench("report", "out", f"--against={own}")
        assert f"{own}: this is your own result: its figures of my A&B box (1 of 1) are not compared." in done.stderr
        assert done.status == 0 and "x the figure of" not in done.stdout


def test_nothing_is_written_over_or_without_runs(run_bench: RunBench, tmp_path: Path) -> None:
    Store(tmp_path / "out").append(run())
    Store(tmp_path / "failed").append(fake_run(status=Status.CRASH, reason="It broke."))
    for words, message in (
        (("publish",), "name the folder to make"),
        (("publish", "out"), "out exists and is not an empty directory"),
        (("publish", "new", "failed"), "there is no valid run to publish. Nothing was written."),
        (("publish", "new", "out"), "the machine has no title: give --machine=TEXT"),
        (("publish", "out/results.csv/new", "out", "--machine=a"), "Name a folder that can be made"),
        (("publish", "--check"), "name the folder to check"),
        (("publish", "--check", "nowhere"), "nowhere: there is no results.jsonl in it"),
    ):
        done = run_bench(*words)
        assert done.status == 2 and message in done.stderr, (words, done.stderr)
    assert not (tmp_path / "new").exists() and not list(tmp_path.glob(".new*"))
    (tmp_path / "empty").mkdir()
    assert run_bench("publish", "empty", "out", "--machine=a").status == 0


def test_a_folder_that_is_not_whole_is_refused_with_the_reasons(run_bench: RunBench, tmp_path: Path) -> None:
    Store(tmp_path / "out").append(run())
    assert run_bench("publish", "public", "out", "--machine=a").status == 0
    (tmp_path / "public" / "table.csv").unlink()
    done = run_bench("publish", "--check", "public")
    assert done.status == 5 and "table.csv: No such file or directory. Publish again." in done.stderr
    (tmp_path / "public" / "table.csv").write_bytes(b"\xff\xfe\xff")
    assert run_bench("publish", "--check", "public").status == 5
    done = run_bench("publish", "--check", "out")
    assert done.status == 5 and "the machine has no title" in done.stderr and "out is refused" in done.stderr


def test_a_folder_that_does_not_pass_its_own_check_is_not_left(run_bench: RunBench, tmp_path: Path) -> None:
    first = run()
    other = replace(run(), environment={**first.environment, "memory_gib": 1})  # with the same hardware_key
    Store(tmp_path / "out").append(first, other)
    done = run_bench("publish", "public", "out", "--machine=a")
    assert (
        done.status == 5
        and "hardware_key and hardware contradict" in done.stderr
        and "Nothing was written" in done.stderr
    )
    assert not (tmp_path / "public").exists() and not list(tmp_path.glob(".public*"))


@pytest.fixture
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    from results.report import write

    monkeypatch.setattr(write, "drawn", lambda plots, rows, folder: iter(()))


def test_a_report_states_the_rank_among_the_figures_of_several_tables(
    no_plots: None, run_bench: RunBench, tmp_path: Path
) -> None:
    Store(tmp_path / "theirs").append(fake_run(step_seconds=[0.2] * 20))
    Store(tmp_path / "out").append(fake_run())  # 32 images in 0.1 s
    (tmp_path / "t.csv").write_text(
        "machine,model,devices,batch_per_device,images_per_sec,images_per_sec_low,images_per_sec_high\n"
        "<script>alert(1)</script> | \x1b[2J,ResNet-50,1,32,400,390,410\n"
    )
    done = run_bench("report", "out", "--output=report", "--against=theirs,t.csv,t.csv")
    assert (
        done.status == 0 and "rank 1 to 2 of 3 (2 comparable machines and yours): 2.00 x the figure of" in done.stdout
    )
    assert "0.80 x the figure of <script>alert(1)</script> | [2J (0.60 to 1.06), within what processes" in done.stdout
    assert "not compared: inference, precision, data, XLA (not stated)" in done.stdout and "\x1b" not in done.stdout
    page, text = ((tmp_path / "report" / name).read_text() for name in ("report.html", "report.md"))
    assert "<script>alert" not in page and "\\|" in text and "Where yours stand" in page


def test_damaged_lines_of_a_table_are_warnings_in_the_terminal(run_bench: RunBench, tmp_path: Path) -> None:
    for name in ("theirs", "out"):
        Store(tmp_path / name).append(fake_run())
    with (tmp_path / "theirs" / "results.jsonl").open("a") as file:
        file.write("{broken\n")
    done = run_bench("report", "out", "--against=theirs")
    assert done.status == 0 and "theirs/results.jsonl" in done.stderr and "damaged line" in done.stderr


@pytest.mark.parametrize(
    ("against", "status", "message"),
    [
        ("nowhere", 2, "nowhere: No such file or directory. Name guide2017, modern, a directory of results, or a CSV"),
        ("guide2071", 2, "Did you mean 'guide2017'?"),
        ("empty", 5, "empty: there is no results.jsonl in it"),
        ("failed", 5, "there is no valid run in it"),
        ("head.csv", 5, "there is no figure below its first line"),
        ("binary.csv", 5, "it is not UTF-8"),
    ],
)
def test_a_table_that_cannot_be_compared_with_is_refused(
    run_bench: RunBench, tmp_path: Path, against: str, status: int, message: str
) -> None:
    Store(tmp_path / "out").append(fake_run())
    Store(tmp_path / "failed").append(fake_run(status=Status.CRASH, reason="It broke."))
    (tmp_path / "empty").mkdir()
    (tmp_path / "head.csv").write_text("machine,model,devices,images_per_sec\n")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe")
    done = run_bench("report", "out", "--output=report", f"--against={against}")
    assert done.status == status and message in done.stderr
    assert not (tmp_path / "report").exists()
