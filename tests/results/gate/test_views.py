"""What findings look like: golden files for all six verdicts, and what programs read out of them.

The findings are those of golden/findings.json, which may be edited. `python -m tests.results.gate.test_views` writes
the golden files anew; look at the difference before it is kept.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path

import jsonschema
import msgspec
import pytest
from msgspec.structs import replace

from docs import tables
from results.gate import views
from results.gate.findings import Findings, Verdict

GOLDEN = Path(__file__).parent / "golden"
VIEWS = {
    "findings.txt": views.render_text,
    "findings.json": views.render_json,
    "findings.xml": views.render_junit,
    "findings.md": views.render_markdown,
    "benchmark.json": views.render_github_benchmark,
}
# Of all verdicts, with text that is awkward in a terminal, in XML and in Markdown.
FINDINGS = msgspec.json.decode((GOLDEN / "findings.json").read_bytes(), type=Findings)
EVERYTHING_FINE = dataclasses.replace(FINDINGS, findings=FINDINGS.findings[:1], notes=())


@pytest.mark.parametrize(("name", "render"), VIEWS.items(), ids=list(VIEWS))
def test_a_view_is_as_its_golden_file(name: str, render: Callable[[Findings], str]) -> None:
    assert render(FINDINGS) == (GOLDEN / name).read_text(encoding="utf-8")


def test_a_change_of_a_small_rate_is_seen_in_the_table() -> None:
    small = replace(FINDINGS.findings[0], base_images_per_sec=0.012345, candidate_images_per_sec=0.012283)
    lines = views.render_text(dataclasses.replace(FINDINGS, findings=[small]))
    assert "0.012345" in lines and "0.012283" in lines


def test_the_last_line_sums_up() -> None:
    regressed = replace(EVERYTHING_FINE.findings[0], verdict=Verdict.REGRESSED)
    both = dataclasses.replace(EVERYTHING_FINE, findings=[*EVERYTHING_FINE.findings, regressed])
    nothing = dataclasses.replace(EVERYTHING_FINE, findings=())
    last_lines = [views.render_text(findings).splitlines()[-1] for findings in (EVERYTHING_FINE, both, nothing)]
    assert last_lines == ["1 of 1 unchanged.", "1 of 2 regressed, 1 unchanged.", "Nothing was compared."]


def test_json_fits_its_schema_and_sums_up() -> None:
    schema = json.loads(tables.findings_schema())
    jsonschema.Draft202012Validator.check_schema(schema)
    values = json.loads(views.render_json(FINDINGS))
    jsonschema.validate(values, schema)
    assert values["format_version"] == 1
    assert values["counts"] == dict.fromkeys(Verdict, 1)
    assert values["has_regressed"] and values["is_undecided"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(values | {"verdict": "fine"}, schema)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_json_has_no_number_that_is_none(number: float) -> None:
    odd = replace(FINDINGS.findings[0], change=number, smallest_drop=number)
    (finding,) = json.loads(views.render_json(dataclasses.replace(FINDINGS, findings=[odd])))["findings"]
    assert finding["change"] is finding["smallest_drop"] is None


def test_markdown_is_headed_by_what_it_comes_to() -> None:
    undecided = dataclasses.replace(FINDINGS, findings=[FINDINGS.findings[0], FINDINGS.findings[4]])
    for findings, heading in ((EVERYTHING_FINE, "passed"), (undecided, "undecided"), (FINDINGS, "regressed")):
        assert views.render_markdown(findings).startswith(f"## Performance gate: {heading}\n")
    assert "###" not in views.render_markdown(EVERYTHING_FINE), "no heading of nothing"


def test_the_chart_has_no_rate_that_is_none() -> None:
    nothing = replace(FINDINGS.findings[0], candidate_images_per_sec=math.nan)
    assert json.loads(views.render_github_benchmark(dataclasses.replace(FINDINGS, findings=[nothing]))) == []


if __name__ == "__main__":
    for file_name, view in VIEWS.items():
        (GOLDEN / file_name).write_text(view(FINDINGS), encoding="utf-8")
