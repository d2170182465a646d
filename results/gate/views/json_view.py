"""Findings as JSON, for programs; `data/findings.schema.json` says what is in it.

History:
  1  first format.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

from results.gate.findings import Findings
from results.gate.views import text_view

FORMAT_VERSION = 1


def render(findings: Findings) -> str:
    """Returns everything that was found. Numbers are not rounded; one that is not finite is null, as if unknown."""
    values = {
        "format_version": FORMAT_VERSION,
        "base": dataclasses.asdict(findings.base),
        "candidate": dataclasses.asdict(findings.candidate),
        "hardware": findings.hardware,
        "has_regressed": findings.has_regressed,
        "is_undecided": findings.is_undecided,
        "counts": text_view.counts(findings),
        "findings": [_finite(dataclasses.asdict(finding)) for finding in findings.findings],
        "notes": list(findings.notes),
    }
    return json.dumps(values, indent=2, allow_nan=False) + "\n"


def _finite(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in values.items()
    }
