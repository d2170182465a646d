"""What a record says of its software and its environment, and what it must not say."""

from __future__ import annotations

import importlib.metadata
import itertools
import re
import subprocess
from pathlib import Path

import pytest

from benchmarks.cli.verbs import commands, flags_of
from benchmarks.compare import builds
from benchmarks.machine import provenance
from benchmarks.process import tensorflow_setup
from benchmarks.training import computing
from results.masking import without_secrets


def test_variables_of_libraries_and_exact_names_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {"NVIDIA_API_KEY": "s1", "TF_TOKEN_app_terraform_io": "s2", "TF_VAR_pw": "s3", "CUDA_PASSWORD": "s4"}
    of_images = {"NCCL_VERSION": "2.21.5", "CUDNN_PATH": "/usr/lib", "NCCL_HOSTID": "a"}
    acting = {"XLA_FLAGS": "--xla_cpu", "NCCL_NEW": "1", "NCCL_TOPO_FILE": "/t.xml"}
    for name, value in {**secrets, **of_images, **acting}.items():
        monkeypatch.setenv(name, value)
    variables = provenance.of_this_run([], on_gpus=False).environment["variables"]
    assert variables.items() >= acting.items()
    assert not {*secrets, *of_images} & {*variables} and not {*secrets.values()} & {*variables.values()}


def test_secrets_in_variables_of_libraries_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_NEW_TOKEN", "s1")
    monkeypatch.setenv("NCCL_NEW_PROXY", "http://me:s2@proxy:80/a=b")
    variables = provenance.recorded_variables()
    assert variables.items() >= {"NCCL_NEW_TOKEN": "***", "NCCL_NEW_PROXY": "http://***@proxy:80/a=b"}.items()


def test_no_recorded_name_is_that_of_a_secret() -> None:
    assert not [name for name in provenance._RECORDED_VARIABLES if without_secrets([f"{name}=x"]) != [f"{name}=x"]]


def test_what_the_suite_sets_for_tensorflow_is_recorded() -> None:
    source = Path(tensorflow_setup.__file__).read_text()
    names = set(re.findall(r'os\.environ(?:\.setdefault\(|\[)"([A-Z_0-9]+)"', source))
    assert len(names) > 5
    assert {*itertools.filterfalse(provenance.is_recorded, names)} <= {"GRPC_ENABLE_FORK_SUPPORT"}


def test_every_variable_of_which_runs_warn_is_recorded() -> None:
    assert all(provenance.is_recorded(name) for name, *_ in computing._OVERRULING)


def test_tensorflow_of_another_maker_has_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name != "tensorflow-rocm":
            raise importlib.metadata.PackageNotFoundError
        return "2.20.0"

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert provenance.describe_software()["tensorflow_version"] == "2.20.0"


def git(home: Path, *words: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", "-C", home, *who, *words], check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout that the suite takes for its own."""
    home = tmp_path / "suite"
    (home / "benchmarks" / "system").mkdir(parents=True)
    (home / "file").touch()
    git(tmp_path, "init", "--quiet", str(home))
    git(home, "add", "file")
    git(home, "commit", "--quiet", "--message=one")
    monkeypatch.setattr(provenance, "__file__", str(home / "benchmarks" / "system" / "provenance.py"))
    return home


@pytest.mark.fault(
    "R10",
    "a commit and a changed file in the suite's checkout while it runs",
    survives="the record has the commit from before, without a mark of changes",
)
@pytest.mark.process
def test_the_commit_is_that_of_the_start_of_the_run(checkout: Path) -> None:
    before = provenance.suite_commit()
    assert before is not None and re.fullmatch("[0-9a-f]{12}", before)
    run = provenance.of_this_run([], on_gpus=False)
    (checkout / "file").write_text("changed")
    assert provenance.suite_commit() == before + "+"
    git(checkout, "commit", "--all", "--quiet", "--message=two")
    assert provenance.suite_commit() != before
    assert run.identity({}).suite_commit == before


@pytest.mark.fault(
    "R10",
    "GIT_DIR and other variables of git that name another repository",
    survives="the record has the commit of this suite",
)
@pytest.mark.process
def test_variables_of_git_do_not_name_another_repository(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = provenance.suite_commit()
    git(tmp_path, "init", "--quiet", str(tmp_path / "other"))
    settings = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.worktree", "GIT_CONFIG_VALUE_0": "/"}
    other = {"GIT_DIR": f"{tmp_path}/other/.git", "GIT_CEILING_DIRECTORIES": "/", "GIT_NAMESPACE": "x", **settings}
    for name, value in other.items():
        monkeypatch.setenv(name, value)
    assert provenance.suite_commit() == commit
    assert provenance.git(checkout, "config", "core.worktree") == "/", "git's configuration is the user's"


@pytest.mark.process
def test_a_checkout_without_a_commit_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init", "--quiet", str(tmp_path))
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "benchmarks" / "system" / "provenance.py"))
    assert provenance.suite_commit() is None


@pytest.mark.process
def test_why_git_does_not_know_the_commit_is_reported_once(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (checkout / ".git" / "config").write_text("[core")
    assert [provenance.suite_commit(), provenance.suite_commit()] == [None, None]
    assert capsys.readouterr().err.count("is unknown, and records lack it (bad config line") == 1


def test_the_reason_of_git_is_what_it_calls_fatal_and_its_advice() -> None:
    advice = "To add an exception for this directory, call:\n\n\tgit config --global --add safe.directory /x\n"
    stderr = f"Preparing worktree\nfatal: detected dubious ownership in repository at '/x'\n{advice}"
    why = provenance.why_git_failed(subprocess.CalledProcessError(128, "git", stderr=stderr))
    assert why.startswith("detected dubious ownership in repository")
    assert why.endswith("call: git config --global --add safe.directory /x")


def test_a_git_that_hangs_costs_only_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*words: object, **_: object) -> None:
        raise subprocess.TimeoutExpired("git", 10)

    monkeypatch.setattr(provenance.subprocess, "run", hang)
    assert provenance.suite_commit() is None


def test_no_flag_of_the_suite_looks_like_a_secret() -> None:
    for verb in commands().values():
        words = [f"--{flag.name}=x" for group in flags_of(verb).values() for flag in group]
        assert without_secrets(words) == words


def test_the_name_of_a_build_that_a_command_starts_has_no_secret() -> None:
    build = builds.of_command("base_command", "env API_TOKEN=s3 python run_bench.py")
    assert build.name == "env API_TOKEN=*** python run_bench.py"
    assert build.program == ["env", "API_TOKEN=s3", "python", "run_bench.py"]


def test_the_file_of_a_users_model_has_the_commit_of_its_repository(checkout: Path, tmp_path: Path) -> None:
    """It is marked only if the code that the model was made from was changed, or is not in the commit."""
    net, part, ignored = (checkout / "nets" / name for name in ("net.py", "part.py", "local.py"))
    net.parent.mkdir()
    for path in (net, part, ignored):
        path.touch()
    (checkout / ".gitignore").write_text("local.py")
    git(checkout, "add", ".")
    git(checkout, "commit", "--quiet", "--message=two")
    (checkout / "file").write_text("changed, and no part of the model")

    def described(*sources: Path) -> str:
        provenance.file_at_commit.cache_clear()
        return provenance.file_at_commit(net, tuple(map(str, sources)))

    clean = described(net, part, tmp_path / "elsewhere.py")
    assert re.fullmatch(r"nets/net\.py at [0-9a-f]{12}", clean)
    assert described(net, ignored) == f"{clean}+"
    part.write_text("changed")
    assert described(net) == clean and described(net, part) == f"{clean}+"
    provenance.file_at_commit.cache_clear()
    assert provenance.file_at_commit(tmp_path / "alone.py", ()) == "alone.py"
