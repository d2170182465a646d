"""The layout of the project is kept by tests: who may import whom, what needs no TensorFlow, how long things get."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("benchmarks", "gate", "models", "results", "variable_mgr")
MAY_IMPORT = {
    "benchmarks": {"benchmarks", "gate", "models", "results", "variable_mgr"},
    "gate": {"gate", "results"},
    "models": {"models"},
    "results": {"results"},
    "variable_mgr": {"variable_mgr"},
}
NEEDS_NO_TENSORFLOW = (
    "results.record, results.store, results.columns, results.statistics, results.doubts, results.summary, "
    "results.report, results.plots, models.specs, variable_mgr.catalog, variable_mgr.placement, benchmarks.config.config, "
    "benchmarks.config.run_flags, benchmarks.command_line, benchmarks.run.runner, benchmarks.datasets.data_verb, benchmarks.measure.timing, "
    "benchmarks.run.display, benchmarks.input.tfrecord, "
    "benchmarks.microbench.input_verb, benchmarks.sweep.sweep_verb, benchmarks.report_job, benchmarks.microbench.allreduce_verb, "
    "benchmarks.compare_job, benchmarks.gate_flags, benchmarks.gate_outputs, benchmarks.record_files, gate.comparison, "
    "gate.text_view, gate.json_view, gate.junit_view, gate.markdown_view, gate.benchmark_view"
)
MOST_LINES_IN_A_FILE = 300
MOST_LINES_IN_A_FUNCTION = 40


def _sources() -> list[Path]:
    return [ROOT / "run_bench.py", *(path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))]


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Yields each imported module and whether the import is relative."""
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, False) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "", node.level > 0


def test_imports_go_one_way() -> None:
    for path in _sources():
        allowed = MAY_IMPORT.get(path.relative_to(ROOT).parts[0], {"benchmarks"})
        for module, relative in _imports(path):
            top = module.split(".")[0]
            assert not relative, f"{path}: relative import of {module}"
            assert top not in PACKAGES or top in allowed, f"{path} must not import {module}"
            assert not module.startswith("tensorflow.python"), f"{path}: {module} is private"
            assert top != "tests", path


@pytest.mark.parametrize("package", ["results", "gate"])
def test_who_only_reads_records_knows_no_tensorflow(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        assert not {"tensorflow", "keras"} & {module.split(".")[0] for module, _ in _imports(path)}, path.name


@pytest.mark.process
@pytest.mark.parametrize("what", [f"import {NEEDS_NO_TENSORFLOW}", "import run_bench; run_bench.main()"])
def test_no_tensorflow_before_it_is_needed(what: str) -> None:
    script = f"import sys; sys.argv[1:] = ['--help']; {what}; assert not {{'tensorflow', 'keras'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def test_nothing_is_long() -> None:
    for path in _sources():
        assert path.read_text().count("\n") <= MOST_LINES_IN_A_FILE, path
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.FunctionDef):
                docstring = ast.get_docstring(node, clean=False) or ""
                lines = (node.end_lineno or 0) - node.lineno - docstring.count("\n")
                assert lines <= MOST_LINES_IN_A_FUNCTION, f"{path}: {node.name} has {lines} lines"


def test_every_package_is_listed() -> None:
    listed = (ROOT / "setup.cfg").read_text().split("packages =")[1].split("install_requires")[0].split()
    assert sorted(listed) == sorted([*PACKAGES, "benchmarks.datasets"])


def _environment_writes(tree: ast.Module) -> list[str]:
    """Returns the statements and expressions that change environment variables of this process."""
    changes = {"clear", "pop", "popitem", "putenv", "setdefault", "unsetenv", "update"}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            changed = node.value if isinstance(node, ast.Subscript) else node
            is_write = ast.unparse(changed).endswith("environ")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = ast.unparse(node.func.value)
            is_write = node.func.attr in changes and (owner == "os" or owner.endswith("environ"))
        else:
            continue
        if is_write:
            found.append(ast.unparse(node))
    return found


@pytest.mark.parametrize(
    "source",
    [
        "os.environ['A'] = '1'",
        "del os.environ['A']",
        "os.environ |= {}",
        "os.environ.update(A='1')",
        "os.environ.setdefault('A', '1')",
        "environ.pop('A')",
        "os.putenv('A', '1')",
    ],
)
def test_every_way_to_set_an_environment_variable_is_found(source: str) -> None:
    assert len(_environment_writes(ast.parse(source))) == 1
    assert _environment_writes(ast.parse("a = os.environ['A']; b = {**os.environ}; c = os.environ.get('A')")) == []


def test_only_one_module_sets_environment_variables() -> None:
    setting = {path.name: writes for path in _sources() if (writes := _environment_writes(_tree(path)))}
    assert list(setting) == ["process_environment.py"], setting
