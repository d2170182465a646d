"""Photos stored as pixels: what is read of them, against NumPy, and what is found to be wrong."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.data.options import InputOptions
from benchmarks.data.sources import bad_records, tfrecord
from benchmarks.data.sources.photo_layouts import DECODED, INCEPTION
from benchmarks.data.writing import fake_imagenet, photo_records
from benchmarks.errors import UsageError
from tests.support.images import find, rewrite, take_batches
from tests.support.rotation import rotating

SKIP = InputOptions(on_bad_record="skip")
DAMAGED = "train-00001-of-00003"


@pytest.fixture(scope="module")
def _written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("decoded")
    fake_imagenet.write(directory, photo_records.split("train", 24, 8), seed=3, shorter_side=80, decoded=True)
    return directory


@pytest.fixture
def data(_written: Path, tmp_path: Path) -> Path:
    """Photos whose shorter side has 80 pixels, which a test may damage."""
    return Path(shutil.copytree(_written, tmp_path / "data"))


@pytest.mark.parametrize("options", [InputOptions(), InputOptions(crop="central")])
def test_pixels_are_cropped_as_a_jpeg_of_their_size(data: Path, tmp_path: Path, options: InputOptions) -> None:
    """The same photos as JPEGs, in the same records: only the loss of the JPEG differs."""
    (tmp_path / "jpeg").mkdir()
    for file in sorted(data.glob("train-*")):
        with (tmp_path / "jpeg" / file.name).open("wb") as opened:
            for record in tfrecord.walk(file):
                example = tf.train.Example.FromString(record.payload)
                feature = example.features.feature
                shape = [feature[key].int64_list.value[0] for key in DECODED.sides]
                pixels = np.frombuffer(feature[DECODED.encoded].bytes_list.value[0], np.uint8).reshape(*shape, 3)
                encoded = tf.io.encode_jpeg(pixels, quality=100, chroma_downsampling=False).numpy()
                feature[INCEPTION.encoded].bytes_list.value.append(encoded)
                del feature[DECODED.encoded]
                tfrecord.write(opened, example.SerializeToString())
    pairs = [take_batches(directory, 6, options=options) for directory in (data, tmp_path / "jpeg")]
    for ours, theirs in zip(*pairs, strict=True):
        np.testing.assert_array_equal(ours[1], theirs[1])
        assert np.abs(ours[0].astype(int) - theirs[0]).mean() < 1.5


@pytest.mark.parametrize("option", [{"decode_scaling": True}, {"fuse_decode_and_crop": False}])
def test_what_is_done_to_jpegs_is_refused(data: Path, option: dict[str, bool]) -> None:
    with pytest.raises(UsageError, match="are for JPEGs, not pixels: drop them"):
        take_batches(data, 1, options=InputOptions(**option))


def _sides(height: int, width: int) -> Callable[[Mapping[str, tf.train.Feature]], None]:
    def change(feature: Mapping[str, tf.train.Feature]) -> None:
        for key, side in zip(DECODED.sides, (height, width), strict=True):
            feature[key].int64_list.value[0] = side

    return change


def _empty(feature: Mapping[str, tf.train.Feature]) -> None:
    _sides(0, 0)(feature)
    feature[DECODED.encoded].bytes_list.value[0] = b""


@rotating(
    ("change", "kind"),
    [
        (_sides(81, 107), "truncated"),
        (_sides(79, 107), "size"),
        (_sides(2**40, 2**40), "truncated"),  # no memory is taken for it
        (_sides(-1, 107), "size"),  # a reshape would find the number for itself
        (_sides(2**62, 4), "truncated"),  # the product is 0 in 64 bits
        (_sides(0, 107), "size"),
        (_empty, "zero_length"),
        (lambda feature: feature.__delitem__(DECODED.sides[0]), "keys"),
    ],
    first=2,
)
def test_a_size_that_the_pixels_do_not_have(
    data: Path, change: Callable[[Mapping[str, tf.train.Feature]], None], kind: str
) -> None:
    rewrite(data / DAMAGED, 3, change)
    source = find(data)
    ((defect,),) = [bad for _, bad in bad_records.defects(source, 1001) if bad]
    assert (defect.path, defect.number, defect.kind) == (data / DAMAGED, 3, kind)
    with pytest.raises(tf.errors.OpError) as caught:
        take_batches(data, 12)
    assert str(bad_records.explain_failure(source, 1001, caught.value)) == str(defect.error())
    images = take_batches(data, 23, batch_per_device=1, options=SKIP, skipping=True)
    assert len({image.tobytes() for image, _ in images}) == 23, "an epoch, without it"
