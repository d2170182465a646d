"""A/B comparisons of two builds that stand for run_bench.py, in whole runs and with interleaved steps."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from msgspec.structs import replace

from benchmarks.cli import main
from benchmarks.compare import builds as ab_builds
from benchmarks.compare.builds import Build, repository_of
from benchmarks.config import outside_models
from benchmarks.config.outside_models import Facts
from benchmarks.errors import DataError, ExitStatus, UsageError
from benchmarks.measure import interleaved_steps
from benchmarks.process import subprocesses
from results.gate import noise
from results.gate.noise import Noise
from results.loading import load
from results.record import Status
from tests.support.builds import Builds
from tests.support.commands import ROOT, USER_ENVIRONMENT, RunBench, wait_until
from tests.support.fake_runs import FakeRuns
from tests.support.records import fake_run

# Of the runs of `trivial` in their usual batch.
KEY = fake_run(model="trivial").identity.config_key


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> Builds:
    """Builds, in place of processes."""
    made = Builds()
    monkeypatch.setattr(subprocesses, "supervise", FakeRuns(made))
    return made


@dataclasses.dataclass(frozen=True)
class Compared:
    """What a comparison has come to."""

    status: int
    findings: list[dict[str, Any]]
    notes: list[str]
    sides: list[dict[str, str]]
    stderr: str

    @property
    def verdicts(self) -> list[str]:
        return [finding["verdict"] for finding in self.findings]


Ab = Callable[..., Compared]


@pytest.fixture
def ab(tmp_path: Path, builds: Builds, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ab:
    """Runs the verb, in this process, on a base and a candidate that do what a `Build` says; or on revisions."""
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)

    def run(
        *flags: str, models: str = "trivial", interleave: bool = False, base: dict[str, Any] | None = None, **does: Any
    ) -> Compared:
        words = ["ab", "--device=cpu", f"--output_dir={tmp_path / 'out'}", f"--baselines_dir={tmp_path / 'baselines'}"]
        if not any(flag.startswith("--base") for flag in flags):
            words += [builds.side("base", **(base or {})), builds.side("candidate", **does)]
        words += [f"--model={models}", "--output_format=json", *([] if interleave else ["--nointerleave_steps"])]
        status = main.dispatch([*words, *flags])
        shown = capsys.readouterr()
        said = json.loads(shown.out)
        return Compared(status, said["findings"], said["notes"], [said["base"], said["candidate"]], shown.err)

    return run


@pytest.mark.parametrize(
    ("rate", "verdict", "status"),
    [(90, "regressed", ExitStatus.REGRESSED), (112, "improved", ExitStatus.OK)],
)
def test_a_change_of_rate_gets_its_verdict(ab: Ab, rate: int, verdict: str, status: ExitStatus) -> None:
    found = ab(rate=rate)
    assert (found.verdicts, found.status) == ([verdict], status)
    (finding,) = found.findings
    assert finding["change"] == pytest.approx(rate / 100 - 1, abs=0.01)
    assert finding["base_rounds"] == finding["candidate_rounds"] >= 5
    assert finding["title"].startswith("trivial") and finding["config_key"] == KEY
    assert "repeat 1 of at most 15, trivial" in found.stderr and "candidate" in found.stderr


def test_what_the_sides_ran_is_named_if_their_words_have_flags_of_their_own(ab: Ab) -> None:
    found = ab(base={"batch": 16}, batch=8)
    assert "1 x 16 against trivial" in found.stderr and "1 x 8: base 100" in found.stderr
    assert "1 x 32" not in found.stderr
    (note,) = found.notes
    difference = "batch_per_device is 16 in the base and 8 in the candidate"
    assert note == f"The configurations differ, by the flags or defaults of the commands: {difference}."


def test_rounds_alternate_which_side_is_first_and_end_when_all_is_decided(ab: Ab, builds: Builds) -> None:
    ab(models="trivial,mlp")
    warmup = [f"warmup {side} {model}" for model in ("trivial", "mlp") for side in ("base", "candidate")]
    pairs = [["base", "candidate"], ["candidate", "base"], ["base", "candidate"], ["candidate", "base"]]
    rounds = [f"{side} {model}" for pair in pairs for model in ("trivial", "mlp") for side in pair]
    started = builds.order
    assert started[: len(warmup)] == warmup
    assert started[len(warmup) :][: len(rounds)] == rounds
    assert len(started) < 4 + 2 * 2 * 15, "nothing is run that is decided"


def test_both_sides_keep_their_records_in_one_session(ab: Ab, tmp_path: Path) -> None:
    (finding,) = ab().findings
    sides = [load(tmp_path / "out" / name / "results.jsonl").records for name in ("base", "candidate")]
    assert finding["base_rounds"] == finding["candidate_rounds"] == len(sides[0]) == len(sides[1]) >= 5
    assert len({record.identity.session_id for records in sides for record in records} - {""}) == 1
    assert len(load(tmp_path / "out" / "warmup" / "base" / "results.jsonl").records) == 1
    assert len(list((tmp_path / "out" / "candidate" / "logs").glob("*.log"))) == len(sides[1])


def test_without_a_warm_up_no_steps_are_interleaved(ab: Ab, builds: Builds, tmp_path: Path) -> None:
    ab("--nowarmup", interleave=True)
    assert builds.order[0] == "base trivial" and not (tmp_path / "out" / "warmup").exists()
    assert builds.pairs[0] == "b" * 20 + "c" * 20


def test_a_candidate_that_crashes_where_the_base_runs_has_failed(ab: Ab, builds: Builds) -> None:
    found = ab("--nowarmup", crashes=[3])
    assert (found.verdicts, found.status) == (["failed"], ExitStatus.REGRESSED)
    reason = found.findings[0]["reason"]
    assert (
        "candidate" in reason and "repeat 3" in reason and "Segmentation fault" in reason and "it broke here" in reason
    )
    assert found.findings[0]["base_rounds"] == 2
    assert builds.order.count("candidate trivial") == 3, "it is not tried again"


@pytest.mark.parametrize(("crashes", "status"), [([], ExitStatus.UNDECIDED), ([1, 2], ExitStatus.RUN_FAILED)])
def test_a_base_that_crashes_decides_nothing(ab: Ab, crashes: list[int], status: ExitStatus) -> None:
    """Nor does a gate, which only warns of what is undecided, pass a candidate that never ran, as where both break."""
    found = ab(base={"crashes": [1, 2]}, crashes=crashes)
    assert (found.verdicts, found.status) == (["inconclusive"], status)
    assert "The base did not run in repeat 1" in found.findings[0]["reason"]
    assert found.findings[0]["base_images_per_sec"] is None


def test_a_candidate_that_refuses_what_the_base_runs_has_failed(ab: Ab, builds: Builds) -> None:
    found = ab(models="trivial,mlp", refuses=["mlp"])
    assert (found.verdicts, found.status) == (["unchanged", "failed"], ExitStatus.REGRESSED)
    assert "There is no flag --new" in found.findings[1]["reason"]
    assert builds.order.count("candidate mlp") == 1, "what is refused once is refused again"


def test_a_combination_that_cannot_be_is_a_note(ab: Ab) -> None:
    refuses = {"refuses": ["independent"]}
    found = ab("--variable_update=parameter_server,independent", "--staged_vars=true", base=refuses, **refuses)
    assert (found.verdicts, found.status) == (["unchanged"], ExitStatus.OK)
    (note,) = found.notes
    assert "--variable_update=independent" in note and "There is no flag --new" in note


def test_a_noisy_machine_has_a_threshold_of_its_own(ab: Ab, tmp_path: Path) -> None:
    path = noise.path_of(tmp_path / "baselines", fake_run().identity.hardware_key)
    noise.save(path, {KEY: Noise(noise=0.06, low=0.04, high=0.1, rounds=10, title="trivial, on it")})
    found = ab(rate=92)
    assert found.verdicts == ["unchanged"] and found.findings[0]["threshold"] == pytest.approx(0.12)
    assert len(found.notes) == 1 and "trivial, on it: the threshold is 12.0 %" in found.notes[0]
    assert ab("--threshold=5", rate=92).verdicts == ["regressed"]


def test_noise_that_cannot_be_read_ends_the_comparison(ab: Ab, tmp_path: Path) -> None:
    path = noise.path_of(tmp_path / "baselines", fake_run().identity.hardware_key)
    path.parent.mkdir(parents=True)
    path.write_text("{")
    with pytest.raises(DataError, match="run `track calibrate` again"):
        ab()


def test_a_difference_of_software_is_named(ab: Ab) -> None:
    found = ab(environment={"tensorflow_version": "2.22.0"})
    assert "TensorFlow 2.21.0" in found.sides[0]["software"] and "TensorFlow 2.22.0" in found.sides[1]["software"]
    (note,) = found.notes
    assert "tensorflow_version is 2.21.0 in the base and 2.22.0 in the candidate" in note


@pytest.mark.parametrize(
    ("digest", "note"),
    [
        ("0", "The code of trivial is the same in the base and the candidate."),
        ("1", "The code of the model differs: trivial in the base, trivial in the candidate."),
    ],
)
def test_whether_the_code_of_a_users_model_differs_is_noted(ab: Ab, digest: str, note: str) -> None:
    assert ab(base={"digest": "0"}, digest=digest).notes == [note]


def test_unlike_hardware_is_refused(ab: Ab) -> None:
    with pytest.raises(UsageError, match="cpu_model is a CPU in the base and another in the candidate"):
        ab(environment={"cpu_model": "another"})
    with pytest.raises(UsageError, match="container_cores is not recorded in the base and 2 in the candidate"):
        ab(environment={"container_cores": 2})


def rounds(tmp_path: Path) -> list[int]:
    return [len(load(tmp_path / "out" / side / "results.jsonl").records) for side in ("base", "candidate")]


def test_steps_are_interleaved_and_the_first_side_alternates(ab: Ab, builds: Builds, tmp_path: Path) -> None:
    found = ab(interleave=True)
    assert found.verdicts == ["unchanged"] and "whole runs" not in found.stderr
    warmup, *pairs = builds.pairs
    assert [warmup, *pairs[:3]] == ["bbcc" * 10, "bbcc" * 10, "ccbb" * 10, "bbcc" * 10]
    assert rounds(tmp_path) == [len(pairs)] * 2


@pytest.mark.parametrize("interleave", [False, True])
def test_whole_runs_follow_each_other_if_steps_are_not_interleaved(
    ab: Ab, builds: Builds, tmp_path: Path, interleave: bool
) -> None:
    found = ab(interleave=interleave, interleaves=not interleave)
    assert found.status == ExitStatus.OK
    _, *pairs = builds.pairs
    assert pairs[:3] == ["b" * 20 + "c" * 20, "c" * 20 + "b" * 20, "b" * 20 + "c" * 20]
    assert rounds(tmp_path) == [len(pairs)] * 2, "the warm-up has shown that a side does not interleave"
    why = "whole runs were compared instead of interleaved steps: a side does not know how to interleave steps."
    assert [why in note for note in found.notes] == [True] * interleave


def test_runs_that_fail_only_together_follow_each_other(ab: Ab, builds: Builds) -> None:
    found = ab(interleave=True, breaks=lambda number, interleaved: interleaved)
    assert found.status == ExitStatus.OK and "started at once, the candidate failed. crash: " in found.stderr
    assert "it broke here" in found.stderr
    assert builds.taken.startswith("b" * 40 + "c" * 40 + "b" * 20)


@pytest.mark.parametrize(
    ("stuck", "status"),
    [("base", ExitStatus.UNDECIDED), ("candidate", ExitStatus.REGRESSED)],
    ids=["base", "candidate"],
)
def test_the_side_that_takes_no_time_slice_is_named(
    ab: Ab, builds: Builds, monkeypatch: pytest.MonkeyPatch, stuck: str, status: ExitStatus
) -> None:
    monkeypatch.setattr(interleaved_steps, "_LEAST_START_SECONDS", 0.1)
    base = {"stuck": lambda number: stuck == "base" and number > 1}
    found = ab(interleave=True, base=base, stuck=lambda number: stuck == "candidate" and number > 1)
    assert found.status == status
    why = f"The {stuck} did not run in repeat 1: timeout: Killed because the run beside it waited in vain"
    assert why in found.stderr


@pytest.mark.parametrize("in_turn", [True, False])
def test_noise_says_how_it_was_measured_and_counts_only_there(
    ab: Ab, tmp_path: Path, capsys: pytest.CaptureFixture[str], in_turn: bool
) -> None:
    places = [f"--output_dir={tmp_path / 'calibrated'}", f"--baselines_dir={tmp_path / 'baselines'}"]
    words = ["track", "calibrate", "--device=cpu", "--model=mlp", "--repeats=3", *places]
    assert main.dispatch([*words, *([] if in_turn else ["--nointerleave_steps"])]) == ExitStatus.OK
    path = noise.path_of(tmp_path / "baselines", fake_run().identity.hardware_key)
    ((key, stored),) = noise.load(path).items()
    assert stored.is_interleaved == in_turn
    noise.save(path, {key: replace(stored, noise=0.1)})
    capsys.readouterr()
    (note,) = ab(interleave=True, models="mlp", rate=90).notes
    assert ("the threshold is 20.0 %" if in_turn else "measured the noise of whole runs") in note


@dataclasses.dataclass(frozen=True)
class Repository:
    """A small repository in which the suite lies."""

    suite: Path

    def commit(self, text: str) -> None:
        self.suite.write_text(text)
        self.commit_all()

    def commit_all(self) -> None:
        self.git("add", ".")
        self.git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-m", "a change")

    def git(self, *words: str) -> str:
        done = subprocess.run(["git", *words], cwd=self.suite.parent, capture_output=True, text=True, check=True)
        return done.stdout

    @property
    def worktrees(self) -> int:
        return self.git("worktree", "list").count("\n")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """A repository with two commits, the later one slower, with the suite in a folder of it; temporary files apart."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    made = Repository(tmp_path / "repository" / "bench" / "run_bench.py")
    made.suite.parent.mkdir(parents=True)
    made.git("init", "-b", "main", "..")
    made.commit('{"name": "first", "rate": 100}')  # a `Build`
    made.commit('{"name": "second", "rate": 90}')
    monkeypatch.setattr(ab_builds, "RUN_BENCH", made.suite)
    return made


def checked_out(revision: str) -> contextlib.AbstractContextManager[Build]:
    return repository_of([]).at(revision)


def test_a_revision_is_checked_out_and_removed(ab: Ab, builds: Builds, repository: Repository, tmp_path: Path) -> None:
    found = ab("--base=HEAD~1", "--candidate=main")
    assert (found.verdicts, found.status) == (["regressed"], ExitStatus.REGRESSED)
    commit = repository.git("rev-parse", "HEAD~1")[:12]
    assert found.sides[0]["name"] == f"HEAD~1 ({commit})"
    assert {line.split()[-2] for line in builds.order} == {"first", "second"}
    assert repository.worktrees == 1 and not list((tmp_path / "temporary").iterdir())


def test_without_a_candidate_it_is_the_working_tree_as_it_is(ab: Ab, builds: Builds, repository: Repository) -> None:
    repository.suite.write_text('{"name": "uncommitted", "rate": 100}')
    found = ab("--base=HEAD~1")
    assert found.verdicts == ["unchanged"] and "this suite as it is" in found.sides[1]["name"]
    assert {line.split()[-2] for line in builds.order} == {"first", "uncommitted"}


@pytest.mark.parametrize(
    ("revision", "sentence"),
    [
        ("--help", "There is no revision '--help'"),
        ("HEAD", "there is no bench/run_bench.py"),
        ("main~1", r"git fails in .* \(bad config line"),
    ],
)
def test_a_revision_that_cannot_be_had_is_a_sentence(
    repository: Repository, tmp_path: Path, revision: str, sentence: str
) -> None:
    repository.git("mv", "run_bench.py", "other.py")
    repository.commit_all()
    if "config" in sentence:
        (repository.suite.parent.parent / ".git" / "config").write_text("[core")
    with pytest.raises(UsageError, match=sentence), checked_out(revision):
        pass
    assert not list((tmp_path / "temporary").iterdir())


@pytest.fixture
def own(repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """A user's repository with two commits of a model, beside that of the suite, as the working directory.

    The facts of a model are found without building it.
    """
    made = Repository(tmp_path / "user" / "net.py")
    made.suite.parent.mkdir()
    made.git("init", "-b", "main")
    (made.suite.parent / "width.py").write_text("WIDTH = 1")
    made.commit("def build(): ...")
    made.commit("def build(): ...  # slower")
    monkeypatch.chdir(made.suite.parent)

    def facts(directory: Path, python_path: str, name: str, num_classes: int) -> Facts:
        file = directory / name.rpartition(":")[0]
        sources = {str(file.resolve()): outside_models.digest_of(str(file)) or ""}
        return Facts(image_size=32, channels=3, outputs=10, takes_classes=True, sources=sources, gflop_per_image=1.0)

    monkeypatch.setattr(outside_models, "find_facts_in", facts)
    outside_models._facts.cache_clear()
    return made


@pytest.mark.parametrize("absolute", [False, True])
def test_revisions_of_a_users_model_are_of_its_repository(
    own: Repository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, absolute: bool
) -> None:
    """The suite is the same; runs of the base start in the checkout, with the same words."""
    commands: list[subprocesses.Command] = []

    def supervise(*given: subprocesses.Command, timeout_seconds: float | None) -> list[subprocesses.ExitInfo]:
        commands.extend(given)
        assert given[0].directory is None or (given[0].directory / "net.py").read_text() == "def build(): ..."
        return FakeRuns(lambda run: fake_run(step_seconds=0.1))(*given, timeout_seconds=timeout_seconds)

    monkeypatch.setattr(subprocesses, "supervise", supervise)
    monkeypatch.setenv("PYTHONPATH", f"{own.suite.parent}{os.pathsep}/elsewhere")
    words = ["--device=cpu", "--nointerleave_steps", f"--output_dir={tmp_path / 'out'}", "--trace_file=some"]
    main.dispatch(["ab", *words, f"--model={own.suite if absolute else 'net.py'}:build", "--base=HEAD~1"])
    base, candidate = commands[:2]
    assert base.words[:2] == candidate.words[:2] == [sys.executable, str(ab_builds.RUN_BENCH)]
    for command in (base, candidate):
        assert {"--model=net.py:build", f"--trace_file={own.suite.parent / 'some'}"} < {*command.words}
        assert sum(word.startswith("--batch_size=") for word in command.words) == 1, "a default follows from the model"
    checkout = base.directory
    assert checkout and checkout.is_relative_to(tmp_path / "temporary") and candidate.directory is None
    assert base.variables["PYTHONPATH"].split(os.pathsep) == [str(checkout), str(own.suite.parent), "/elsewhere"]
    assert own.worktrees == 1 and not checkout.exists()


def test_the_first_line_says_which_repository_and_what_is_not_committed(ab: Ab, own: Repository) -> None:
    (own.suite.parent / "width.py").write_text("WIDTH = 2")
    (own.suite.parent / "new.py").touch()
    (own.suite.parent / "out.txt").touch()
    found = ab("--base=HEAD~1", models="net.py:build")
    first, second = (own.git("rev-parse", name)[:12] for name in ("HEAD~1", "HEAD"))
    now = f"as it is now ({second} with uncommitted changes in width.py, new.py)"
    line = f"net.py:build, repository {own.suite.parent}: base: HEAD~1 ({first}); candidate: {now}"
    assert line in found.stderr.splitlines()[0]
    assert [side["name"] for side in found.sides] == [f"HEAD~1 ({first})", now]


def test_a_checkout_builds_only_the_users_models_of_it(
    own: Repository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder, now = own.suite.parent, outside_models.find_facts_in
    monkeypatch.setattr(ab_builds, "RUN_BENCH", folder / "run_bench.py")
    (folder / "run_bench.py").touch()
    own.commit("def build(): ...  # beside the suite")
    (folder / "suite.toml").write_text('[[grid]]\nmodel = ["net.py:build", "mlp"]\n[[grid]]\nbatch_size = 2')
    built: list[str] = []

    def facts(directory: Path, python_path: str, name: str, num_classes: int) -> Facts:
        built.extend([] if directory == folder else [name])
        return now(directory, python_path, name, num_classes)

    monkeypatch.setattr(outside_models, "find_facts_in", facts)
    words = ["--device=cpu", "--nointerleave_steps", "--nowarmup", f"--output_dir={tmp_path / 'out'}"]
    monkeypatch.setattr(subprocesses, "supervise", FakeRuns(lambda run: fake_run(step_seconds=0.1)))
    assert main.dispatch(["ab", *words, "--suite=suite.toml", "--base=HEAD"]) == ExitStatus.OK
    assert built == ["net.py:build"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--base=nowhere", "--model=net.py:build"], "There is no revision 'nowhere' in the repository"),
        (["--base=HEAD", "--model=untracked.py:build"], "At 'HEAD' there is no untracked.py"),
        (["--base=HEAD", "--model=missing.py:build"], "the file missing.py does not exist"),
        (["--base=HEAD", "--model=../alone/net.py:build"], "is in no git repository, so it has no revisions"),
        (["--base=HEAD", "--model=net.py:build,mlp"], "and mlp to"),
        (["--base=HEAD", "--suite=suite.toml"], "and resnet50 to"),
        (["--base=main~1", "--model=../shallow/net.py:build"], "a shallow clone: complete it with"),
    ],
    ids=lambda value: value[1] if isinstance(value, list) else "",
)
def test_a_users_model_without_revisions_is_a_sentence(own: Repository, words: list[str], sentence: str) -> None:
    folder = own.suite.parent
    (folder / "untracked.py").touch()
    (folder / "suite.toml").write_text('[[grid]]\nmodel = "net.py:build"\n[[grid]]\nbatch_size = 2')
    (folder.parent / "alone").mkdir()
    (folder.parent / "alone" / "net.py").touch()
    own.git("clone", "--depth=1", f"file://{folder}", "../shallow")
    with pytest.raises(UsageError, match=re.escape(sentence)):
        main.dispatch(["ab", "--device=cpu", *words])


def test_what_the_checkout_cannot_build_or_takes_from_elsewhere_is_a_sentence(
    own: Repository, ab: Ab, builds: Builds, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = outside_models.find_facts_in

    def facts(directory: Path, *rest: Any) -> Facts:
        found = now(directory, *rest)
        is_now = directory == own.suite.parent
        return found if is_now else dataclasses.replace(found, sources={str(own.suite): "0"})

    monkeypatch.setattr(outside_models, "find_facts_in", facts)
    with pytest.raises(UsageError, match=r"At HEAD \(.*imports .*net.py as it is now"):
        ab("--base=HEAD", models="net.py:build")

    def refuse(directory: Path, *rest: Any) -> Facts:
        if directory == own.suite.parent:
            return now(directory, *rest)
        raise UsageError("net.py has no function 'build'.")

    monkeypatch.setattr(outside_models, "find_facts_in", refuse)
    with pytest.raises(UsageError, match=r"At HEAD \(.*net.py has no function"):
        ab("--base=HEAD", models="net.py:build")
    assert not builds.order


NET = """
import keras

from parts.width import WIDTH


def build(num_classes):
    images = keras.Input((16, 16, 3))
    x = keras.layers.Conv2D(WIDTH, 3, activation="relu")(images)
    x = keras.layers.Conv2D(WIDTH, 3, activation="relu")(x)
    return keras.Model(images, keras.layers.Dense(num_classes)(keras.layers.GlobalAveragePooling2D()(x)))
"""


@pytest.fixture
def real(tmp_path: Path) -> Repository:
    """A user's repository with a model that can be trained, which is also where commands start."""
    net = Repository(tmp_path / "net.py")
    net.git("init", "-b", "main")
    (tmp_path / ".gitignore").write_text("out\n__pycache__\n")
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "width.py").write_text("WIDTH = 8")
    net.commit(NET)
    return net


REAL = ("ab", "--base=HEAD", "--model=net.py:build", "--device=cpu", "--batch_size=32", "--num_batches=20")


@pytest.mark.slow
@pytest.mark.process
def test_a_slower_model_of_a_users_repository_regresses(run_bench: RunBench, real: Repository, tmp_path: Path) -> None:
    """Only a file that it imports differs, and is not committed."""
    (tmp_path / "parts" / "width.py").write_text("WIDTH = 64")
    done = run_bench(*REAL, "--threshold=20")
    assert done.status == ExitStatus.REGRESSED, done.stdout + done.stderr
    commit = real.git("rev-parse", "HEAD")[:12]
    sides = [load(tmp_path / "out" / "ab" / side / "results.jsonl").records for side in ("base", "candidate")]
    sides = [[record for record in records if record.status is Status.OK] for records in sides]
    assert [{record.model["code"] for record in records} for records in sides] == [
        {f"net.py at {commit}"},
        {f"net.py at {commit}+"},
    ]
    assert len({record.identity.config_key for records in sides for record in records}) == 2
    assert {record.config["model"] for records in sides for record in records} == {"net.py:build"}
    assert all(record.is_interleaved for records in sides for record in records)
    assert real.worktrees == 1


# The base's run leaves a record; the candidate's never ends.
HANGS = f"""
import json, sys, time
from pathlib import Path
flags = dict(word[2:].split("=", 1) for word in sys.argv[1:])
directory = Path(flags["output_dir"])
if directory.name == "candidate":
    print("it hangs", file=sys.stderr, flush=True)
    time.sleep(120)
record = json.loads({fake_run().to_json()!r})
record["identity"]["session_id"] = flags["session_id"]
with open(directory / "results.jsonl", "a") as file:
    file.write(json.dumps(record) + "\\n")
"""


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_the_run_that_hangs_and_removes_the_worktree(
    repository: Repository, tmp_path: Path, number: signal.Signals
) -> None:
    repository.commit(HANGS)
    code = (
        "import sys; from pathlib import Path\n"
        "from benchmarks.cli import main; from benchmarks.compare import builds\n"
        "builds.RUN_BENCH = Path(sys.argv.pop(1)); sys.exit(main.dispatch(sys.argv[1:]))"
    )
    words = ["ab", "--base=HEAD", "--nowarmup", "--device=cpu", "--model=trivial", f"--output_dir={tmp_path / 'out'}"]
    comparison = subprocess.Popen(
        [sys.executable, "-c", code, str(repository.suite), *words],
        cwd=ROOT,
        env={**USER_ENVIRONMENT, "TMPDIR": str(tmp_path / "temporary")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: any(log.read_text() for log in (tmp_path / "out" / "candidate").glob("logs/*.log")))
    assert repository.worktrees == 2
    comparison.send_signal(number)
    _, said = comparison.communicate(timeout=60)
    if number == signal.SIGTERM:
        assert comparison.returncode == 143 and "The finished runs are in" in said
    if number == signal.SIGKILL:  # another process cleans up
        wait_until(lambda: repository.worktrees == 1)
    assert repository.worktrees == 1 and not list((tmp_path / "temporary").iterdir())
    kept = load(tmp_path / "out" / "base" / "results.jsonl")
    assert len(kept.records) == 1 and not kept.problems

    def is_left() -> bool:
        commands = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
        return any(str(tmp_path) in word for command in commands for word in command)

    wait_until(lambda: not is_left())


@pytest.mark.parametrize("spoil", [lambda out: out.write_text("a file"), lambda out: out.symlink_to("out")])
def test_an_output_directory_that_cannot_be_is_refused_before_anything_runs(
    builds: Builds, ab: Ab, tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    spoil(tmp_path / "out")
    with pytest.raises(UsageError, match="Results cannot be written"):
        ab()
    assert not builds.order


@pytest.mark.seldom
def test_a_real_slow_down_is_found(run_bench: RunBench, tmp_path: Path) -> None:
    program = f"{sys.executable} {ROOT / 'run_bench.py'}"
    done = run_bench(
        "ab",
        f"--base_command={program}",
        f"--candidate_command=env CNN_BENCH_SLOW_DOWN_FOR_TESTS=1.0 {program}",
        "--device=cpu",
        "--model=mlp",
        "--num_batches=60",
        "--threshold=10",
        "--json_file=found.json",
    )
    assert done.status == ExitStatus.REGRESSED, done.stdout + done.stderr
    (finding,) = json.loads((tmp_path / "found.json").read_text())["findings"]
    assert finding["verdict"] == "regressed"
    base, candidate = (load(tmp_path / "out" / "ab" / side / "results.jsonl").records for side in ("base", "candidate"))
    assert all("on purpose" in record.warnings[0] for record in candidate)
    assert all(record.is_interleaved for record in [*base, *candidate])
