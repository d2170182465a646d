"""Runs whose data and checkpoints are at addresses, with TensorFlow's file system in memory, ram://."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from benchmarks.checkpoints import checkpoint_files
from benchmarks.data.sources.storage import path_of
from benchmarks.data.writing import fake_imagenet, photo_records
from tests.support.commands import Records, RunBench, losses_of
from tests.support.images import measure_by_count

ON_CPU = ("--device=cpu", "--num_warmup_batches=1")
TRIVIAL = (*ON_CPU, "--model=trivial", "--batch_size=4")
SMALL = (*ON_CPU, "--model=mlp", "--batch_size=4")


@pytest.fixture
def address() -> str:
    """A directory that is not there yet."""
    return f"ram://{uuid.uuid4()}/x"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The same TFRecords on this host, and at an address."""
    directory, there = tmp_path_factory.mktemp("photos"), f"ram://{uuid.uuid4()}/photos"
    for name, images in (("train", 24), ("validation", 6)):
        fake_imagenet.write(directory, photo_records.split(name, images, 8), seed=3)
    tf.io.gfile.makedirs(there)
    for file in directory.iterdir():
        tf.io.gfile.copy(str(file), f"{there}/{file.name}")
    return directory, there


def replace(file: Path, content: bytes) -> None:
    """Writes a file anew; ram:// would append."""
    file.unlink()
    file.write_bytes(content)


@pytest.mark.parametrize(
    "flags",
    [
        ("--num_epochs=1",),
        ("--num_batches=3", "--on_bad_record=skip", "--num_gpus=2"),
        ("--num_batches=2", "--eval_during_training_every_n_steps=2"),
    ],
    ids=" ".join,
)
def test_a_run_reads_the_same_as_on_this_host(
    run_bench: RunBench, records: Records, photos: tuple[Path, str], flags: tuple[str, ...]
) -> None:
    for data_dir in photos:
        run_bench(*TRIVIAL, f"--data_dir={data_dir}", *flags).succeeded()
    here, there = records()
    assert losses_of(there) == losses_of(here)
    assert there["config"]["data_set"] == here["config"]["data_set"]
    assert [{**one, "seconds": 0} for one in there["measurement"].get("evaluations", [])] == [
        {**one, "seconds": 0} for one in here["measurement"].get("evaluations", [])
    ]


def test_the_stages_of_the_input_are_measured_at_an_address(
    run_bench: RunBench, photos: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measure_by_count(monkeypatch)
    done = run_bench(
        "input", "--device=cpu", "--model=trivial", "--batch_size=4", f"--data_dir={photos[1]}"
    ).succeeded()
    assert "bare decode" in done.stdout


def test_a_training_continues_from_an_address(
    run_bench: RunBench, records: Records, photos: tuple[Path, str], address: str, tmp_path: Path
) -> None:
    data = (*TRIVIAL, f"--data_dir={photos[1]}")
    assert run_bench(*data, "--num_batches=7").status == 0
    for _ in range(2):
        done = run_bench(*data, "--num_batches=3", f"--train_dir={address}", "--max_ckpts_to_keep=1").succeeded()
        assert f"--train_dir={address} cannot be locked (its storage has no locks)" in done.stderr
    assert f"continuing after step 4, from {address}/model.ckpt-4." in done.stdout
    at_once, before, after = records()
    assert losses_of(before) + losses_of(after) == losses_of(at_once)
    kept = {path.name for path in path_of(address).iterdir()}
    assert kept == {"checkpoint", "model.ckpt-8.index", "model.ckpt-8.data-00000-of-00001"}
    assert tf.train.latest_checkpoint(address) == f"{address}/model.ckpt-8"
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras, when it saves
def test_a_checkpoint_at_an_address_is_evaluated_exported_and_begun_with(
    run_bench: RunBench, records: Records, photos: tuple[Path, str], address: str, tmp_path: Path
) -> None:
    data = (*TRIVIAL, f"--data_dir={photos[1]}")
    run_bench(
        *data, "--num_batches=2", f"--train_dir={address}", "--eval_during_training_at_specified_steps=3"
    ).succeeded()
    assert run_bench(*data, "--eval", f"--train_dir={address}").status == 0
    trained, alone = (record["measurement"]["evaluations"][-1] for record in records())
    assert alone["loss"] == pytest.approx(trained["loss"], rel=1e-5)
    assert (alone["step"], alone["images"]) == (3, 6)
    # Without its ending, ram:// would take it for a directory.
    done = run_bench("export_model", f"--checkpoint={address}/model.ckpt-3.index", "--keras_file=model.keras")
    assert (done.status, (tmp_path / "model.keras").exists()) == (0, True), done.stderr
    assert run_bench(*data, "--num_batches=1", f"--initial_weights={address}").status == 0


def test_a_damaged_checkpoint_at_an_address_falls_back(run_bench: RunBench, records: Records, address: str) -> None:
    flags = (*SMALL, f"--train_dir={address}")
    assert run_bench(*flags, "--num_batches=3", "--save_model_steps=2").status == 0
    newest = path_of(f"{address}/model.ckpt-4.data-00000-of-00001")
    replace(newest, newest.read_bytes()[:-9])
    left = path_of(f"{address}/model.ckpt-4.index.tempstate5")  # as of a process that was killed
    left.write_bytes(b"")
    done = run_bench(*flags, "--num_batches=1").succeeded()
    assert "model.ckpt-4 is damaged" in done.stderr and "model.ckpt-2 is used instead" in done.stderr
    assert records()[-1]["measurement"]["steps_before"] == 2
    assert (checkpoint_files.read_checkpoint(address).steps, left.exists()) == (4, False)
    replace(newest, b"")
    replace(path_of(f"{address}/model.ckpt-2.index"), b"")
    done = run_bench(*flags, "--num_batches=1")
    assert (done.status, "has no other checkpoint" in done.stderr) == (5, True), done


def test_a_checkpoint_that_cannot_be_reached_is_not_taken_for_damaged(
    run_bench: RunBench, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = (*SMALL, f"--train_dir={address}", "--num_batches=3", "--save_model_steps=2")
    assert run_bench(*flags).status == 0
    opened = tf.io.gfile.GFile

    def fail(path: str, mode: str) -> Any:
        if "model.ckpt-4.data" in path:
            raise tf.errors.UnavailableError(None, None, "Connection reset.")
        return opened(path, mode)

    monkeypatch.setattr(tf.io.gfile, "GFile", fail)
    done = run_bench(*flags)
    assert (done.status, "Traceback" in done.stderr, "is used instead" in done.stderr) == (5, False, False), done
    assert f"{address}/model.ckpt-4.data-00000-of-00001: Connection reset." in done.stderr


def test_summaries_and_a_profile_are_written_to_an_address(run_bench: RunBench, records: Records, address: str) -> None:
    flags = ("--summary_verbosity=2", "--save_summaries_steps=5", "--profile_steps=3:3")
    run_bench(*SMALL, "--num_batches=4", f"--train_dir={address}", *flags).succeeded()
    assert records()[0]["measurement"]["unmeasured_steps"] == [3, 4, 5], "of the profile, and with histograms"
    names = {path.name for path in path_of(address).iterdir()}
    assert "operations.csv" in names and any(name.startswith("events.out") for name in names)
    assert tf.io.gfile.glob(f"{address}/plugins/profile/*/*.xplane.pb")


@pytest.mark.parametrize(
    ("flags", "status", "words"),
    [
        ((*TRIVIAL, "--data_dir=nowhere://bucket/x"), 2, "nowhere://bucket/x: File sys"),
        ((*SMALL, "--train_dir=nowhere://bucket/x"), 2, "nowhere://bucket/x: File sys"),
        (
            ("export_model", "--train_dir=nowhere://bucket/x", "--keras_file=x.keras"),
            2,
            "nowhere://bucket/x: File system",
        ),
        ((*SMALL, "--data_dir=ram://x/y"), 2, "of an address, only TFRecords are read, and mnist has none"),
        ((*TRIVIAL, "--data_dir=ram://none/y"), 5, "ram://none/y cannot be read: "),
        ((*TRIVIAL, "--data_dir=ram://top"), 5, "no file is named like train-00000-of-00008"),
        ((*SMALL, "--initial_weights=ram://x/y.keras"), 5, "ram://x/y.keras is no file on this host: pass one"),
        ((*SMALL, "--train_dir=gs://bucket/x?token=secret"), 2, "--train_dir: gs://... is an address"),
        ((*SMALL, "--train_dir=gs://me:secret@bucket"), 2, "--train_dir: gs://... is an address"),
        (("--local_cluster=ps:1,worker:2", *SMALL, "--train_dir=gs://bucket/x"), 2, "no other host. Pass --nopriv"),
        (("data", "check", "gs://bucket/secret"), 2, "gs://... is an address of another storage. --data_dir of TFRec"),
    ],
)
def test_what_cannot_be_at_an_address_is_refused_in_words(
    run_bench: RunBench, flags: tuple[str, ...], status: int, words: str, tmp_path: Path
) -> None:
    path_of("ram://top/inner").mkdir()
    done = run_bench(*flags)
    assert (done.status, words in done.stderr) == (status, True), done
    assert "Traceback" not in done.stderr and "secret" not in done.stderr
    assert set(os.listdir(tmp_path)) <= {"out"}


def test_a_storage_that_does_not_answer_is_named(
    run_bench: RunBench, records: Records, monkeypatch: pytest.MonkeyPatch, photos: tuple[Path, str]
) -> None:
    def fail(path: str) -> None:
        raise tf.errors.UnavailableError(None, None, f"All 10 retry attempts failed for {path}")

    monkeypatch.setattr(tf.io.gfile, "stat", fail)
    done = run_bench(*TRIVIAL, f"--data_dir={photos[1]}", "--num_batches=1")
    assert (done.status, "Traceback" in done.stderr) == (5, False), done
    assert f"{photos[1]}: All 10 retry attempts failed" in records()[0]["reason"]
