"""What findings look like: golden files for all six verdicts, and what programs read out of them.

`python -m tests.results.gate.test_views` writes the golden files anew; look at the difference before it is kept.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

from results import gate
from results.gate import views
from results.gate.findings import Finding, Findings, Side, Verdict

GOLDEN = Path(__file__).parent / "golden"
VIEWS = {
    "findings.txt": views.render_text,
    "findings.json": views.render_json,
    "findings.xml": views.render_junit,
    "findings.md": views.render_markdown,
    "benchmark.json": views.render_github_benchmark,
}
AWKWARD = 'vgg16 <fp16> & "größer" | 2 GPUs'
FINDINGS = Findings(
    base=Side(name="main & more/results.jsonl", software="TensorFlow 2.20.0"),
    candidate=Side(name="branch|<x>/results.jsonl", software=""),
    hardware="4 x Größe & Söhne CPU",
    findings=(
        Finding(
            title="resnet50, replicated, 1 GPU, batch 32",
            config_key="0123456789ab",
            verdict=Verdict.UNCHANGED,
            reason="Both bounds lie within 5 %.",
            threshold=0.05,
            change=0.004,
            change_low=-0.0111,
            change_high=0.0193,
            smallest_drop=0.03,
            base_images_per_sec=1234.5,
            candidate_images_per_sec=1239.438,
            base_rounds=5,
            candidate_rounds=5,
        ),
        Finding(
            title=AWKWARD,
            config_key="1123456789ab",
            verdict=Verdict.REGRESSED,
            reason="7.0 % slower, and <100 % of 4 fresh rounds | repeat it.",
            threshold=0.05,
            change=-0.07,
            change_low=-0.091,
            change_high=-0.049,
            smallest_drop=0.058,
            base_images_per_sec=100.0,
            candidate_images_per_sec=93.0,
            base_rounds=9,
            candidate_rounds=9,
        ),
        Finding(
            title="trivial, independent, 1 CPU device, batch 2",
            config_key="2123456789ab",
            verdict=Verdict.IMPROVED,
            reason="12.0 % faster.",
            threshold=0.1,
            change=0.12,
            change_low=0.1,
            change_high=0.14,
            smallest_drop=0.11,
            base_images_per_sec=9.25,
            candidate_images_per_sec=10.36,
            base_rounds=4,
            candidate_rounds=4,
        ),
        Finding(
            title="alexnet, staged, 1 GPU, batch 512",
            config_key="3123456789ab",
            verdict=Verdict.INCONCLUSIVE,
            reason="One round says nothing of the noise.",
            threshold=0.05,
            change=-0.5,
            base_images_per_sec=2000.0,
            candidate_images_per_sec=1000.0,
            base_rounds=1,
            candidate_rounds=1,
        ),
        Finding(
            title="lenet, replicated, 1 GPU, batch 64",
            config_key="4123456789ab",
            verdict=Verdict.MISSING,
            reason="The candidate has no record of it.",
            threshold=0.05,
            base_images_per_sec=50.0,
            base_rounds=3,
        ),
        Finding(
            title="inception3, replicated, 8 GPUs, batch 64",
            config_key="5123456789ab",
            verdict=Verdict.FAILED,
            reason="It crashed: Segmentation fault in <module> && more.",
            threshold=0.05,
            base_images_per_sec=1500.0,
            base_rounds=3,
        ),
    ),
    notes=("Rounds were not interleaved: <a machine that drifts> | misleads & lies.",),
)
EVERYTHING_FINE = dataclasses.replace(FINDINGS, findings=FINDINGS.findings[:1], notes=())


@pytest.mark.parametrize(("name", "render"), VIEWS.items(), ids=list(VIEWS))
def test_a_view_is_as_its_golden_file(name: str, render: Callable[[Findings], str]) -> None:
    assert render(FINDINGS) == (GOLDEN / name).read_text(encoding="utf-8")


def test_the_last_line_sums_up() -> None:
    regressed = dataclasses.replace(EVERYTHING_FINE.findings[0], verdict=Verdict.REGRESSED)
    both = dataclasses.replace(EVERYTHING_FINE, findings=[*EVERYTHING_FINE.findings, regressed])
    nothing = dataclasses.replace(EVERYTHING_FINE, findings=())
    last_lines = [views.render_text(findings).splitlines()[-1] for findings in (EVERYTHING_FINE, both, nothing)]
    assert last_lines == ["1 of 1 unchanged.", "1 of 2 regressed, 1 unchanged.", "Nothing was compared."]


def test_json_fits_its_schema_and_holds_everything() -> None:
    schema = json.loads((Path(gate.__file__).parent / "data" / "findings.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    values = json.loads(views.render_json(FINDINGS))
    jsonschema.validate(values, schema)
    assert values["format_version"] == 1
    assert values["counts"] == dict.fromkeys(Verdict, 1)
    assert values["has_regressed"] and values["is_undecided"]
    assert values["findings"] == [dataclasses.asdict(finding) for finding in FINDINGS.findings]
    assert values["base"] == dataclasses.asdict(FINDINGS.base)
    assert values["notes"] == list(FINDINGS.notes)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(values | {"verdict": "fine"}, schema)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_json_has_no_number_that_is_none(number: float) -> None:
    odd = dataclasses.replace(FINDINGS.findings[0], change=number, smallest_drop=number)
    (finding,) = json.loads(views.render_json(dataclasses.replace(FINDINGS, findings=[odd])))["findings"]
    assert finding["change"] is finding["smallest_drop"] is None


def test_markdown_is_headed_by_what_it_comes_to() -> None:
    undecided = dataclasses.replace(FINDINGS, findings=[FINDINGS.findings[0], FINDINGS.findings[4]])
    for findings, heading in ((EVERYTHING_FINE, "passed"), (undecided, "undecided"), (FINDINGS, "regressed")):
        assert views.render_markdown(findings).startswith(f"## Performance gate: {heading}\n")
    assert "###" not in views.render_markdown(EVERYTHING_FINE), "no heading of nothing"


def test_the_chart_has_no_rate_that_is_none() -> None:
    nothing = dataclasses.replace(FINDINGS.findings[0], candidate_images_per_sec=math.nan)
    assert json.loads(views.render_github_benchmark(dataclasses.replace(FINDINGS, findings=[nothing]))) == []


if __name__ == "__main__":
    for file_name, view in VIEWS.items():
        (GOLDEN / file_name).write_text(view(FINDINGS), encoding="utf-8")
