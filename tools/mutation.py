"""Mutation testing of the modules that decide: `make mutate`; `make mutate MODULE=results/gate/decision.py` for one.

mutmut makes one small change (a mutant) in a function of a module and runs the tests that call this function. If all of
them pass, the mutant survives: no test holds what that line says. The modules, their tests and the mutants that change
no result are listed in mutation.toml. The exit status is 1 if another mutant survives or a listed one does not.

Everything runs in a copy of the work tree. Each process that tests a mutant imports TensorFlow itself, since a process
that has imported it must not fork. mutmut changes neither what is outside of functions, such as a module's constants,
nor functions with a decorator.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MUTMUT = Path(sys.executable).with_name("mutmut")
# Imported once, before the forks. pytest refuses plugins that were imported before it, so hypothesis is not among them.
PRELOADED = ("numpy", "psutil", "pytest", "scipy.special")
# A test that hangs ends its process with status 1. mutmut's own limit, three times as long, is never reached: what it
# calls a timeout may also be an error in its process, so that does not count as killed.
SETTINGS = """
[mutmut]
source_paths =
    benchmarks
    models
    results
    variable_mgr
only_mutate = {module}
process_isolation = forkserver
forkserver_warmup = import
preload_modules_file = preloaded.txt
use_git_change_detection = false
timeout_constant = 60
timeout_multiplier = 3
pytest_add_cli_args =
    -pno:cacheprovider
    -ofaulthandler_timeout=60
    -ofaulthandler_exit_on_timeout=true
    --hypothesis-profile=mutation
pytest_add_cli_args_test_selection =
    {tests}
"""
# The same examples in every run. One that fails need not be shrunk.
PROFILE = """
import hypothesis

hypothesis.settings.register_profile(
    "mutation",
    hypothesis.settings.get_profile("suite"),
    derandomize=True,
    database=None,
    phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
)
"""


def main() -> int:
    """Returns the exit status."""
    table = tomllib.loads((ROOT / "tools" / "mutation.toml").read_text())
    modules = {entry["path"]: entry["tests"] for entry in table["module"]}
    parser = argparse.ArgumentParser(prog="make mutate", description=__doc__.splitlines()[0])
    parser.add_argument("module", nargs="?", choices=modules, help="if not given, all of them")
    chosen = parser.parse_args().module
    fine = True
    for module in [chosen] if chosen else modules:
        listed = [entry for entry in table["equivalent"] if entry["module"] == module]
        fine &= report(module, modules[module], {(entry["function"], entry["was"], entry["now"]) for entry in listed})
    return 0 if fine else 1


def report(module: str, tests: list[str], equivalent: set[tuple[str, str, str]]) -> bool:
    """Prints what became of a module's mutants; returns whether exactly the listed ones survived."""
    print(f"{module}: testing mutants, which takes minutes ...", flush=True)
    with tempfile.TemporaryDirectory(prefix="mutate-") as directory:
        tree = Path(directory)
        copy_tree(tree)
        (tree / "preloaded.txt").write_text("\n".join(PRELOADED))
        append(tree / "setup.cfg", SETTINGS.format(module=module, tests="\n    ".join(tests)))
        append(tree / "tests" / "conftest.py", PROFILE)
        mutmut(tree, "run", "--max-children=1")
        states = [line.strip().rsplit(": ", 1) for line in mutmut(tree, "results", "--all=true").splitlines()]
        survivors = {name: mutmut(tree, "show", name) for name, state in states if state != "killed"}
    changes = {name: (function_of(name), *changed_lines(diff)) for name, diff in survivors.items()}
    unlisted = [diff for name, diff in survivors.items() if changes[name] not in equivalent]
    stale = equivalent - set(changes.values())
    print(*unlisted, sep="\n", end="")
    for function, was, now in sorted(stale):
        print(f"mutation.toml lists a mutant of {function} that does not survive:\n-    {was}\n+    {now}")
    killed, known = len(states) - len(survivors), len(survivors) - len(unlisted)
    print(f"{module}: {len(states)} mutants, {killed} killed, {known} equivalent, {len(unlisted)} survived", flush=True)
    return not unlisted and not stale


def copy_tree(target: Path) -> None:
    """Copies the files of the work tree that git tracks or would add."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    for name in listed.split("\0"):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def append(path: Path, text: str) -> None:
    """Adds text at the end of a file of the copy."""
    with path.open("a") as file:
        file.write(text)


def mutmut(tree: Path, *arguments: str) -> str:
    """Runs mutmut in the copy and returns its output."""
    # CI fails tests that are skipped or long, and mutants make tests long. The hash seed fixes the order of tests.
    environment = {name: value for name, value in os.environ.items() if name != "CI"} | {"PYTHONHASHSEED": "0"}
    done = subprocess.run([MUTMUT, *arguments], cwd=tree, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"mutmut {' '.join(arguments)} failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.stdout


def function_of(mutant: str) -> str:
    """Returns the function's name in a mutant's, such as results.gate.decision.x__mean__mutmut_3."""
    return mutant.rpartition(".x_")[2].rpartition("__mutmut_")[0]


def changed_lines(diff: str) -> Iterator[str]:
    """Yields the lines that a mutant removes and those that it adds, each joined and without indentation."""
    lines = [line for line in diff.splitlines() if not line.startswith(("---", "+++"))]
    for sign in "-+":
        yield " ".join(line[1:].strip() for line in lines if line.startswith(sign))


if __name__ == "__main__":
    sys.exit(main())
