"""Sweeps whose runs are small programs that do all the things that a run may do."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from benchmarks import child_process, flags, grid, sweep_job
from benchmarks.duration import estimate_seconds, in_words
from benchmarks.errors import ExitStatus, UsageError
from results.record import Status
from results.store import Store, StoreError, load
from tests.support.commands import ROOT, USER_ENVIRONMENT, Finished
from tests.support.records import fake_run

# Stands for run_bench.py: leaves a record at once, or does what goes wrong for the batch size that it is given.
CHILD = f"""
import os, signal, sys, time
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
from benchmarks import config, flags, provenance
from results.measurement import Derived, Measurement, derive
from results.record import Record, Status
from results.store import Store

def main():
    parsed = flags.parse(sys.argv[1:], flags.RUN_FLAGS)
    chosen = config.resolve(parsed.values, lambda: 0)
    batch = chosen.batch_per_device
    if batch == 2: sys.exit(3)
    if batch == 3: print("garbage \\x00\\xff \\u2603"); sys.stdout.flush(); os._exit(0)
    if batch == 4: os.kill(os.getpid(), signal.SIGSEGV)
    if batch == 5: time.sleep(3600)
    if batch == 6: os.kill(os.getpid(), signal.SIGKILL)
    if batch == 7: print("run_bench: no such device", file=sys.stderr); sys.exit(2)
    time.sleep(float(os.environ.get("CHILD_SECONDS", 0)))
    measurement = Measurement(images_per_step=batch, step_seconds=[0.1] * 5, startup_seconds=1.0)
    origin = provenance.of_this_run(sys.argv[1:], on_gpus=False, session_id=chosen.session_id)
    Store(Path(chosen.output_dir)).append(Record(
        identity=origin.identity(chosen.key_fields()), config=chosen.to_dict(), config_aside=chosen.aside_fields(),
        environment={{}}, model={{}}, placement={{}}, measurement=measurement,
        derived=derive(measurement, 1), status=Status.OK))

main()
"""


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    child = tmp_path / "child.py"
    child.write_text(CHILD)
    return [sys.executable, str(child)]


def _plan(tmp_path: Path, program: list[str], *arguments: str) -> sweep_job.Plan:
    words = grid.spell_out_booleans(["--device=cpu", "--model=trivial", f"--output_dir={tmp_path / 'out'}", *arguments])
    plan = sweep_job.resolve(flags.parse(words, grid.sweep_groups(flags.SWEEP_FLAGS)).values, lambda: 0)
    return sweep_job.dataclasses.replace(plan, program=program)


def _records(tmp_path: Path) -> list:
    return load(tmp_path / "out" / "results.jsonl").records


def _what(record: object) -> tuple:
    return record.config["batch_per_device"], record.config["num_devices"], str(record.status)


def test_a_sweep_goes_on_whatever_happens_to_a_run(
    tmp_path: Path, program: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = _plan(tmp_path, program, "--batch_size=1,2,3,4,5,6,7,8", "--round_timeout_seconds=3")
    run = child_process.run

    def run_longer(command: child_process.Command, timeout_seconds: float) -> list[child_process.Ended]:
        hangs = "--batch_size=5" in command.words  # the others may be slow
        return run(command, timeout_seconds=timeout_seconds if hangs else 120.0)

    monkeypatch.setattr(child_process, "run", run_longer)
    assert sweep_job.run(plan, []) == ExitStatus.RUN_FAILED
    by_batch = {record.config["batch_per_device"]: record for record in _records(tmp_path)}
    statuses = {batch: str(record.status) for batch, record in by_batch.items()}
    assert statuses == {
        1: "ok",
        2: "crash",
        3: "crash",
        4: "crash",
        5: "timeout",
        6: "crash",
        7: "skipped",
        8: "ok",
    }
    assert "status 3" in by_batch[2].reason and "garbage" in by_batch[3].reason
    assert "Segmentation fault" in by_batch[4].reason
    assert "Killed" in by_batch[6].reason and "memory" in by_batch[6].reason
    assert "--round_timeout_seconds" in by_batch[5].reason
    assert by_batch[7].reason == "no such device"
    sessions = {record.identity.session_id for record in by_batch.values()}
    assert len(sessions) == 1 and sessions != {""}
    shown = capsys.readouterr()
    assert "8 of 8 combinations" in shown.out and "[8/8]" in shown.err
    assert "garbage" not in shown.out.split("crash")[0]


def test_combinations_that_cannot_be_are_rows_with_the_reason(tmp_path: Path, program: list[str]) -> None:
    plan = _plan(tmp_path, program, "--variable_update=parameter_server,independent", "--staged_vars=true,false")
    assert sweep_job.run(plan, []) == ExitStatus.OK
    statuses = [(r.config["variable_update"], str(r.status)) for r in _records(tmp_path)]
    assert sorted(statuses) == [
        ("independent", "ok"),
        ("independent", "skipped"),
        ("parameter_server", "ok"),
        ("parameter_server", "ok"),
    ]
    (skipped,) = (r for r in _records(tmp_path) if r.status is Status.SKIPPED)
    assert "--staged_vars goes with parameter_server" in skipped.reason


def test_repeats_are_interleaved_forth_and_back(tmp_path: Path, program: list[str]) -> None:
    sweep_job.run(_plan(tmp_path, program, "--num_gpus=1,2", "--batch_size=1,8", "--repeats=3"), [])
    order = [_what(record)[:2] for record in _records(tmp_path)]
    forth = [(1, 1), (1, 2), (8, 1), (8, 2)]
    assert order == forth + forth[::-1] + forth


def _start(tmp_path: Path, program: list[str], *arguments: str) -> subprocess.Popen:
    code = (
        "import sys, json; from benchmarks import sweep_job, grid, flags\n"
        "values = flags.parse(json.loads(sys.argv[1]), grid.sweep_groups(flags.SWEEP_FLAGS)).values\n"
        "plan = sweep_job.dataclasses.replace(sweep_job.resolve(values, lambda: 0), program=json.loads(sys.argv[2]))\n"
        "sys.exit(sweep_job.run(plan, []))"
    )
    words = ["--device=cpu", "--model=trivial", f"--output_dir={tmp_path / 'out'}", *arguments]
    return subprocess.Popen(
        [sys.executable, "-c", code, json.dumps(words), json.dumps(program)],
        cwd=ROOT,
        env={**USER_ENVIRONMENT, "CHILD_SECONDS": "0.5"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _wait_for_records(tmp_path: Path, count: int) -> None:
    path = tmp_path / "out" / "results.jsonl"
    _wait_until(lambda: path.exists() and path.read_bytes().count(b"\n") >= count)


def _no_child_is_left(program: list[str]) -> bool:
    return not any(program[1] in (process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"]))


def test_kill_and_resume_leave_what_an_uninterrupted_sweep_would(tmp_path: Path, program: list[str]) -> None:
    arguments = ("--num_gpus=1,2", "--repeats=2", "--staged_vars=true,false")
    whole = tmp_path / "whole"
    whole.mkdir()
    assert _start(whole, program, *arguments).wait(120) == 0
    killed = _start(tmp_path, program, *arguments)
    _wait_for_records(tmp_path, 3)
    _wait_until(lambda: list((tmp_path / "out" / "logs").glob("*-0004.log")))
    time.sleep(0.3)  # in the middle of the next
    killed.kill()
    killed.wait()
    time.sleep(0.7)
    assert _no_child_is_left(program), "a run dies with its sweep"
    before = len(_records(tmp_path))
    assert 3 <= before < 8
    resumed = _start(tmp_path, program, *arguments, "--resume")
    assert resumed.wait(120) == 0
    assert list(map(_what, _records(tmp_path))) == list(map(_what, _records(whole)))
    again = _start(tmp_path, program, *arguments, "--resume")
    assert again.wait(120) == 0
    assert len(_records(tmp_path)) == 8, "nothing was missing"


@pytest.mark.parametrize(("signal_number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_a_sweep_in_order(tmp_path: Path, program: list[str], signal_number: int, status: int) -> None:
    sweep = _start(tmp_path, program, "--batch_size=1,8,9,10")
    _wait_for_records(tmp_path, 1)
    sweep.send_signal(signal_number)
    assert sweep.wait(120) == status
    assert _no_child_is_left(program)
    assert all(record.status is Status.OK for record in _records(tmp_path))


def test_no_run_is_begun_when_time_is_over(
    tmp_path: Path, program: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    sweep_job.run(_plan(tmp_path, program, "--batch_size=1,8,9", "--stop_after_seconds=0.01"), [])
    assert len(_records(tmp_path)) == 1
    assert "2 runs are left for --resume" in capsys.readouterr().err


def test_a_full_disk_loses_no_record(
    tmp_path: Path, program: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Store, *records: object) -> list[str]:
        raise StoreError("The record could not be stored: No space left on device.")

    plan = _plan(tmp_path, program, "--batch_size=2")
    monkeypatch.setattr(Store, "append", full)
    assert sweep_job.run(plan, []) == ExitStatus.RUN_FAILED
    shown = capsys.readouterr()
    assert "No space left" in shown.err and '"status":"crash"' in shown.out


def test_a_record_that_could_not_be_stored_is_taken_from_what_was_printed(tmp_path: Path) -> None:
    child = tmp_path / "child.py"
    child.write_text(
        CHILD.replace("Store(Path(chosen.output_dir)).append(Record(", "print(Record(").replace(
            "status=Status.OK))", "status=Status.OK).to_json()); sys.exit(4)"
        )
    )
    sweep_job.run(_plan(tmp_path, [sys.executable, str(child)], "--batch_size=8"), [])
    assert [_what(record) for record in _records(tmp_path)] == [(8, 1, "ok")]


def test_what_a_run_refused_is_tried_again(tmp_path: Path, program: list[str]) -> None:
    for _ in range(2):
        sweep_job.run(_plan(tmp_path, program, "--batch_size=7,8", "--resume"), [])
    assert [_what(record)[::2] for record in _records(tmp_path)] == [(7, "skipped"), (8, "ok"), (7, "skipped")]


def test_a_run_that_the_kernel_ended_for_want_of_memory_is_oom(
    tmp_path: Path, program: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = iter([4, 5])
    monkeypatch.setattr(child_process, "_out_of_memory_kills", lambda: next(kills))
    sweep_job.run(_plan(tmp_path, program, "--batch_size=6"), [])
    assert [str(record.status) for record in _records(tmp_path)] == ["oom"]


def test_crashes_are_rows_with_their_repeats(tmp_path: Path, program: list[str]) -> None:
    """Whoever writes a record, the software and the hardware are the same."""
    sweep_job.run(_plan(tmp_path, program, "--batch_size=2,8"), [])
    identities = [record.identity for record in _records(tmp_path)]
    assert len({(one.software_key, one.hardware_key) for one in identities}) == 1


def test_brackets_in_a_reason_are_text_on_a_terminal(tmp_path: Path) -> None:
    child = tmp_path / "child.py"
    child.write_text("import sys; print('[/job:localhost/task:0] failed'); sys.exit(3)")
    code = (
        "import sys, pty, os\n"
        "from benchmarks import sweep_display\n"
        "bar = sweep_display._Bar(1.0); bar.show('[red]', 1.0); bar.log('[/job:localhost/task:0] failed'); bar.stop()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "[/job:localhost/task:0] failed" in done.stderr, done.stderr


SUITE = """
[[grid]]
model = ["trivial", "alexnet"]
num_gpus = [1, 2]
[[grid]]
model = "vgg16"
staged_vars = true
"""


def test_a_suite_is_several_grids(tmp_path: Path, program: list[str]) -> None:
    (tmp_path / "suite.toml").write_text(SUITE)
    words = [f"--suite={tmp_path / 'suite.toml'}", "--device=cpu", "--batch_size=4"]
    plan = sweep_job.resolve(flags.parse(words, grid.sweep_groups(flags.SWEEP_FLAGS)).values, lambda: 0)
    found = [(c.config.model, c.config.num_devices, c.config.modifiers.staged_vars) for c in plan.cells if c.config]
    assert found == [
        ("trivial", 1, False),
        ("trivial", 2, False),
        ("alexnet", 1, False),
        ("alexnet", 2, False),
        ("vgg16", 1, True),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[grid]", "suite.toml"),
        ("model = 'vgg16'", "[[grid]]"),
        ("[[grid]]\nmodle = 'vgg16'", "Did you mean 'model'?"),
        ("[[grid]]\nprint_config = true", "for all runs together"),
    ],
)
def test_a_bad_suite_is_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "suite.toml").write_text(text)
    values = flags.parse([f"--suite={tmp_path / 'suite.toml'}"], grid.sweep_groups(flags.SWEEP_FLAGS)).values
    with pytest.raises(UsageError) as error:
        sweep_job.resolve(values, lambda: 0)
    assert words in str(error.value)


def test_what_comes_to_the_same_is_run_once(tmp_path: Path, program: list[str]) -> None:
    plan = _plan(tmp_path, program, "--variable_update=staged,parameter_server", "--staged_vars")
    assert [cell.runs for cell in plan.cells] == [True, False]


def test_flag_files_are_read_as_run_reads_them(tmp_path: Path) -> None:
    (tmp_path / "some.flags").write_text("--staged_vars\n--num_batches=50\n")
    words = grid.spell_out_booleans([f"--flagfile={tmp_path / 'some.flags'}", "--model=vgg16"])
    assert words == ["--staged_vars=true", "--num_batches=50", "--model=vgg16"]


def test_booleans_without_a_value() -> None:
    words = ["--staged_vars", "--nofc_model_parallel", "--model", "vgg16", "--forward_only", "true,false"]
    assert grid.spell_out_booleans(words) == [
        "--staged_vars=true",
        "--fc_model_parallel=false",
        "--model",
        "vgg16",
        "--forward_only",
        "true,false",
    ]


def test_estimates_learn_from_earlier_runs() -> None:
    values = flags.parse(["--device=cpu", "--num_batches=10", "--num_warmup_batches=0"], flags.RUN_FLAGS).values
    chosen = sweep_job.grid.config.resolve(values, lambda: 0)
    guess = estimate_seconds(chosen, [])
    assert guess > 6
    earlier = fake_run(step_seconds=2.0)
    earlier = sweep_job.dataclasses.replace(
        earlier,
        identity=sweep_job.dataclasses.replace(earlier.identity, config_key=sweep_job.key_of(chosen.key_fields())),
    )
    assert estimate_seconds(chosen, [earlier]) == pytest.approx(3 + 12 * 2.0)
    assert (in_words(5.2), in_words(600), in_words(6000)) == ("6 s", "10 min", "1 h 40 min")


def test_the_verbs_about_records(run_bench: Callable[..., Finished], tmp_path: Path) -> None:
    store = Store(tmp_path / "out")
    one, other = fake_run(), fake_run(num_devices=2, step_seconds=0.12)
    store.append(one, other)
    table = run_bench("report")
    assert table.status == 0 and "resnet50" in table.stdout, table.stderr
    made = run_bench("report", "out", "--output=here", "--against=modern", "--where=status=ok,num_gpus=2")
    assert made.status == 0, made.stderr
    assert (tmp_path / "here" / "report.html").exists() and "1 records" in made.stdout
    differ = run_bench("diff", one.identity.run_id, other.identity.run_id)
    assert "config.num_devices: 1 -> 2" in differ.stdout and "derived.images_per_sec: 320 -> 533.3" in differ.stdout
    shown = run_bench("rerun", one.identity.run_id[:8], "--dry_run")
    assert shown.stdout.startswith("$ ") and "--model=resnet50" in shown.stdout


@pytest.mark.process
def test_rerun_ends_with_the_status_of_the_run(run_process: Callable[..., Finished], tmp_path: Path) -> None:
    refused = fake_run()  # whose command has --num_devices, which is no flag
    Store(tmp_path / "out").append(refused)
    done = run_process("rerun", refused.identity.run_id, "out")
    assert done.status == 2 and "There is no flag --num_devices" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["report", "nowhere.jsonl"], 5, "nowhere.jsonl: No such file"),
        (["report"], 5, "out/results.jsonl"),
        (["rerun"], 2, "name the record by its run id"),
        (["diff", "abc"], 2, "name two records"),
        (["sweep", "--device=cpu", "--repeats=0"], 2, "--repeats=0 must be above 0"),
        (["sweep", "--device=cpu", "--model=vgg61,trivial", "--dry_run"], 0, ""),
        (["sweep", "--device=cpu", "--model=vgg61"], 2, "Did you mean 'vgg16'?"),
        (["sweep", "--device=cpu", "--variable_update=replicate"], 2, "Did you mean 'replicated'?"),
        (["sweep", "--device=cpu", "--model=trivial,,vgg16"], 2, "an empty value between the commas"),
        (["sweep", "--device=cpu", "--model="], 2, "an empty value"),
        (["sweep", "--suite=nowhere.toml"], 2, "No such file"),
        (["sweep", "--modle=vgg16"], 2, "Did you mean 'model'?"),
    ],
)
def test_bad_input_gets_a_sentence(
    run_bench: Callable[..., Finished], arguments: list[str], status: int, words: str
) -> None:
    done = run_bench(*arguments)
    assert done.status == status, done.stderr
    assert words in done.stderr and "Traceback" not in done.stderr


@pytest.mark.seldom
def test_a_real_sweep_and_its_report(
    run_bench: Callable[..., Finished], records: Callable[[], list[dict]], tmp_path: Path
) -> None:
    done = run_bench(
        "sweep",
        "--device=cpu",
        "--model=trivial",
        "--num_gpus=1,2",
        "--variable_update=independent,replicated,nccl",
        "--batch_size=2",
        "--num_batches=5",
    )
    assert done.status == 0, done.stderr
    assert [record["status"] for record in records()].count("ok") == 4
    assert run_bench("report", "--output=report").status == 0
    assert "trivial" in (tmp_path / "report" / "report.html").read_text()
