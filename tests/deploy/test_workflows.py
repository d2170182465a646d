"""What runs in CI: the workflows as GitHub reads them, what `make gate` and `make nightly` do with exit statuses."""

from __future__ import annotations

import configparser
import dataclasses
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.cli.verbs import commands, flags_of
from benchmarks.compare import ab_verb
from benchmarks.config import flag
from benchmarks.sweep import grid, sweep_verb
from benchmarks.sweep.grid import Cell
from results.gate.baselines import BASELINES_DIR
from tests.support.commands import ROOT

GITHUB = ROOT / ".github"
GATE = ROOT / "deploy" / "gate"
WORKFLOWS = {path.stem: path for path in sorted((GITHUB / "workflows").iterdir())}
EACH = pytest.mark.parametrize("name", WORKFLOWS)
# PyYAML reads the key `on` as YAML 1.1 does.
ON = True
# The only jobs that may do more than read, each with what it needs for that.
PUBLISHING = {("release", "pypi"): {"id-token": "write"}, ("release", "github"): {"contents": "write"}}
# Programs of the runner that publish; everything else can be run at home.
PUBLISHERS = ("gh release create ",)
OF_OTHERS = ("pypa/gh-action-pypi-publish",)


def workflow(name: str) -> dict[Any, Any]:
    return dict(yaml.safe_load(WORKFLOWS[name].read_text()))


def steps(name: str) -> list[dict[str, Any]]:
    return [step for job in workflow(name)["jobs"].values() for step in job["steps"]]


def runs(name: str) -> list[dict[str, Any]]:
    return [step for step in steps(name) if "run" in step]


def uses(name: str, action: str) -> list[dict[str, Any]]:
    return [step for step in steps(name) if step.get("uses", "").startswith(f"actions/{action}@")]


def make(*words: str, home: Path = ROOT, **environ: str) -> subprocess.CompletedProcess[str]:
    """Runs make as if everything was installed; nothing of a make that runs these tests reaches it."""
    command = ["make", "--old-file=.venv/.installed", *words]
    return subprocess.run(
        command, cwd=home, env={"PATH": os.environ["PATH"], **environ}, capture_output=True, text=True
    )


def hostile(directory: Path) -> str:
    """Returns a name of a tag or branch that make and shells would execute, each leaving a file."""
    touch = f"touch${{IFS}}{directory}"
    return f'$(shell touch {directory}/a)";{touch}/b;"$$({touch}/c)`id`'


# The workflow files.


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("workflows", list(WORKFLOWS.values())),
        ("issue-forms", sorted((GITHUB / "ISSUE_TEMPLATE").iterdir())),
        ("dependabot", [GITHUB / "dependabot.yml"]),
    ],
    ids=["workflows", "issue forms", "dependabot"],
)
def test_github_takes_its_files(schema: str, files: list[Path]) -> None:
    builtin = f"vendor.{schema if schema == 'dependabot' else f'github-{schema}'}"
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", builtin]
    done = subprocess.run([*check, *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@EACH
def test_whatever_a_workflow_runs_can_be_run_at_home(name: str) -> None:
    assert runs(name)
    makefile = (ROOT / "Makefile").read_text()
    for step in runs(name):
        if step["run"].startswith(PUBLISHERS):
            assert name == "release"
            continue
        for program, *targets in map(str.split, step["run"].splitlines()):
            if program == "make":
                done = make("--dry-run", *targets)
                assert targets and done.returncode == 0, done.stderr
            else:
                assert os.access(ROOT / program, os.X_OK), f"{program} is no program of the repository"
        for variable, value in step.get("env", {}).items():
            assert re.search(rf"\$\((value )?{variable}\)", makefile), f"{variable} is no variable of the Makefile"
            assert variable != "CONSTRAINTS" or (ROOT / value).exists()


@EACH
def test_a_workflow_gives_nothing_to_strangers(name: str) -> None:
    found, text = workflow(name), WORKFLOWS[name].read_text()
    assert not any("${{" in step["run"] for step in runs(name)), "what a stranger names would reach a shell"
    assert not re.search(r"github\.(event|head_ref|actor)", text) and "pull_request_target" not in found[ON]
    assert found["permissions"] == {"contents": "read"}
    for key, job in found["jobs"].items():
        assert job.get("permissions") == PUBLISHING.get((name, key))
        assert job["timeout-minutes"] <= 180
        assert "self-hosted" not in job["runs-on"] or set(found[ON]) <= {"schedule", "workflow_dispatch"}
    for checkout in uses(name, "checkout"):
        assert checkout["with"]["persist-credentials"] is False
    lines = [line.strip() for line in text.splitlines() if "uses:" in line]
    assert len(lines) == len([step for step in steps(name) if "uses" in step])
    for line in lines:  # a tag can be moved to other code; the comment has the version
        assert re.fullmatch(rf"- uses: (actions/[a-z-]+|{'|'.join(OF_OTHERS)})@[0-9a-f]{{40}} # v\d+\.\d+\.\d+", line)


def test_only_a_tag_is_published_and_nothing_of_the_tag_runs_where_it_could_write() -> None:
    assert workflow("release")[ON] == {"push": {"tags": ["v*"]}}
    jobs = workflow("release")["jobs"]
    for _, key in PUBLISHING:
        assert not any("checkout" in step.get("uses", "") for step in jobs[key]["steps"])
    assert (jobs["pypi"]["needs"], jobs["github"]["needs"]) == ("build", "pypi")


@pytest.mark.parametrize("is_flag", [True, False])
def test_the_name_of_a_tag_is_not_executed(tmp_path: Path, is_flag: bool) -> None:
    words, variables = ([f"TAG={hostile(tmp_path)}"], {}) if is_flag else ([], {"TAG": hostile(tmp_path)})
    done = make(
        "--old-file=.venv/.installed-test", f"BIN={Path(sys.executable).parent}", "release", *words, **variables
    )
    assert done.returncode == 2 and done.stderr.startswith(f"release.py: the tag is '{hostile(tmp_path)}'")
    assert not any((tmp_path / name).exists() for name in "abc")


def test_a_matrix_names_the_versions_that_the_package_declares() -> None:
    declared = configparser.ConfigParser()
    declared.read(ROOT / "setup.cfg")
    pythons = set(re.findall(r":: (3\.\d+)$", declared["metadata"]["classifiers"], re.MULTILINE))
    matrix = workflow("tests")["jobs"]["versions"]["strategy"]["matrix"]["include"]
    assert {each["python"] for each in matrix} == pythons
    low, high = min(pythons, key=_number), max(pythons, key=_number)
    assert declared["options"]["python_requires"] == f">={low},<3.{_number(high) + 1}"
    lowest, below = re.search(
        r"^tensorflow>=([\d.]+),<([\d.]+)$", declared["options"]["install_requires"], re.M
    ).groups()
    tested = {each["tensorflow"] for each in matrix}
    assert tested == {f"2.{minor}" for minor in range(_number(lowest), _number(below))}


def _number(version: str) -> int:
    return int(version.partition(".")[2])


@EACH
def test_a_push_stops_only_what_runs_for_its_own_branch(name: str) -> None:
    concurrency = workflow(name)["concurrency"]
    assert concurrency["group"].startswith(name), "workflows do not wait for each other"
    if concurrency.get("cancel-in-progress"):
        assert "${{ github.ref }}" in concurrency["group"]
        assert "schedule" not in workflow(name)[ON], "a night ends before the next begins"


def test_the_gate_has_the_revision_that_it_compares_with() -> None:
    (checkout,) = uses("gate", "checkout")
    assert checkout["with"]["fetch-depth"] == 0
    (gate,) = runs("gate")
    assert gate["env"]["BASE"] == "HEAD^1", "of the merge that GitHub checks out, the first parent is the base"


# The suites.


def cells(name: str, gpus: int = 1) -> list[Cell]:
    return grid.cells(grid.of_suite(GATE / name), lambda: gpus)


@pytest.mark.parametrize(("name", "devices"), [("gate.toml", {"cpu"}), ("nightly.toml", {"gpu"})])
def test_every_configuration_of_a_suite_can_be_run(name: str, devices: set[str]) -> None:
    found = cells(name)
    assert [cell.why_not for cell in found if not cell.runs] == []
    assert {cell.config.devices.device for cell in found if cell.config} == devices
    assert "cpu" in devices or not any(cell.runs for cell in cells(name, gpus=0)), "a night is not measured on the CPU"


def test_the_flags_of_nightly_reach_every_configuration() -> None:
    asked = grid.wanted({"suite": str(GATE / "nightly.toml"), "num_gpus": "1,4"}, lambda: 4)
    assert len(asked) == 2 * len(cells("nightly.toml"))
    assert all(cell.runs for cell in asked)


# The script that make calls.

FAKE_PYTHON = """#!/bin/bash
echo "$@" >> "$RECORDED"
verb=$2
[ "$2" = track ] && verb=$3
status=STATUS_$verb
exit "${!status:-0}"
"""


@dataclasses.dataclass(frozen=True)
class Ran:
    """How the script ended, and with which words it called run_bench.py."""

    status: int
    stdout: str
    stderr: str
    commands: Sequence[Sequence[str]]


def verbs_of(ran: Ran) -> list[str]:
    """Returns the verb of each command, of `track` the subcommand."""
    return [command[1] if command[0] == "track" else command[0] for command in ran.commands]


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., Ran]:
    """Runs a copy of the script, with a made-up Python whose exit status is STATUS_VERB."""
    home, python, recorded = tmp_path / "a suite", tmp_path / "a python", tmp_path / "recorded"
    shutil.copytree(GATE, home / "deploy" / "gate")
    for name in ("gate", "nightly"):
        (home / "out" / name).mkdir(parents=True)
        (home / "out" / name / "results.jsonl").write_text("of yesterday")
    python.write_text(FAKE_PYTHON)
    python.chmod(0o755)

    def run(*words: str, **environ: str | int) -> Ran:
        variables = {"PATH": os.environ["PATH"], "BENCH_PYTHON": str(python), "RECORDED": str(recorded)}
        variables |= {name: str(value) for name, value in environ.items()}
        command = [str(home / "deploy" / "gate" / "run"), *words]
        done = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True)
        lines = recorded.read_text().splitlines() if recorded.exists() else []
        commands = [line.removeprefix("run_bench.py ").split() for line in lines]
        return Ran(done.returncode, done.stdout, done.stderr, commands)

    return run


def test_the_gate_compares_with_the_base_and_says_it_in_every_format(
    script: Callable[..., Ran], tmp_path: Path
) -> None:
    ((verb, *given),) = script("gate", "--base=v1", "--threshold=7").commands
    assert not (tmp_path / "a suite" / "out" / "gate").exists(), "results of another day are not mixed in"
    assert verb == "ab"
    values = flag.parse(given, grid.sweep_groups(ab_verb.AB_FLAGS)).values
    assert {name: value for name, value in values.items() if value is not None} == {
        "base": "v1",
        "suite": "deploy/gate/gate.toml",
        "output_dir": "out/gate",
        "json_file": "out/gate/gate.json",
        "junit_file": "out/gate/junit.xml",
        "markdown_file": "out/gate/gate.md",
        "benchmark_json_file": "out/gate/benchmark.json",
        "threshold": 7.0,
    }


NIGHT = ["doctor", "sweep", "check", "store"]


@pytest.mark.parametrize(
    ("words", "statuses", "status", "verbs", "is_undecided"),
    [
        (["gate", "--base=v1"], {}, 0, ["ab"], False),
        (["gate", "--base=v1"], {"ab": 1}, 1, ["ab"], False),
        (["gate", "--base=v1"], {"ab": 130}, 130, ["ab"], False),
        (["gate", "--base=v1"], {"ab": 3}, 0, ["ab"], True),
        (["nightly"], {"doctor": 3}, 0, NIGHT, True),
        (["nightly"], {"check": 3}, 0, NIGHT, True),
        (["nightly"], {"check": 1}, 1, NIGHT[:3], False),
        (["nightly"], {"sweep": 2}, 2, NIGHT[:2], False),
        (["nightly"], {"sweep": 130}, 130, NIGHT[:2], False),
        (["nightly"], {"sweep": 4}, 4, NIGHT[:3], False),
        (["nightly"], {"sweep": 4, "check": 1}, 1, NIGHT[:3], False),
        (["nightly"], {"sweep": 4, "check": 3}, 4, NIGHT[:3], None),
        (["nightly"], {"doctor": 2}, 2, NIGHT[:1], False),
        (["nightly"], {"store": 2}, 2, NIGHT, False),
        ([], {}, 2, [], False),
        (["night"], {}, 2, [], False),
    ],
)
def test_a_script_ends_as_its_verbs_do_and_a_bad_night_becomes_no_baseline(
    script: Callable[..., Ran], words: list[str], statuses: dict[str, int], status: int, verbs: list[str],
    is_undecided: bool | None,
) -> None:  # fmt: skip
    ran = script(*words, GITHUB_ACTIONS="true", **{f"STATUS_{verb}": value for verb, value in statuses.items()})
    assert (ran.status, verbs_of(ran)) == (status, verbs)
    if is_undecided is not None:  # a warning, and no failure
        assert (ran.stdout.startswith("::warning::"), ran.stdout.count("\n")) == (is_undecided, is_undecided)
    if not verbs:
        assert "gate --base=REVISION, or nightly" in ran.stderr


def test_outside_of_github_a_warning_is_a_sentence(script: Callable[..., Ran]) -> None:
    assert script("gate", "--base=v1", STATUS_ab=3).stdout.startswith("The gate cannot decide")


@pytest.fixture
def made(script: Callable[..., Ran], tmp_path: Path) -> Callable[..., tuple[int, list[str]]]:
    """Runs make in a copy of the suite; returns its status and the words with which run_bench.py was called last."""
    shutil.copy(ROOT / "Makefile", tmp_path / "a suite")
    fake = {"BENCH_PYTHON": str(tmp_path / "a python"), "RECORDED": str(tmp_path / "recorded")}

    def run(*words: str, **environ: str) -> tuple[int, list[str]]:
        done = make(*words, home=tmp_path / "a suite", **fake, **environ)
        return done.returncode, (tmp_path / "recorded").read_text().splitlines()[-1].split()[1:]

    return run


@pytest.mark.parametrize(("status", "wanted"), [(3, 0), (1, 2)])
def test_make_fails_for_a_regression_and_not_for_what_cannot_be_decided(
    made: Callable[..., tuple[int, list[str]]], status: int, wanted: int
) -> None:
    assert made("gate", STATUS_ab=str(status))[0] == wanted


def test_make_hands_on_base_and_flags(made: Callable[..., tuple[int, list[str]]]) -> None:
    assert "--base=origin/main" in made("gate")[1], "unless another is given"
    _, (verb, *words) = made("gate", "BASE=v1", "GATE_FLAGS=--threshold=7 --max_repeats=9")
    assert verb == "ab" and words[-3:] == ["--base=v1", "--threshold=7", "--max_repeats=9"]


@pytest.mark.parametrize("is_flag", [True, False])
def test_the_name_of_a_base_is_not_executed(made: Callable[..., Any], tmp_path: Path, is_flag: bool) -> None:
    base = hostile(tmp_path)
    _, words = made("gate", f"BASE={base}") if is_flag else made("gate", BASE=base)
    assert f"--base={base}" in " ".join(words)
    assert not any((tmp_path / name).exists() for name in "abc")


def test_make_hands_on_the_flags_of_a_night(script: Callable[..., Ran], made: Callable[..., Any]) -> None:
    made("nightly", "NIGHTLY_FLAGS=--num_gpus=8")
    (sweep,) = (words for words in script("nightly").commands if "--num_gpus=8" in words)
    assert sweep[0] == "sweep"


@pytest.mark.parametrize("name", ["gate", "nightly"])
def test_what_was_found_is_uploaded_from_where_it_is_written(script: Callable[..., Ran], name: str) -> None:
    (directory,) = {
        word.removeprefix("--output_dir=")
        for words in script(name).commands
        for word in words
        if word.startswith("--output_dir=")
    }
    found, *baselines = uses(name, "upload-artifact")
    assert found["with"]["path"] == directory
    assert found["if"] == "always()", "a regression is worth looking at"
    for step in baselines:
        assert "if" not in step, "baselines are only worth keeping after a good night"
        assert step["with"]["path"] == BASELINES_DIR


def test_a_night_is_swept_checked_and_kept(script: Callable[..., Ran], tmp_path: Path) -> None:
    ran = script("nightly", "--num_gpus=8")
    assert (ran.status, ran.stdout, ran.stderr) == (0, "", "")
    assert not (tmp_path / "a suite" / "out" / "nightly").exists(), "results of another day are not mixed in"
    assert verbs_of(ran) == NIGHT
    look, sweep, check, store = ran.commands
    assert look == ["doctor", "--nobreakdown"]
    values = flag.parse(sweep[1:], grid.sweep_groups(sweep_verb.SWEEP_FLAGS)).values
    assert {name: value for name, value in values.items() if value is not None} == {
        "suite": "deploy/gate/nightly.toml",
        "repeats": 3,
        "output_dir": "out/nightly",
        "num_gpus": "8",
    }
    assert check[:3] == ["track", "check", "out/nightly"]
    assert (
        flag.parse(check[3:], flags_of(commands()["track check"])).values["markdown_file"] == "out/nightly/nightly.md"
    )
    assert store == ["track", "store", "out/nightly"]
