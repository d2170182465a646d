"""Starts run_bench anew in a private network namespace: `python benchmarks/process/fenced.py run_bench.py ARGUMENTS`.

A process can only be moved while it has one thread, and importing NumPy starts some; so this comes before everything.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    """Moves this process, and becomes run_bench."""
    sys.path.insert(0, str(ROOT))
    from benchmarks.process import private_network

    program, *arguments = sys.argv[1:]
    problem = private_network.enter()
    if problem:
        print(
            f"run_bench: There is no private network for the cluster ({problem}), so its servers, which ask nobody "
            "who they are, can be reached from other hosts while it runs: beware where you do not trust the network.",
            file=sys.stderr,
        )
    os.execv(sys.executable, [sys.executable, program, *arguments, "--noprivate_network"])


if __name__ == "__main__":
    main()
