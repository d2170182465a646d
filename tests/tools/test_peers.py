"""The comparison with tf_cnn_benchmarks, with scripts in place of both sides."""

from __future__ import annotations

import dataclasses
import itertools
import math
import shlex
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from benchmarks.errors import ExitStatus
from benchmarks.machine import provenance
from benchmarks.process.subprocesses import ExitInfo
from results.record import Status
from tests.support.records import make_record
from tools.peers import __main__ as peers
from tools.peers import comparison, sides
from tools.peers.comparison import Round, Row
from tools.peers.loaders import LOADERS
from tools.peers.sides import Sides

pytestmark = pytest.mark.process
HERE = {"cpu": "a CPU", "extensions": ["AVX2"], "cores": 2, "tensorflow": "2.21.0", "peer_tensorflow": "2.20.0"}
PAIR = Row(name="pair", work="a pair", both="--model=trivial --num_batches=2", ours="--nodistortions")
ALONE = Row(name="alone", work="ourselves", both="--model=trivial", against="ours")
CLUSTER = Row(name="cluster", work="a cluster", both="--model=alexnet", cluster=True)

Compare = Callable[..., int]


def finished(row: Row, *ratios: float, **changes: object) -> list[Round]:
    flags = [row.flags("theirs"), row.flags("ours")]
    common = Round(row=row.name, flags=flags, theirs=100.0, ours=0.0, date="2026-01-02", commit="abc", machine=HERE)
    return [dataclasses.replace(common, ours=100.0 * ratio, **changes) for ratio in ratios]


@pytest.fixture
def compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compare:
    """Compares with a script that tells 128 images/s; ours tells the 160 of `make_record`. Both list their calls."""
    script = tmp_path / "checkout/scripts/tf_cnn_benchmarks/tf_cnn_benchmarks.py"
    script.parent.mkdir(parents=True)
    calls, record = tmp_path / "calls", tmp_path / "record.json"
    script.write_text(f'echo "theirs $*" >>{calls}\n{"{}"}\necho "total images/sec: 128.00"\n'.format(""))
    record.write_text(make_record().to_json())
    python, ours = tmp_path / "python", tmp_path / "ours"
    python.write_text('#!/bin/sh\nif [ "$1" = -c ]; then echo 2.20.0; else exec /bin/sh "$@"; fi\n')
    ours.write_text(f'#!/bin/sh\necho "ours $*" >>{calls}\ncat {record}\n')
    for program in (python, ours):
        program.chmod(0o755)
    monkeypatch.setattr(peers, "Sides", lambda output_dir, peer: Sides(output_dir, peer, ours=(str(ours),)))
    monkeypatch.setattr(comparison, "rows", lambda: [PAIR, ALONE, CLUSTER])
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> int:
        return peers.main(["--python=python", "checkout", *words])

    return run


def test_the_rows_are_complete() -> None:
    rows = comparison.rows()
    assert len({row.name for row in rows}) == len(rows) > 0
    for row in rows:
        assert row.against in ("ours", "tf_cnn_benchmarks", *LOADERS), row.name
        assert row.unit, row.name
        if row.is_of_input:
            assert "{photos}" in row.theirs and "={photos}" in row.ours, row.name
        else:
            assert set(row.both.split()) & {"--num_gpus=1", "--num_gpus=2", "--model=resnet50"}, row.name


def test_a_ratio_has_the_interval_of_its_rounds() -> None:
    text = comparison.as_markdown({PAIR: finished(PAIR, 1.21, 1.21 / 1.1, 1.21 * 1.1)}, HERE, {})
    half = 4.302653 * 0.0953102 / 3**0.5  # Student's, of 2 degrees of freedom; ln(1.1) is the standard deviation
    low, high = 1.21 * math.exp(-half), 1.21 * math.exp(half)
    assert f"| a pair | 100 images/s | 121 images/s | 1.21 [{low:.2f}, {high:.2f}] | 3 |" in text


def test_only_rounds_of_this_machine_and_these_flags_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "rows", lambda: [PAIR, ALONE])
    rounds = [
        *finished(PAIR, 1.3, 1.3),
        *finished(PAIR, 9.0, machine={**HERE, "cpu": "another"}),
        *finished(PAIR, 9.0, flags=[["--model=vgg16"], []]),
    ]
    text = comparison.as_markdown(comparison.of_rows(rounds, HERE), HERE, {"alone": "It broke."})
    assert "| a pair | 100 images/s | 130 images/s | 1.30 [1.30, 1.30] | 2 |" in text
    assert "on 2026-01-02 on 2 cores of an a CPU with AVX2" in text
    assert "| ourselves |  |  |  | 0 |" in text and "- ourselves: It broke." in text


def test_the_published_table_is_of_one_commit_and_enough_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "rows", lambda: [PAIR, ALONE])
    for commits in (["abc", "def", "abc"], ["abc+"] * 3, [None] * 3):
        rounds = [dataclasses.replace(finished(PAIR, 1.3)[0], commit=commit) for commit in commits]
        assert "commit" in comparison.why_not_published({PAIR: rounds})
    kept = tmp_path / "kept.jsonl"
    monkeypatch.setattr(comparison, "KEPT", kept)
    assert comparison.page() == "No table is published yet."
    comparison.keep([*finished(PAIR, 1.3, 1.3, 1.3), *finished(ALONE, 1.0, 1.1)], kept)
    assert comparison.page() == "No table is published yet: 1 row with fewer than 3 rounds, such as alone."
    comparison.keep([*finished(PAIR, 1.3, 1.3, 1.3), *finished(ALONE, 1.0, 1.1, 1.2)], kept)
    assert "| a pair | 100 images/s | 130 images/s | 1.30 [1.30, 1.30] | 3 |" in comparison.page()


@pytest.mark.parametrize(("commit", "repeats", "kept"), [("abc", 3, 3), ("abc+", 3, 0)])
def test_only_rounds_of_a_table_that_may_be_published_are_kept(
    compare: Compare,
    commit: str,
    repeats: int,
    kept: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(comparison, "KEPT", tmp_path / "kept.jsonl")
    monkeypatch.setattr(comparison, "rows", lambda: [ALONE])
    monkeypatch.setattr(provenance, "suite_commit", lambda: commit)
    assert compare(f"--repeats={repeats}", "--keep") == (ExitStatus.OK if kept else ExitStatus.UNDECIDED)
    assert ("gets no new table" in capsys.readouterr().err) == (kept == 0)
    assert len(comparison.load(tmp_path / "kept.jsonl")) == kept


def test_sides_alternate_with_equal_flags_and_what_is_finished_is_not_run_again(
    compare: Compare, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare("--repeats=2", "pair") == ExitStatus.OK
    calls = [line.split() for line in (tmp_path / "calls").read_text().splitlines()]
    assert [call[0] for call in calls] == ["theirs", "ours"] * 2
    assert set(calls[0]) - set(calls[1]) == {"theirs", "--data_format=NHWC"}
    assert {"--nodistortions", "--num_warmup_batches=3"} <= set(calls[1])
    printed = capsys.readouterr().out
    assert "| a pair | 128 images/s | 160 images/s | 1.25 [1.25, 1.25] | 2 |" in printed
    assert printed == (tmp_path / "out/peers/table.md").read_text()
    assert compare("--repeats=3", "pair") == ExitStatus.OK
    assert len((tmp_path / "calls").read_text().splitlines()) == 6
    assert compare("--repeats=1", "alone") == ExitStatus.OK
    assert compare("--repeats=1", "--again", "pair") == ExitStatus.OK
    assert len((tmp_path / "calls").read_text().splitlines()) == 6 + 2 + 2
    lines = (tmp_path / "out/peers/table.md").read_text().splitlines()[-3:]
    assert [line[-4:] for line in lines] == [" 1 |", " 1 |", " 0 |"]


def test_a_cluster_is_one_server_and_two_workers_of_which_the_first_tells_the_rate(
    compare: Compare, tmp_path: Path
) -> None:
    script = tmp_path / "checkout/scripts/tf_cnn_benchmarks/tf_cnn_benchmarks.py"
    wait = (
        'case "$*" in *--job_name=worker*--task_index=0*) sleep 0.3;; *) echo "total images/sec: 1"; sleep 60;; esac\n'
    )
    script.write_text(f'echo "$*" >>{tmp_path}/calls\n{wait}echo "total images/sec: 128.00"\n')
    assert compare("--repeats=1", "cluster") == ExitStatus.OK
    calls = (tmp_path / "calls").read_text().splitlines()
    jobs = sorted(call.partition("--job_name=")[2] for call in calls[:3])
    assert jobs == ["ps --task_index=0", "worker --task_index=0", "worker --task_index=1"]
    assert "--local_cluster=ps:1,worker:2" in calls[3]
    assert "| a cluster | 128 images/s |" in (tmp_path / "out/peers/table.md").read_text()


def test_a_failed_run_is_a_sentence_with_its_log_and_the_other_rows_go_on(
    compare: Compare, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "checkout/scripts/tf_cnn_benchmarks/tf_cnn_benchmarks.py").write_text("echo no such model; exit 3\n")
    assert compare("--repeats=2", "pair", "alone") == ExitStatus.RUN_FAILED
    printed = capsys.readouterr().out
    assert "ended with status 3: its log is out/peers/logs/pair-1-theirs.log" in printed.replace("\\", "")
    assert "no such model" in (tmp_path / "out/peers/logs/pair-1-theirs.log").read_text()
    assert "| ourselves | 160 images/s | 160 images/s | 1.00 [1.00, 1.00] | 2 |" in printed


@pytest.mark.parametrize(
    ("ours", "seen"),
    [
        ("echo oh dear >&2; exit 2", "ended with status 2, and left no record: its log is"),
        (
            f"echo {shlex.quote(make_record(status=Status.INVALID, reason='The loss is NaN.').to_json())}",
            "is invalid: The loss is NaN. Its log is",
        ),
    ],
    ids=["no record", "invalid"],  # a record has a random number
)
def test_our_failed_run_is_a_sentence_too(
    compare: Compare, tmp_path: Path, capsys: pytest.CaptureFixture[str], ours: str, seen: str
) -> None:
    (tmp_path / "ours").write_text(f"#!/bin/sh\n{ours}\n")
    assert compare("alone") == ExitStatus.RUN_FAILED
    assert f"A run of this suite {seen}" in capsys.readouterr().err


@pytest.mark.parametrize(("measure", "ours"), [("process_seconds", "7"), ("first_measured_step_seconds", "3.3")])
def test_times_are_of_the_process_or_up_to_the_first_measured_step(
    compare: Compare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measure: str, ours: str
) -> None:
    row = dataclasses.replace(PAIR, measure=measure)
    monkeypatch.setattr(comparison, "rows", lambda: [row])
    run = sides.subprocesses.supervise

    def timed(*commands: object, timeout_seconds: float | None) -> list[ExitInfo]:
        return [dataclasses.replace(each, seconds=7.0) for each in run(*commands, timeout_seconds=timeout_seconds)]

    monkeypatch.setattr(sides.subprocesses, "supervise", timed)
    assert compare("--repeats=1") == ExitStatus.OK
    assert f"| a pair | 7 s | {ours} s |" in (tmp_path / "out/peers/table.md").read_text()


@pytest.mark.parametrize(("name", "flags"), [("photos", ""), ("pixels", " --resize=256 --decoded")])
def test_images_are_made_once_for_the_rows_that_read_them(
    compare: Compare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, flags: str
) -> None:
    monkeypatch.setattr(comparison, "rows", lambda: [dataclasses.replace(ALONE, both=f"--data_dir={{{name}}}")])
    (tmp_path / "ours").write_text(
        f'#!/bin/sh\nif [ "$1" = data ]; then mkdir -p "$3"; echo "$@" >>calls; else cat {tmp_path}/record.json; fi\n'
    )
    assert compare("--repeats=2") == ExitStatus.OK
    folder = tmp_path / "out/peers" / name
    assert (tmp_path / "calls").read_text() == f"data make_imagenet {folder}.partial --overwrite{flags}\n"
    assert f"--data_dir={folder}" in (tmp_path / "out/peers/logs/alone-2-ours.log").read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("nowhere",), "PEER=nowhere is no folder. Clone https://github.com/tensorflow/benchmarks"),
        (("empty",), "PEER=empty has no scripts/tf_cnn_benchmarks/tf_cnn_benchmarks.py"),
        (("checkout", "--python=missing"), "cannot be started: "),
        (("checkout", "--python=bare"), "cannot run tf_cnn_benchmarks (No module named tensorflow). Install"),
        (("checkout", "paris"), "ROWS=paris names no row. Rows: pair, alone, cluster."),
    ],
)
def test_what_cannot_be_compared_with_is_a_sentence(
    compare: Compare, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], sentence: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bare").write_text("#!/bin/sh\necho No module named tensorflow >&2; exit 1\n")
    (tmp_path / "bare").chmod(0o755)
    assert peers.main(["--python=python", *words]) == ExitStatus.USAGE
    assert sentence in capsys.readouterr().err


@pytest.fixture
def installs(compare: Compare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for the Python that makes environments, and for the pip in them; lists what is installed."""
    program, calls = tmp_path / "installing", tmp_path / "installed"
    program.write_text(
        '#!/bin/sh\ncase "$2" in\nvenv) mkdir -p "$4/bin"; cp "$0" "$4/bin/python";;\n'
        f'pip) shift 5; echo "$*" >>{calls};;\n'
        'import*) echo 2.20.0;;\n*) exec /bin/sh "$@";;\nesac\n'
    )
    program.chmod(0o755)
    monkeypatch.setattr(sides.sys, "executable", str(program))
    return calls


def test_without_a_python_an_environment_is_made_once(installs: Path, compare: Compare) -> None:
    for _ in range(2):
        assert peers.main(["--repeats=1", "checkout", "pair"]) == ExitStatus.OK
    assert installs.read_text().splitlines() == [
        "tensorflow-cpu==2.21.0 psutil pandas",
        "--no-deps tf_keras portpicker",
    ]


def test_a_line_that_is_no_round_is_named(compare: Compare, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out/peers").mkdir(parents=True)
    (tmp_path / "out/peers/rounds.jsonl").write_text('{"row": "pair"}\n')
    assert compare("pair") == ExitStatus.DATA
    assert "out/peers/rounds.jsonl has a line that is no round" in capsys.readouterr().err


def test_other_loaders_of_photos_are_compared_with_the_input_alone(
    installs: Path, compare: Compare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = Row(
        name="input",
        work="photos",
        both="",
        theirs="photos",
        ours="--batch_size=64",
        against="spdl",
        measure="input_images_per_second",
    )
    record = make_record()
    taken = msgspec.structs.replace(record.measurement, input_stages={"decode": 900.0, "batch": 320.0, "copy": 300.0})
    (tmp_path / "record.json").write_text(msgspec.structs.replace(record, measurement=taken).to_json())
    script = tmp_path / "loaders.sh"
    script.write_text(f'echo "loader $*" >>{tmp_path}/calls\necho "total images/sec: 640.00"\n')
    monkeypatch.setattr(comparison, "rows", lambda: [row])
    monkeypatch.setattr(sides.loaders, "__file__", str(script))
    assert compare("--repeats=1") == ExitStatus.OK
    assert "torchvision" in installs.read_text()
    theirs, ours = (tmp_path / "calls").read_text().splitlines()
    assert theirs == "loader spdl photos" and ours.startswith("ours input --device=cpu --batch_size=64 ")
    assert "| photos | 640 images/s | 320 images/s |" in (tmp_path / "out/peers/table.md").read_text()


def test_the_rate_of_a_loader_counts_the_batches_after_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(sides.loaders.time, "perf_counter", lambda: float(next(ticks)))
    batches = iter(range(100))
    assert sides.loaders.rate(batches, warmup=10, seconds=3.0) == pytest.approx(2 * 64 / 4)
    assert next(batches) == 12
