"""The builds of an A/B comparison; a git revision is checked out into a temporary folder for its duration."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.errors import UsageError
from benchmarks.machine import provenance
from benchmarks.process import subprocesses
from benchmarks.process.signals import signals_ignored
from benchmarks.process.subprocesses import RUN_BENCH
from results.masking import without_secrets

_GIT_SECONDS = 600.0


@dataclasses.dataclass(frozen=True)
class Build:
    """One build to compare.

    Attributes:
        name: as the user named it, without values that look like secrets: it is printed and published.
        program: words that start a run, given its flags.
    """

    name: str
    program: Sequence[str]


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


@contextlib.contextmanager
def of_revision(revision: str) -> Iterator[Build]:
    """Yields the suite at a revision of its git repository, checked out into a temporary folder.

    Raises:
        UsageError: there is no repository or no such revision, or git fails.
    """
    home = RUN_BENCH.parent
    within = _git(home, "rev-parse", "--show-prefix", why=f"{home} is no git repository, so there is no '{revision}'")
    unknown = f"There is no revision '{revision}' in the repository of {home}; a shallow clone must fetch it first"
    verify = ("rev-parse", "--verify", "--quiet", "--end-of-options")
    commit = _git(home, *verify, f"{revision}^{{commit}}", why=unknown)
    folder = Path(tempfile.mkdtemp(prefix="run_bench_ab_"))
    worktree = folder / "suite"
    clean_up = 'sleep 1; rm -rf "$1"; git -C "$2" worktree prune'  # the runs in it die in that second
    with subprocesses.if_killed(clean_up, str(folder), str(home)):
        try:
            add = ("-c", "core.hooksPath=/dev/null", "worktree", "add", "--detach", str(worktree), commit)
            _git(home, *add, why=f"'{revision}' could not be checked out into {worktree}")
            program = worktree / within / RUN_BENCH.name
            if not program.exists():
                raise UsageError(f"At '{revision}' there is no {Path(within) / RUN_BENCH.name}: name a newer revision.")
            name = revision if commit.startswith(revision) else f"{revision} ({commit[:12]})"
            yield Build(name, (sys.executable, str(program)))
        finally:
            with signals_ignored():
                with contextlib.suppress(UsageError):
                    _git(home, "worktree", "remove", "--force", str(worktree), why="")
                shutil.rmtree(folder, ignore_errors=True)  # also if git could not remove it
                with contextlib.suppress(UsageError):
                    _git(home, "worktree", "prune", why="")


def _git(home: Path, *words: str, why: str) -> str:
    """Runs git and returns its output; the message of a failure begins with `why`."""
    try:
        return provenance.git(home, *words, timeout_seconds=_GIT_SECONDS)
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines()
        raise UsageError(f"{why}{f': {lines[-1]}' if lines else ''}.") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{why}: git cannot be run ({error}).") from error
