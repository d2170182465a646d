"""What runs in CI: the workflows as GitHub reads them, what `make gate` and `make nightly` do with exit statuses."""

from __future__ import annotations

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

from benchmarks import ab_flags, baseline_flags, flags, grid
from benchmarks.grid import Cell
from tests.support.commands import Finished

ROOT = Path(__file__).resolve().parents[2]
GATE = ROOT / "deploy" / "gate"
WORKFLOWS = {path.stem: path for path in sorted((ROOT / ".github" / "workflows").iterdir())}
EACH = pytest.mark.parametrize("name", WORKFLOWS)
# PyYAML reads the key `on` as YAML 1.1 does.
ON = True


def workflow(name: str) -> dict[Any, Any]:
    return dict(yaml.safe_load(WORKFLOWS[name].read_text()))


def steps(name: str) -> list[dict[str, Any]]:
    return [step for job in workflow(name)["jobs"].values() for step in job["steps"]]


def uses(name: str, action: str) -> list[dict[str, Any]]:
    return [step for step in steps(name) if step.get("uses", "").startswith(f"actions/{action}@")]


def make(*words: str, home: Path = ROOT, **environ: str) -> subprocess.CompletedProcess[str]:
    """Runs make as if everything was installed; nothing of a make that runs these tests reaches it."""
    command = ["make", "--old-file=.venv/.installed", *words]
    return subprocess.run(
        command, cwd=home, env={"PATH": os.environ["PATH"], **environ}, capture_output=True, text=True
    )


def made(*words: str) -> str:
    """What make would run."""
    done = make("--dry-run", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


# The workflow files.


def test_the_workflows_are_what_github_takes() -> None:
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows"]
    done = subprocess.run([*check, *WORKFLOWS.values()], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert list(WORKFLOWS) == ["gate", "nightly", "seldom", "tests"]


@EACH
def test_whatever_a_workflow_runs_can_be_run_at_home(name: str) -> None:
    commands = [step["run"] for step in steps(name) if "run" in step]
    assert len(commands) == 1
    for command in commands:
        if command.startswith("make "):
            assert re.fullmatch(r"make [a-z-]+", command)
            assert made(command.removeprefix("make "))
        else:
            assert os.access(ROOT / command, os.X_OK), f"{command} is no program of the repository"


@EACH
def test_nothing_that_a_stranger_may_name_reaches_a_shell(name: str) -> None:
    assert not any("${{" in step.get("run", "") for step in steps(name))
    assert not re.search(r"github\.(event|head_ref|actor)", WORKFLOWS[name].read_text())


@EACH
def test_a_workflow_may_only_read_and_ends(name: str) -> None:
    found = workflow(name)
    assert found["permissions"] == {"contents": "read"}
    assert "pull_request_target" not in found[ON]
    for job in found["jobs"].values():
        assert "permissions" not in job
        assert job["timeout-minutes"] <= 180
    (checkout,) = uses(name, "checkout")
    assert checkout["with"]["persist-credentials"] is False


@EACH
def test_only_actions_of_github_itself_are_used(name: str) -> None:
    for step in steps(name):
        if "uses" in step:
            assert re.fullmatch(r"actions/(checkout|setup-python|upload-artifact)@v\d+", step["uses"])


@pytest.mark.parametrize("name", ["gate", "tests"])
def test_a_newer_push_stops_what_runs_for_the_older(name: str) -> None:
    assert workflow(name)["concurrency"] == {"group": f"{name}-${{{{ github.ref }}}}", "cancel-in-progress": True}


@pytest.mark.parametrize("name", ["nightly", "seldom"])
def test_two_nights_never_share_the_machine_nor_stop_each_other(name: str) -> None:
    assert workflow(name)["concurrency"] == {"group": name}


def test_strangers_code_never_runs_on_our_machine() -> None:
    assert set(workflow("nightly")[ON]) == {"schedule", "workflow_dispatch"}
    assert workflow("nightly")["jobs"]["nightly"]["runs-on"] == ["self-hosted", "gpu"]
    for name in ("gate", "seldom", "tests"):
        assert all(job["runs-on"].startswith("ubuntu-") for job in workflow(name)["jobs"].values())


def test_the_gate_has_the_revision_that_it_compares_with() -> None:
    (checkout,) = uses("gate", "checkout")
    assert checkout["with"]["fetch-depth"] == 0
    (gate,) = (step for step in steps("gate") if "run" in step)
    assert gate["env"]["BASE"] == "HEAD^1", "of the merge that GitHub checks out, the first parent is the base"


def test_what_was_found_is_kept_whatever_came_of_it() -> None:
    (gate,) = uses("gate", "upload-artifact")
    nightly, baselines = uses("nightly", "upload-artifact")
    for step, directory in ((gate, "out/gate"), (nightly, "out/nightly")):
        assert (step["if"], step["with"]["path"]) == ("always()", directory)
    assert "if" not in baselines, "baselines are only worth keeping after a good night"
    assert baselines["with"]["path"] == "results/baselines"


def test_ci_installs_pinned_versions() -> None:
    for name in ("gate", "nightly", "seldom"):
        (run,) = (step for step in steps(name) if "run" in step)
        assert run["env"]["CONSTRAINTS"] == "constraints.txt"


def test_make_hands_on_base_and_flags() -> None:
    assert made("gate") == 'deploy/gate/run gate --base="origin/main" \n'
    assert made("gate", "BASE=v1", "GATE_FLAGS=--threshold=7") == 'deploy/gate/run gate --base="v1" --threshold=7\n'
    assert made("nightly", "NIGHTLY_FLAGS=--num_gpus=8") == "deploy/gate/run nightly --num_gpus=8\n"


# The suites.


def cells(name: str, gpus: int = 1) -> list[Cell]:
    return grid.cells(grid.of_suite(GATE / name), lambda: gpus)


@pytest.mark.parametrize(("name", "devices"), [("gate.toml", {"cpu"}), ("nightly.toml", {"gpu"})])
def test_every_configuration_of_a_suite_can_be_run(name: str, devices: set[str]) -> None:
    found = cells(name)
    assert [cell.why_not for cell in found if not cell.runs] == []
    assert {cell.config.device for cell in found if cell.config} == devices


def test_a_night_without_its_gpu_is_not_measured_on_the_cpu() -> None:
    assert not any(cell.runs for cell in cells("nightly.toml", gpus=0))


def test_the_flags_of_nightly_reach_every_configuration() -> None:
    asked = grid.wanted({"suite": str(GATE / "nightly.toml"), "num_gpus": "1,4"}, lambda: 4)
    assert len(asked) == 2 * len(cells("nightly.toml"))
    assert all(cell.runs for cell in asked)


def test_the_suite_of_the_gate_resolves_in_a_process_of_its_own(run_bench: Callable[..., Finished]) -> None:
    done = run_bench("sweep", f"--suite={GATE / 'gate.toml'}", "--dry_run")
    assert (done.status, done.stderr) == (0, "")
    assert "3 of 3 combinations" in done.stdout


# The script that make calls.

FAKE_PYTHON = """#!/bin/bash
echo "$@" >> "$RECORDED"
status=STATUS_$2
exit "${!status:-0}"
"""


@dataclasses.dataclass(frozen=True)
class Ran:
    """How the script ended, and with which words it called run_bench.py."""

    status: int
    stdout: str
    stderr: str
    commands: Sequence[Sequence[str]]

    @property
    def verbs(self) -> list[str]:
        return [words[0] for words in self.commands]


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


def test_the_script_has_no_syntax_error_and_stops_at_errors() -> None:
    subprocess.run(["bash", "-n", GATE / "run"], check=True)
    assert "\nset -euo pipefail\n" in (GATE / "run").read_text()


def test_the_gate_compares_with_the_base_and_says_it_in_every_format(script: Callable[..., Ran]) -> None:
    ((verb, *given),) = script("gate", "--base=v1", "--threshold=7").commands
    assert verb == "ab"
    values = flags.parse(given, grid.sweep_groups(ab_flags.AB_FLAGS)).values
    assert {name: value for name, value in values.items() if value is not None} == {
        "base": "v1",
        "suite": "deploy/gate/gate.toml",
        "output_dir": "out/gate",
        "json": "out/gate/gate.json",
        "junit": "out/gate/junit.xml",
        "markdown": "out/gate/gate.md",
        "benchmark_json": "out/gate/benchmark.json",
        "threshold": 7.0,
    }


@pytest.mark.parametrize("status", [0, 1, 2, 4, 5, 130, 143])
def test_the_gate_ends_as_ab_does(script: Callable[..., Ran], status: int) -> None:
    ran = script("gate", "--base=v1", GITHUB_ACTIONS="true", STATUS_ab=status)
    assert (ran.status, ran.stdout, ran.stderr) == (status, "", "")


def test_what_cannot_be_decided_is_a_warning_and_no_failure(script: Callable[..., Ran]) -> None:
    ran = script("gate", "--base=v1", GITHUB_ACTIONS="true", STATUS_ab=3)
    assert ran.status == 0
    assert ran.stdout.startswith("::warning::The gate cannot decide")
    assert ran.stdout.count("\n") == 1
    assert script("gate", "--base=v1", STATUS_ab=3).stdout.startswith("The gate cannot decide")


@pytest.mark.parametrize(("status", "wanted"), [(0, 0), (3, 0), (1, 2), (4, 2)])
def test_make_fails_for_a_regression_and_not_for_what_cannot_be_decided(
    script: Callable[..., Ran], tmp_path: Path, status: int, wanted: int
) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path / "a suite")
    fake = {"BENCH_PYTHON": str(tmp_path / "a python"), "RECORDED": str(tmp_path / "recorded")}
    done = make("gate", home=tmp_path / "a suite", STATUS_ab=str(status), **fake)
    assert done.returncode == wanted, done.stderr


def test_a_night_is_swept_checked_and_kept(script: Callable[..., Ran], tmp_path: Path) -> None:
    ran = script("nightly", "--num_gpus=8")
    assert (ran.status, ran.stdout, ran.stderr) == (0, "", "")
    assert ran.verbs == ["doctor", "sweep", "check", "baseline"]
    look, sweep, check, promote = ran.commands
    assert look == ["doctor", "--noladder"]
    values = flags.parse(sweep[1:], grid.sweep_groups(flags.SWEEP_FLAGS)).values
    assert {name: value for name, value in values.items() if value is not None} == {
        "suite": "deploy/gate/nightly.toml",
        "repeats": 3,
        "output_dir": "out/nightly",
        "num_gpus": "8",
    }
    assert check[1] == "out/nightly"
    assert flags.parse(check[2:], baseline_flags.CHECK_FLAGS).values["markdown"] == "out/nightly/nightly.md"
    assert promote == ["baseline", "promote", "out/nightly"]


@pytest.mark.parametrize("name", ["gate", "nightly"])
def test_results_of_another_day_are_not_mixed_in(script: Callable[..., Ran], tmp_path: Path, name: str) -> None:
    script(name)
    assert not (tmp_path / "a suite" / "out" / name).exists()


@pytest.mark.parametrize("verb", ["doctor", "check"])
def test_a_night_that_decides_nothing_is_kept_with_a_warning(script: Callable[..., Ran], verb: str) -> None:
    ran = script("nightly", GITHUB_ACTIONS="true", **{f"STATUS_{verb}": 3})
    assert (ran.status, ran.verbs) == (0, ["doctor", "sweep", "check", "baseline"])
    assert ran.stdout.startswith("::warning::")
    assert ran.stdout.count("\n") == 1


@pytest.mark.parametrize(
    ("statuses", "status", "verbs"),
    [
        ({"check": 1}, 1, ["doctor", "sweep", "check"]),
        ({"check": 2}, 2, ["doctor", "sweep", "check"]),
        ({"check": 5}, 5, ["doctor", "sweep", "check"]),
        ({"sweep": 2}, 2, ["doctor", "sweep"]),
        ({"sweep": 130}, 130, ["doctor", "sweep"]),
        ({"sweep": 143}, 143, ["doctor", "sweep"]),
        ({"sweep": 4}, 4, ["doctor", "sweep", "check"]),
        ({"sweep": 4, "check": 1}, 1, ["doctor", "sweep", "check"]),
        ({"sweep": 4, "check": 3}, 4, ["doctor", "sweep", "check"]),
        ({"doctor": 2}, 2, ["doctor"]),
        ({"baseline": 2}, 2, ["doctor", "sweep", "check", "baseline"]),
    ],
)
def test_a_bad_night_becomes_no_baseline(
    script: Callable[..., Ran], statuses: dict[str, int], status: int, verbs: list[str]
) -> None:
    ran = script("nightly", **{f"STATUS_{verb}": value for verb, value in statuses.items()})
    assert (ran.status, ran.verbs) == (status, verbs)


@pytest.mark.parametrize("words", [(), ("night",)])
def test_the_script_says_what_it_can_run(script: Callable[..., Ran], words: tuple[str, ...]) -> None:
    ran = script(*words)
    assert (ran.status, ran.commands) == (2, [])
    assert "gate --base=REVISION, or nightly" in ran.stderr
