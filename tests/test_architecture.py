"""The layout of the project is kept by tests: who may import whom, what needs no TensorFlow, how long things get."""

from __future__ import annotations

import ast
import functools
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.cli.verbs import NAMES
from benchmarks.config.verb import Verb

ROOT = Path(__file__).resolve().parent.parent
# The rooms of `benchmarks`, from the ground up: one imports only what stands in a row above its own. The flags of a
# room (`options.py`) stand below `config` wherever the room is, and its verbs (`*_verb.py`) above all rooms.
STACK = (
    {"errors", "console", "option", "outside_text"},
    {"record_files"},
    {"machine"},
    {"process"},
    {"cluster", "trackers"},
    {"devices"},
    {"measure"},
    {"data"},
    {"training"},
    {"options"},
    {"config"},
    {"microbench"},
    {"graph"},
    {"checkpoints", "tracing"},
    {"callbacks"},
    {"run"},
    {"sweep"},
    {"verify", "tune", "doctor", "compare", "explain"},
    {"predict"},
    {"verb"},
    {"cli", "library"},
    {"__init__"},  # of `benchmarks`: it names what the library exports
)
LEVEL = {room: level for level, rooms in enumerate(STACK) for room in rooms}
PACKAGES = ("benchmarks", "models", "results", "variable_mgr")
NEEDS_NO_TENSORFLOW = (
    "benchmarks.cli.main",
    "benchmarks.config.config",
    "benchmarks.data.sources.tfrecord",
    "benchmarks.library",
    "benchmarks.measure",
    "benchmarks.process",
    "benchmarks.run.runner",
    "benchmarks.machine",
    "benchmarks.cluster.cluster_spec",
    "benchmarks.devices.start_tensorflow",
    "benchmarks.trackers",
    "models.specs",
    "results",
    "variable_mgr.catalog",
    "variable_mgr.expected",
    "variable_mgr.modifiers",
    "variable_mgr.place",
    "variable_mgr.reductions.algorithm_catalog",
    "variable_mgr.reductions.all_reduce_spec",
    "variable_mgr.transfers",
)
MOST_FILES_IN_A_ROOM = 16
MOST_LINES_IN_A_FILE = 400
MOST_LINES_IN_A_FUNCTION = 60


def _sources() -> list[Path]:
    return [ROOT / "run_bench.py", *(path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))]


def _modules() -> list[str]:
    """Returns the modules that must be importable without TensorFlow; a package stands for all in it."""
    dotted = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in _sources()]
    return [name for name in dotted if f"{name}.".startswith(tuple(f"{wanted}." for wanted in NEEDS_NO_TENSORFLOW))]


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Yields each imported module and whether the import is relative."""
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, False) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((f"{node.module}.{alias.name}", node.level > 0) for alias in node.names)


def _runs_up(importing: tuple[str, ...], imported: tuple[str, ...]) -> bool:
    """Returns whether an import goes from a package or room to one that must not be known there."""
    if imported[0] not in PACKAGES:
        return False
    if importing[0] != "benchmarks":  # models, results and variable_mgr know only themselves, and `option`
        is_option = imported[:2] == ("benchmarks", "option") and importing[0] == "variable_mgr"
        return importing[0] in PACKAGES and imported[0] != importing[0] and not is_option
    if imported[0] != "benchmarks" or len(imported) == 1:
        return False
    return importing[1] != imported[1] and _level(imported) >= _level(importing)


def _level(module: tuple[str, ...]) -> int:
    """Returns the row of the stack in which a module of `benchmarks` stands."""
    room = module[1]
    if "options" in module[2:4]:
        return min(LEVEL[room], LEVEL["options"])
    if room != "cli" and any(name.endswith("_verb") for name in module[2:4]):
        return LEVEL["verb"]
    return LEVEL.get(room, LEVEL["__init__"])


def test_imports_go_one_way() -> None:
    for path in _sources():
        importing = path.relative_to(ROOT).with_suffix("").parts
        for module, relative in _imports(path):
            assert not relative, f"{path}: relative import of {module}"
            assert not _runs_up(importing, tuple(module.split("."))), f"{path} must not import {module}"
            assert not module.startswith("tensorflow.python"), f"{path}: {module} is private"
            assert module.split(".")[0] not in ("tests", "tools"), path
    for path in (ROOT / "tools").rglob("*.py"):
        assert all(module.split(".")[0] != "tests" for module, _ in _imports(path)), path


@pytest.mark.parametrize(
    ("importing", "imported", "wrong"),
    [
        ("benchmarks.measure.timing", "benchmarks.graph.stepper", True),
        ("benchmarks.cluster.liveness", "benchmarks.measure.timing", True),
        ("benchmarks.errors", "benchmarks.console", True),
        ("benchmarks.sweep.grid", "benchmarks.library", True),
        ("benchmarks.__init__", "benchmarks.library", False),
        ("benchmarks.graph.stepper", "benchmarks.measure.timing", False),
        ("results.gate.decision", "benchmarks.errors", True),
        ("models.specs", "variable_mgr.catalog", True),
        ("variable_mgr.modifiers", "benchmarks.option.option", False),
        ("models.specs", "benchmarks.option.option", True),
    ],
)
def test_an_import_that_runs_up_is_found(importing: str, imported: str, wrong: bool) -> None:
    assert _runs_up(tuple(importing.split(".")), tuple(imported.split("."))) == wrong


def test_every_room_stands_in_the_stack_and_on_its_page_and_is_small() -> None:
    entries = {path.stem for path in (ROOT / "benchmarks").iterdir() if path.stem != "__pycache__"}
    assert entries == set(LEVEL) - {"options", "verb"}
    page = (ROOT / "contributing" / "architecture.md").read_text()
    drawn = [set(line.split("   ")[0].split()) for line in re.findall(r"^[a-z].*", page.split("```")[5], re.MULTILINE)]
    assert drawn == [rooms for rooms in reversed(STACK[:-1]) if rooms not in ({"options"}, {"verb"})]
    for room in {path.parent for path in _sources()} - {ROOT, ROOT / "models"}:  # one file per family of models
        files = [path.name for path in room.glob("*.py") if path.name != "__init__.py"]
        assert len(files) <= MOST_FILES_IN_A_ROOM, f"{room}: {files}"


def test_below_a_run_functions_take_values_not_the_whole_configuration() -> None:
    for path in _sources():
        room = path.relative_to(ROOT).with_suffix("").parts[1] if path.is_relative_to(ROOT / "benchmarks") else ""
        if LEVEL.get(room, LEVEL["graph"]) >= LEVEL["graph"] or room == "config" or path.stem.endswith("_verb"):
            continue
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.arg) and node.annotation:
                assert not re.search(r"\bConfig\b", ast.unparse(node.annotation)), f"{path}:{node.lineno}"


def test_code_that_only_reads_records_knows_no_tensorflow() -> None:
    for path in (ROOT / "results").rglob("*.py"):
        assert not {"tensorflow", "keras"} & {module.split(".")[0] for module, _ in _imports(path)}, path.name


# What takes long to import.
SLOW = {
    *("tensorflow", "keras", "numpy", "scipy", "pandas", "matplotlib", "simpy"),
    *("results.report", "benchmarks.predict"),
}


@pytest.mark.process
@pytest.mark.parametrize(
    ("what", "not_imported"),
    [
        (f"import {', '.join(_modules())}", {"tensorflow", "keras"}),
        ("import benchmarks", {*SLOW, "absl"}),
        (
            "from benchmarks import Config, train; Config.from_flags(model='mlp', device='cpu')\n"
            "import benchmarks.run.runner, benchmarks as package; assert package.train is train and callable(train)",
            {"tensorflow", "keras", "matplotlib", "pandas"},
        ),
        ("import run_bench; run_bench.main()", SLOW),
        ("import run_bench; sys.argv[1:] = ['--device=cpu', '--print_config']; run_bench.main()", SLOW),
    ],
    ids=["modules", "package", "library", "help", "print_config"],
)
def test_nothing_that_takes_long_is_imported_before_it_is_needed(what: str, not_imported: set[str]) -> None:
    script = f"import sys; sys.argv[1:] = ['--help']; {what}\nsys.exit(str({not_imported} & {{*sys.modules}} or ''))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert done.stderr.split() == []


def test_every_verb_is_listed_once() -> None:
    files = sorted((ROOT / "benchmarks").glob("**/*_verb.py"))
    modules = [importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts)) for path in files]
    declared = [verb for module in modules for verb in vars(module).values() if isinstance(verb, Verb)]
    assert sorted(verb.name for verb in declared) == sorted(NAMES)


def test_nothing_is_long() -> None:
    for path in _sources():
        assert path.read_text().count("\n") <= MOST_LINES_IN_A_FILE, path
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.FunctionDef):
                docstring = ast.get_docstring(node, clean=False) or ""
                lines = (node.end_lineno or 0) - node.lineno - docstring.count("\n")
                assert lines <= MOST_LINES_IN_A_FUNCTION, f"{path}: {node.name} has {lines} lines"


def test_no_two_files_have_one_name() -> None:
    files = [path.name for path in _sources() if path.name not in ("__init__.py", "options.py")]
    assert len(files) == len(set(files))


def test_every_package_is_listed() -> None:
    listed = (ROOT / "setup.cfg").read_text().split("packages =")[1].split("install_requires")[0].split()
    assert sorted(listed) == sorted({".".join(path.relative_to(ROOT).parent.parts) for path in _sources()} - {""})


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


def test_one_module_sets_environment_variables_and_one_restores_them() -> None:
    sources = (path for path in _sources() if path.name != "outside_code.py")  # restores what a user's model has set
    setting = {path.name: writes for path in sources if (writes := _environment_writes(_tree(path)))}
    assert list(setting) == ["tensorflow_setup.py"], setting
