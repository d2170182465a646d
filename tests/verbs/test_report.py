"""The verbs `report`, `rerun` and `diff` with records that may come from anywhere."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest
from msgspec.structs import replace

from benchmarks import record_files
from benchmarks.cli import report_verb
from benchmarks.cli.main import dispatch
from benchmarks.errors import UsageError
from benchmarks.run import run_verb
from results.exchange.formats import FORMATS
from results.record import Status
from results.store import Store
from tests.support.commands import RunBench
from tests.support.records import fake_run


def stored(directory: Path, command: Sequence[str]) -> str:
    """Stores the record of a command, and returns its id."""
    run = fake_run()
    Store(directory).append(replace(run, identity=replace(run.identity, command=[*command])))
    return run.identity.run_id


@pytest.mark.fault(
    "R17",
    "rerun of a record from elsewhere whose command compares, sweeps, writes, reaches other hosts or names code",
    survives="status 2; the command is printed without escapes, and nothing is executed",
)
@pytest.mark.parametrize(
    ("command", "why"),
    [
        (["ab", "--base_command=sh -c 'touch x'", "--nowarmup"], "this record was written by 'ab'"),
        (["\x1b[2Jab"], "this record was written by '[2Jab'"),
        (["--model=trivial", "--hosts=h1,h2", "--ssh"], "--hosts is not repeated"),
        (["--worker_hosts=10.0.0.1:2222,b:2222", "--job_name=worker"], "--job_name is not repeated"),
        (["--local_cluster=worker:2", "--noprivate_network"], "--private_network is not repeated"),
        (["--model=net.py:f"], "--model=net.py:f is code that the record does not contain"),
        (["--train_dir=x"], "--train_dir is not repeated: it may reach other hosts, or write where you did not say"),
        (["--mlflow_uri=http://h"], "--mlflow_uri is not repeated"),
        (["--data_dir=gs://b/x"], "--data_dir=gs://b/x is in a storage that other hosts serve"),
        (["--model=trivial", "x"], "'x' in its command is no flag of run"),
        (["--flagfile=elsewhere"], "--flagfile=elsewhere names a file"),
        (["--model=mlp", " --flagfile elsewhere"], "--flagfile=elsewhere names a file"),
        (["--model=trivial", "--no_such_flag=1"], "There is no flag --no_such_flag"),
        (["input", "--data_dir=https://***@host"], "lacks the value of --data_dir=https://***@host"),
    ],
)
def test_a_command_that_does_more_than_measure_is_printed_and_not_run(
    run_bench: RunBench, tmp_path: Path, command: list[str], why: str
) -> None:
    done = run_bench("rerun", stored(tmp_path / "out", command))
    assert done.status == 2 and why in done.stderr
    assert done.stdout.startswith("$ ") and command[-1].split("=")[0].strip("\x1b") in done.stdout
    assert "\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("command", "again"),
    [
        (["--model=trivial"], ["run", "--model=trivial"]),
        (["run", "--num_batches", "5", "--output_dir=.ssh", "--session_id=a"], ["run", "--num_batches=5"]),
        (["-model", "trivial", "--noxla", "--data_dir=photos"], None),
        (["allreduce", "--num_gpus=2"], ["allreduce", "--num_gpus=2"]),
        (["--cache_data=true", "--gpu_indices=0", "--model=trivial"], ["run", "--model=trivial", "--gpus=0"]),
        (["--local_cluster=worker:2", "--private_network"], None),
    ],
)
@pytest.mark.parametrize("output_dir", ["", "mine"])
def test_a_command_that_measures_is_run_and_writes_where_the_user_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], again: list[str] | None, output_dir: str
) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda program, words: ran.append(words))
    named = [f"--output_dir={output_dir}"] if output_dir else []
    dispatch(["rerun", stored(tmp_path, command), str(tmp_path), *named])
    ((python, _, *words),) = ran
    assert python == sys.executable and words[len(words) - len(named) :] == named
    assert ".ssh" not in str(words)
    assert again is None or words == [*again, *named]


def test_every_flag_of_run_that_is_repeated_is_a_number_a_switch_or_a_word_of_a_list_or_known_to_be_harmless() -> None:
    groups = run_verb.VERB.flags
    repeated = {flag for title in report_verb._REPEATED_GROUPS for flag in groups.get(title, ())}
    texts = {flag.name for flag in repeated if flag.kind is str and not flag.choices}
    schedules = {"eval_during_training_at_specified_steps", "eval_during_training_at_specified_epochs"}
    assert texts == {"model", "gpus", "all_reduce_spec", "data_dir", "piecewise_learning_rate_schedule", *schedules}


def test_a_command_can_be_looked_at_without_running_it(run_bench: RunBench, tmp_path: Path) -> None:
    done = run_bench("rerun", stored(tmp_path / "out", ["ab", "--base=main"]), "--dry_run")
    assert done.status == 0 and done.stdout.endswith("ab --base=main\n")


@pytest.mark.fault(
    "R14", "report A B --output=B, where B has results of its own", survives="a sentence, and B/results.csv as it was"
)
@pytest.mark.parametrize("where", [(), ("--where=model=vgg16",)])
def test_a_report_does_not_replace_the_rows_of_a_results_directory(tmp_path: Path, where: tuple[str, ...]) -> None:
    for name in "ab":
        Store(tmp_path / name).append(fake_run(), fake_run(model="vgg16"))
    before = (tmp_path / "b" / "results.csv").read_bytes()
    with pytest.raises(UsageError, match=r"results\.jsonl is there.* Name another directory, such as .*b/report"):
        dispatch(["report", str(tmp_path / "a"), str(tmp_path / "b"), f"--output={tmp_path / 'b'}", *where])
    assert (tmp_path / "b" / "results.csv").read_bytes() == before
    assert not (tmp_path / "b" / "report.html").exists()


def test_diff_shortens_long_values_and_controls_no_terminal_and_as_json_they_are_whole(
    run_bench: RunBench, tmp_path: Path
) -> None:
    one, other = fake_run(), fake_run(model="\x1b[2J", data_dir="x" * 999, **{"\x1b]0;title": 1})
    Store(tmp_path / "out").append(one, other)
    words = ("diff", one.identity.run_id, other.identity.run_id)
    done = run_bench(*words)
    assert done.status == 0 and "config.model: resnet50 -> [2J" in done.stdout and "\x1b" not in done.stdout
    (line,) = [line for line in done.stdout.splitlines() if "data_dir" in line]
    assert "xxx...xxx" in line and len(line) < 300
    done = run_bench(*words, "--output_format=json")
    assert done.status == 0 and json.loads(done.stdout)["config"]["data_dir"] == [None, "x" * 999]


def test_a_warning_that_quotes_a_file_controls_no_terminal(run_bench: RunBench, tmp_path: Path) -> None:
    (tmp_path / "\x1b[2J").mkdir()
    Store(tmp_path / "\x1b[2J").append(fake_run())
    with (tmp_path / "\x1b[2J" / "results.jsonl").open("a") as file:
        file.write("torn")
    done = run_bench("report", "\x1b[2J")
    assert done.status == 0 and "skipped a damaged line" in done.stderr and "\x1b" not in done.stderr


def test_runs_that_an_export_leaves_out_are_counted(run_bench: RunBench, tmp_path: Path) -> None:
    Store(tmp_path / "out").append(fake_run(), fake_run(status=Status.CRASH))
    assert "1 of 2 records have none and are left out" in run_bench("report", "--output_format=bencher").stderr
    assert run_bench("report", "--output_format=openmetrics").stderr == ""


def test_records_come_through_a_pipe(run_bench: RunBench) -> None:
    """As from `zcat FILE | run_bench.py report -`, or `report <(zcat FILE)`."""
    read, write = os.pipe()
    os.write(write, f"{fake_run().to_json()}\n".encode())
    os.close(write)
    done = run_bench("report", f"/dev/fd/{read}")
    os.close(read)
    assert done.status == 0 and done.stdout.startswith("1 run: 1 ok.")
    assert [str(path) for path in record_files.paths(["-"])] == ["/dev/stdin"]
    for verb, again in (("report", "-"), ("report", "/dev/fd/0"), ("compare", "-")):
        done = run_bench(verb, "-", again)
        assert done.status == 2 and "stdin (-) is named twice, and it is read once" in done.stderr


@pytest.mark.parametrize("name", [name for name, form in FORMATS.items() if not form.is_binary])
def test_an_export_goes_to_stdout_or_a_file_alike(run_bench: RunBench, tmp_path: Path, name: str) -> None:
    Store(tmp_path / "out").append(fake_run(), fake_run(num_devices=2))
    printed = run_bench("report", f"--output_format={name}")
    written = run_bench("report", f"--output_format={name}", "--output=file")
    assert run_bench("report", f"--output_format={name}", "--output=-").stdout == printed.stdout
    assert run_bench("report", "--output=-").stdout == run_bench("report").stdout
    assert (printed.status, written.status, written.stdout) == (0, 0, "")
    assert (tmp_path / "file").read_text() == printed.stdout != ""


@pytest.mark.parametrize(
    ("flags", "status", "why"),
    [
        (["empty.jsonl"], 5, "empty.jsonl: there are no records in it"),
        (["."], 5, "Name files that runs have written, such as out/results.jsonl."),
        (["--where=model=vgg16"], 2, "--where=model=vgg16: no record in out/results.jsonl fulfils it"),
    ],
)
def test_nothing_to_report_is_a_sentence(
    run_bench: RunBench, tmp_path: Path, flags: list[str], status: int, why: str
) -> None:
    Store(tmp_path / "out").append(fake_run())
    (tmp_path / "empty.jsonl").touch()
    done = run_bench("report", *flags)
    assert done.status == status and why in done.stderr


def test_an_export_of_steps_has_a_row_per_step(run_bench: RunBench, tmp_path: Path) -> None:
    Store(tmp_path / "out").append(fake_run(), fake_run(model="vgg16"))
    done = run_bench("report", "--where=model=vgg16", "--output_format=csv", "--table=steps")
    assert done.status == 0 and len(done.stdout.splitlines()) == 1 + 23
    assert run_bench("report", "--output_format=parquet", "--table=steps", "--output=steps.parquet").status == 0
    assert len(pd.read_parquet(tmp_path / "steps.parquet")) == 46


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--output_format=parquet"], "--output_format=parquet is not text: give --output=FILE, too."),
        (
            ["--output_format=bencher", "--table=steps"],
            "They are for csv, json, parquet.",
        ),
        (["--table=steps"], "is for --output_format=csv, json or parquet: set one."),
        (
            ["--output_format=md", "--against=modern"],
            "about the table and the page: omit --output_format.",
        ),
        (
            ["--output_format=csv", "--output=."],
            "Is a directory. Name a file",
        ),
        (["--output_format=xls"], "--output_format=xls"),
        (["--output_format=csv", "--output=out/../out/results.jsonl"], "it belongs to the records that were read"),
        (["--output_format=csv", "--output=out/results.csv"], "it belongs to the records that were read"),
        (["--output_format=csv", "--output=out/loop/file"], "Too many levels of symbolic links"),
        (["--output=runs.csv"], "a report is a directory of files: name one, or add --output_format=csv."),
        (["--output=runs.xlsx"], "name one, or pass --output=runs.csv and --output_format=csv."),
        (["--output=page.html"], "a report is a directory of files: name one."),
        (["--output=bench.prom"], "a report is a directory of files: name one, or add --output_format=openmetrics."),
    ],
)
def test_an_export_that_cannot_be_is_refused_in_words(
    run_bench: RunBench, tmp_path: Path, flags: list[str], why: str
) -> None:
    Store(tmp_path / "out").append(fake_run())
    (tmp_path / "out" / "loop").symlink_to("loop")
    done = run_bench("report", *flags)
    assert done.status == 2 and why in done.stderr and done.stdout == ""
    assert os.listdir(tmp_path) == ["out"] and len(Store(tmp_path / "out").load().records) == 1


def test_an_export_without_its_package_names_the_command_that_installs_it(
    run_bench: RunBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store(tmp_path / "out").append(fake_run())
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = run_bench("report", "--output_format=parquet", "--output=x")
    assert done.status == 2 and "-m pip install pyarrow" in done.stderr


def test_a_report_without_a_temporary_directory_is_refused_in_words(
    run_bench: RunBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container whose file system is read-only: matplotlib needs one when it is imported."""

    class NoTemporaryDirectory:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "results.report.write":
                raise OSError("Matplotlib requires access to a writable cache directory")

    Store(tmp_path / "out").append(fake_run())
    monkeypatch.setattr(sys, "meta_path", [NoTemporaryDirectory(), *sys.meta_path])
    monkeypatch.delitem(sys.modules, "results.report.write", raising=False)
    monkeypatch.delattr("results.report.write", raising=False)
    done = run_bench("report", "--output=report")
    assert done.status == 2 and "TMPDIR: Matplotlib requires access" in done.stderr
