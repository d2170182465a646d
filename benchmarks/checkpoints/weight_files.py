"""Tells what a file of weights is, before anything is built for it. No TensorFlow."""

from __future__ import annotations

import zipfile
from pathlib import Path

from benchmarks.data.sources.storage import is_address
from benchmarks.errors import DataError

# By the ending of the name, where a file's content does not say it.
_BY_ENDING = {
    ".onnx": "an ONNX model",
    ".pb": "a frozen graph or SavedModel of TensorFlow",
    ".pbtxt": "a graph of TensorFlow as text",
    ".safetensors": "a safetensors file",
    ".tflite": "a LiteRT model",
}
_KERAS_FILES = (".keras", ".h5", ".hdf5")
_HDF5 = b"\x89HDF"


def is_of_keras(path: str) -> bool:
    """Returns whether a file is Keras' by the ending of its name."""
    return path.lower().endswith(_KERAS_FILES)


def refuse_other_formats(path: str, flag: str, *, keras_too: bool) -> None:
    """Refuses what is neither a checkpoint of this suite nor, with `keras_too`, a file of Keras, by what it is.

    Raises:
        DataError: the sentence names the flag that has the path.
    """
    if is_address(path):
        if is_of_keras(path):
            raise DataError(f"--{flag}={path}: of an address, only checkpoints are read. Copy the file to this host.")
        return
    wanted, advice = "a checkpoint of this suite", ""
    if keras_too:
        wanted += ", a .keras file, or an .h5 file of Model.save() or Model.save_weights() of Keras"
        advice = " Load it with the program that has made it, and save its weights from Keras."
    if is_of_keras(path) and not Path(path).is_file():
        what = "a directory" if Path(path).is_dir() else "no file that exists"
    else:
        what = _other_format(Path(path))
    if not what and is_of_keras(path) and not keras_too:
        what = "a file of Keras already"
    if what:
        raise DataError(f"--{flag}={path} is {what}: {wanted} is wanted.{advice}")


def _other_format(path: Path) -> str:
    if path.is_dir():
        return "a SavedModel of TensorFlow" if (path / "saved_model.pb").is_file() else ""
    if not path.is_file():
        return ""
    if zipfile.is_zipfile(path):
        try:
            with zipfile.ZipFile(path) as archive:
                names = archive.namelist()
        except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
            return f"a ZIP archive that cannot be read ({error})"
        if any(name.endswith("data.pkl") for name in names):
            return "a file of PyTorch"
        if names and all(name.endswith(".npy") for name in names):
            return "an archive of NumPy arrays (.npz)"
        return "" if "config.json" in names else "a ZIP archive of something else"
    with path.open("rb") as file:
        start = file.read(64)
    if start.startswith(b"\x80"):
        return "a pickle, as older versions of PyTorch write it"
    if start.startswith(b"\x93NUMPY"):
        return "a NumPy array (.npy)"
    if start.startswith(b"version https://git-lfs"):
        return "a pointer of Git LFS and not the file itself (run git lfs pull)"
    if start.lstrip().lower().startswith((b"<!doctype html", b"<html")):
        return "an HTML page, as a server sends it instead of the file"
    if start.startswith(_HDF5) and not is_of_keras(str(path)):
        return "an HDF5 file, whose name does not end in .h5"
    return _BY_ENDING.get(path.suffix.lower(), "")
