"""Runs the commands of the rows and keeps what was seen for the page: `python -m tests.acceptance [ROW ...]`."""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
from typing import Any

from benchmarks.machine import hardware
from tests.acceptance import rows


def main(words: list[str]) -> int:
    """Runs the named rows (none: all); returns 1 if one does not show what it must."""
    parser = argparse.ArgumentParser(prog="python -m tests.acceptance", description=__doc__)
    parser.add_argument("rows", nargs="*", help="such as S0.1 (default: all)")
    named = parser.parse_args(words).rows
    chosen = [row for row in rows.rows() if row.id in named or not named]
    if unknown := set(named) - {row.id for row in chosen}:
        parser.error(f"there is no row {', '.join(sorted(unknown))}")
    seen = json.loads(rows.SEEN.read_text(encoding="utf-8")) if rows.SEEN.exists() else {}
    facts = hardware.describe_hardware(hardware.Inventory())
    date = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    where = f"{date} on {facts['cpu_cores_usable']} cores of an {facts['cpu_model']}"
    failed = False
    for row in chosen:
        begin = time.monotonic()
        try:
            seen[row.id] = {"where": where, "lines": rows.run(row)}
            outcome = row.verdict
        except rows.UnlikeError as error:
            failed, outcome = True, f"FAILED: {error}"
        else:
            _keep(seen)
        print(f"{row.id:5} {time.monotonic() - begin:4.0f} s  {row.subject}: {outcome}", flush=True)
    return int(failed)


def _keep(seen: dict[str, dict[str, Any]]) -> None:
    kept = {row.id: seen[row.id] for row in rows.rows() if row.shows and row.id in seen}
    rows.SEEN.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
