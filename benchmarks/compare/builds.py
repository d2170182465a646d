"""The builds of an A/B comparison: this suite, or what a command starts. Those of git are in `repository`."""

from __future__ import annotations

import dataclasses
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.errors import UsageError
from benchmarks.machine import provenance
from benchmarks.process.subprocesses import RUN_BENCH
from results.masking import without_secrets


@dataclasses.dataclass(frozen=True)
class Build:
    """One build to compare.

    Attributes:
        name: as the user named it, without values that look like secrets: it is printed and published.
        program: words that start a run, given its flags.
        directory: in which they start; None: that of this process.
        variables: of their environment, beside those of this process.
    """

    name: str
    program: Sequence[str]
    directory: Path | None = None
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)


def this_suite() -> Build:
    """Returns the suite that is running, with its files as they are now."""
    commit = provenance.suite_commit() or "installed"
    return Build(f"this suite as it is ({commit})", (sys.executable, str(RUN_BENCH)))


def of_command(flag: str, text: str) -> Build:
    """Returns the build that a command starts: the text of a flag, with words as in a shell, without expansion.

    Raises:
        UsageError: they cannot be split, or the first one is not a program.
    """
    (name,) = without_secrets([text])
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--{flag}={name}: {error}. Write it as in a shell.") from error
    if not words or shutil.which(words[0]) is None:
        raise UsageError(
            f"--{flag}={name}: there is no program '{words[0] if words else ''}'. Name one that starts a run, such as "
            "'/path/to/venv/bin/python /path/to/run_bench.py'."
        )
    return Build(name, words)
