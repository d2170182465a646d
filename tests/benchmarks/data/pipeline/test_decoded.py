"""Photos stored as pixels: what is read of them, against NumPy, and what is found to be wrong."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.data.options import InputOptions, of_validation
from benchmarks.data.pipeline import imagenet_pipeline, input_pipeline
from benchmarks.data.sources import bad_records, imagenet_files, tfrecord
from benchmarks.data.sources.bad_records import Skipping
from benchmarks.data.sources.imagenet_files import DECODED, INCEPTION, features_of
from benchmarks.data.sources.tfrecord import Defect
from benchmarks.data.writing import fake_imagenet
from benchmarks.errors import UsageError
from tests.support import damage
from tests.support.images import rewrite, spec, take, take_batches
from tests.support.rotation import rotating

CENTRAL = InputOptions(crop="central")
SKIP = InputOptions(on_bad_record="skip")
DAMAGED = "train-00001-of-00003"


@pytest.fixture(scope="module")
def _written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("decoded")
    for part in (fake_imagenet.split("train", 24, 8), fake_imagenet.split("validation", 6, 8)):
        fake_imagenet.write(directory, part, seed=3, on_shard=lambda *_: None, shorter_side=80, decoded=True)
    return directory


@pytest.fixture
def data(_written: Path, tmp_path: Path) -> Path:
    """Photos whose shorter side has 80 pixels, which a test may damage."""
    return Path(shutil.copytree(_written, tmp_path / "data"))


def _stored(directory: Path, split: str = "train") -> list[tuple[np.ndarray, int]]:
    """Returns pixels and label of each record, in the order of files and records."""
    found = []
    for file in sorted(directory.glob(f"{split}-*")):
        for record in tfrecord.records(file):
            feature = features_of(record.payload)
            shape = [feature[key].int64_list.value[0] for key in DECODED.sides]
            flat = np.frombuffer(feature[DECODED.encoded].bytes_list.value[0], np.uint8)
            found.append((flat.reshape(*shape, 3), feature[DECODED.label].int64_list.value[0]))
    return found


def _bilinear(image: np.ndarray, size: int) -> np.ndarray:
    """Returns an image resized to [size, size, 3], by the centres of pixels, rounded."""
    for axis in (0, 1):
        count = image.shape[axis]
        at = np.clip((np.arange(size) + 0.5) * count / size - 0.5, 0, count - 1)
        low = np.floor(at).astype(int)
        share = (at - low).reshape([-1 if other == axis else 1 for other in range(3)])
        high = np.minimum(low + 1, count - 1)
        image = np.take(image, low, axis) * (1 - share) + np.take(image, high, axis) * share
    return np.floor(image + 0.5)


def test_the_central_crop_is_that_of_the_stored_photo(data: Path) -> None:
    wanted: dict[int, list[np.ndarray]] = {}
    for pixels, label in _stored(data):
        height, width = pixels.shape[:2]
        assert min(height, width) == 80
        side = round(80 / 1.145)
        top, left = (height - side) // 2, (width - side) // 2
        window = pixels[top : top + side, left : left + side]
        wanted.setdefault(label, []).append(_bilinear(window.astype(float), 32))
    ((images, labels),) = take_batches(data, 1, batch_per_device=24, options=CENTRAL)
    for image, label in zip(images, labels, strict=True):
        nearest = min(np.abs(image - one).max() for one in wanted[int(label)])
        assert nearest <= 1, "rounding in float32"


def test_a_random_crop_is_a_window_of_the_stored_photo(data: Path) -> None:
    """Of photos whose pixels hold their own position, the crop's corners tell the window."""
    for file in sorted(data.glob("train-*")):
        for number in range(tfrecord.count(file)):

            def place(feature: Mapping[str, tf.train.Feature]) -> None:
                height, width = (feature[key].int64_list.value[0] for key in DECODED.sides)
                rows, columns = np.indices((height, width), np.uint8)
                feature[DECODED.encoded].bytes_list.value[0] = np.stack([rows, columns, 0 * rows], -1).tobytes()

            rewrite(file, number, place)
    areas, flipped = [], 0
    for images, _ in take_batches(data, 96, batch_per_device=1, options=InputOptions(resize_method="nearest")):
        (image,) = images.astype(int)
        top, bottom, left, right = image[0, 0, 0], image[-1, 0, 0], image[0, 0, 1], image[0, -1, 1]
        flipped += left > right
        areas.append((bottom - top + 1) * (abs(right - left) + 1) / (80 * 107))
        assert (image[:, :, 0] == image[:, :1, 0]).all() and (image[:, :, 1] == image[:1, :, 1]).all()
        assert (np.diff(image[:, 0, 0]) >= 0).all(), "rows in order"
    assert 0.03 < min(areas) < 0.4 < max(areas) <= 1.02 and 30 < flipped < 66


def test_pixels_are_cropped_as_a_jpeg_of_their_size(data: Path, tmp_path: Path) -> None:
    """The same photos as JPEGs, in the same records: only the loss of the JPEG differs."""
    (tmp_path / "jpeg").mkdir()
    for file in sorted(data.glob("train-*")):
        with (tmp_path / "jpeg" / file.name).open("wb") as opened:
            for record in tfrecord.records(file):
                example = tf.train.Example.FromString(record.payload)
                feature = example.features.feature
                shape = [feature[key].int64_list.value[0] for key in DECODED.sides]
                pixels = np.frombuffer(feature[DECODED.encoded].bytes_list.value[0], np.uint8).reshape(*shape, 3)
                encoded = tf.io.encode_jpeg(pixels, quality=100, chroma_downsampling=False).numpy()
                feature[INCEPTION.encoded].bytes_list.value.append(encoded)
                del feature[DECODED.encoded]
                tfrecord.write(opened, example.SerializeToString())
    for ours, theirs in zip(take_batches(data, 6), take_batches(tmp_path / "jpeg", 6), strict=True):
        np.testing.assert_array_equal(ours[1], theirs[1])
        assert np.abs(ours[0].astype(int) - theirs[0]).mean() < 1.5


def test_an_epoch_has_every_photo_and_evaluation_reads_all_in_order(data: Path) -> None:
    seen = sorted(int(label) for _, labels in take_batches(data, 6) for label in labels)
    assert seen == sorted(label for _, label in _stored(data))
    source = input_pipeline.find_source("imagenet", str(data), "validation")
    passed = take(lambda: input_pipeline.one_pass(source, spec(), of_validation(InputOptions())), 3)
    labels = np.concatenate([labels for _, labels in passed])
    assert list(labels) == [label for _, label in _stored(data, "validation")] + [input_pipeline.NO_LABEL] * 6


def test_equal_seeds_repeat_and_a_training_continues(data: Path) -> None:
    whole, again = take_batches(data, 8), take_batches(data, 8)
    continued = take_batches(data, 3, images_before=5 * 4)
    for one, other in (*zip(whole, again, strict=True), *zip(whole[5:], continued, strict=True)):
        for values, wanted in zip(one, other, strict=True):
            np.testing.assert_array_equal(values, wanted)


def test_two_data_sets_are_told_apart_by_layout(data: Path, fake_imagenet: Path) -> None:
    source = imagenet_files.find_imagenet(str(data), "train")
    assert source.layout is DECODED and imagenet_files.is_decoded(source)
    assert source.identify().startswith("decoded TFRecords, 3 files, ")
    assert source.describe().startswith("decoded TFRecords, 3 train shards in ")
    assert not imagenet_files.is_decoded(imagenet_files.find_imagenet(str(fake_imagenet), "train"))


@pytest.mark.parametrize("option", [{"decode_scaling": True}, {"fuse_decode_and_crop": False}])
def test_what_is_done_to_jpegs_is_refused(data: Path, option: dict[str, bool]) -> None:
    with pytest.raises(UsageError, match="is for JPEGs, and this data set holds pixels: drop it"):
        take_batches(data, 1, options=InputOptions(**option))


def _defects(directory: Path) -> list[Defect]:
    source = imagenet_files.find_imagenet(str(directory), "train")
    return [defect for _, found in bad_records.defects(source, 1001) for defect in found]


def _require_named_and_skipped(directory: Path, file: Path, number: int, kind: str, lost: int = 1) -> None:
    (defect,) = _defects(directory)
    assert (defect.path, defect.number, defect.kind) == (file, number, kind)
    source = imagenet_files.find_imagenet(str(directory), "train")
    with pytest.raises(tf.errors.OpError) as caught:
        take_batches(directory, 12)
    explained = bad_records.explain_failure(source, 1001, caught.value)
    assert str(explained).startswith(f"{file}: record {number} at byte ")
    skipping = Skipping(source.files)
    one = spec(batch_per_device=1)
    images = take(lambda: imagenet_pipeline.batches(source, one, SKIP, skipping), 24 - lost)
    assert len({image.tobytes() for image, _ in images}) == 24 - lost, "an epoch, without it"


FOUND_AS = {
    "crc": "crc",
    "truncated": "truncated",
    "zero_length": "zero_length",
    "bad_label": "label",
    "cut_file": "truncated",
}


def test_every_kind_of_damage_is_known() -> None:
    assert set(FOUND_AS) == set(damage.KINDS) - set(damage.KINDS_OF_JPEGS)


@rotating("kind", FOUND_AS, first=1)
def test_a_damaged_record_is_named_and_can_be_left_out(data: Path, kind: str) -> None:
    damaged = damage.corrupt(data / DAMAGED, kind)
    _require_named_and_skipped(data, data / DAMAGED, damaged.number, FOUND_AS[kind], 4 if kind == "cut_file" else 1)


def _sides(height: int, width: int) -> Callable[[Mapping[str, tf.train.Feature]], None]:
    def change(feature: Mapping[str, tf.train.Feature]) -> None:
        for key, side in zip(DECODED.sides, (height, width), strict=True):
            feature[key].int64_list.value[0] = side

    return change


@rotating(
    ("height", "width", "kind"),
    [
        (81, 107, "truncated"),
        (79, 107, "size"),
        (2**40, 2**40, "truncated"),  # no memory is taken for it
        (-1, 107, "size"),  # a reshape would find the number for itself
        (2**62, 4, "truncated"),  # the product is 0 in 64 bits
        (0, 107, "size"),
    ],
    first=2,
)
def test_a_size_that_the_pixels_do_not_have(data: Path, height: int, width: int, kind: str) -> None:
    rewrite(data / DAMAGED, 3, _sides(height, width))
    _require_named_and_skipped(data, data / DAMAGED, 3, kind)


def test_a_record_without_pixels_but_a_size_of_zero(data: Path) -> None:
    def empty(feature: Mapping[str, tf.train.Feature]) -> None:
        _sides(0, 0)(feature)
        feature[DECODED.encoded].bytes_list.value[0] = b""

    rewrite(data / DAMAGED, 3, empty)
    _require_named_and_skipped(data, data / DAMAGED, 3, "zero_length")


def test_a_record_without_a_size(data: Path) -> None:
    rewrite(data / DAMAGED, 3, lambda feature: feature.__delitem__(DECODED.sides[0]))
    _require_named_and_skipped(data, data / DAMAGED, 3, "keys")
