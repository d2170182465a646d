"""Reading data sets in tests, and rewriting them in other layouts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.data.options import InputOptions
from benchmarks.data.pipeline import input_pipeline, input_stages, photo_decoding
from benchmarks.data.pipeline.tower_input import InputSpec
from benchmarks.data.sources import imagenet_files, tfrecord
from benchmarks.data.sources.bad_records import Skipping
from benchmarks.data.sources.data_sets import DATA_SETS
from benchmarks.data.sources.photo_layouts import INCEPTION, encoded_of, features_of, label_of
from tests.support.steps import cpu_session


def spec(**changes: Any) -> InputSpec:
    """What a small model would want."""
    usual = {"batch_per_device": 4, "image_size": 32, "data_format": "NHWC", "num_classes": 1001, "seed": 7}
    return InputSpec(**usual | changes)


USUAL = InputOptions()


def find(directory: Path, split: str = "train") -> Any:
    """Returns the photos in a directory, as a run finds them."""
    return imagenet_files.find_imagenet(str(directory), split)


def take(dataset: Callable[[], tf.data.Dataset], count: int) -> list[Any]:
    """Returns what a data set that is made in a graph yields."""
    with tf.Graph().as_default():
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset())
        following = iterator.get_next()
        with cpu_session() as session:
            session.run(iterator.initializer)
            return [session.run(following) for _ in range(count)]


def take_batches(
    directory: Path,
    count: int,
    *,
    options: InputOptions = USUAL,
    skipping: bool = False,
    **changes: Any,
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns batches of uint8 photos and labels, as one worker of several reads them."""
    source = input_pipeline.find_source("imagenet", str(directory), options.split)
    skips = Skipping() if skipping else None
    return take(lambda: input_pipeline.batches(source, spec(**changes), options, skips), count)


def read_towers(
    directory: Path, towers: int, steps: int, *, in_turn: bool = True, pipelined: bool = False, **changes: Any
) -> list[list[tuple[np.ndarray, np.ndarray]]]:
    """Per step and tower: images and labels. Towers that do not take turns are asked one after the other."""
    wanted = spec(**changes, in_turn=in_turn)
    names = [f"/cpu:{i}" for i in range(towers)]
    with tf.Graph().as_default():
        source = input_pipeline.find_source("imagenet", str(directory), "train")
        batches = input_pipeline.configured(input_pipeline.batches(source, wanted, USUAL), USUAL, towers)
        inputs, initializers = input_pipeline.deal(batches, names, DATA_SETS["imagenet"], wanted, pipelined=pipelined)
        fetches = [(i.images, i.labels, *([i.stage] if pipelined else [])) for i in inputs]
        with cpu_session(towers) as session:
            for initializer in initializers:
                session.run(initializer)
            together = [fetches] if in_turn else [[fetch] for fetch in fetches]
            return [[batch[:2] for part in together for batch in session.run(part)] for _ in range(steps)]


def by_count() -> dict[str, Any]:
    """Returns a clock for stages of the input by which every batch takes a second, and a sleep that takes no time."""
    return {"clock": itertools.count().__next__, "sleep": lambda seconds: None}


def measure_by_count(monkeypatch: pytest.MonkeyPatch, batches: int = 1) -> None:
    """Lets the stages of the input be measured over some batches, each of which seems to take a second."""
    usual = input_stages.measure

    def measure(probes: Sequence[input_stages.Probe], **_: Any) -> dict[str, input_stages.Rates]:
        return usual(probes, rounds=1, seconds=batches, **by_count())

    monkeypatch.setattr(input_stages, "measure", measure)


def decoded_photos(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Returns a list that grows by every photo that a pipeline decodes."""
    decoded: list[bytes] = []
    usual = photo_decoding.decode

    def decode(encoded: tf.Tensor, *others: Any) -> tf.Tensor:
        with tf.control_dependencies([tf.numpy_function(decoded.append, [encoded], [])]):
            return usual(tf.identity(encoded), *others)

    monkeypatch.setattr(photo_decoding, "decode", decode)
    return decoded


def features_in(directory: Path) -> list[Any]:
    """Returns the features of all training images, in the order of files and records."""
    return [features_of(record.payload) for file in sorted(directory.glob("train-*")) for record in tfrecord.walk(file)]


def labels_of(directory: Path) -> list[int]:
    """Returns the labels of a data set, sorted."""
    return sorted(label_of(feature, INCEPTION) for feature in features_in(directory))


def rewrite(file: Path, number: int, change: Callable[[Any], None]) -> None:
    """Writes a shard again with the features of one record changed."""
    payloads = [record.payload for record in tfrecord.walk(file)]
    example = tf.train.Example.FromString(payloads[number])
    change(example.features.feature)
    payloads[number] = example.SerializeToString()
    with file.open("wb") as opened:
        for payload in payloads:
            tfrecord.write(opened, payload)


def rewrite_value(file: Path, number: int, key: str, value: int | bytes) -> None:
    """Writes a shard again with the number or text of one feature of a record replaced."""

    def change(feature: Any) -> None:
        (feature[key].int64_list if isinstance(value, int) else feature[key].bytes_list).value[0] = value

    rewrite(file, number, change)


def relabelled(directory: Path, target: Path, split: str, new_label: Callable[[int], int]) -> list[int]:
    """Writes the records in one shard, with other labels, which it returns."""
    target.mkdir(exist_ok=True)
    labels = []
    with tf.io.TFRecordWriter(str(target / f"{split}-00000-of-00001")) as writer:
        for number, record in enumerate(r for f in sorted(directory.iterdir()) for r in tfrecord.walk(f)):
            example = tf.train.Example.FromString(record.payload)
            labels.append(new_label(number))
            example.features.feature["image/class/label"].int64_list.value[:] = labels[-1:]
            writer.write(example.SerializeToString())
    return labels


def to_tfds(directory: Path, target: Path) -> None:
    """Writes a data set of the Inception layout in that of TFDS."""
    target.mkdir()
    files = sorted(directory.glob("train-*"))
    for number, file in enumerate(files):
        with (target / f"imagenet2012-train.tfrecord-{number:05d}-of-{len(files):05d}").open("wb") as opened:
            for record in tfrecord.walk(file):
                old = features_of(record.payload)
                example = tf.train.Example()
                example.features.feature["image"].bytes_list.value.append(encoded_of(old, INCEPTION))
                example.features.feature["label"].int64_list.value.append(label_of(old, INCEPTION) - 1)
                example.features.feature["file_name"].bytes_list.value.append(b"n0.JPEG")
                tfrecord.write(opened, example.SerializeToString())


def to_folder(directory: Path, target: Path) -> None:
    """Writes the photos of a data set into a folder for each class."""
    for file in sorted(directory.glob("train-*")):
        for record in tfrecord.walk(file):
            old = features_of(record.payload)
            folder = target / f"n{label_of(old, INCEPTION):08d}"
            folder.mkdir(parents=True, exist_ok=True)
            photo = folder / f"{file.name}_{record.number}.JPEG"
            photo.write_bytes(encoded_of(old, INCEPTION))


def make_files(root: Path, *files: str) -> None:
    """Makes empty files, which count as photos until they are read; what ends in a slash is a folder."""
    for file in files:
        path = root / file
        (path if file.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not file.endswith("/"):
            path.touch()
