"""MNIST and CIFAR-10: every form in which they come, what is missing, and how their images reach a step."""

from __future__ import annotations

import gzip
import os
import pickle
import shutil
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.data.options import InputOptions
from benchmarks.data.pipeline import input_pipeline
from benchmarks.data.sources import small_images
from benchmarks.data.sources.small_images import Pixels
from benchmarks.data.writing import small_image_files
from benchmarks.errors import DataError
from models import specs
from results import input_bottleneck
from tests.support.images import spec, take

Write = Callable[[Path], list[Path]]


def _mnist(directory: Path, *, split: str = "train") -> list[Path]:
    return small_image_files.write_idx(directory, *small_image_files.draw("mnist", 50, 1, "train"), split=split)


def _cifar10(directory: Path, *, python: bool = False) -> list[Path]:
    drawn = small_image_files.draw("cifar10", 50, 1, "train")
    files = small_image_files.write_cifar10(directory, *drawn, split="train")
    return [_as_python(file) if python else file for file in files]


def _find(name: str, directory: Path, split: str = "train") -> Pixels:
    return small_images.find_small_images(name, str(directory), split)


def _as_python(file: Path) -> Path:
    rows = np.frombuffer(file.read_bytes(), np.uint8).reshape(-1, 1 + 3 * 32 * 32)
    file.unlink()
    batch = file.with_name(file.stem)
    batch.write_bytes(pickle.dumps({b"data": rows[:, 1:], b"labels": rows[:, 0].tolist()}, protocol=2))
    return batch


def test_idx_files_are_read_as_their_makers_say(tmp_path: Path) -> None:
    _mnist(tmp_path)
    found = _find("mnist", tmp_path)
    expected, labels = small_image_files.draw("mnist", 50, 1, "train")
    np.testing.assert_array_equal(found.images[..., 0], expected)
    np.testing.assert_array_equal(found.labels, labels)
    assert found.describe() == f"MNIST idx files, 50 train images in {tmp_path}, labels 0 to {labels.max()}"


@pytest.mark.parametrize("place", ["MNIST/raw", "raw"])
def test_idx_files_are_found_where_torchvision_keeps_them(tmp_path: Path, place: str) -> None:
    (tmp_path / place).mkdir(parents=True)
    _mnist(tmp_path / place)
    assert _find("mnist", tmp_path).count == 50
    shutil.copy(next((tmp_path / place).glob("train-images*")), tmp_path)  # it may be another data set
    with pytest.raises(DataError, match=f"--data_dir={tmp_path}: there is neither train-labels-idx1-ubyte nor"):
        _find("mnist", tmp_path)


@pytest.mark.parametrize("place", [lambda name: name.replace("-idx", ".idx"), lambda name: f"{name}/{name}"])
def test_a_folder_that_is_called_like_an_idx_file_does_not_hide_the_file(
    tmp_path: Path, place: Callable[[str], str]
) -> None:
    (tmp_path / "made").mkdir()
    for file in _mnist(tmp_path / "made"):
        (tmp_path / file.name).mkdir()
        file.rename(tmp_path / place(file.name))
    assert _find("mnist", tmp_path).count == 50


def test_an_idx_file_by_hand(tmp_path: Path) -> None:
    images = struct.pack(">4B3I", 0, 0, 8, 3, 2, 2, 3) + bytes(range(12))
    (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
    (tmp_path / "t10k-labels.idx1-ubyte").write_bytes(struct.pack(">4BI", 0, 0, 8, 1, 2) + b"\x07\x03")
    found = _find("mnist", tmp_path, "validation")
    assert found.images[1, :, :, 0].tolist() == [[6, 7, 8], [9, 10, 11]]
    assert found.labels.tolist() == [7, 3]


@pytest.mark.parametrize("python", [False, True])
@pytest.mark.parametrize("form", ["plain", "folder", "keras", "archive"])
def test_cifar10_is_read_in_every_form(tmp_path: Path, python: bool, form: str) -> None:
    folder = tmp_path / ("cifar-10-batches-py" if python else "cifar-10-batches-bin")
    if form == "keras":
        folder = tmp_path / "cifar-10-batches-py-target" / "cifar-10-batches-py"
    files = _cifar10(folder if form != "plain" else tmp_path, python=python)
    if form == "archive":
        with tarfile.open(tmp_path / "cifar-10-some.tar.gz", "w:gz") as archive:
            archive.add(folder, folder.name)
        for file in files:
            file.unlink()
    found = _find("cifar10", tmp_path)
    planes, labels = small_image_files.draw("cifar10", 50, 1, "train")
    np.testing.assert_array_equal(found.images, planes.transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(found.labels, labels)


def _without(name: str) -> Callable[[Path], None]:
    return lambda directory: (directory / name).unlink()


def _with(name: str, data: bytes) -> Callable[[Path], object]:
    return lambda directory: (directory / name).write_bytes(data)


def _only(name: str) -> Callable[[Path], object]:
    def replace(directory: Path) -> None:
        for file in directory.iterdir():
            file.unlink()
        (directory / name).touch()

    return replace


def _changed(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda directory: (directory / name).write_bytes(change((directory / name).read_bytes()))


IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


@pytest.mark.parametrize(
    ("write", "damage", "words"),
    [
        (_mnist, _without(LABELS), f"there is neither {LABELS} nor {LABELS}.gz; it holds {IMAGES}"),
        (_mnist, _only("mnist.npz"), "it holds mnist.npz. Name the folder with these files, the only form"),
        (_cifar10, _only("cifar10.npz"), "it holds cifar10.npz. Name the folder with these files, the only forms"),
        (_mnist, _with(LABELS, b"nothing"), "is no idx file of unsigned bytes in 1 dimension"),
        (_mnist, _with(LABELS, b"\x1f\x8b damaged"), f"{LABELS} cannot be read"),
        (_mnist, _with(IMAGES, gzip.compress(b"")[:10] + b"\xff" * 20), f"{IMAGES} cannot be read: Error -3 while"),
        (_mnist, _with(IMAGES, gzip.compress(b"")[:-8] + bytes(range(8))), f"{IMAGES} cannot be read: CRC check"),
        (_mnist, _with(IMAGES, gzip.compress(b"")[:-1]), f"{IMAGES} cannot be read: Compressed file ended"),
        (_mnist, _changed(IMAGES, lambda data: data[:-100]), "should hold 39200 values .* but holds"),
        (_mnist, _changed(LABELS, lambda data: data[:8] + b"\xc8" + data[9:]), "label of train image 0 is 200"),
        (_mnist, _with(LABELS, struct.pack(">4BI", 0, 0, 8, 1, 1) + b"\0"), "50 images, .* 1 labels: they must match"),
        (_cifar10, _without("data_batch_3.bin"), r"data_batch_3.bin of CIFAR-10 \(binary\) is missing"),
        (_cifar10, _changed("data_batch_1.bin", lambda data: data[:-100]), "no whole number of records"),
        (_cifar10, _changed("data_batch_1.bin", lambda data: b"\xc8" + data[1:]), "label of train image 0 is 200"),
        (
            _cifar10,
            lambda d: [file.unlink() for file in d.iterdir()],
            " is empty: name the directory with the data set, .*make_cifar10 DIR",
        ),
    ],
)
def test_what_is_not_whole_is_named(tmp_path: Path, write: Write, damage: Callable[[Path], Any], words: str) -> None:
    write(tmp_path)
    damage(tmp_path)
    with pytest.raises(DataError, match=words):
        _find(write.__name__.removeprefix("_"), tmp_path)


@pytest.mark.fault(
    "R9",
    "a file of MNIST or CIFAR-10 that unpacks to more than it may hold",
    survives="it is named before it fills the memory",
)
@pytest.mark.parametrize("form", ["plain", "gzip", "archive"])
def test_files_that_are_too_large_are_named_before_they_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setattr(small_images, "MOST_SMALL_IMAGES_BYTES", 2**20)
    much = bytes(2**21)
    name, file = ("cifar10", "cifar-10-binary.tar.gz") if form == "archive" else ("mnist", IMAGES)
    (tmp_path / file).write_bytes(much if form == "plain" else gzip.compress(much))
    with pytest.raises(DataError, match=f"{file} .*the limit (is|of) 1048576"):
        _find(name, tmp_path)


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_a_fifo_is_named_and_not_waited_for(tmp_path: Path, name: str) -> None:
    file = {"mnist": IMAGES, "cifar10": "cifar-10-python.tar.gz"}[name]
    os.mkfifo(tmp_path / file)
    with pytest.raises(DataError, match=f"{file} cannot be read: it is not a regular file"):
        _find(name, tmp_path)


def test_an_archive_may_not_hold_links_to_itself_or_sparse_files(tmp_path: Path) -> None:
    link, sparse = tarfile.TarInfo("data_batch_1.bin"), tarfile.TarInfo("data_batch_1.bin")
    link.type, link.linkname, sparse.type = tarfile.SYMTYPE, "data_batch_1.bin", tarfile.GNUTYPE_SPARSE
    for member in (link, sparse):
        words = "cannot be read: 'data_batch_1.bin' is a link, a sparse file or a device in it"
        with tarfile.open(tmp_path / "cifar-10-some.tar.gz", "w:gz") as archive:
            archive.addfile(member)
        with pytest.raises(DataError, match=words):
            _find("cifar10", tmp_path)


class _Unfilled:
    """A gigabyte, as a pickle of some bytes states it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return np.ndarray, ((2**30 // 3072, 3072), "u1")


class _Calling:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("a pickle has called this",))


@pytest.mark.fault(
    "R17", "a batch of CIFAR-10 whose pickle calls a function", survives="a sentence, and nothing is called"
)
@pytest.mark.parametrize(
    ("data", "labels", "words"),
    [
        (_Calling(), [1], "it asks for __builtin__.print"),
        (np.zeros((4, 3072), np.uint8), [1, 2, 3], "4 images and 3 labels"),
        ([[0]] * 4, [1] * 4, "its data are no array of bytes"),
        (np.zeros((4, 3072), np.int64), [1] * 4, "its data are no array of bytes"),
        (np.zeros((1, 3072), np.uint8), [[1] * 9], "TypeError"),
        (_Unfilled(), [], "its data are no array of bytes"),
        (np.zeros((4, 32, 32, 3), np.uint8), [1] * 4, r"shape \(4, 32, 32, 3\), not \(images, 3072\)"),
    ],
)
def test_a_pickle_may_neither_call_anything_nor_describe_more_than_it_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data: Any, labels: list[Any], words: str
) -> None:
    _cifar10(tmp_path, python=True)
    (tmp_path / "data_batch_2").write_bytes(pickle.dumps({b"data": data, b"labels": labels}, protocol=2))
    with pytest.raises(DataError, match=f"data_batch_2 is no batch of CIFAR-10 .*{words}"):
        _find("cifar10", tmp_path)
    assert capsys.readouterr().out == ""


def test_planes_of_cifar10_may_be_an_array_of_their_own(tmp_path: Path) -> None:
    for file in _cifar10(tmp_path, python=True):
        batch = pickle.loads(file.read_bytes())
        file.write_bytes(pickle.dumps(batch | {b"data": batch[b"data"].reshape(-1, 3, 32, 32)}, protocol=2))
    planes, _ = small_image_files.draw("cifar10", 50, 1, "train")
    found = _find("cifar10", tmp_path)
    np.testing.assert_array_equal(found.images, planes.transpose(0, 2, 3, 1))


def test_another_form_replaces_the_one_that_is_there(tmp_path: Path) -> None:
    _cifar10(tmp_path, python=True)
    small_image_files.write_cifar10(tmp_path, *small_image_files.draw("cifar10", 3, 2, "train"), split="train")
    assert _find("cifar10", tmp_path).count == 3


def _source(images: int, channels: int = 3) -> Pixels:
    draw = np.random.default_rng(0)
    return Pixels(
        layout="",
        directory="",
        split="train",
        images=draw.integers(0, 256, (images, 32, 32, channels), dtype=np.uint8),
        labels=np.arange(images),
    )


def _epoch(source: Pixels, batch: int, count: int, *, crop: str = "central", worker: int = 0, workers: int = 1) -> Any:
    options = InputOptions(crop=crop)  # type: ignore[arg-type]
    wanted = spec(batch_per_device=batch, channels=source.images.shape[-1], worker=worker, workers=workers)
    batches = take(lambda: small_images.batches(source, wanted, options), count)
    return np.concatenate([images for images, _ in batches]), np.concatenate([labels for _, labels in batches])


def test_images_of_another_size_than_the_model_takes_are_refused() -> None:
    model, source = specs.find_model("resnet20"), _source(4)
    with pytest.raises(DataError, match="holds images of 32x32 pixels, and resnet20 takes 28x28 pixels"):
        input_pipeline.build(model, spec(image_size=28), ["/cpu:0"], InputOptions(), source)


def test_an_epoch_holds_every_image_once_in_random_order() -> None:
    source = _source(40)
    images, labels = _epoch(source, 4, 20)
    for half in (slice(0, 40), slice(40, 80)):
        assert sorted(labels[half]) == list(range(40)) and list(labels[half]) != list(range(40))
        np.testing.assert_array_equal(images[half], source.images[labels[half]])
    assert list(labels[:40]) != list(labels[40:]), "another order in each epoch"


def test_crops_and_mirroring_do_not_depend_on_batches_and_workers() -> None:
    source = _source(60)
    images, labels = _epoch(source, 1, 60, crop="distorted")
    by_label = dict(zip(labels, images, strict=True))
    for worker in (0, 1):
        share, its_labels = _epoch(source, 3, 10, crop="distorted", worker=worker, workers=2)
        for image, label in zip(share, its_labels, strict=True):
            np.testing.assert_array_equal(image, by_label[label])
    offsets = [_offset(by_label[label], source.images[label]) for label in range(60)]
    assert None not in offsets
    assert {mirrored for *_, mirrored in offsets} == {False, True}
    assert len({offset[:2] for offset in offsets}) > 25, "81 places"


def _offset(image: np.ndarray, original: np.ndarray) -> tuple[int, int, bool] | None:
    """Returns where in the padded original an image was cut, and whether it was mirrored."""
    padded = np.pad(original, ((4, 4), (4, 4), (0, 0)))
    for mirrored in (False, True):
        plain = image[:, ::-1] if mirrored else image
        for top in range(9):
            for left in range(9):
                if (padded[top : top + 32, left : left + 32] == plain).all():
                    return top, left, mirrored
    return None


def test_digits_are_left_as_they_are() -> None:
    source = _source(20, channels=1)
    images, labels = _epoch(source, 4, 5, crop="distorted")
    np.testing.assert_array_equal(images, source.images[labels])


def test_of_images_in_memory_no_faster_disk_is_advised() -> None:
    sentence = input_bottleneck.advice(dict.fromkeys(small_images.STAGES, 1000.0), vars(InputOptions()))
    assert sentence == "100% of the pipeline's time goes into drawing images that are in memory: use a larger batch."
