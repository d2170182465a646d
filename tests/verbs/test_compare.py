"""The verb `compare` as a user and a CI job meet it, with real files."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from benchmarks.compare import compare_verb
from benchmarks.errors import UsageError
from results.gate.findings import Findings, Side
from results.record import Record
from tests.support.commands import Finished, RunBench
from tests.support.records import fake_run

Keep = Callable[[str, Sequence[Record]], Path]
Compare = Callable[..., Finished]
NOISE = (1.0, 1.004, 0.997, 1.002, 0.999, 1.003, 0.998, 1.001)


def rounds(step_seconds: float = 0.1, number: int = len(NOISE), **config: object) -> list[Record]:
    return [fake_run(step_seconds=step_seconds * noise, **config) for noise in NOISE[:number]]


@pytest.fixture
def compared(run_bench: RunBench, keep: Keep) -> Compare:
    """Compares records of two builds, with the verb."""

    def run(base: Sequence[Record], candidate: Sequence[Record], *flags: str, **variables: str) -> Finished:
        keep("main.jsonl", base)
        keep("branch.jsonl", candidate)
        return run_bench("compare", "main.jsonl", "branch.jsonl", *flags, **variables)

    return run


def test_nothing_slower_is_status_0(run_bench: RunBench, keep: Keep) -> None:
    base, candidate = keep("main/results.jsonl", rounds()), keep("branch/results.jsonl", rounds())
    done = run_bench("compare", str(base.parent), str(candidate))
    assert (done.status, done.stderr) == (0, ""), "a directory stands for the results in it"
    assert done.stdout.splitlines()[-1] == "1 of 1 unchanged."


def test_a_drop_is_status_1_and_stated(compared: Compare) -> None:
    base, candidate = [*rounds(), *rounds(model="vgg16")], [*rounds(), *rounds(0.1 / 0.9, model="vgg16")]
    done = compared(base, candidate, "--output_format=json")
    assert done.status == 1, done.stderr
    found = json.loads(done.stdout)
    assert (found["base"]["name"], found["candidate"]["name"]) == ("main.jsonl", "branch.jsonl")
    by_model = {finding["title"].split(",")[0]: finding for finding in found["findings"]}
    assert by_model["resnet50"]["verdict"] == "unchanged"
    assert by_model["vgg16"]["verdict"] == "regressed"
    assert by_model["vgg16"]["change"] == pytest.approx(-0.1)
    assert by_model["vgg16"]["base_rounds"] == len(NOISE)


@pytest.mark.parametrize(("percent", "status"), [(20, 0), (8, 1)])
def test_a_threshold_is_in_percent(compared: Compare, percent: int, status: int) -> None:
    assert compared(rounds(), rounds(0.1 / 0.9), f"--threshold={percent}").status == status


@pytest.mark.parametrize(
    ("where", "status", "words"),
    [
        ([], 1, ""),
        (["--where=model=resnet50"], 0, ""),
        (["--where=model=alexnet"], 2, "no record in main.jsonl fulfils it. In a condition, text has"),
        (["--where=modell=x"], 2, "--where=modell=x: there is no column 'modell'. Did you"),
    ],
)
def test_where_takes_some_records_only(compared: Compare, where: list[str], status: int, words: str) -> None:
    done = compared([*rounds(), *rounds(model="vgg16")], [*rounds(), *rounds(0.2, model="vgg16")], *where)
    assert done.status == status and words in done.stderr


def test_unlike_hardware_is_refused_and_named(compared: Compare) -> None:
    cpus = ("Xeon 8480", "EPYC 9654")
    done = compared(*([replace(r, environment={"cpu_model": cpu}) for r in rounds(hardware=cpu)] for cpu in cpus))
    assert (done.status, done.stdout) == (2, "")
    assert "cpu_model is Xeon 8480 in main.jsonl and EPYC 9654 in branch.jsonl" in done.stderr


@pytest.mark.parametrize("empty", ["main.jsonl", "branch.jsonl"])
def test_a_file_without_records_is_a_data_error(compared: Compare, empty: str) -> None:
    done = compared(*([] if name == empty else rounds() for name in ("main.jsonl", "branch.jsonl")))
    assert done.status == 5
    assert f"{empty}: there are no records in it" in done.stderr


def test_every_output_is_written_and_the_jobs_summary_is_appended_to(compared: Compare, tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before")
    names = {"json": "a.json", "junit": "b.xml", "markdown": "c.md", "benchmark_json": "d.json"}
    flags = [f"--{flag}_file={name}" for flag, name in names.items()]
    done = compared(rounds(), rounds(0.2), *flags, GITHUB_STEP_SUMMARY=str(summary))
    assert done.status == 1, done.stderr
    as_json, as_xml, as_markdown, as_benchmark = ((tmp_path / name).read_text() for name in names.values())
    assert json.loads(as_json)["has_regressed"]
    assert ElementTree.fromstring(as_xml).find("testsuite").get("failures") == "1"
    assert as_markdown.startswith("## Performance gate: regressed\n")
    assert json.loads(as_benchmark)[0]["value"] == pytest.approx(160, rel=0.01)
    assert summary.read_text() == "before\n" + as_markdown
    assert done.stdout.splitlines()[-1] == "1 of 1 regressed."
    assert {path.name for path in tmp_path.iterdir()} == {"main.jsonl", "branch.jsonl", "summary.md", *names.values()}


def test_an_output_that_cannot_be_written_is_named_and_costs_no_other(compared: Compare, tmp_path: Path) -> None:
    done = compared(rounds(), rounds(), "--json_file=nowhere/a.json", "--junit_file=b.xml")
    assert done.status == 2
    assert "--json_file=nowhere/a.json: No such file or directory. Name a file that can be written." in done.stderr
    assert done.stdout.splitlines()[-1] == "1 of 1 unchanged." and (tmp_path / "b.xml").is_file()


def test_two_outputs_need_two_files_unless_it_is_a_device(compared: Compare, tmp_path: Path) -> None:
    done = compared(rounds(), rounds(), "--json_file=a", f"--benchmark_json_file={tmp_path / 'a'}")
    assert done.status == 2 and not (tmp_path / "a").exists()
    assert "--json_file and --benchmark_json_file both name" in done.stderr
    compared(rounds(), rounds(), "--json_file=/dev/null", "--junit_file=/dev/null").succeeded()


def test_a_summary_that_cannot_be_written_changes_no_verdict(compared: Compare) -> None:
    done = compared(rounds(), rounds(), GITHUB_STEP_SUMMARY="/nowhere/summary.md").succeeded()
    assert "$GITHUB_STEP_SUMMARY=/nowhere/summary.md cannot be written: No such file or directory." in done.stderr


def test_to_have_compared_nothing_passes_no_gate() -> None:
    nothing = Findings(
        base=Side(name="a", software=""), candidate=Side(name="b", software=""), hardware="", findings=()
    )
    assert compare_verb.report(nothing, dict.fromkeys(flag.name for flag in compare_verb.OUTPUT_FLAGS)) == 3


def test_a_file_that_cannot_be_written_is_found_before_runs(tmp_path: Path) -> None:
    values = dict.fromkeys(one.name for one in compare_verb.OUTPUT_FLAGS)
    with pytest.raises(UsageError, match="--json_file=.*No such file"):
        compare_verb.require_writable({**values, "json_file": str(tmp_path / "none" / "a.json")}, tmp_path / "out")


@pytest.mark.parametrize("file", ["out/gate/a.json", "out/a.json", "a.json"])
def test_a_file_in_the_directory_of_results_that_the_runs_make_can_be_written(tmp_path: Path, file: str) -> None:
    values = dict.fromkeys(one.name for one in compare_verb.OUTPUT_FLAGS)
    compare_verb.require_writable({**values, "json_file": str(tmp_path / file)}, tmp_path / "out" / "gate")
    assert not (tmp_path / "out").exists()
