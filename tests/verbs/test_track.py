"""The verb `track` as a user and a CI job meet them, with real files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from benchmarks.cli.main import dispatch
from benchmarks.errors import BenchError
from results.record import Record, Status
from tests.support.commands import RunBench
from tests.support.records import fake_run, night, nights

Keep = Callable[[str, Iterable[Record]], Path]


@pytest.fixture
def promoted(run_bench: RunBench, keep: Keep, tmp_path: Path) -> Path:
    """Baselines of ten sessions in the default directory."""
    keep("past.jsonl", nights(10))
    run_bench("track", "store", "past.jsonl").succeeded()
    return tmp_path / "results" / "baselines"


def test_baselines_are_promoted_listed_shown_and_pruned(run_bench: RunBench, promoted: Path, keep: Keep) -> None:
    keep("more.jsonl", [*night(11, 110.0), *night(11, model="vgg16"), fake_run(status=Status.CRASH)])
    done = run_bench("track", "store", "more.jsonl", "past.jsonl", "--where=model=resnet50").succeeded()
    assert "stored: resnet50" in done.stdout and "vgg16" not in done.stdout
    assert done.stdout.splitlines()[-1] == "3 runs new in results/baselines, 30 already present."
    assert "cannot be stored: its status is crash" in done.stderr
    (path,) = promoted.glob("*/*.jsonl")
    listed = run_bench("track", "list")
    assert listed.status == 0 and path.parent.name in listed.stdout and path.stem in listed.stdout
    assert " 11 " in listed.stdout and "2026-01-11 00:00" in listed.stdout and "110.00" in listed.stdout
    shown = run_bench("track", "history", f"--where=config_key={path.stem}")
    assert shown.status == 0 and shown.stdout.count("2026-01-") == 11 and "2.21.0" in shown.stdout
    pruned = run_bench("track", "prune", "--keep=4")
    assert pruned.status == 0 and "7 sessions removed, 4 kept" in pruned.stdout
    assert len(path.read_text().splitlines()) == 12


def test_a_stored_run_of_the_future_is_named_and_neither_used_nor_kept_as_the_newest(
    run_bench: RunBench, promoted: Path
) -> None:
    (path,) = promoted.glob("*/*.jsonl")
    path.write_text(path.read_text().replace("2026-01-10", "2999-01-10"))
    listed = run_bench("track", "list")
    assert "2026-01-09 00:00" in listed.stdout and listed.stderr.count("is not used: correct its time") == 3
    assert run_bench("track", "prune", "--keep=1").status == 0
    assert "2026-01-09" in path.read_text() and path.read_text().count("2999-01-10") == 3
    today = path.with_name("today.json")
    today.write_text(path.read_text())
    checked = run_bench("track", "check", "--where=time_utc > '2999'", str(today))
    assert checked.stderr.count("is not used: correct its time") >= 3 and checked.status == 2
    assert "There is no run in " in checked.stderr and "whose time can be used." in checked.stderr


def test_pruning_keeps_records_of_a_later_format(run_bench: RunBench, promoted: Path) -> None:
    (path,) = promoted.glob("*/*.jsonl")
    later = path.read_text().splitlines()[0].replace('"format_version":1', '"format_version":2')
    path.write_text(f"{later}\n{path.read_text()}")
    assert "9 sessions removed, 1 kept" in run_bench("track", "prune", "--keep=1").stdout
    assert later in path.read_text().splitlines()


def test_a_slower_day_is_status_1_and_stated_for_programs(run_bench: RunBench, promoted: Path, keep: Keep) -> None:
    keep("today.jsonl", night(20, 85.0))
    done = run_bench("track", "check", "today.jsonl", "--output_format=json", "--junit_file=junit.xml")
    assert done.status == 1, done.stderr
    found = json.loads(done.stdout)
    assert [finding["verdict"] for finding in found["findings"]] == ["regressed"]
    assert "results/baselines, 2026-01-01 to 2026-01-10" in found["base"]["name"]
    assert "<failure" in (promoted.parent.parent / "junit.xml").read_text()


def test_a_day_like_the_others_is_status_0(run_bench: RunBench, promoted: Path, keep: Keep) -> None:
    keep("today.jsonl", night(20, 100.0))
    done = run_bench("track", "check", "today.jsonl")
    assert (done.status, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "1 of 1 unchanged."
    assert run_bench("track", "check", "today.jsonl", "--threshold=0.1").status == 3


def test_a_part_of_what_was_stored_is_checked_with_where(run_bench: RunBench, promoted: Path, keep: Keep) -> None:
    keep("more.jsonl", nights(10, model="vgg16"))
    assert run_bench("track", "store", "more.jsonl").status == 0
    keep("today.jsonl", night(20))
    done = run_bench("track", "check", "today.jsonl")
    assert done.status == 3 and "vgg16" in done.stdout and "use --where" in done.stdout
    done = run_bench("track", "check", "today.jsonl", "--where=model=resnet50")
    assert done.status == 0 and "vgg16" not in done.stdout


def test_history_shows_where_the_rate_changed(run_bench: RunBench, keep: Keep, tmp_path: Path) -> None:
    keep("past.jsonl", [*nights(16, slower_from=9), *nights(3, model="vgg16")])
    done = run_bench("track", "history", "past.jsonl", "--output=history.svg")
    assert (done.status, done.stderr) == (0, "")
    (marked,) = [line for line in done.stdout.splitlines() if "<-" in line]
    assert marked.startswith("2026-01-09") and "slower from here" in marked
    assert "slower" in (tmp_path / "history.svg").read_text()
    assert run_bench("track", "store", "past.jsonl").status == 0
    kept = run_bench("track", "history", "--where=model=vgg16", "--output_format=json")
    (only,) = json.loads(kept.stdout)
    assert len(only["sessions"]) == 3 and only["title"].startswith("vgg16")


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["track", "store", "nowhere.jsonl"], 5, "nowhere.jsonl"),
        (["track", "store", "failed.jsonl"], 2, "can be stored"),
        (["track", "store", "today.jsonl", "--baselines_dir=failed.jsonl"], 2, "--baselines_dir=failed.jsonl"),
        (["track", "check", "today.jsonl"], 2, "track store FILE"),
        (["track", "history"], 2, "no valid runs in results/baselines. `track store FILE` adds some."),
        (["track", "history", "failed.jsonl"], 2, "no valid runs in failed.jsonl. Name a file that has some."),
        (
            ["track", "history", "today.jsonl", "--where=model=vgg16"],
            2,
            "no record in today.jsonl fulfils it",
        ),
        (["track", "history", "today.jsonl", "--output=history.gif"], 2, ".png or .svg"),
        (["track", "history", "today.jsonl", "--output=no/such/place.png"], 2, "--output=no/such/place.png"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_done_is_said(
    keep: Keep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], status: int, said: str
) -> None:
    keep("today.jsonl", night(20))
    keep("failed.jsonl", [fake_run(status=Status.CRASH)])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BenchError) as refused:  # which run_bench.py prints, and ends with its status
        dispatch(words)
    assert refused.value.exit_status == status and said in str(refused.value)


@pytest.mark.parametrize("has_failures", [False, True])
def test_a_directory_without_sessions_lists_nothing(
    run_bench: RunBench, keep: Keep, tmp_path: Path, has_failures: bool
) -> None:
    if has_failures:
        (tmp_path / "results/baselines/a").mkdir(parents=True)
        keep("results/baselines/a/copied.jsonl", [fake_run(status=Status.CRASH)])
    done = run_bench("track", "list")
    assert done.status == 0 and "There are no sessions in results/baselines" in done.stdout
    pruned = run_bench("track", "prune", "--baselines_dir=typo")
    assert pruned.status == 0 and "There are no sessions in typo" in pruned.stdout
