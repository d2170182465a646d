"""The verb `compare` as a user and a CI job meet it, with real files."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from benchmarks.compare import compare_verb
from benchmarks.config import flag
from benchmarks.errors import UsageError
from results.gate.findings import Findings, Side
from results.record import Record
from tests.support.commands import RunBench
from tests.support.records import fake_run

Keep = Callable[[str, Sequence[Record]], Path]
NOISE = (1.0, 1.004, 0.997, 1.002, 0.999, 1.003, 0.998, 1.001)


def rounds(step_seconds: float = 0.1, number: int = len(NOISE), **config: object) -> list[Record]:
    return [fake_run(step_seconds=step_seconds * noise, **config) for noise in NOISE[:number]]


def test_nothing_slower_is_status_0(run_bench: RunBench, keep: Keep) -> None:
    base, candidate = keep("main/results.jsonl", rounds()), keep("branch/results.jsonl", rounds())
    done = run_bench("compare", str(base.parent), str(candidate))
    assert (done.status, done.stderr) == (0, ""), "a directory stands for the results in it"
    assert done.stdout.splitlines()[-1] == "1 of 1 unchanged."


def test_a_drop_is_status_1_and_stated(run_bench: RunBench, keep: Keep) -> None:
    base = keep("main.jsonl", [*rounds(), *rounds(model="vgg16")])
    candidate = keep("branch.jsonl", [*rounds(), *rounds(0.1 / 0.9, model="vgg16")])
    done = run_bench("compare", "main.jsonl", "branch.jsonl", "--output_format=json")
    assert done.status == 1, done.stderr
    found = json.loads(done.stdout)
    assert (found["base"]["name"], found["candidate"]["name"]) == (base.name, candidate.name)
    by_model = {finding["title"].split(",")[0]: finding for finding in found["findings"]}
    assert by_model["resnet50"]["verdict"] == "unchanged"
    assert by_model["vgg16"]["verdict"] == "regressed"
    assert by_model["vgg16"]["change"] == pytest.approx(-0.1)
    assert by_model["vgg16"]["base_rounds"] == len(NOISE)


def test_a_threshold_is_in_percent(run_bench: RunBench, keep: Keep) -> None:
    keep("main.jsonl", rounds())
    keep("branch.jsonl", rounds(0.1 / 0.9))
    assert run_bench("compare", "main.jsonl", "branch.jsonl", "--threshold=20").status == 0
    assert run_bench("compare", "main.jsonl", "branch.jsonl", "--threshold=8").status == 1


@pytest.mark.parametrize("percent", ["0", "-5", "100", "nan"])
def test_a_threshold_that_is_no_drop_is_refused(percent: str) -> None:
    with pytest.raises(UsageError, match="threshold"):
        flag.parse([f"--threshold={percent}"], compare_verb.COMPARE_FLAGS)


def test_where_takes_some_records_only(run_bench: RunBench, keep: Keep) -> None:
    keep("main.jsonl", [*rounds(), *rounds(model="vgg16")])
    keep("branch.jsonl", [*rounds(), *rounds(0.2, model="vgg16")])
    assert run_bench("compare", "main.jsonl", "branch.jsonl").status == 1
    assert run_bench("compare", "main.jsonl", "branch.jsonl", "--where=model=resnet50").status == 0
    nothing = run_bench("compare", "main.jsonl", "branch.jsonl", "--where=model=alexnet")
    assert nothing.status == 2
    assert "--where=model=alexnet: no record in main.jsonl fulfils it. In a condition, text has" in nothing.stderr
    unknown = run_bench("compare", "main.jsonl", "branch.jsonl", "--where=modell=x")
    assert unknown.status == 2 and "--where=modell=x: there is no column 'modell'. Did you" in unknown.stderr


def test_unlike_hardware_is_refused_and_named(run_bench: RunBench, keep: Keep) -> None:
    for name, cpu in (("main.jsonl", "Xeon 8480"), ("branch.jsonl", "EPYC 9654")):
        keep(name, [replace(r, environment={"cpu_model": cpu}) for r in rounds(hardware=cpu)])
    done = run_bench("compare", "main.jsonl", "branch.jsonl")
    assert (done.status, done.stdout) == (2, "")
    assert "cpu_model is Xeon 8480 in main.jsonl and EPYC 9654 in branch.jsonl" in done.stderr


@pytest.mark.parametrize("empty", ["main.jsonl", "branch.jsonl"])
def test_a_file_without_records_is_a_data_error(run_bench: RunBench, keep: Keep, empty: str) -> None:
    for name in ("main.jsonl", "branch.jsonl"):
        keep(name, [] if name == empty else rounds())
    done = run_bench("compare", "main.jsonl", "branch.jsonl")
    assert done.status == 5
    assert f"{empty}: there are no records in it" in done.stderr


def test_every_output_is_written_and_the_jobs_summary_is_appended_to(
    run_bench: RunBench, keep: Keep, tmp_path: Path
) -> None:
    keep("main.jsonl", rounds())
    keep("branch.jsonl", rounds(0.2))
    summary = tmp_path / "summary.md"
    summary.write_text("before")
    names = {"json": "a.json", "junit": "b.xml", "markdown": "c.md", "benchmark_json": "d.json"}
    flags = [f"--{flag}_file={name}" for flag, name in names.items()]
    done = run_bench("compare", "main.jsonl", "branch.jsonl", *flags, GITHUB_STEP_SUMMARY=str(summary))
    assert done.status == 1, done.stderr
    as_json, as_xml, as_markdown, as_benchmark = ((tmp_path / name).read_text() for name in names.values())
    assert json.loads(as_json)["has_regressed"]
    assert ElementTree.fromstring(as_xml).find("testsuite").get("failures") == "1"
    assert as_markdown.startswith("## Performance gate: regressed\n")
    assert json.loads(as_benchmark)[0]["value"] == pytest.approx(160, rel=0.01)
    assert summary.read_text() == "before\n" + as_markdown
    assert done.stdout.splitlines()[-1] == "1 of 1 regressed."
    assert {path.name for path in tmp_path.iterdir()} == {"main.jsonl", "branch.jsonl", "summary.md", *names.values()}


def test_an_output_that_cannot_be_written_is_named_and_stdout_has_the_findings(run_bench: RunBench, keep: Keep) -> None:
    keep("main.jsonl", rounds())
    keep("branch.jsonl", rounds())
    done = run_bench("compare", "main.jsonl", "branch.jsonl", "--junit_file=nowhere/b.xml")
    assert done.status == 2
    assert "--junit_file=nowhere/b.xml: No such file or directory. Name a file that can be written." in done.stderr
    assert done.stdout.splitlines()[-1] == "1 of 1 unchanged."


def test_a_summary_that_cannot_be_written_changes_no_verdict(run_bench: RunBench, keep: Keep) -> None:
    keep("main.jsonl", rounds())
    keep("branch.jsonl", rounds())
    done = run_bench("compare", "main.jsonl", "branch.jsonl", GITHUB_STEP_SUMMARY="/nowhere/summary.md")
    assert done.status == 0
    assert "$GITHUB_STEP_SUMMARY=/nowhere/summary.md cannot be written: No such file or directory." in done.stderr


def test_to_have_compared_nothing_passes_no_gate() -> None:
    nothing = Findings(
        base=Side(name="a", software=""), candidate=Side(name="b", software=""), hardware="", findings=()
    )
    assert compare_verb.report(nothing, dict.fromkeys(flag.name for flag in compare_verb.OUTPUT_FLAGS)) == 3


def test_a_file_that_cannot_be_written_is_found_before_and_costs_no_other(tmp_path: Path) -> None:
    values = dict.fromkeys(one.name for one in compare_verb.OUTPUT_FLAGS)
    values |= {"json_file": str(tmp_path / "none" / "a.json"), "junit_file": str(tmp_path / "b.xml")}
    with pytest.raises(UsageError, match="--json_file=.*No such file"):
        compare_verb.require_writable(values)
    sides = {"base": Side(name="a", software=""), "candidate": Side(name="b", software="")}
    findings = Findings(**sides, hardware="", findings=())
    with pytest.raises(UsageError, match="--json_file=.*No such file"):
        compare_verb.report(findings, values)
    assert (tmp_path / "b.xml").is_file()
