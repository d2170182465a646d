"""The builds of an A/B comparison: this suite, what a command starts, and revisions in git. No TensorFlow."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.config import outside_models
from benchmarks.config.run_flags import RUN_FLAGS
from benchmarks.errors import UsageError
from benchmarks.machine import provenance
from benchmarks.process import subprocesses
from benchmarks.process.signals import signals_ignored
from benchmarks.process.subprocesses import RUN_BENCH
from results.masking import without_secrets
from results.text import first_few

_GIT_SECONDS = 600.0
_PATHS = {flag.name for group in RUN_FLAGS.values() for flag in group if flag.path}


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


@dataclasses.dataclass(frozen=True)
class Repository:
    """The git repository whose revisions are compared.

    Attributes:
        root: its top folder.
        has_suite: whether it holds this suite, too.
        models: the user's models in it, each value of `--model` with its file; empty: this suite alone is compared.
    """

    root: Path
    has_suite: bool
    models: Mapping[str, Path] = dataclasses.field(default_factory=dict)

    @property
    def title(self) -> str:
        """Returns what is compared and where it is, in words."""
        return f"{', '.join(self.models) or 'this suite'}, repository {self.root}"

    def _commit(self, revision: str) -> str:
        """Returns the commit that a revision names; raises if it lacks the suite or the file of a model."""
        is_shallow = _git(self.root, "rev-parse", "--is-shallow-repository", why=f"{self.root} cannot be read")
        why = f"There is no revision '{revision}' in the repository {self.root}"
        why += ", a shallow clone: complete it with git fetch --unshallow" * (is_shallow == "true")
        verify = ("rev-parse", "--verify", "--quiet", "--end-of-options")
        commit = _git(self.root, *verify, f"{revision}^{{commit}}", why=why)
        for file in [*([RUN_BENCH] if self.has_suite else []), *self.models.values()]:
            within, why = file.relative_to(self.root), f"'{revision}' cannot be read"
            if not _git(self.root, "ls-tree", "--name-only", commit, "--", str(within), why=why):
                raise UsageError(f"At '{revision}' there is no {within}: name a revision that has it.")
        return commit

    @contextlib.contextmanager
    def at(self, revision: str) -> Iterator[Build]:
        """Yields the build of a revision, which is checked out into a temporary folder.

        The folder stands for the root of the file system: below it the checkout has its usual path, and runs that build
        a model of it start in the usual working directory. So a relative path names the same file in each checkout.

        Raises:
            UsageError: git fails, or there is no such revision.
        """
        commit = self._commit(revision)
        folder = Path(tempfile.mkdtemp(prefix="run_bench_ab_")).resolve()
        worktree = _below(folder, self.root)
        clean_up = 'sleep 1; rm -rf "$1"; git -C "$2" worktree prune'  # the runs in it die in that second
        with subprocesses.if_killed(clean_up, str(folder), str(self.root)):
            try:
                add = ("-c", "core.hooksPath=/dev/null", "worktree", "add", "--detach", str(worktree), commit)
                _git(self.root, *add, why=f"'{revision}' could not be checked out into {worktree}")
                name = revision if commit.startswith(revision) else f"{revision} ({commit[:12]})"
                yield self._build_below(folder, name)
            finally:
                with signals_ignored():
                    with contextlib.suppress(UsageError):
                        _git(self.root, "worktree", "remove", "--force", str(worktree), why="")
                    shutil.rmtree(folder, ignore_errors=True)  # also if git could not remove it
                    with contextlib.suppress(UsageError):
                        _git(self.root, "worktree", "prune", why="")

    def _build_below(self, folder: Path, name: str) -> Build:
        program = _below(folder, RUN_BENCH) if self.has_suite else RUN_BENCH
        words = (sys.executable, str(program))
        if not self.models:
            return Build(name, words)
        directory = _below(folder, Path.cwd())
        directory.mkdir(parents=True, exist_ok=True)
        given = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
        # Python's own path has folders of the repository if a package of it is installed for development.
        own = [_below(folder, Path(path)) for path in [*given, *sys.path] if Path(path).is_relative_to(self.root)]
        paths = [*(str(path) for path in own if path.is_dir()), *given]
        return Build(name, words, directory, {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))})

    def now(self) -> Build:
        """Returns the build of the files as they are; its name lists those that are not committed."""
        if not self.models:
            return this_suite()
        why = f"{self.root} cannot be read"
        head = _git(self.root, "rev-parse", "HEAD", why=why)[:12]
        status = ("--no-optional-locks", "-c", "core.quotePath=false", "status", "--porcelain", "--untracked-files=all")
        lines = _git(self.root, *status, why=why).splitlines()
        # Of untracked files, a model imports only Python's.
        changed = [line.split(maxsplit=1)[1] for line in lines if not line.startswith("??") or line.endswith(".py")]
        uncommitted = f" with uncommitted changes in {first_few(changed, ', ')}" if changed else ""
        return Build(f"as it is now ({head}{uncommitted})", (sys.executable, str(RUN_BENCH)))

    def with_common_paths(self, grid: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
        """Returns a grid for runs in different checkouts: models relative to the working directory, other paths not."""
        if not self.models:
            return dict(grid)

        def common(name: str, value: str) -> str:
            place, _, function = value.rpartition(":")
            if name == "model" and place.endswith(".py"):
                return f"{os.path.relpath(self.models[value])}:{function}"
            return os.path.abspath(value) if name in _PATHS and value and "://" not in value else value

        return {name: [common(name, value) for value in values] for name, values in grid.items()}

    def check_models(self, build: Build, grids: Iterable[Mapping[str, Sequence[str]]]) -> None:
        """Checks that the user's models can be built in a checkout, of its files alone.

        Raises:
            UsageError: one cannot be built there, or imports a file of the repository that is not of the checkout.
        """
        if build.directory is None:
            return
        for grid in grids:
            data_name, classes = (grid.get(name, [None])[0] for name in ("data_name", "num_classes"))
            for model in filter(outside_models.is_code, grid.get("model", ())):
                try:
                    wanted = outside_models.classes_wanted(data_name, int(classes or 0) or None)
                    facts = outside_models.find_facts_in(build.directory, build.variables["PYTHONPATH"], model, wanted)
                except UsageError as error:
                    raise UsageError(f"At {build.name}: {error}") from error
                strays = [source for source in facts.sources if Path(source).is_relative_to(self.root)]
                if strays:
                    raise UsageError(
                        f"At {build.name}, {model} imports {first_few(strays, ', ')} as it is now, not of that "
                        "revision: import it from the folder of the model, or name its folder in PYTHONPATH."
                    )


def repository_of(names: Iterable[str]) -> Repository:
    """Returns the repository that holds the files of user's models, or that of this suite if there are none.

    `names` are values of `--model`.

    Raises:
        UsageError: a file does not exist, or they belong to several repositories or to none.
    """
    suite = _root_of_suite()
    roots: dict[str, Path] = {}
    models = {}
    for name in names:
        file = outside_models.file_of(name)
        if file is None:
            roots[name] = suite or RUN_BENCH.parent
            continue
        if not file.is_file():
            raise UsageError(f"--model={name}: the file {file} does not exist (in {os.getcwd()}).")
        models[name] = file.parent.resolve() / file.name
        why = f"--model={name}: {models[name]} is in no git repository, so it has no revisions to compare"
        roots[name] = Path(_git(models[name].parent, "rev-parse", "--show-toplevel", why=why))
    if not models:
        if suite is None:
            home = RUN_BENCH.parent
            why = (
                "This suite has no revisions to compare: name the file of your own model with --model, or set "
                "--base_command"
            )
            other = _git(home, "rev-parse", "--show-toplevel", why=f"{why}. git fails in {home}")
            raise UsageError(f"{why}. The repository {other} does not hold {home}.")
        return Repository(suite, has_suite=True)
    first = next(iter(models))
    for name, root in roots.items():
        if root != roots[first]:
            raise UsageError(
                f"--model={first} belongs to the repository {roots[first]}, and {name} to {root}: compare the "
                "revisions of each in a separate command."
            )
    return Repository(roots[first], roots[first] == suite, models)


def _root_of_suite() -> Path | None:
    """Returns the top folder of the repository that tracks this suite; None if it is installed."""
    home = RUN_BENCH.parent
    with contextlib.suppress(UsageError):
        if _git(home, "ls-files", "--", ".", why=""):
            return Path(_git(home, "rev-parse", "--show-toplevel", why=""))
    return None


def _below(folder: Path, path: Path) -> Path:
    return folder / path.absolute().relative_to("/")


def _git(home: Path, *words: str, why: str) -> str:
    """Runs git and returns its output; the message of a failure begins with `why`."""
    try:
        return provenance.git(home, *words, timeout_seconds=_GIT_SECONDS)
    except subprocess.CalledProcessError as error:
        reason = f" ({provenance.why_git_failed(error)})" if error.stderr.strip() else ""
        raise UsageError(f"{why}{reason}.") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{why}: git cannot be run ({error}).") from error
