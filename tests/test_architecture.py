"""The layout of the project is kept by tests: who may import whom, what needs no TensorFlow, how long things get."""

from __future__ import annotations

import ast
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
    "results.report, results.plots, models.specs, variable_mgr.catalog, variable_mgr.placement, benchmarks.config, "
    "benchmarks.flags, benchmarks.command_line, benchmarks.main_job, benchmarks.data_job, benchmarks.measuring, "
    "benchmarks.display, benchmarks.datasets.tfrecord, "
    "benchmarks.input_job, benchmarks.sweep_job, benchmarks.report_job, benchmarks.allreduce_job, "
    "benchmarks.compare_job, benchmarks.gate_flags, benchmarks.gate_outputs, benchmarks.record_files, gate.comparison, "
    "gate.text_view, gate.json_view, gate.junit_view, gate.markdown_view, gate.benchmark_view"
)
MOST_LINES_IN_A_FILE = 300
MOST_LINES_IN_A_FUNCTION = 40


def _sources() -> list[Path]:
    return [ROOT / "run_bench.py", *(path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))]


def _imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Yields each imported module and whether the import is relative."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, False) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "", node.level > 0


@pytest.mark.parametrize("path", _sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    allowed = MAY_IMPORT.get(path.relative_to(ROOT).parts[0], {"benchmarks"})
    for module, relative in _imports(path):
        top = module.split(".")[0]
        assert not relative, f"relative import of {module}"
        assert top not in PACKAGES or top in allowed, f"{path.name} must not import {module}"
        assert not module.startswith("tensorflow.python"), f"{module} is private"
        assert top != "tests"


@pytest.mark.parametrize("package", ["results", "gate"])
def test_who_only_reads_records_knows_no_tensorflow(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        assert not {"tensorflow", "keras"} & {module.split(".")[0] for module, _ in _imports(path)}, path.name


@pytest.mark.parametrize("what", [f"import {NEEDS_NO_TENSORFLOW}", "import run_bench; run_bench.main()"])
def test_no_tensorflow_before_it_is_needed(what: str) -> None:
    script = f"import sys; sys.argv[1:] = ['--help']; {what}; assert not {{'tensorflow', 'keras'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("path", _sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_long(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= MOST_LINES_IN_A_FILE
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            docstring = ast.get_docstring(node, clean=False) or ""
            lines = (node.end_lineno or 0) - node.lineno - docstring.count("\n")
            assert lines <= MOST_LINES_IN_A_FUNCTION, f"{node.name} has {lines} lines"


def test_every_package_is_listed() -> None:
    listed = (ROOT / "setup.cfg").read_text().split("packages =")[1].split("install_requires")[0].split()
    assert sorted(listed) == sorted([*PACKAGES, "benchmarks.datasets"])


def test_only_one_module_sets_environment_variables() -> None:
    for path in _sources():
        if path.name == "process_environment.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            writes = isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del)
            assert not (writes and ast.unparse(node.value).endswith("environ")), path.name
            assert not (isinstance(node, ast.Attribute) and node.attr in ("putenv", "unsetenv")), path.name
