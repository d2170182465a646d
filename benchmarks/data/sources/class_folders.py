"""Finds photos in a folder of class folders: which folders are classes, and what is passed over. No TensorFlow."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from benchmarks.console import warn_once
from benchmarks.data.sources.data_sets import DATA_SETS, StoredImages, only_one
from benchmarks.errors import DataError
from models.model_spec import IMAGENET_CLASSES
from results.text import counted

# The usual folder names of each split.
FOLDERS_OF = {"train": ("train", "training"), "validation": ("validation", "val", "valid")}
ARCHIVE_ENDINGS = (".tar", ".tar.gz", ".tgz", ".zip")
JPEG_ENDINGS = (".jpeg", ".jpg", ".jpe", ".jfif")
# What systems and programs put beside folders of photos; hidden folders are no classes either.
_NO_CLASSES = {
    "__macosx",
    "__pycache__",
    "lost+found",
    "@eadir",
    "#recycle",
    "@recycle",
    "$recycle.bin",
    "system volume information",
    "#snapshot",
    "~snapshot",
}
# Folders of photos or masks in data sets for other tasks than classification, such as Pascal VOC.
_NO_LABELS = {"images", "jpegimages", "labels", "masks", "segmentationclass", "segmentationobject"}
_NAMED = 3
# Other data sets, with the names with which their files begin.
_SMALL_IMAGES = {"cifar10": ("data_batch_", "cifar-10-"), "mnist": ("train-images", "t10k-images", "MNIST")}
# The search for what a directory holds instead of photos: it may be the root of a file system.
_FOLDERS_SEARCHED = 2000
_SYNSET = re.compile(r"n\d{8}(?!\d)")  # of WordNet, in whose order ImageNet's classes are
# Folders of whole splits or parts, such as train and test1, train_images and test_images, images_part_1 and _2.
_OF_SPLIT = re.compile(
    r"(.*[-_])?(?:train|test|val|eval|dev|part)(?:ing|id|idation|uation)?(?:[-_]?(?:images?|imgs?|photos|data|set))?[-_]?\d{0,9}"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhotoFolder(StoredImages):
    """Photos as files in one folder per class.

    A label is the position of the class in `classes`, which are those of the training images whatever the split is.
    `passed_over` is what lies beside the photos, for a sentence.
    """

    labels: Sequence[int]
    classes: Sequence[str]
    passed_over: str = ""
    is_decoded: ClassVar = False
    may_be_png: ClassVar = True

    def identify(self) -> str:
        """The checksum is of the photos' names."""
        files = [f"{self.classes[label]}/{file.name}" for file, label in zip(self.files, self.labels, strict=True)]
        return f"folder of class folders, {len(files)} photos, {digest(files)}"

    def describe(self) -> str:
        """The line holds photos, classes, those without photos, and what is passed over."""
        used = set(self.labels)
        empty = [name for label, name in enumerate(self.classes) if label not in used]
        without = f", of which {len(empty)} without any ({some(empty)})," if empty else ""
        passed_over = f" ({self.passed_over} passed over)" if self.passed_over else ""
        return (
            f"folder of class folders, {len(self.files)} photos of {len(self.classes)} classes "
            f"({some(self.classes)}){without} in {self.directory}{passed_over}"
        )


def digest(lines: Sequence[str]) -> str:
    """Returns a short hash of lines, which may hold names that are not UTF-8."""
    return hashlib.sha256(os.fsencode("\n".join(lines))).hexdigest()[:8]


def some(names: Sequence[str]) -> str:
    """Returns the first names for a sentence; they may hold anything, of any length."""
    shown = [repr(name[:40])[1:-1] for name in names[:_NAMED]]
    return ", ".join([*shown, "..."] if len(names) > _NAMED else shown)


def folders_of(root: Path, split: str) -> list[Path]:
    """Returns the folders in a root that are named like a split, as `train` or `Train`."""
    try:
        named = [path for path in root.iterdir() if path.name.lower() in FOLDERS_OF[split]]
    except OSError:  # such as a parent that may be entered, but not listed
        named = [root / name for name in FOLDERS_OF[split]]
    found = (path for path in named if path.is_dir())
    return sorted(found, key=lambda path: path.name.lower(), reverse=True)  # train last: of links, its name counts


def find_class_folders(root: Path, split: str, endings: tuple[str, ...]) -> PhotoFolder | None:
    """Finds the photos of a split in the folder of that name or, of a root without splits, in the root.

    Args:
        root: holds `train` and `val`, or the class folders, or is itself a folder of that split.
        split: "train" or "validation".
        endings: of the names of photos, in lower case.

    Returns:
        None if there is no photo in a class folder, or if these are splits: their photos have no labels.

    Raises:
        DataError: the classes are not known for certain.
    """
    folder = _folder_of(root, split)
    if folder is None:
        return None
    # Labels of a folder called val are those of the folder train beside it, whatever split it is read as.
    is_other = root.absolute().name.lower() in FOLDERS_OF["validation"] and _below(root.absolute().parent, "train")
    classes = _class_names(folder) if split == "train" and not is_other else _trained_classes(root, folder)
    found = _photos(folder, split, classes, endings)
    if found and folder == root and _are_splits(found):
        return None
    if found and split == "train":
        used = [classes[label] for label in sorted({*found.labels})]
        if len(used) == 1:
            warn_once(
                f"All {len(found.files)} photos of {folder} have the same label, since they are in one folder "
                f"({some(used)}). {labels_needed(split)}"
            )
        elif doubtful := [name for name in used if name.lower() in _NO_LABELS]:
            warn_once(
                f"{folder} counts {some(doubtful)} as classes, but folders with such names usually hold photos or "
                f"masks of all classes. {labels_needed(split)}"
            )
    return found


def _class_names(folder: Path) -> list[str]:
    """Returns the class folders, sorted. Those without photos count: a class must not move the labels of others."""
    entries = [entry for entry in os.scandir(folder) if entry.name[0] != "." and entry.name.lower() not in _NO_CLASSES]
    if broken := sorted(entry.path for entry in entries if entry.is_symlink() and not os.path.exists(entry.path)):
        raise DataError(
            f"{broken[0]} is a broken link. If it was a class, the labels of the classes after it would move: link it "
            "again, or remove it."
        )
    return sorted(entry.name for entry in entries if entry.is_dir())


def _below(root: Path, split: str) -> Path | None:
    """Returns the folder of a split in a root. A folder without folders may be a class that is called `train`."""
    return only_one(list(filter(_class_names, folders_of(root, split))), f"class folders for {split}")


def _folder_of(root: Path, split: str) -> Path | None:
    if folder := _below(root, split):
        return folder
    if any(_below(root, other) for other in FOLDERS_OF):
        return None
    return root if split == "train" or root.absolute().name.lower() in FOLDERS_OF[split] else None


def _are_splits(found: PhotoFolder) -> bool:
    """Returns whether all folders with photos are called like splits of one data set."""
    matches = [_OF_SPLIT.fullmatch(found.classes[label].lower()) for label in {*found.labels}]
    return all(matches) and len({match[1] for match in matches if match}) == 1


def _trained_classes(root: Path, folder: Path) -> list[str]:
    """Returns the classes of the training images, which decide the labels of another split in `folder`."""
    names = _class_names(folder)
    train = _below(root, "train") or _below(root.absolute().parent, "train")
    if train is None:
        # Numbers are those of image-net.org or of ImageNetV2, and words sort otherwise.
        if len(names) == IMAGENET_CLASSES and all(_SYNSET.match(name) for name in names):
            return names
        raise DataError(
            f"{folder} has {len(names)} class folders, and there is no folder train beside it. Labels are positions "
            "among the classes of the training images, of which a validation set may lack some: name the folder that "
            "holds both train and val."
        )
    classes = _class_names(train)
    if unknown := sorted({*names} - {*classes}):
        lacks = f"{train} lacks {counted(len(unknown), 'class folder')} of {folder}: {some(unknown)}."
        if {name.lower() for name in unknown} <= _NO_LABELS:
            raise DataError(f"{lacks} {labels_needed('validation')}")
        composed, other = ({unicodedata.normalize("NFC", name) for name in found} for found in (unknown, classes))
        accents = " Accents have another Unicode form there (NFC or NFD)." if composed & other else ""
        raise DataError(
            f"{lacks}{accents} Move these photos to the folders of their classes, or make empty folders of these names "
            "for training, too."
        )
    return classes


def _photos(folder: Path, split: str, classes: Sequence[str], endings: tuple[str, ...]) -> PhotoFolder | None:
    files, labels, others = [], [], Counter[str]()
    for label, name in enumerate(classes):
        for entry in sorted(os.listdir(folder / name)) if (folder / name).is_dir() else ():
            if entry[0] == ".":
                continue
            if entry.lower().endswith(endings):
                files.append(folder / name / entry)
                labels.append(label)
            else:
                others[_kind(folder / name / entry)] += 1
    if not files:
        return None
    kinds = (*endings, *ARCHIVE_ENDINGS)
    no_classes = sorted({*os.listdir(folder)} - {*classes})
    beside = [name for name in no_classes if name.lower().endswith(kinds) and name[0] != "."]
    others.update(f"{_kind(folder / name)} beside the class folders" for name in beside)
    others.update("folders of other kinds" for name in os.listdir(folder) if name.lower() in _NO_CLASSES)
    return PhotoFolder(
        directory=str(folder),
        split=split,
        files=files,
        labels=labels,
        classes=classes,
        passed_over=", ".join(f"{count} {kind}" for kind, count in others.most_common()),
    )


def _kind(path: Path) -> str:
    if path.is_dir():
        return "folders in class folders"
    return repr(path.suffix.lower()[:20])[1:-1] or "files without an ending"


def what_is_there(root: Path, split: str, endings: tuple[str, ...]) -> str:
    """Returns what a root without class folders, or its folder of a split, holds instead, and what to do."""
    for name, beginnings in _SMALL_IMAGES.items():
        if any(entry.startswith(beginnings) for entry in os.listdir(root)):
            return (
                f"it holds {DATA_SETS[name].title}, not photos: pass --data_name={name}, and a model for it to train."
            )
    folders = [root, *folders_of(root, split)]
    for folder in folders:
        if any(name.lower().endswith(endings) for name in os.listdir(folder)):
            return f"the photos of {folder} are in one folder. {labels_needed(split)}"
    example = _file_below(folders[-1], endings)
    names = sorted(name for name in os.listdir(folders[-1]) if name[0] != ".")
    below = f", with files such as {example}" if example and example.parent != folders[-1] else ""
    no_test = "" if split == "train" else " (not test)"
    return (
        f"{folders[-1]} holds {some(names) or 'nothing'}{below}. Name the folder of shards called like "
        f"{split}-00000-of-00008, or of one folder of photos for each class, or that has these folders in one named "
        f"{' or '.join(FOLDERS_OF[split])}{no_test}. 'run_bench.py data convert' takes tar archives, and photos in "
        "JPEG, PNG, GIF, BMP, WebP and TIFF; write those in other formats, such as HEIC, Parquet, HDF5 and LMDB, as "
        "such files first (docs/howto/real-data.md)."
    )


def _file_below(root: Path, endings: tuple[str, ...]) -> Path | None:
    """Returns the first photo somewhere below a folder, or if there is none, the first other file."""
    walked = itertools.islice(os.walk(root), _FOLDERS_SEARCHED)
    files = (Path(folder) / name for folder, _, names in walked for name in sorted(names) if name[0] != ".")
    first = next(files, None)
    return next((file for file in files if file.name.lower().endswith(endings)), first)


def labels_needed(split: str) -> str:
    """Returns what photos without labels need, and where ImageNet's are."""
    if split == "train":
        return "Move them into one folder per class, from which labels come."
    return (
        "ImageNet's validation photos have no labels in their names; ILSVRC2012_validation_ground_truth.txt in "
        "ILSVRC2012_devkit_t12.tar.gz, from image-net.org, has them, or LOC_val_solution.csv, from Kaggle. Move each "
        "photo into the folder of its class (docs/howto/real-data.md)."
    )
