"""Paths of other storages, with TensorFlow's file system in memory, ram://."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
import tensorflow as tf

from benchmarks.data.sources import imagenet_files, photo_layouts, safe_files, tfrecord
from benchmarks.data.sources.storage import Address, StorageError, path_of
from benchmarks.errors import DataError, ExitStatus, UsageError
from tests.support.images import find


@pytest.fixture
def directory() -> Path:
    """A directory that is not there yet."""
    return path_of(f"ram://{uuid.uuid4()}/data")


def test_names_are_those_of_the_storage() -> None:
    path = path_of("gs://bucket/a/b.c")
    assert isinstance(path, Address)
    assert str(path / "d") == f"{path}/d" == "gs://bucket/a/b.c/d"
    assert str(path.with_name("e")) == str(path.parent / "e") == "gs://bucket/a/e"
    assert (path.name, path.stem, str(path.with_suffix(""))) == ("b.c", "b", "gs://bucket/a/b")
    assert str(path.parent.parent.parent) == str(path.absolute().parent.parent) == "gs://bucket"
    assert path == path_of(path) == Address("gs://bucket/a/b.c") and isinstance(path_of(path), Address)
    assert str(path_of("a:b//c")) == "a:b/c" and not isinstance(path_of("a:b//c"), Address)


@pytest.mark.parametrize(
    "use",
    [
        open,
        os.mkdir,
        os.listdir,
        lambda path: shutil.copytree(".", path),
        lambda path: path.rename("x"),
        lambda path: path.resolve(),
        lambda path: path.touch(),
    ],
)
def test_it_is_never_a_file_of_this_host(
    use: Callable[[Path], object], directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="only TFRecords and checkpoints can be at an address"):
        use(directory)
    assert not os.listdir(tmp_path)


def test_files_are_written_and_read(directory: Path) -> None:
    file, content = directory / "a" / "file", bytes(range(256)) * 99
    assert not (file.exists() or directory.is_dir())
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    with file.open("rb") as opened:
        assert opened.read(5) + opened.read() == content
        assert (opened.seek(-3, os.SEEK_END), opened.read()) == (len(content) - 3, content[-3:])
        assert (opened.seek(20_000), opened.read(2), opened.tell()) == (20_000, content[20_000:20_002], 20_002)
    (directory / "text").write_text("ä\n", encoding="utf-8")
    assert (directory / "text").read_text(encoding="utf-8") == "ä\n"
    assert (file.is_file(), file.is_dir(), directory.is_dir(), directory.is_file()) == (True, False, True, False)
    assert file.stat().st_size == len(content)
    assert {str(path) for path in directory.iterdir()} == {f"{directory}/a", f"{directory}/text"}
    assert [str(path) for path in directory.glob("*/f*e")] == [str(file)]
    file.unlink()
    file.unlink(missing_ok=True)
    assert not file.exists()


def test_what_is_missing_is_an_error_of_files_and_of_data(directory: Path) -> None:
    uses: list[Callable[[Path], object]] = [
        lambda p: p.read_bytes(),
        lambda p: p.unlink(),
        tfrecord.count,
        lambda p: p.stat(),
    ]
    for use in uses:
        with pytest.raises(DataError, match=f"{directory}.*: .+") as caught:
            use(directory / "none")
        assert caught.value.exit_status == ExitStatus.DATA
    with pytest.raises(OSError) as missing:
        safe_files.open_file(directory / "none").read()
    assert (missing.value.errno, missing.value.filename) == (2, f"{directory}/none")


@pytest.mark.parametrize("method", ["exists", "is_dir", "read_bytes", "mkdir"])
def test_a_scheme_that_tensorflow_does_not_know_is_named(method: str) -> None:
    with pytest.raises(UsageError, match="^nfs5://host/data: File system scheme 'nfs5' not .* mount the storage"):
        getattr(path_of("nfs5://host/data"), method)()


def test_a_storage_that_does_not_answer_is_not_taken_for_one_without_the_file(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: str) -> None:
        raise tf.errors.UnavailableError(None, None, "Could not resolve host.")

    monkeypatch.setattr(tf.io.gfile, "stat", fail)
    for ask in (lambda: directory.exists(), lambda: directory.is_dir(), lambda: directory.is_file()):
        with pytest.raises(StorageError, match=rf"^{directory}: Could not resolve host\.$"):
            ask()


def test_a_data_set_is_the_same_as_on_this_host(fake_imagenet: Path, directory: Path) -> None:
    tf.io.gfile.makedirs(str(directory))
    for file in fake_imagenet.iterdir():
        tf.io.gfile.copy(str(file), str(directory / file.name))
    here, there = (find(path) for path in (fake_imagenet, directory))
    assert isinstance(there, imagenet_files.PhotoRecords)
    assert (there.count, there.identify(), there.layout) == (here.count, here.identify(), photo_layouts.INCEPTION)
    assert str(there.files[1]) == f"{directory}/train-00001-of-00004"
    for file in there.files:
        file.unlink()  # to write would append
        file.write_bytes(b"")
    with pytest.raises(DataError, match=f"{directory}/train-00000-of-00004 holds no record"):
        find(directory)
