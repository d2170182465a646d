"""Files of weights are recognised by what they are, whatever their name says."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchmarks.checkpoints.weight_files import refuse_other_formats
from benchmarks.errors import DataError


def _zipped(*names: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            for name in names:
                archive.writestr(name, b"x")

    return write


def _cut_zip(path: Path) -> None:
    _zipped(*(f"net/data/{number}" for number in range(9)))(path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] + content[len(content) // 2 + 40 :])


def _saved_model(path: Path) -> None:
    path.mkdir()
    (path / "saved_model.pb").touch()


def _pickled(path: Path) -> None:
    path.write_bytes(pickle.dumps({"weight": 1}))


@pytest.mark.parametrize(
    ("name", "write", "what"),
    [
        ("net.pth", _zipped("net/data.pkl", "net/data/0"), "a file of PyTorch"),
        ("last.ckpt", _zipped("archive/data.pkl"), "a file of PyTorch"),
        ("net.pt", _pickled, "a pickle, as older versions of PyTorch write it"),
        ("net.npz", lambda path: np.savez(path, a=np.ones(3)), r"an archive of NumPy arrays \(.npz\)"),
        ("net.npy", lambda path: np.save(path, np.ones(3)), r"a NumPy array \(.npy\)"),
        ("net.zip", _zipped("readme.txt"), "a ZIP archive of something else"),
        ("exported", _saved_model, "a SavedModel of TensorFlow"),
        ("frozen.pb", Path.touch, "a frozen graph or SavedModel of TensorFlow"),
        ("net.onnx", Path.touch, "an ONNX model"),
        ("net.safetensors", Path.touch, "a safetensors file"),
        ("gone.keras", lambda path: None, "no file that exists"),
        ("weights", lambda path: path.write_bytes(b"\x89HDF\r\n\x1a\n"), "an HDF5 file, whose name does not end in"),
        (
            "lfs.h5",
            lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\n"),
            "a pointer of Git LFS",
        ),
        ("page.h5", lambda path: path.write_text("<!DOCTYPE html><html>"), "an HTML page"),
        ("cut.pt", _cut_zip, "a ZIP archive that cannot be read"),
        ("folder.h5", Path.mkdir, "a directory"),
    ],
)
def test_a_file_of_another_format_is_named(
    tmp_path: Path, name: str, write: Callable[[Path], object], what: str
) -> None:
    path = tmp_path / name
    write(path)
    with pytest.raises(
        DataError, match=rf"--initial_weights={path} is {what}.*: a checkpoint of this suite, a \.keras"
    ):
        refuse_other_formats(str(path), "initial_weights", keras_too=True)


def test_what_can_be_read_is_not_refused(tmp_path: Path) -> None:
    _zipped("config.json", "model.weights.h5", "metadata.json")(tmp_path / "model.keras")
    (tmp_path / "old.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
    (tmp_path / "OLD.H5").write_bytes(b"\x89HDF\r\n\x1a\n")
    for name in ("model.keras", "old.h5", "OLD.H5", "model.ckpt-4", "."):
        refuse_other_formats(str(tmp_path / name), "initial_weights", keras_too=True)
    with pytest.raises(
        DataError, match=r"--checkpoint=.*old.h5 is a file of Keras already: a checkpoint of this suite"
    ):
        refuse_other_formats(str(tmp_path / "old.h5"), "checkpoint", keras_too=False)
