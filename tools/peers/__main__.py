"""Compares with tf_cnn_benchmarks in alternating runs: `python -m tools.peers CHECKOUT [ROW ...]`.

Finished rounds are kept, and a second call does only what is missing. Prints one table of all rows.
"""

from __future__ import annotations

import argparse
import datetime
import fnmatch
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.console import warn
from benchmarks.errors import BenchError, ExitStatus, UsageError
from benchmarks.machine import provenance
from benchmarks.process.signals import until_stopped
from results import store
from tools.peers import comparison
from tools.peers.comparison import Round, Row
from tools.peers.sides import RunFailedError, Sides, find_peer


def main(words: Sequence[str]) -> int:
    """Runs the missing rounds of the named rows (none: all), and prints the table; returns an exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.peers", description=__doc__)
    parser.add_argument("checkout", help="the repository that contains scripts/tf_cnn_benchmarks")
    parser.add_argument("rows", nargs="*", help="names of rows, with * and ? (default: all)")
    parser.add_argument("--python", default="", help="runs tf_cnn_benchmarks (default: an environment that is made)")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each side (default 5)")
    parser.add_argument("--output_dir", type=Path, default=Path("out/peers"), help="default out/peers")
    parser.add_argument("--again", action="store_true", help="forget the finished rounds of the named rows")
    parser.add_argument(
        "--keep",
        action="store_true",
        help="keep the rounds in tools/peers, for the table in docs/performance.md",
    )
    given = parser.parse_intermixed_args(words)
    chosen = [row for row in comparison.rows() if any(fnmatch.fnmatch(row.name, each) for each in given.rows or ["*"])]
    try:
        if not chosen:
            names = ", ".join(row.name for row in comparison.rows())
            raise UsageError(f"ROWS={' '.join(given.rows)} names no row. Rows: {names}.")
        given.output_dir.mkdir(parents=True, exist_ok=True)
        peer = find_peer(given.checkout, given.python, given.output_dir)
        return _compare(chosen, Sides(given.output_dir, peer), given.repeats, again=given.again, keep=given.keep)
    except KeyboardInterrupt:  # while the environment is made; later, the table is still printed
        return ExitStatus.INTERRUPTED
    except BenchError as error:
        warn(str(error))
        return error.exit_status


def _compare(chosen: Sequence[Row], sides: Sides, rounds: int, *, again: bool, keep: bool) -> int:
    here, path = comparison.machine(sides.peer.tensorflow), sides.output_dir / "rounds.jsonl"
    finished, failures = comparison.load(path), dict[str, str]()
    if again:
        finished = [each for each in finished if each.row not in {row.name for row in chosen}]
    done = {row: len(those) for row, those in comparison.of_rows(finished, here).items()}

    def run() -> None:
        for number in range(1, 1 + rounds):
            for row in chosen:
                if row.name in failures or number <= done[row]:
                    continue
                try:
                    finished.append(_round(row, sides, number, here))
                    comparison.keep(finished, path)
                except RunFailedError as error:
                    failures[row.name] = str(error)
                    warn(f"{row.name}: {error}")

    status = until_stopped(run)
    by_row = comparison.of_rows(finished, here)
    text = comparison.as_markdown(by_row, here, failures)
    store.replace(sides.output_dir / "table.md", f"{text}\n")
    print(text)
    reason = comparison.why_not_published(by_row) if keep else ""
    if reason:
        warn(f"docs/performance.md gets no new table: {reason}.")
    elif keep:
        comparison.keep([each for each in finished if each.machine == here], comparison.KEPT)
    return status or (ExitStatus.RUN_FAILED if failures else ExitStatus.UNDECIDED if reason else ExitStatus.OK)


def _round(row: Row, sides: Sides, number: int, here: Mapping[str, Any]) -> Round:
    """Runs both sides of a row once, theirs first. Raises RunFailedError."""
    theirs, ours = (sides.run(row, side, number) for side in ("theirs", "ours"))
    warn(f"{row.name}, round {number}: theirs {theirs:.4g}, ours {ours:.4g} {row.unit}, {ours / theirs:.3f}")
    return Round(
        row=row.name,
        flags=[row.flags("theirs"), row.flags("ours")],
        theirs=theirs,
        ours=ours,
        date=datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="seconds"),
        commit=provenance.suite_commit(),
        machine=here,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
