"""A side of an A/B comparison: what starts its runs. A revision gets a folder of its own, which is gone in the end."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.errors import UsageError
from benchmarks.process.signals import signals_ignored
from benchmarks.process.subprocesses import RUN_BENCH
from benchmarks.system.provenance import suite_commit

_GIT_SECONDS = 600.0
# A hook of git sets these for its own repository, and they would win over the one that is named.
_NOT_INHERITED = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY")


@dataclasses.dataclass(frozen=True)
class Side:
    """What is compared.

    Attributes:
        name: as the user named it.
        program: words that start a run, given its flags.
    """

    name: str
    program: Sequence[str]


def this_suite() -> Side:
    """Returns the suite that is running, as its files are now."""
    return Side(f"this suite as it is ({suite_commit() or 'installed'})", (sys.executable, str(RUN_BENCH)))


def of_command(flag: str, text: str) -> Side:
    """Returns a side that the user's words start.

    Args:
        flag: that gave them, for messages.
        text: words as in a shell, but nothing is expanded.

    Raises:
        UsageError: they cannot be split, or their first is no program.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--{flag}={text}: {error}. Write it as in a shell.") from error
    if not words or shutil.which(words[0]) is None:
        raise UsageError(
            f"--{flag}={text}: there is no program '{words[0] if words else ''}'. Name one that starts a run, such as "
            "'/path/to/venv/bin/python /path/to/run_bench.py'."
        )
    return Side(text, words)


@contextlib.contextmanager
def of_revision(revision: str) -> Iterator[Side]:
    """Yields the suite at a git revision, checked out into a temporary folder that is removed at the end.

    Args:
        revision: as git understands it, in the repository in which this suite lies.

    Raises:
        UsageError: there is no repository or no such revision, or git fails.
    """
    home = RUN_BENCH.parent
    within = _git(home, "rev-parse", "--show-prefix", why=f"{home} is no git repository, so there is no '{revision}'")
    commit = _commit(home, revision)
    folder = Path(tempfile.mkdtemp(prefix="run_bench_ab_"))
    worktree = folder / "suite"
    try:
        add = ("-c", "core.hooksPath=/dev/null", "worktree", "add", "--detach", str(worktree), commit)
        _git(home, *add, why=f"'{revision}' could not be checked out into {worktree}")
        program = worktree / within / RUN_BENCH.name
        if not program.exists():
            raise UsageError(f"At '{revision}' there is no {Path(within) / RUN_BENCH.name}: name a newer revision.")
        name = revision if commit.startswith(revision) else f"{revision} ({commit[:12]})"
        yield Side(name, (sys.executable, str(program)))
    finally:
        with signals_ignored():
            _remove(home, worktree)
            shutil.rmtree(folder, ignore_errors=True)


def _commit(home: Path, revision: str) -> str:
    words = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    why = f"There is no revision '{revision}' in the repository of {home}; a shallow clone must fetch it first"
    return _git(home, *words, why=why)


def _remove(home: Path, worktree: Path) -> None:
    """Takes a worktree away, and git's note of it, also if it was only half made."""
    for words in (("worktree", "remove", "--force", str(worktree)), ("worktree", "prune")):
        if words[1] == "prune":
            shutil.rmtree(worktree, ignore_errors=True)  # what git would not remove it can forget
        with contextlib.suppress(UsageError):
            _git(home, *words, why="")


def _git(home: Path, *words: str, why: str) -> str:
    """Runs git; a session of its own keeps a Ctrl-C from it, so that a folder is there or not.

    Raises:
        UsageError: it fails; the message begins with `why`.
    """
    environment = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    try:
        done = subprocess.run(
            ["git", "-C", str(home), *words],
            capture_output=True,
            text=True,
            timeout=_GIT_SECONDS,
            check=True,
            env=environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    except subprocess.CalledProcessError as error:
        said = error.stderr.strip().splitlines()
        raise UsageError(f"{why}{f': {said[-1]}' if said else ''}.") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{why}: git cannot be run ({error}).") from error
    return done.stdout.strip()
