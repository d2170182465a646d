"""The verbs about records, on records and baselines of older versions of the suite: see tests/results/golden."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from benchmarks.config import config, flag, run_flags
from benchmarks.sweep.grid import Cell
from benchmarks.sweep.isolated_run import CellRunner
from benchmarks.system import hardware
from results.gate import noise
from results.loading import load
from results.record import Record, key_of
from results.report import figures
from results.store import Store
from tests.support.commands import Finished
from tests.support.records import GOLDEN, golden_records

RunBench = Callable[..., Finished]
FILES = [str(path) for path in sorted(GOLDEN.glob("format-*.jsonl"))]
BASELINES = f"--baselines_dir={GOLDEN / 'baselines'}"
FLAGS = ("--device=cpu", "--model=trivial", "--batch_size=4", "--num_batches=6", "--num_warmup_batches=2")


def test_a_report_is_of_all_formats(run_bench: RunBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "save", lambda figure, path: None)  # its plots are on the page
    done = run_bench("report", *FILES, "--output=report")
    assert done.status == 0, done.stderr
    text = (tmp_path / "report" / "report.md").read_text()
    assert text.splitlines()[2].startswith("19 records of 13 configurations on 1 machine; 16 valid, 3 not.")
    # Two devices of each format, as the versions that ran them printed their rates, intervals and speed-ups.
    for words in (
        "| replicated pscpu |  | 2 | cpu | 4 | fp32 | synthetic | 324.94 | 228.10 to 501.78 | 162.47 |",
        "| replicated pscpu |  | 2 | cpu | 4 | fp32 | synthetic | 173.31 | 155.79 to 203.11 | 86.65 | 1.15 (",
        "| parameter_server on cpu async |  | 2 | cpu | 4 | fp32 | synthetic | 115.32 | 98.59 to 131.70 | 57.66 |",
        "| collective_all_reduce | 2 workers | 2 | cpu | 4 | fp32 | synthetic | 113.41 | 100.98 to 136.36 | 56.70 |",
        "| imagenet | 177.40 | 162.39 to 193.57 | 177.40 |",
        "| 64K | 65536 | pscpu | 2 |",
        "| decode | 947 |",
    ):
        assert words in text


def test_two_formats_are_compared(run_bench: RunBench) -> None:
    done = run_bench("compare", FILES[2], FILES[3], "--output_format=json")
    assert done.status == 3, done.stderr
    same, *others = json.loads(done.stdout)["findings"]
    assert same["verdict"] == "inconclusive" and {other["verdict"] for other in others} == {"missing"}
    assert (round(same["base_images_per_sec"], 2), round(same["candidate_images_per_sec"], 2)) == (263.02, 525.24)


def test_diff_shows_what_only_the_later_format_knows(run_bench: RunBench) -> None:
    done = run_bench("diff", "726f5b8b5871", "45536630412a", FILES[0], FILES[3])
    assert done.status == 0, done.stderr
    assert {"config.num_workers: nothing -> 1", "derived.images_per_sec: 306.1 -> 525.2"} <= {*done.stdout.splitlines()}


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_the_command_of_a_record_can_be_run_again(run_bench: RunBench, number: int) -> None:
    done = run_bench("rerun", golden_records(number)[0].identity.run_id, FILES[number - 1], "--dry_run")
    assert done.status == 0, done.stderr
    words = done.stdout.splitlines()[0].split()
    assert {*words} >= {*FLAGS}
    flag.parse(list(FLAGS), run_flags.RUN_FLAGS)


def test_new_records_go_into_a_directory_of_an_older_format(tmp_path: Path) -> None:
    shutil.copy(GOLDEN / "format-1.jsonl", tmp_path / "results.jsonl")
    shutil.copy(GOLDEN / "format-1.csv", tmp_path / "results.csv")
    store = Store(tmp_path)
    before = store.jsonl_path.read_text()
    (added,) = golden_records(4)[:1]
    assert store.append(added) == []
    assert store.jsonl_path.read_text() == before + added.to_json() + "\n", "what was there is as it was"
    assert load(store.jsonl_path).records == [*golden_records(1), added]
    header, *rows = store.csv_path.read_text().splitlines()
    assert header.startswith("run_id,session_id,time_utc,kind") and len(rows) == 6


# Baselines.


def today(*rates: float) -> list[Record]:
    """Rounds of the configuration of the baselines, at some rates."""
    (record,) = golden_records(4)[:1]
    return [
        dataclasses.replace(
            record,
            identity=dataclasses.replace(record.identity, run_id=f"today{number}", session_id="today"),
            derived=dataclasses.replace(record.derived, images_per_sec=rate),
        )
        for number, rate in enumerate(rates)
    ]


def keep(path: Path, records: Sequence[Record]) -> None:
    path.write_text("".join(record.to_json() + "\n" for record in records))


def test_a_check_against_old_baselines_prints_what_it_printed_then(run_bench: RunBench) -> None:
    done = run_bench("check", FILES[3], BASELINES)
    assert done.status == 3, done.stderr
    cells = "442.60         525.24              +18.7     -96.9 to +4374.9  7 and 1  inconclusive"
    assert f"trivial, parameter_server on cpu, 1 CPU device, batch 4  {cells}" in done.stdout.splitlines()
    assert (
        "Today's 1 round is 18.7 % faster than the median of 7 stored sessions, which neither shows nor excludes a "
        "change by the threshold of 87.3 %: sessions differ by 103.1 % here. A drop of 99.5 % or more would be seen."
    ) in done.stdout


def test_a_drop_below_old_baselines_has_regressed(run_bench: RunBench, tmp_path: Path) -> None:
    keep(tmp_path / "today.jsonl", today(1.0, 1.1, 0.9))
    done = run_bench("check", "today.jsonl", BASELINES)
    assert done.status == 1, done.stderr
    assert done.stdout.splitlines()[-1] == "1 of 1 regressed."


def test_old_baselines_are_listed_shown_and_added_to(run_bench: RunBench, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "baselines", tmp_path / "kept")
    listed = run_bench("baseline", "list", "--baselines_dir=kept")
    title = "trivial, parameter_server on cpu, 1 CPU device, batch 4"
    assert f"  dc49108cff8c  {title}  7         2026-11-22 22:13  512.45" in listed.stdout.splitlines()
    shown = run_bench("baseline", "show", "dc49", "--baselines_dir=kept")
    assert shown.stdout.splitlines()[-1] == "  2026-11-22 22:13  f21a68f  2.21.0      1       512.45"
    keep(tmp_path / "today.jsonl", today(500.0))
    done = run_bench("baseline", "promote", "today.jsonl", "--baselines_dir=kept")
    assert done.stdout.splitlines()[-1] == "1 run new in kept."
    assert [path.name for path in (tmp_path / "kept").rglob("*.jsonl")] == ["dc49108cff8c.jsonl"], "in the same file"


def test_the_history_of_old_baselines_is_what_was_printed_then(run_bench: RunBench) -> None:
    done = run_bench("history", BASELINES)
    assert done.status == 0, done.stderr
    rates = "769.78, 180.98 -76.5, 442.60 +144.6, 819.30 +85.1, 104.82 -87.2, 151.63 +44.7, 512.45 +238.0"
    assert ", ".join(" ".join(line.split()[5:]) for line in done.stdout.splitlines()[3:]) == rates
    assert done.stdout.splitlines()[3].startswith("2026-11-22 22:10  f21a68f  2.21.0")


def test_the_noise_that_calibrate_kept_is_read() -> None:
    """It printed a noise of 60.9 % (31.7 % to 382.9 %, 3 pairs) and a threshold of 90 %."""
    (found,) = noise.load(noise.path_of(GOLDEN / "baselines", "a2accd730ca9")).items()
    key, kept = found
    assert (key, kept.rounds, kept.in_turn) == ("dc49108cff8c", 3, False)
    assert (kept.noise, kept.low, kept.high) == pytest.approx((0.609, 0.317, 3.829), abs=5e-4)
    assert kept.threshold == 0.9


# Resuming.


@pytest.mark.parametrize("number", [3, 4])
def test_a_configuration_has_the_key_that_it_had(number: int) -> None:
    """With another key, stored baselines would no longer apply to it."""
    chosen = config.resolve(flag.parse(list(FLAGS), run_flags.RUN_FLAGS).values, lambda: 0)
    assert key_of(chosen.key_fields()) == golden_records(number)[0].identity.config_key


@pytest.mark.parametrize(("number", "is_recognised"), [(2, False), (3, True), (4, True)])
def test_a_sweep_repeats_what_an_older_version_began_and_reports_it(
    run_bench: RunBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, is_recognised: bool
) -> None:
    """A record of format 2 does not say whether accuracies were computed, so it is of another run."""
    record = golden_records(number)[0]
    Store(tmp_path / "out").append(record)
    names = ("cpu_model", "cpu_cores_usable", "memory_gib", "gpus")
    machine = {name: record.environment[name] for name in names}
    monkeypatch.setattr(hardware, "describe_hardware", lambda _: machine)
    begun = []

    def run(runner: CellRunner, cell: Cell, number: int) -> Record:
        begun.append(cell)
        return record

    monkeypatch.setattr(CellRunner, "run", run)
    done = run_bench("sweep", "--resume", *FLAGS)
    assert done.status == 0, done.stderr
    assert len(begun) == 1
    assert ("--resume: 1 record of other software" in done.stderr) is is_recognised
    assert "1 records: out/results.jsonl" in done.stdout
