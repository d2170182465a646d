"""Runs that continue a training from its checkpoint."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.checkpoints import checkpoint_files, resuming, saving
from benchmarks.cluster import restarts
from benchmarks.cluster.member import Alone
from benchmarks.data.sources.safe_files import only_writer
from benchmarks.errors import UsageError
from benchmarks.graph import run_graph
from benchmarks.graph.epochs import Epochs
from benchmarks.measure.display import Display
from tests.support.commands import RUN_BENCH, USER_ENVIRONMENT, Records, RunBench, losses_of, wait_until
from tests.support.images import relabelled, to_folder
from tests.support.rotation import rotating
from tests.support.settings import resolve

SMALL = ("--device=cpu", "--model=mlp", "--batch_size=4", "--num_warmup_batches=1")


@pytest.mark.slow
@rotating(
    "flags",
    [
        ("--num_gpus=2", "--staged_vars", "--optimizer=adam"),
        ("--num_gpus=2", "--variable_update=replicated", "--variable_consistency=relaxed", "--optimizer=momentum"),
    ],
    first=1,
)
def test_a_second_run_continues_bit_for_bit(run_bench: RunBench, records: Records, tmp_path: Path, flags: Any) -> None:
    data = str(tmp_path / "data")
    assert run_bench("data", "make_mnist", data, "--train_images=40").status == 0
    always = (*SMALL, *flags, f"--data_dir={data}")
    assert run_bench(*always, "--num_batches=7").status == 0
    first = run_bench(*always, "--num_batches=3", "--train_dir=ck")
    assert (first.status, "training begins" in first.stdout) == (0, True), first
    second = run_bench(*always, "--num_batches=3", "--train_dir=ck", "--initial_weights=read.only.at.first")
    assert (second.status, "model.ckpt-4, not from --initial_weights." in second.stdout) == (0, True), second
    at_once, before, after = records()
    assert losses_of(before) + losses_of(after) == losses_of(at_once)
    assert [record["measurement"]["steps_before"] for record in (at_once, before, after)] == [0, 0, 4]
    facts = checkpoint_files.read_checkpoint(tmp_path / "ck").facts
    assert (facts["steps"], facts["images"], facts["ends_at_step"], facts["model"]) == (8, 64, 8, "mlp")


@pytest.mark.parametrize(
    ("of_checkpoint", "of_process", "ends_at_step"), [("a", "a", 9), ("b", "a", None), ("", "a", None), ("", "", None)]
)
def test_an_attempt_ends_where_an_earlier_one_of_the_same_run_was_to_end(
    monkeypatch: pytest.MonkeyPatch, of_checkpoint: str, of_process: str, ends_at_step: int | None
) -> None:
    """Whatever the clocks of their hosts and of the storage show."""
    monkeypatch.setattr(restarts, "inherited", lambda: restarts.Attempts(of_process))
    saved = checkpoint_files.Saved(Path("ck"), 4, {"ends_at_step": 9, "run": of_checkpoint}, {})
    assert resuming._end_of_attempt(saved) == ends_at_step


@pytest.mark.slow
def test_epochs_are_those_of_the_whole_training(run_bench: RunBench, records: Records, tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    assert run_bench("data", "make_mnist", data, "--train_images=40").status == 0
    always = (*SMALL, f"--data_dir={data}", "--train_dir=ck", "--save_model_steps=4", "--max_ckpts_to_keep=2")
    for epochs in (1, 2):
        assert run_bench(*always, f"--num_epochs={epochs}").status == 0
    assert [len(losses_of(record)) for record in records()] == [10, 10]
    assert checkpoint_files.read_checkpoint(tmp_path / "ck").steps == 20
    again = run_bench(*always, "--num_epochs=2")
    assert again.status == 2
    assert "has a training of 20 steps, which are as many epochs. Pass more epochs" in again.stderr


def test_what_does_not_fit_is_refused_in_words(run_bench: RunBench) -> None:
    assert run_bench(*SMALL, "--num_batches=1", "--train_dir=ck").status == 0
    for flags, status, message in (
        (("--model=lenet",), 2, "its checkpoint is of --model=mlp, and this run has --model=lenet"),
        (("--optimizer=adam",), 2, "its checkpoint is of --optimizer=sgd, and this run has --optimizer=adam"),
        (
            ("--model=lenet", "--initial_weights=ck", "--train_dir=new"),
            5,
            "--initial_weights=ck: The checkpoint has no",
        ),
        (("--forward_only", "--train_dir=other"), 5, "There is no checkpoint other"),
        (("--train_dir=ck/model.ckpt-2",), 2, "is one checkpoint: pass its directory to continue from the newest, or"),
    ):
        train_dir = [] if any(flag.startswith("--train_dir") for flag in flags) else ["--train_dir=ck"]
        finished = run_bench(*SMALL, "--num_batches=1", *train_dir, *flags)
        assert (finished.status, message in finished.stderr) == (status, True), finished


def test_folders_of_other_classes_are_refused(run_bench: RunBench, fake_imagenet: Path, tmp_path: Path) -> None:
    to_folder(fake_imagenet, tmp_path / "photos" / "train")
    shutil.copytree(tmp_path / "photos" / "train", tmp_path / "photos" / "val")
    on_photos = ("--model=trivial", *SMALL[0:1], "--batch_size=4", "--train_dir=ck", "--data_dir=photos")
    assert run_bench(*on_photos, "--num_batches=1", "--num_warmup_batches=0").status == 0
    assert run_bench(*on_photos, "--eval").status == 0
    assert run_bench(*on_photos, f"--data_dir={fake_imagenet}", "--num_batches=1").status == 0, "it has no names"
    (tmp_path / "photos" / "train" / "a").mkdir()  # an empty one moves all labels
    for flags in (("--num_batches=1",), ("--eval",)):
        finished = run_bench(*on_photos, *flags)
        assert (finished.status, "are not those that the checkpoint was trained on" in finished.stderr) == (2, True), (
            finished
        )


def test_records_that_do_not_show_how_labels_count_are_not_taken_for_others(
    run_bench: RunBench, fake_imagenet: Path, tmp_path: Path
) -> None:
    """Their first class is in the training set alone, so validation images elsewhere would count from 1."""
    relabelled(fake_imagenet, tmp_path / "both", "train", lambda number: number % 5)
    for directory in ("both", "alone"):
        relabelled(fake_imagenet, tmp_path / directory, "validation", lambda number: 1 + number % 4)
    on_records = ("--model=trivial", *SMALL[0:1], "--batch_size=4", "--num_classes=5", "--train_dir=ck")
    assert run_bench(*on_records, "--data_dir=both", "--num_batches=1", "--num_warmup_batches=0").status == 0
    assert run_bench(*on_records, "--data_dir=both", "--eval").status == 0
    finished = run_bench(*on_records, "--data_dir=alone", "--eval")
    assert finished.status == 2 and "alone do not show whether their labels count from 0 or 1; " in finished.stderr


@pytest.mark.parametrize(
    ("model", "digest", "is_moved"),
    [
        ("b/net.py:build", "d", True),
        ("b/net.py:other", "d", False),
        ("b/net.py:build", "e", False),
        ("vgg", None, False),
    ],
)
def test_code_that_was_moved_is_the_same_model(model: str, digest: str | None, is_moved: bool) -> None:
    saved = {"model": "a/net.py:build" if digest else "mlp", "model_digest": digest and "d"}
    assert resuming._is_moved(saved, {"model": model, "model_digest": digest}) is is_moved


@pytest.mark.fault(
    "R13",
    "a training in the --train_dir of one that runs, and of one that was killed",
    survives="status 2, naming the first; after a kill it continues",
)
def test_a_second_training_in_a_directory_is_refused_while_the_first_runs(run_bench: RunBench, tmp_path: Path) -> None:
    flags = (*SMALL, "--num_batches=1", "--train_dir=ck")
    assert run_bench(*flags).status == 0
    with only_writer(tmp_path / "ck", "checkpoints"):
        second = run_bench(*flags)
        assert second.status == 2
        assert f"Another process (process {os.getpid()} on " in second.stderr
        assert "is writing checkpoints to ck: wait" in second.stderr
        assert run_bench(*flags, "--forward_only").status == 0
    (tmp_path / "ck" / ".checkpoints.lock").write_text("process 1 on a-host")  # of a process that was killed
    assert run_bench(*flags).status == 0
    assert not (tmp_path / "ck" / ".checkpoints.lock").exists()


def test_weights_that_are_not_finite_are_not_saved(run_bench: RunBench, tmp_path: Path) -> None:
    flags = (*SMALL, "--num_batches=1", "--train_dir=ck")
    assert run_bench(*flags).status == 0
    diverged = run_bench(*flags, "--init_learning_rate=1e38", "--save_model_steps=1")
    assert "No checkpoint is saved after step" in diverged.stderr
    assert checkpoint_files.not_finite(checkpoint_files.read_checkpoint(tmp_path / "ck").values) == ""
    assert checkpoint_files.not_finite({"in_flight/x": np.float32("nan")}) == ""


def test_a_checkpoint_that_cannot_be_saved_leaves_the_record(
    run_bench: RunBench, records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill_the_disk(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(checkpoint_files, "_move", fill_the_disk)
    finished = run_bench(*SMALL, "--num_batches=2", "--train_dir=ck")
    (record,) = records()
    assert (finished.status, record["status"]) == (4, "ok")
    assert "The last checkpoint could not be written to ck: No space left on device. Free space" in record["reason"]
    assert record["derived"]["images_per_sec"] > 0


def test_a_later_checkpoint_makes_up_for_one_that_could_not_be_saved(
    run_bench: RunBench, records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    move, errors = checkpoint_files._move, [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))]

    def fail_once(*paths: Any) -> None:
        if errors:
            raise errors.pop()
        move(*paths)

    monkeypatch.setattr(checkpoint_files, "_move", fail_once)
    finished = run_bench(*SMALL, "--num_batches=2", "--train_dir=ck", "--save_model_steps=1")
    assert "The last checkpoint could not be written to ck" in finished.stderr
    (record,) = records()
    assert (finished.status, record["status"], record["reason"]) == (0, "ok", "")


@pytest.mark.parametrize(
    ("words", "saved_at"),
    [
        (("--save_model_steps=4",), [8, 12, 15]),
        (("--save_model_secs=60",), [10, 15]),
        (("--save_model_steps=4", "--save_model_secs=60"), [8, 12, 15]),  # 60 s after the last one
        ((), [15]),
    ],
)
def test_a_checkpoint_follows_so_many_steps_or_seconds_and_the_last_step(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], saved_at: list[int]
) -> None:
    """Of a training that continues after step 4, with 10 s per step."""
    now = 0.0
    monkeypatch.setattr(saving.time, "monotonic", lambda: now)
    run: Any = SimpleNamespace(config=resolve(*SMALL, "--train_dir=ck", *words), epochs=Epochs(60_000, 4, 4, 16))
    callback, found = saving.CheckpointCallback(run, None, {}), []  # type: ignore[arg-type]
    for step in range(5, 16):
        now += 10.0
        found += [step] * callback.is_due(step, last=False)
    assert found + [15] * callback.is_due(15, last=True) == saved_at
    assert not callback.is_due(15, last=True), "it is saved"


@pytest.mark.parametrize(("words", "fits"), [((), True), (("--batch_size=2",), False)])
def test_what_was_in_flight_fits_a_graph_that_is_built_alike(
    tmp_path: Path, words: tuple[str, ...], fits: bool
) -> None:
    before, now = (resolve(*SMALL, f"--train_dir={tmp_path}", *more) for more in ((), words))
    facts = {**resuming.checkpoint_facts(before), "images": 8, "images_per_epoch": 4, "ends_at_step": 2}
    checkpoint_files.write(tmp_path, 2, {"weight": np.zeros(1), "in_flight/x": np.zeros(1)}, facts, keep=0)
    earlier = resuming.find_earlier(now, Alone(), Display())
    assert (earlier.steps, earlier.images, earlier.epochs) == (2, 8, 2.0)
    assert {*earlier.values} == ({"weight", "in_flight/x"} if fits else {"weight"})


def test_workers_that_see_different_checkpoints_are_named(tmp_path: Path) -> None:
    team: Any = SimpleNamespace(meet=lambda *_: {"worker 0": None, "worker 1": 3})
    with pytest.raises(UsageError, match=r"different checkpoints \(worker 0 none, worker 1 step 3\)"):
        resuming.find_earlier(resolve(*SMALL, f"--train_dir={tmp_path}"), team, Display())


@pytest.mark.parametrize(
    ("words", "name", "drawn"),
    [(("--staged_vars",), "in_flight/stage_0_0", 24), (("--staged_vars",), "hidden/bias", 16), ((), "in_flight/x", 16)],
)
def test_images_of_staged_gradients_are_drawn_too(words: tuple[str, ...], name: str, drawn: int) -> None:
    earlier = resuming.Earlier(2, 16, values={name: np.zeros(1)})
    assert earlier.images_drawn(resolve(*SMALL, *words).variables.modifiers, 8) == drawn


def test_towers_of_another_worker_get_seeds_of_their_own_and_nothing_that_was_in_flight() -> None:
    of_model = "--device=cpu --model=alexnet --num_gpus=2 --batch_size=2 --train_dir=ck --initial_weights=other"
    of_worker = "--worker_hosts=h0:1,h1:1 --job_name=worker --task_index=1"
    of_manager = "--variable_update=collective_all_reduce --variable_consistency=relaxed"
    chosen = resolve(*of_model.split(), *of_worker.split(), *of_manager.split())
    with tf.Graph().as_default():
        built = run_graph.build(chosen, run_graph.plan_devices(chosen))
        values = {variable.name: np.zeros(variable.shape, variable.dtype) for variable in built.model.variables}
        restored = resuming.restoring(chosen, built, resuming.Earlier(1, 8, values=values))
        begun = resuming.restoring(chosen, built, resuming.Earlier(initial_weights=values))
    seeds = {int(np.max(value)) for value in restored.values.values() if value.dtype.kind in "iu"}
    assert seeds == {2, 3}
    assert {value.dtype.kind for value in begun.values.values()} == {"f"}, "a new training draws its own"
    session: Any = SimpleNamespace(run=lambda fetches: fetches)
    assert begun.state and begun.state.fetch(session).keys() == values.keys(), "each worker knows only its own part"


def test_a_disk_without_room_for_a_checkpoint_is_named_before_training(
    run_bench: RunBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving.shutil, "disk_usage", lambda _: SimpleNamespace(free=65536))
    finished = run_bench(*SMALL, "--num_batches=2", "--train_dir=ck")
    assert finished.status == 2 and "images/sec" not in finished.stdout
    assert "--train_dir=ck has 0.1 MB of free space, and a checkpoint of this training needs" in finished.stderr


def test_inference_and_new_trainings_get_trained_weights(run_bench: RunBench, records: Records) -> None:
    assert run_bench(*SMALL, "--num_batches=3", "--train_dir=ck", "--optimizer=momentum").status == 0
    assert run_bench(*SMALL, "--num_batches=2", "--train_dir=ck", "--forward_only").status == 0
    assert run_bench(*SMALL, "--num_batches=2", "--initial_weights=ck/model.ckpt-4", "--optimizer=adam").status == 0
    trained, inferred, begun = map(losses_of, records())
    assert inferred[0] == pytest.approx(begun[0], rel=1e-6)
    assert begun[0] < trained[0]
    other = run_bench(*SMALL, "--num_batches=1", "--initial_weights=ck", "--num_classes=7")
    assert other.status == 0 and "than this run, 7, so the last layer begins anew." in other.stderr


@pytest.mark.row("U1.7")
@pytest.mark.slow
@pytest.mark.process
def test_after_kill_9_the_losses_continue_bit_for_bit(run_process: RunBench, records: Records, tmp_path: Path) -> None:
    always = (*SMALL, "--num_gpus=2", "--variable_update=replicated", "--optimizer=momentum", "--deterministic")
    killed = subprocess.Popen(
        [*RUN_BENCH, *always, "--num_batches=100000", "--train_dir=ck", "--save_model_steps=5"],
        cwd=tmp_path,
        env=USER_ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until((tmp_path / "ck" / "model.ckpt-10.index").exists, 300.0)
    finally:
        killed.kill()
        killed.wait()
    finished = run_process(*always, "--num_batches=4", "--train_dir=ck")
    assert finished.status == 0, finished
    record = records()[-1]
    begun = record["measurement"]["steps_before"]
    assert begun >= 5  # the process may die before the directory names its last checkpoint
    assert run_process(*always, f"--num_batches={begun + 5}").status == 0
    assert losses_of(record) == losses_of(records()[-1])[begun : begun + 5]
