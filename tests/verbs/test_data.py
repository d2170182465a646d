"""Data sets as a user meets them: made, checked, converted, trained on."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.data.pipeline import input_pipeline
from benchmarks.data.sources import safe_files
from benchmarks.process import watchdog
from tests.support import damage
from tests.support.commands import Records, RunBench
from tests.support.images import make_files, measure_by_count, to_folder
from tests.support.rotation import rotating

TRIVIAL = ("--device=cpu", "--model=trivial", "--batch_size=2", "--num_batches=6")


@pytest.fixture(autouse=True)
def stages_by_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that waits for its input measures its stages over one batch, instead of some seconds."""
    measure_by_count(monkeypatch)


def test_a_perceptron_learns_digits(run_bench: RunBench, records: Records) -> None:
    assert run_bench("data", "make_mnist", "digits", "--validation_images=200").status == 0
    assert run_bench("data", "check", "digits", "--data_name=mnist").stdout.endswith("\n2000 records, all sound\n")
    mnist = ("--device=cpu", "--model=mlp", "--data_name=mnist", "--data_dir=digits", "--print_training_accuracy")
    done = run_bench(*mnist, "--num_epochs=3", "--num_gpus=2", "--variable_update=replicated").succeeded()
    assert "MNIST: MNIST idx files, 2000 train images in digits, labels 0 to 9" in done.stdout
    assert re.search(r"^1\timages/sec: .* \(jitter = .*\)\t[\d.]+\t[\d.]+\t[\d.]+$", done.stdout, re.MULTILINE)
    (record,) = records()
    assert len(record["measurement"]["step_seconds"]) == 30, "three times 2000 images by 200"
    assert record["measurement"]["top_1_accuracies"][-1] > 0.95
    assert record["config"]["num_classes"] == 10
    evaluated = run_bench(*mnist, "--data_split=validation", "--forward_only", "--num_batches=2")
    assert evaluated.status == 0 and "200 validation images" in evaluated.stdout


def test_real_digits_are_a_small_mnist(run_bench: RunBench, tmp_path: Path) -> None:
    assert run_bench("data", "make_digits", "digits").status == 0
    for split, count in (("train", 1433), ("validation", 364)):
        source = input_pipeline.find_source("mnist", str(tmp_path / "digits"), split)
        assert source.count == count
        assert np.bincount(source.labels).min() > 0.95 * count / 10, "every class has its share"
        assert source.images.shape[1:] == (28, 28, 1) and (source.images.min(), source.images.max()) == (0, 255)
    again = run_bench("data", "make_digits", "digits")
    assert again.status == 2 and "digits is not empty" in again.stderr


def test_digits_need_scikit_learn(run_bench: RunBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    done = run_bench("data", "make_digits", "digits")
    assert done.status == 2 and "-m pip install scikit-learn" in done.stderr


def test_a_folder_is_converted_and_trained_on(run_bench: RunBench, fake_imagenet: Path, tmp_path: Path) -> None:
    to_folder(fake_imagenet, tmp_path / "photos")
    next((tmp_path / "photos").rglob("*.JPEG")).write_bytes(b"no photo")
    done = run_bench("data", "convert", "photos", "records", "--images_per_shard=20", "--resize=200")
    assert done.status == 5, "something was left out"
    assert "39 photos in 2 shards; 39 were encoded again, 1 left out" in done.stdout
    assert "cannot be decoded" in done.stderr and "Traceback" not in done.stderr
    checked = run_bench("data", "check", "records", "--decode").stdout
    assert "\n39 records in 2 files, labels " in checked and checked.endswith(", all sound\n")
    for data in ("records", "photos"):
        trained = run_bench(*TRIVIAL, f"--data_dir={data}", "--on_bad_record=skip").succeeded()
    assert "folder of class folders, 40 photos" in trained.stdout
    (tmp_path / "records/train-00000-of-00002").write_bytes(b"")
    checked = run_bench("data", "check", "records")
    assert checked.status == 5 and "train-00000-of-00002: it holds no record; copy or make" in checked.stdout


@pytest.mark.slow
def test_photos_are_stored_as_pixels_and_trained_on(run_bench: RunBench, records: Records, fake_imagenet: Path) -> None:
    refused = run_bench("data", "convert", str(fake_imagenet), "pixels", "--decoded", "--images_per_shard=20")
    assert refused.status == 2 and "TFRecords keep their shards: drop --images_per_shard" in refused.stderr
    done = run_bench("data", "convert", str(fake_imagenet), "pixels", "--resize=64", "--decoded")
    assert done.status == 0 and "40 photos in 4 shards; all were decoded, 0 left out" in done.stdout, done.stderr
    assert "40 records in 4 files, labels " in run_bench("data", "check", "pixels", "--decode").stdout
    for data in ("pixels", str(fake_imagenet)):
        run_bench(*TRIVIAL, f"--data_dir={data}").succeeded()
    measured = run_bench("input", "--device=cpu", "--model=trivial", "--batch_size=2", "--data_dir=pixels")
    assert measured.status == 0 and "decoded TFRecords, 4 train shards in pixels" in measured.stdout
    assert "bare decode" not in measured.stdout
    pixels, jpegs, stages = records()
    assert pixels["config"]["data_set"].startswith("decoded TFRecords, 4 files")
    assert pixels["identity"]["config_key"] != jpegs["identity"]["config_key"]
    assert set(stages["measurement"]["input_stages"]) == {"read", "parse", "decode", "augment", "batch", "copy"}


# Every kind of damage is tested in tests/benchmarks/data/sources/test_bad_records.py; here, the verbs.
@pytest.mark.fault(
    "R9",
    "a data set with a damaged record; run and data check",
    survives="status 5, and one record that names file and record",
)
@pytest.mark.slow
@rotating("kind", ["crc", "truncated", "cut_file"], first=1)
def test_a_damaged_data_set_ends_the_run_is_listed_and_can_be_skipped(
    run_bench: RunBench, records: Records, tmp_path: Path, kind: str
) -> None:
    run_bench("data", "make_imagenet", "bad", "--train_images=24", "--images_per_shard=8")
    defect = damage.corrupt_middle(tmp_path / "bad", kind)
    where = f"bad/train-00001-of-00003: record {defect.number} at byte {defect.offset}"
    failed = run_bench(*TRIVIAL, "--data_dir=bad", "--num_batches=30")
    assert failed.status == 5, failed.stderr
    assert where in failed.stderr and "Traceback" not in failed.stderr
    assert ("The input failed" in failed.stderr) == (kind != "cut_file"), "a file that is cut off ends it beforehand"
    checked = run_bench("data", "check", "bad")
    assert checked.status == 5 and where in checked.stdout and "1 with a defect" in checked.stdout
    skipping = run_bench(*TRIVIAL, "--data_dir=bad", "--num_batches=30", "--on_bad_record=skip").succeeded()
    assert "bad records were skipped" in skipping.stderr
    first, second = records()
    assert first["status"] == "invalid" and where in first["reason"]
    assert second["status"] == "ok" and second["measurement"]["skipped_records"] >= 2


@pytest.mark.row("G1.1")
@pytest.mark.slow
def test_the_stages_of_the_input_are_measured(run_bench: RunBench, records: Records, fake_imagenet: Path) -> None:
    done = run_bench(
        "input", "--device=cpu", f"--data_dir={fake_imagenet}", "--batch_size=4", "--num_gpus=2"
    ).succeeded()
    # Every batch seems to take a second, of as many cores as there are; and of two towers each takes one.
    for stage in ("read", "parse", "decode", "augment", "batch", "bare decode"):
        assert re.search(rf"^{stage} +4 +\d+", done.stdout, re.MULTILINE), stage
    assert re.search(r"^copy +8 +\d+", done.stdout, re.MULTILINE)
    assert "of the pipeline's time goes into" in done.stdout
    (record,) = records()
    assert record["kind"] == "input"
    assert run_bench("report", "out").status == 0, "a report of nothing but these is possible"


def test_the_stages_of_small_images_are_measured(
    run_bench: RunBench, records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_bench("data", "make_mnist", "digits")
    arguments = ("--device=cpu", "--model=mlp", "--data_dir=digits", "--stage_seconds=0.05")
    done = run_bench("input", *arguments).succeeded()
    assert re.search(r"^batch +\d+", done.stdout, re.MULTILINE) and "bare decode" not in done.stdout
    monkeypatch.setenv("TF_NUM_INTEROP_THREADS", "2")
    as_json = run_bench("input", *arguments, "--output_format=json").succeeded()
    record = json.loads(as_json.stdout)
    assert record["kind"] == "input" and record["derived"]["images_per_sec"] > 0 and record["model"]["title"]
    assert record["warnings"][0].startswith("TF_NUM_INTEROP_THREADS=2: ") and record["warnings"][0] in as_json.stderr
    assert list(record["measurement"]["input_stages"]) == ["draw", "augment", "batch", "copy"]
    assert record["measurement"]["bare_decode_images_per_sec"] is None
    assert records()[1]["identity"] == record["identity"]


def _make_slow(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Lets every batch that is read take so long, far longer than a step of the model that is trained on it."""

    def wait() -> bool:
        time.sleep(seconds)
        return True

    def batches(*arguments: Any) -> tf.data.Dataset:
        if len(arguments) > 4:  # the stages are measured on their own
            return usual(*arguments)

        def after_waiting(*batch: tf.Tensor) -> Any:
            with tf.control_dependencies([tf.numpy_function(wait, [], tf.bool)]):
                return tuple(tf.identity(part) for part in batch)

        return usual(*arguments).map(after_waiting)

    usual = input_pipeline.batches
    monkeypatch.setattr(input_pipeline, "batches", batches)


@pytest.mark.row("G4.2")
@pytest.mark.slow
def test_a_run_compares_itself_with_its_synthetic_sibling(
    run_bench: RunBench, records: Records, fake_imagenet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _make_slow(monkeypatch, 0.2)
    synthetic = run_bench(*TRIVIAL)
    host = run_bench(*TRIVIAL, "--data_name=synthetic_host")
    # One thread prepares whole photos, one at a time, and nothing is read ahead.
    one = ("--datasets_parallel_calls=1", "--datasets_num_private_threads=1", "--nodatasets_use_prefetch")
    slow = (*one, "--nopipelined_input", "--nofuse_decode_and_crop", "--distortions", "--resize_method=bicubic")
    real = run_bench(*TRIVIAL, f"--data_dir={fake_imagenet}", *slow)
    assert (synthetic.status, host.status, real.status) == (0, 0, 0)
    first, *others = records()
    assert first["derived"]["synthetic_ratio"] is None
    for other in others:
        ratio = other["derived"]["images_per_sec"] / first["derived"]["images_per_sec"]
        assert other["derived"]["synthetic_ratio"] == pytest.approx(ratio)
        waited, seconds = (sum(other["measurement"][name]) for name in ("input_wait_seconds", "step_seconds"))
        assert other["derived"]["input_wait_share"] == pytest.approx(waited / seconds)
    assert "real/synthetic: " in real.stdout and "waiting for images" in real.stdout
    assert "input-bound" in real.stderr
    assert set(others[1]["measurement"]["input_stages"]) == {"read", "parse", "decode", "augment", "batch"}


@pytest.mark.fault(
    "R13", "two data convert into one directory", survives="the second ends with a sentence that names the first"
)
def test_a_second_conversion_into_a_directory_is_refused_while_the_first_runs(
    run_bench: RunBench, fake_imagenet: Path, tmp_path: Path
) -> None:
    to_folder(fake_imagenet, tmp_path / "photos")
    with safe_files.only_writer(tmp_path / "records", "train"):
        second = run_bench("data", "convert", "photos", "records")
    assert second.status == 2 and "is writing train to records: wait until it has ended" in second.stderr
    with safe_files.only_writer(tmp_path / "digits", "images"):
        assert run_bench("data", "make_mnist", "digits").status == 2


def test_records_are_not_written_where_they_would_be_a_class(
    run_bench: RunBench, fake_imagenet: Path, tmp_path: Path
) -> None:
    to_folder(fake_imagenet, tmp_path / "photos")
    done = run_bench("data", "convert", "photos", "photos/records")
    assert done.status == 2 and "photos/records would count as a class of photos" in done.stderr
    assert not (tmp_path / "photos" / "records").exists()


@pytest.mark.parametrize("directory", ["source/../source", "source/train", "source/Training", "source/train/n0"])
def test_records_are_not_written_where_they_would_hide_the_photos(
    run_bench: RunBench, tmp_path: Path, directory: str
) -> None:
    make_files(tmp_path, "source/train/n0/0.JPEG", "source/train/n1/0.JPEG")
    done = run_bench("data", "convert", "source", directory)
    assert done.status == 2 and f"{directory} is searched for the photos of source: name another" in done.stderr
    assert not list((tmp_path / "source").rglob("train-*"))


def test_shards_are_not_written_beside_the_folder_of_their_photos(run_bench: RunBench, tmp_path: Path) -> None:
    make_files(tmp_path, "source/train/n0/0.JPEG", "source/train/n1/0.JPEG")
    done = run_bench("data", "convert", "source/train", "source")
    assert done.status == 2 and "shards in source would be read in place of the photos in source/train" in done.stderr
    assert [entry.name for entry in (tmp_path / "source").iterdir()] == ["train"]


def test_a_directory_is_named_as_a_shell_takes_it(run_bench: RunBench) -> None:
    done = run_bench("data", "make_mnist", "my digits", "--train_images=20")
    assert "--model=mlp --data_dir='my digits'" in done.stdout


def test_every_command_expects_the_file_it_works_on(
    run_bench: RunBench, fake_imagenet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected: list[tuple[str, float]] = []
    monkeypatch.setattr(watchdog.Watchdog, "expect", lambda self, *what: expected.append(what))
    to_folder(fake_imagenet, tmp_path / "photos")
    for arguments, file in (
        (("convert", "photos", "records", "--images_per_shard=20"), "photos/n0"),
        (("check", "records"), "records/train-0"),
        (("check", "photos"), "photos/n0"),
        (("make_imagenet", "made", "--train_images=2"), "made/train-00000-of-00001"),
    ):
        expected.clear()
        assert run_bench("data", *arguments).status == 0
        assert any(what.startswith(f"The work on {file}") and 500 < seconds <= 600 for what, seconds in expected), (
            arguments
        )
