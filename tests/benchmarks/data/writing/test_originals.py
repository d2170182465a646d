"""Where the photos to convert are: in folders, archives and archives of archives; and what is none of these."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.data.sources import tfrecord
from benchmarks.data.writing import originals
from benchmarks.data.writing.originals import Listing
from benchmarks.errors import DataError
from tests.support.images import find, make_files


def _listing(source: Path, split: str = "train") -> Listing:
    listing = originals.find_originals(source, split)
    assert isinstance(listing, Listing)
    return listing


def _tar(path: Path, *names: str, mode: str = "w:") -> None:
    """Writes an archive of empty files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name in names:
            archive.addfile(tarfile.TarInfo(name))


def _tars(directory: Path, *classes: str) -> Path:
    for name in classes:
        _tar(directory / f"{name}.tar", "0.JPEG", "1.JPEG")
    return directory


def _tar_of_tars(directory: Path, *classes: str) -> Path:
    file = directory.with_suffix(".tar")
    with tarfile.open(file, "w:") as outer:
        for inner in sorted(_tars(directory, *classes).iterdir()):
            outer.add(inner, inner.name)
    return file


def _webdataset(ending: str) -> Callable[[Path], object]:
    return lambda source: [_tar(source / f"train-{n:06d}.tar", "0001.jpg", f"0001.{ending}") for n in range(2)]


def _shard(pack: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    shard = io.BytesIO()
    tfrecord.write(shard, b"a photo")
    return lambda source: source.write_bytes(pack(shard.getvalue()))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda source: None, "does not exist: name a folder of class folders"),
        (
            lambda source: source.write_bytes(b"no archive" * 200),
            "is no tar archive of .* write its photos as files",
        ),
        *((_shard(pack), "is a file of TFRecords: name its folder, /") for pack in (bytes, gzip.compress)),
        (Path.mkdir, "holds no folders of photos for each class, no tar archives .* holds nothing"),
        (lambda source: make_files(source, "data.mdb"), "holds data.mdb. .* and LMDB, as such files first"),
        (lambda source: _tar(source, "all/rose/0.jpg"), "holds photos, such as all/rose/0.jpg.* Unpack it, and name"),
        (lambda source: _tar(source, "all/rose/0.jpg", mode="w:gz"), "is no tar archive of tar archives, .* unpack it"),
        (
            lambda source: make_files(source, "all/rose/0.jpg", "all.tgz"),
            "holds all, .*with files such as .*/all/rose/0.jpg.*Name the folder",
        ),
        (lambda source: _tars(source, "n1", "n1.part2"), "several archives of the class n1: keep one of each"),
        (
            lambda source: [_tar(source / f"{name}.tar", "a/0.jpg", "b/0.jpg") for name in ("n1", "n2")],
            r"in several folders \(a, b\), not of one class. Unpack it",
        ),
        *(
            (_webdataset(ending), f"train-000000.tar holds 0001.{ending}, so it is a shard of a WebDataset")
            for ending in ("class", "cls", "json", "txt")
        ),
    ],
)
def test_what_cannot_be_converted_is_explained(tmp_path: Path, make: Callable[[Path], object], words: str) -> None:
    make(tmp_path / "source")
    with pytest.raises(DataError, match=f"source.*{words}"):
        originals.find_originals(tmp_path / "source", "train")


def test_class_folders_win_over_archives_beside_them(tmp_path: Path) -> None:
    make_files(tmp_path, "n1/0.JPEG", "n2/0.JPEG")
    _tar(tmp_path / "ILSVRC2012_img_train.tar", "n8.tar", "n9.tar")
    found = _listing(tmp_path)
    assert found.classes == ["n1", "n2"] and [photo.member for photo in found.photos] == [None, None]


def test_of_the_archives_of_both_splits_each_is_its_own(tmp_path: Path) -> None:
    downloads = tmp_path / "downloads"
    _tar(downloads / "ILSVRC2012_img_val.tar", "0.JPEG")
    _tar_of_tars(tmp_path / "train", "n1", "n2").rename(downloads / "ILSVRC2012_img_train.tar")
    found = _listing(downloads)
    assert found.classes == ["n1", "n2"]
    assert {photo.file.name for photo in found.photos} == {"ILSVRC2012_img_train.tar"}
    for source in (downloads, downloads / "ILSVRC2012_img_val.tar"):
        with pytest.raises(DataError, match=r"img_val.tar holds photos, such as .*ILSVRC2012_validation_ground_truth"):
            originals.find_originals(source, "validation")


def test_archives_of_classes_that_are_called_like_splits_are_classes(tmp_path: Path) -> None:
    _tars(tmp_path, "bullet_train", "test_tube")
    _tar(tmp_path / "beaker.tar", "0.JPEG", "._0.JPEG", "metadata.json")
    make_files(tmp_path, "._beaker.tar")  # as macOS leaves them
    found = _listing(tmp_path)
    assert found.classes == ["beaker", "bullet_train", "test_tube"]
    # A conversion leaves out what is no photo, and names it.
    assert [photo.name for photo in found.photos] == ["0.JPEG", "metadata.json", *2 * ("0.JPEG", "1.JPEG")]
    _tar(tmp_path / "val.tar", "0.JPEG")
    assert len(_listing(tmp_path).classes) == 3
    (tmp_path / "val.tar").unlink()
    with pytest.raises(DataError, match="archives of 3 classes. Labels are positions .*: unpack both into folders"):
        originals.find_originals(tmp_path, "validation")


def test_classes_have_the_names_of_their_archives(tmp_path: Path) -> None:
    found = _listing(_tars(tmp_path / "dogs", "St. Bernard", "St. Charles", "犬"))
    assert "of 3 classes (St. Bernard, St. Charles, 犬) in " in found.describe()


def test_flat_validation_photos_need_labels(tmp_path: Path) -> None:
    make_files(tmp_path, "train/n1/0.JPEG", "val/0.JPEG")
    for look in (originals.find_originals, find):
        with pytest.raises(DataError, match="val are in one folder. .*ILSVRC2012_validation_ground_truth.txt in"):
            look(tmp_path, "validation")


def _with_long_header(size: int) -> Callable[[Path], str]:
    """Makes the first member a name of so many bytes, most of them a hole."""

    def write(file: Path) -> str:
        header = tarfile.TarInfo("long")
        header.type, header.size = tarfile.GNUTYPE_LONGNAME, size
        with file.open("wb") as opened:
            opened.write(header.tobuf(tarfile.GNU_FORMAT))
            opened.truncate(min(size, 2**34))
        return ""

    return write


def _with_link(file: Path) -> str:
    link = tarfile.TarInfo("2.JPEG")
    link.type, link.linkname = tarfile.LNKTYPE, "1.JPEG"
    with tarfile.open(file, "a:") as archive:
        archive.addfile(link)
    return "'2.JPEG' is a link"


def _with_damaged_header(file: Path) -> str:
    with tarfile.open(file) as archive:
        *_, last = archive.getmembers()
    with file.open("r+b") as opened:
        opened.seek(last.offset)
        opened.write(b"\xff" * 8)
    return f"its header at byte {last.offset} is damaged"


@pytest.mark.parametrize("form", [_tars, _tar_of_tars])
@pytest.mark.parametrize(
    "damage", [_with_long_header(2**33), _with_long_header(2**62), _with_damaged_header, _with_link]
)
def test_an_archive_neither_fills_the_memory_nor_loses_what_it_holds(
    tmp_path: Path, form: Callable[..., Path], damage: Callable[[Path], str]
) -> None:
    source = form(tmp_path / "source", "n1", "n2")
    file = source if source.is_file() else source / "n1.tar"
    words = damage(file)
    with pytest.raises(DataError, match=f"{file} is no .*tar archive.*{words}"):
        originals.find_originals(source, "train")


def test_each_split_is_listed_from_its_own_folder(tmp_path: Path) -> None:
    make_files(tmp_path, "train/n1/a.jpg", "train/n2/b.jpg", "val/n1/only.jpg")
    validation, training = (_listing(tmp_path, split) for split in ("validation", "train"))
    assert [photo.name for photo in validation.photos] == ["only.jpg"]
    assert len(training.photos) == 2 and validation.classes == training.classes
