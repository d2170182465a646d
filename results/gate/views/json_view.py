"""Findings as JSON, for programs; `data/findings.schema.json` describes it.

History:
  1  first format.
"""

from __future__ import annotations

import dataclasses
import json

from results.gate.findings import Findings
from results.gate.views import text_view
from results.record import finite

FORMAT_VERSION = 1


def render(findings: Findings) -> str:
    """Returns all findings. Numbers are not rounded; one that is not finite is null, like an unknown one."""
    values = {
        "format_version": FORMAT_VERSION,
        "base": dataclasses.asdict(findings.base),
        "candidate": dataclasses.asdict(findings.candidate),
        "hardware": findings.hardware,
        "has_regressed": findings.has_regressed,
        "is_undecided": findings.is_undecided,
        "counts": text_view.counts(findings),
        "findings": finite([dataclasses.asdict(finding) for finding in findings.findings]),
        "notes": list(findings.notes),
    }
    return json.dumps(values, indent=2, allow_nan=False) + "\n"
