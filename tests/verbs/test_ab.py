"""A/B comparisons of two builds that stand for run_bench.py: how fast each is, and what fails, is decided here."""

from __future__ import annotations

import dataclasses
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from msgspec.structs import replace

from benchmarks.cli import main
from benchmarks.compare import builds as ab_builds
from benchmarks.errors import DataError, ExitStatus, UsageError
from benchmarks.process import subprocesses
from results.gate import noise
from results.gate.noise import Noise
from results.loading import load
from results.record import Record
from tests.support.commands import ROOT, USER_ENVIRONMENT, Finished
from tests.support.fake_runs import Failure, FakeRun, FakeRuns, interrupt
from tests.support.records import fake_run

# Of the runs of `trivial` in their usual batch.
KEY = fake_run(model="trivial").identity.config_key


@dataclasses.dataclass(frozen=True, kw_only=True)
class Build:
    """What a side's runs do.

    Attributes:
        name: in the list of what was started.
        rate: images per second, of models without one of their own.
        rates: of models.
        noise: standard deviation of a run's rate, as a share.
        crashes: numbers of the runs that crash, from 1, warm-up runs not counted.
        refuses: models and managers.
        batch: images per device that it runs, whatever its flags say.
        environment: what its records say beside the usual.
        raises: a signal to the whole comparison, while it runs.
    """

    name: str = ""
    rate: float = 100.0
    rates: Mapping[str, float] = dataclasses.field(default_factory=dict)
    noise: float = 0.002
    crashes: Sequence[int] = ()
    refuses: Sequence[str] = ()
    batch: int = 32
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    raises: int | None = None


class Builds:
    """Runs the builds that a test compares, and notes each run."""

    def __init__(self) -> None:
        self.named: dict[str, Build] = {}
        self.order: list[str] = []
        self._numbers: Counter[str] = Counter()

    def side(self, name: str, **does: Any) -> str:
        """Returns the flag of a side whose runs do this."""
        self.named[name] = Build(name=name, **does)
        return f"--{name}_command={sys.executable} {name}"

    def __call__(self, run: FakeRun) -> Record | Failure:
        program, flags = run.words[1], run.flags
        build = self.named.get(program) or Build(**json.loads(Path(program).read_text()))
        model, is_warmup = flags["model"], "warmup" in flags["output_dir"]
        what = f"{build.name} {model}"
        self.order.append(f"warmup {what}" if is_warmup else what)
        self._numbers[what] += not is_warmup
        number = self._numbers[what]
        if build.raises:
            interrupt(build.raises)
        if number in build.crashes and not is_warmup:
            return Failure(returncode=-signal.SIGSEGV, stderr="it broke here")
        if {model, flags.get("variable_update")} & {*build.refuses}:
            return Failure(returncode=2, stderr="run_bench: There is no flag --new.")
        rate = build.rates.get(model, build.rate)
        rate *= 1 + build.noise * random.Random(f"{build.name} {number}").gauss(0, 1)
        made = fake_run(model=model, batch_per_device=build.batch, step_seconds=build.batch / rate)
        environment = {**made.environment, "cpu_model": "a CPU", **build.environment}
        return replace(made, environment=environment)


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> Builds:
    """Builds, in place of processes."""
    made = Builds()
    monkeypatch.setattr(subprocesses, "supervise", FakeRuns(made))
    return made


@pytest.fixture
def side(builds: Builds) -> Callable[..., str]:
    """Returns the flag of a side whose runs do what a `Build` says."""
    return builds.side


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


@pytest.fixture
def ab(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Compared]:
    """Runs the verb, in this process."""
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)

    def run(*arguments: str, models: str = "trivial") -> Compared:
        words = ["ab", "--device=cpu", f"--output_dir={tmp_path / 'out'}", f"--baselines_dir={tmp_path / 'baselines'}"]
        chosen = [f"--model={models}"] if models else []
        status = main.dispatch([*words, *chosen, "--nosteps_in_turn", "--output_format=json", *arguments])
        shown = capsys.readouterr()
        said = json.loads(shown.out) if shown.out else {"findings": [], "notes": [], "base": {}, "candidate": {}}
        return Compared(status, said["findings"], said["notes"], [said["base"], said["candidate"]], shown.err)

    return run


@pytest.mark.parametrize(
    ("rate", "verdict", "status"),
    [(100, "unchanged", ExitStatus.OK), (90, "regressed", ExitStatus.REGRESSED), (112, "improved", ExitStatus.OK)],
)
def test_a_change_of_rate_gets_its_verdict(
    ab: Callable[..., Compared], side: Callable[..., str], rate: int, verdict: str, status: ExitStatus
) -> None:
    found = ab(side("base"), side("candidate", rate=rate))
    assert (found.verdicts, found.status) == ([verdict], status)
    (finding,) = found.findings
    assert finding["change"] == pytest.approx(rate / 100 - 1, abs=0.01)
    assert finding["base_rounds"] == finding["candidate_rounds"] >= 5
    assert finding["title"].startswith("trivial") and finding["config_key"] == KEY
    assert "round 1 of at most 15, trivial" in found.stderr and "candidate" in found.stderr


def test_what_the_sides_ran_is_named_if_their_words_have_flags_of_their_own(
    ab: Callable[..., Compared], side: Callable[..., str]
) -> None:
    found = ab(side("base", batch=16), side("candidate", batch=8))
    assert "1 x 16 against trivial" in found.stderr and "1 x 8: base 100" in found.stderr
    assert "1 x 32" not in found.stderr
    (note,) = found.notes
    difference = "batch_per_device is 16 in the base and 8 in the candidate"
    assert note == f"The sides understand the same flags differently: {difference}."


def test_noise_that_hides_the_answer_is_inconclusive(ab: Callable[..., Compared], side: Callable[..., str]) -> None:
    found = ab(side("base", noise=0.2), side("candidate", noise=0.2), "--max_rounds=6", "--nowarmup_round")
    assert (found.verdicts, found.status) == (["inconclusive"], ExitStatus.UNDECIDED)
    assert found.findings[0]["base_rounds"] == 6


def test_rounds_alternate_which_side_is_first_and_end_when_all_is_decided(
    ab: Callable[..., Compared], builds: Builds
) -> None:
    ab(builds.side("base"), builds.side("candidate"), models="trivial,mlp")
    warmup = [f"warmup {side} {model}" for model in ("trivial", "mlp") for side in ("base", "candidate")]
    pairs = [["base", "candidate"], ["candidate", "base"], ["base", "candidate"], ["candidate", "base"]]
    rounds = [f"{side} {model}" for pair in pairs for model in ("trivial", "mlp") for side in pair]
    started = builds.order
    assert started[: len(warmup)] == warmup
    assert started[len(warmup) :][: len(rounds)] == rounds
    assert len(started) < 4 + 2 * 2 * 15, "nothing is run that is decided"


def test_both_sides_keep_their_records_in_one_session(
    ab: Callable[..., Compared], side: Callable[..., str], tmp_path: Path
) -> None:
    ab(side("base"), side("candidate"))
    sides = [load(tmp_path / "out" / name / "results.jsonl").records for name in ("base", "candidate")]
    assert len(sides[0]) == len(sides[1]) >= 5
    assert len({record.identity.session_id for records in sides for record in records} - {""}) == 1
    assert len(load(tmp_path / "out" / "warmup" / "base" / "results.jsonl").records) == 1
    assert len(list((tmp_path / "out" / "candidate" / "logs").glob("*.log"))) == len(sides[1])


def test_without_a_warm_up_there_is_none(ab: Callable[..., Compared], builds: Builds, tmp_path: Path) -> None:
    ab(builds.side("base"), builds.side("candidate"), "--nowarmup_round")
    assert builds.order[0] == "base trivial" and not (tmp_path / "out" / "warmup").exists()


def test_a_candidate_that_crashes_where_the_base_runs_has_failed(ab: Callable[..., Compared], builds: Builds) -> None:
    found = ab(builds.side("base"), builds.side("candidate", crashes=[3, 4]), "--nowarmup_round")
    assert (found.verdicts, found.status) == (["failed"], ExitStatus.REGRESSED)
    reason = found.findings[0]["reason"]
    assert (
        "candidate" in reason and "round 3" in reason and "Segmentation fault" in reason and "it broke here" in reason
    )
    assert found.findings[0]["base_rounds"] == 2
    assert builds.order.count("candidate trivial") == 4, "it was tried again, and then left"


def test_one_crash_is_forgiven_and_noted(ab: Callable[..., Compared], side: Callable[..., str]) -> None:
    found = ab(side("base"), side("candidate", crashes=[2]))
    assert (found.verdicts, found.status) == (["unchanged"], ExitStatus.OK)
    assert len(found.notes) == 1 and "candidate failed, and was run again" in found.notes[0]


def test_a_base_that_crashes_decides_nothing(ab: Callable[..., Compared], side: Callable[..., str]) -> None:
    found = ab(side("base", crashes=[1, 2]), side("candidate"))
    assert (found.verdicts, found.status) == (["inconclusive"], ExitStatus.UNDECIDED)
    assert "The base did not run in round 1" in found.findings[0]["reason"]
    assert found.findings[0]["base_images_per_sec"] is None


def test_a_candidate_that_refuses_what_the_base_runs_has_failed(ab: Callable[..., Compared], builds: Builds) -> None:
    found = ab(builds.side("base"), builds.side("candidate", refuses=["mlp"]), models="trivial,mlp")
    assert (found.verdicts, found.status) == (["unchanged", "failed"], ExitStatus.REGRESSED)
    assert "There is no flag --new" in found.findings[1]["reason"]
    assert builds.order.count("candidate mlp") == 1, "what is refused once is refused again"


def test_a_combination_that_cannot_be_is_a_note(ab: Callable[..., Compared], side: Callable[..., str]) -> None:
    sides = [side(name, refuses=["independent"]) for name in ("base", "candidate")]
    found = ab(*sides, "--variable_update=parameter_server,independent", "--staged_vars=true")
    assert (found.verdicts, found.status) == (["unchanged"], ExitStatus.OK)
    (note,) = found.notes
    assert "--variable_update=independent" in note and "There is no flag --new" in note


def test_a_suite_has_several_configurations(
    ab: Callable[..., Compared], side: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "suite.toml").write_text('[[grid]]\nmodel = ["trivial", "vgg16"]\n[[grid]]\nmodel = "trivial"\n')
    found = ab(side("base"), side("candidate", rates={"vgg16": 85}), f"--suite={tmp_path / 'suite.toml'}", models="")
    assert (found.verdicts, found.status) == (["unchanged", "regressed"], ExitStatus.REGRESSED)
    assert [finding["title"].split(",")[0] for finding in found.findings] == ["trivial", "vgg16"]


def test_the_threshold_is_that_of_the_user(ab: Callable[..., Compared], side: Callable[..., str]) -> None:
    assert ab(side("base"), side("candidate", rate=92), "--threshold=15").verdicts == ["unchanged"]
    assert ab(side("base"), side("candidate", rate=97), "--threshold=2").verdicts == ["regressed"]


def test_a_noisy_machine_has_a_threshold_of_its_own(
    ab: Callable[..., Compared], side: Callable[..., str], tmp_path: Path
) -> None:
    path = noise.path_of(tmp_path / "baselines", fake_run().identity.hardware_key)
    noise.save(path, {KEY: Noise(noise=0.06, low=0.04, high=0.1, rounds=10, title="trivial, on it")})
    found = ab(side("base"), side("candidate", rate=92))
    assert found.verdicts == ["unchanged"] and found.findings[0]["threshold"] == pytest.approx(0.12)
    assert len(found.notes) == 1 and "trivial, on it: the threshold is 12.0 %" in found.notes[0]
    assert ab(side("base"), side("candidate", rate=92), "--threshold=5").verdicts == ["regressed"]


def test_noise_that_cannot_be_read_ends_the_comparison(
    ab: Callable[..., Compared], side: Callable[..., str], tmp_path: Path
) -> None:
    path = noise.path_of(tmp_path / "baselines", fake_run().identity.hardware_key)
    path.parent.mkdir(parents=True)
    path.write_text("{")
    with pytest.raises(DataError, match="run calibrate again"):
        ab(side("base"), side("candidate"))


def test_a_difference_of_software_is_named(ab: Callable[..., Compared], side: Callable[..., str]) -> None:
    found = ab(side("base"), side("candidate", environment={"tensorflow_version": "2.22.0"}))
    assert "TensorFlow 2.21.0" in found.sides[0]["software"] and "TensorFlow 2.22.0" in found.sides[1]["software"]
    (note,) = found.notes
    assert "tensorflow_version is 2.21.0 in the base and 2.22.0 in the candidate" in note


def test_unlike_hardware_is_refused(ab: Callable[..., Compared], side: Callable[..., str]) -> None:
    with pytest.raises(UsageError, match="cpu_model is a CPU in the base and another in the candidate"):
        ab(side("base"), side("candidate", environment={"cpu_model": "another"}))


@dataclasses.dataclass(frozen=True)
class Repository:
    """A small repository in which the suite lies."""

    suite: Path

    def commit(self, text: str) -> None:
        self.suite.write_text(text)
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


def test_a_revision_is_checked_out_and_removed(
    ab: Callable[..., Compared], builds: Builds, repository: Repository, tmp_path: Path
) -> None:
    found = ab("--base=HEAD~1", "--candidate=main")
    assert (found.verdicts, found.status) == (["regressed"], ExitStatus.REGRESSED)
    commit = repository.git("rev-parse", "HEAD~1")[:12]
    assert found.sides[0]["name"] == f"HEAD~1 ({commit})"
    assert {line.split()[-2] for line in builds.order} == {"first", "second"}
    assert repository.worktrees == 1 and not list((tmp_path / "temporary").iterdir())


def test_without_a_candidate_it_is_the_working_tree_as_it_is(
    ab: Callable[..., Compared], builds: Builds, repository: Repository
) -> None:
    repository.suite.write_text('{"name": "uncommitted", "rate": 100}')
    found = ab("--base=HEAD~1")
    assert found.verdicts == ["unchanged"] and "this suite as it is" in found.sides[1]["name"]
    assert {line.split()[-2] for line in builds.order} == {"first", "uncommitted"}


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_removes_the_worktree(
    ab: Callable[..., Compared], builds: Builds, repository: Repository, tmp_path: Path, number: int, status: int
) -> None:
    found = ab("--base=HEAD~1", builds.side("candidate", raises=number))
    assert found.status == status and "The finished runs are in" in found.stderr
    assert builds.order == ["warmup first trivial", "warmup candidate trivial"]
    assert repository.worktrees == 1 and not list((tmp_path / "temporary").iterdir())


def test_a_worktree_is_gone_also_if_something_fails(repository: Repository, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), ab_builds.of_revision("HEAD") as side:
        assert Path(side.program[1]).exists() and repository.worktrees == 2
        raise RuntimeError
    assert repository.worktrees == 1 and not list((tmp_path / "temporary").iterdir())


def test_git_hooks_do_not_lead_astray(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    with ab_builds.of_revision("HEAD") as side:
        assert Path(side.program[1]).exists()


@pytest.mark.parametrize("revision", ["nowhere", "--help", "HEAD~9"])
def test_an_unknown_revision_is_named(repository: Repository, revision: str) -> None:
    with pytest.raises(UsageError, match=f"no revision '{revision}'"), ab_builds.of_revision(revision):
        pass
    assert repository.worktrees == 1


def test_a_revision_without_the_suite_is_named(repository: Repository, tmp_path: Path) -> None:
    repository.git("mv", "run_bench.py", "other.py")
    repository.git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-m", "moved")
    with pytest.raises(UsageError, match="there is no bench/run_bench.py"), ab_builds.of_revision("HEAD"):
        pass
    assert not list((tmp_path / "temporary").iterdir())


def test_an_installed_suite_has_no_revisions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ab_builds, "RUN_BENCH", tmp_path / "run_bench.py")
    with pytest.raises(UsageError, match="is no git repository"), ab_builds.of_revision("HEAD"):
        pass


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
    words = [
        "ab",
        "--base=HEAD",
        "--nowarmup_round",
        "--device=cpu",
        "--model=trivial",
        f"--output_dir={tmp_path / 'out'}",
    ]
    comparison = subprocess.Popen(
        [sys.executable, "-c", code, str(repository.suite), *words],
        cwd=ROOT,
        env={**USER_ENVIRONMENT, "TMPDIR": str(tmp_path / "temporary")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not any(log.read_text() for log in (tmp_path / "out" / "candidate").glob("logs/*.log")):
        assert time.monotonic() < deadline and comparison.poll() is None
        time.sleep(0.05)
    assert repository.worktrees == 2
    comparison.send_signal(number)
    _, said = comparison.communicate(timeout=60)
    if number == signal.SIGTERM:
        assert comparison.returncode == 143 and "The finished runs are in" in said
    while number == signal.SIGKILL and repository.worktrees > 1:  # another process cleans up
        assert time.monotonic() < deadline + 60
        time.sleep(0.05)
    assert repository.worktrees == 1 and not list((tmp_path / "temporary").iterdir())
    kept = load(tmp_path / "out" / "base" / "results.jsonl")
    assert len(kept.records) == 1 and not kept.problems
    commands = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    assert not any(str(tmp_path) in word for command in commands for word in command)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--device=cpu"], "set what to compare with"),
        (["--candidate=HEAD"], "set what to compare with"),
        (["--base=a", "--base_command=true"], "--base and --base_command"),
        (["--base=a", "--candidate=b", "--candidate_command=true"], "--candidate and --candidate_command"),
        (["--base_command=nowhere --x"], "there is no program 'nowhere'"),
        (["--base_command="], "there is no program ''"),
        (["--base_command='a"], "No closing quotation"),
        (["--base_command=true", "--max_rounds=5"], "it must be at least 6 (pairs of rounds"),
        (["--base_command=true", "--threshold=0"], "--threshold=0"),
        (["--base_command=true", "--round_timeout_seconds=0"], "must be above 0"),
        (["--base_command=true", "--model=vgg61"], "Did you mean 'vgg16'?"),
        (["--base_command=true", "word"], "'word' is not a flag"),
    ],
)
def test_bad_input_gets_a_sentence(arguments: list[str], words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        main.dispatch(["ab", f"--output_dir={tmp_path / 'out'}", "--device=cpu", *arguments])
    assert words in str(error.value)


def test_an_output_directory_that_cannot_be_is_refused_before_anything_runs(
    builds: Builds, ab: Callable[..., Compared], tmp_path: Path
) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(UsageError, match="Results cannot be written"):
        ab(builds.side("base"), builds.side("candidate"))
    assert not builds.order


@pytest.mark.seldom
def test_a_real_slow_down_is_found(run_bench: Callable[..., Finished], tmp_path: Path) -> None:
    program = f"{sys.executable} {ROOT / 'run_bench.py'}"
    done = run_bench(
        "ab",
        f"--base_command={program}",
        f"--candidate_command=env CNN_BENCH_SLOW_DOWN_FOR_TESTS=1.0 {program}",
        "--device=cpu",
        "--model=mlp",
        "--num_batches=60",
        "--threshold=10",
        "--json=found.json",
    )
    assert done.status == ExitStatus.REGRESSED, done.stdout + done.stderr
    (finding,) = json.loads((tmp_path / "found.json").read_text())["findings"]
    assert finding["verdict"] == "regressed"
    base, candidate = (load(tmp_path / "out" / "ab" / side / "results.jsonl").records for side in ("base", "candidate"))
    assert all("on purpose" in record.warnings[0] for record in candidate)
    assert all(record.is_interleaved for record in [*base, *candidate])
