"""Benchmark CNN training on TensorFlow: `python run_bench.py --help`."""

from __future__ import annotations

import faulthandler
import importlib.util
import signal
import sys
from pathlib import Path

PACKAGES = ("benchmarks", "models", "results", "variable_mgr")


def main() -> int:
    """Runs the command line and returns its exit status."""
    problem = shadowed_package()
    if problem:
        print(f"run_bench: {problem}", file=sys.stderr)
        return 2
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # a sweep has a run that takes too long write its stacks
    from benchmarks.cli.main import main as run_command_line

    return run_command_line(sys.argv[1:])


def shadowed_package() -> str | None:
    """Returns a sentence if one of the generic top-level names would import another package."""
    home = Path(__file__).resolve().parent
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        found = Path(spec.origin).resolve() if spec and spec.origin else None
        if found != home / name / "__init__.py":
            return (
                f"'import {name}' takes {found or 'nothing'} instead of {home / name}. Run it as "
                f"'python {home / 'run_bench.py'}', without the other package on PYTHONPATH."
            )
    return None


if __name__ == "__main__":
    sys.exit(main())
