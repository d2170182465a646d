"""The verb `data`: makes, checks and converts data sets. Imports TensorFlow late."""

from __future__ import annotations

import dataclasses
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.config.flag import Parsed
from benchmarks.config.verb import Verb
from benchmarks.console import progress, say, warn
from benchmarks.data.sources.data_sets import DATA_SETS
from benchmarks.data.sources.safe_files import FileWork, only_writer
from benchmarks.devices.start_tensorflow import start
from benchmarks.errors import DataError, ExitStatus, UsageError, writing
from benchmarks.option import Flag
from benchmarks.process.deadlines import Deadlines
from benchmarks.process.tensorflow_setup import Runtime
from benchmarks.process.watchdog import Watchdog, watched
from results.text import counted

if TYPE_CHECKING:
    from benchmarks.data.sources.tfrecord import Defect

_PHOTOS, _SMALL_IMAGES = 512, 2000
_PHOTOS_PER_SHARD, _CONVERTED_PER_SHARD = 64, 1280
_TRAIN_IMAGES = Flag(
    "train_images",
    int,
    "number of training images",
    default=f"{_PHOTOS} photos, {_SMALL_IMAGES} small images",
    at_least=0,
)
_VALIDATION_IMAGES = Flag("validation_images", int, "number of validation images", default=0, at_least=0)
_SEED = Flag("seed", int, "random seed; the same seed writes the same files", default=1, at_least=0)
_OVERWRITE = Flag("overwrite", bool, "replace existing files")
_RESIZE = Flag("resize", int, "shrink larger photos to this many pixels on the shorter side", at_least=1)
_DECODED = Flag("decoded", bool, "store pixels, not JPEGs: larger files, but nothing to decode")
_PER_SHARD = Flag("images_per_shard", int, "photos per file", default=_PHOTOS_PER_SHARD, at_least=1)
_SPLIT = Flag("data_split", str, "part of the data set", ("train", "validation"), default="train")
_NUM_CLASSES = Flag(
    "num_classes", int, "classes of TFRecords, as in a run", default="ImageNet's, with the background class", at_least=2
)
_MAKING = (_TRAIN_IMAGES, _VALIDATION_IMAGES, _SEED, _OVERWRITE)
_SHOWN = 100


def _directory(command: str, arguments: Sequence[str]) -> Path:
    if len(arguments) != 1:
        raise UsageError(f"data {command}: name one directory, not {len(arguments)}.")
    directory = Path(arguments[0])
    if directory.is_file():
        raise UsageError(f"data {command}: {directory} is a file: name a directory.")
    return directory


@contextmanager
def _writing(command: str, directory: Path, what: str) -> Iterator[None]:
    """Lets no other process write the same to a directory; turns errors of writing into a usage error."""
    with writing(f"data {command}: cannot write to {directory}", "directory that can be written"):
        with only_writer(directory, what):
            yield


def _counts(command: str, given: Mapping[str, Any], train: int) -> dict[str, int]:
    train = train if given["train_images"] is None else given["train_images"]
    counts = {name: n for name, n in (("train", train), ("validation", given["validation_images"])) if n}
    if not counts:
        raise UsageError(f"data {command}: there is nothing to write; pass --train_images or --validation_images.")
    return counts


def _flag(directory: Path) -> str:
    return f"--data_dir={shlex.quote(str(directory))}"


def _make_imagenet(arguments: Sequence[str], given: Mapping[str, Any], watchdog: Watchdog) -> ExitStatus:
    directory = _directory("make_imagenet", arguments)
    start(Runtime(), Deadlines(watchdog))
    from benchmarks.data.writing import fake_imagenet, photo_records

    per_shard = given["images_per_shard"]
    parts = [photo_records.split(name, n, per_shard) for name, n in _counts("make_imagenet", given, _PHOTOS).items()]
    for part in parts:
        existing = part.shards_in(directory)
        if existing and not given["overwrite"]:
            raise UsageError(
                f"{directory} already holds {len(existing)} {part.name} shards ({existing[0].name}, ...): name another "
                "directory, or pass --overwrite to replace them."
            )
    with _writing("make_imagenet", directory, "images"):
        for part in parts:
            fake_imagenet.write(
                directory,
                part,
                seed=given["seed"],
                shorter_side=given["resize"],
                decoded=bool(given["decoded"]),
                work=FileWork(watchdog),
            )
    total = sum(part.images for part in parts)
    shards = sum(part.shards for part in parts)
    say(f"{total} images in {counted(shards, 'shard')}. Use them with {_flag(directory)}")
    return ExitStatus.OK


def _make_small_images(name: str, arguments: Sequence[str], given: Mapping[str, Any], watchdog: Watchdog) -> ExitStatus:
    from benchmarks.data.writing import small_image_files

    command = f"make_{name}"
    directory = _directory(command, arguments)
    counts = {} if name == "digits" else _counts(command, given, _SMALL_IMAGES)
    if directory.is_dir() and any(file.name[0] != "." for file in directory.iterdir()) and not given["overwrite"]:
        raise UsageError(
            f"{directory} is not empty: name another directory, or pass --overwrite to replace files there."
        )
    with _writing(command, directory, "images"):
        Deadlines(watchdog).data_set(f"Writing {name} to {directory}")
        if name == "digits":
            parts = small_image_files.load_digits()
        else:
            draw = small_image_files.draw
            parts = {split: draw(name, images, given["seed"], split) for split, images in counts.items()}
        write = small_image_files.write_cifar10 if name == "cifar10" else small_image_files.write_idx
        for split, part in parts.items():
            files = write(directory, *part, split=split)
            say(f"{', '.join(file.name for file in files)}: {len(part[1])} {split} images")
    use = {"cifar10": "--model=resnet20", "mnist": "--model=mlp", "digits": "--preset=digits"}[name]
    say(f"Use them with {use} {_flag(directory)}")
    return ExitStatus.OK


def _refuse_num_classes(given: Mapping[str, Any]) -> None:
    if given["num_classes"] is not None:
        raise UsageError("--num_classes is about TFRecords, and this data set has none: drop it.")


def _convert(arguments: Sequence[str], given: Mapping[str, Any], watchdog: Watchdog) -> ExitStatus:
    if len(arguments) != 2:
        raise UsageError("data convert SRC DIR: name a source and one directory to write to.")
    path, directory = Path(arguments[0]), _directory("convert", arguments[1:])
    start(Runtime(), Deadlines(watchdog))
    from benchmarks.data.sources.class_folders import FOLDERS_OF
    from benchmarks.data.sources.imagenet_files import PhotoRecords
    from benchmarks.data.writing import convert, originals
    from models.model_spec import BACKGROUND_CLASSES, IMAGENET_CLASSES

    split, classes, deadlines = given["data_split"], given["num_classes"], Deadlines(watchdog)
    deadlines.data_set(f"Listing the photos of {path}")
    source = originals.find_originals(path, split)
    files = source.files if isinstance(source, PhotoRecords) else [photo.file for photo in source.photos[:1]]
    searched = {path, *(folder for file in files[:1] for folder in file.parents if folder.is_relative_to(path))}
    is_split = directory.name.lower() in FOLDERS_OF[split] and directory.resolve().parent == path.resolve()
    if is_split or directory.resolve() in {folder.resolve() for folder in searched}:
        raise UsageError(
            f"data convert: {directory} is searched for the photos of {path}: name another directory to write to."
        )
    folder = path.resolve()
    if any(folder.name.lower() in names for names in FOLDERS_OF.values()) and directory.resolve() == folder.parent:
        raise UsageError(
            f"data convert: shards in {directory} would be read in place of the photos in {path}: name another "
            "directory to write to."
        )
    part = convert.divided(source, split, given["images_per_shard"] or _CONVERTED_PER_SHARD)
    deadlines.none()
    if not part.images:
        raise DataError(f"{path} holds no photos.")
    if not isinstance(source, PhotoRecords):
        _refuse_num_classes(given)
        first, is_hidden = source.photos[0], directory.name.startswith(".")
        if first.member is None and not is_hidden and directory.resolve().parent == first.file.parents[1].resolve():
            raise UsageError(f"data convert: {directory} would count as a class of {path}: name a directory elsewhere.")
    elif given["images_per_shard"]:
        raise UsageError("data convert: TFRecords keep their shards: drop --images_per_shard.")
    say(source.describe())
    with _writing("convert", directory, split):
        result = convert.convert(
            source,
            directory,
            split=part,
            shorter_side=given["resize"],
            decoded=bool(given["decoded"]),
            seed=given["seed"],
            num_classes=IMAGENET_CLASSES if classes in (None, BACKGROUND_CLASSES) else classes,
            work=FileWork(watchdog),
        )
    for sentence in result.left_out[:_SHOWN]:
        warn(f"left out: {sentence}")
    how = "all were decoded" if given["decoded"] else f"{result.encoded_anew} were encoded again"
    say(
        f"{result.written} photos in {counted(part.shards, 'shard')}; {how}, {len(result.left_out)} left out. Use them "
        f"with {_flag(directory)}"
    )
    return ExitStatus.DATA if result.left_out else ExitStatus.OK


def _check(arguments: Sequence[str], given: Mapping[str, Any], watchdog: Watchdog) -> ExitStatus:
    directory = str(_directory("check", arguments))
    start(Runtime(), Deadlines(watchdog))
    from benchmarks.data.pipeline import input_pipeline
    from benchmarks.data.sources import bad_records
    from benchmarks.data.sources.class_folders import PhotoFolder
    from benchmarks.data.sources.imagenet_files import PhotoRecords
    from benchmarks.data.sources.jpeg_header import check_header
    from benchmarks.data.sources.small_images import Pixels
    from benchmarks.data.sources.tfrecord import Defect
    from models.model_spec import BACKGROUND_CLASSES

    deadlines = Deadlines(watchdog)
    deadlines.data_set(f"Finding the data set in {directory}")
    source = input_pipeline.find_source(given["data_name"], directory, given["data_split"])
    description = source.describe()
    deadlines.none()
    say(description)
    if not isinstance(source, PhotoRecords):
        _refuse_num_classes(given)
    if isinstance(source, Pixels):  # an incomplete data set has raised an error by now
        say(f"{source.count} records, all sound")
        return ExitStatus.OK
    records, kinds, labels = 0, Counter[str](), set[int]()
    if isinstance(source, PhotoRecords):
        reason = "it holds no record; copy or make it again"
        _note([Defect(file, 0, 0, "shard", reason) for file in source.empty], kinds)
    num_classes = given["num_classes"] or BACKGROUND_CLASSES
    check = bad_records.decoding() if given["decode"] else nullcontext(check_header)
    with (
        progress.counted(f"Checking the files of {directory}", len(source.files)),
        check as check_photo,
        closing(
            bad_records.defects(source, num_classes, check_photo, work=FileWork(watchdog), note_label=labels.add)
        ) as checked,
    ):
        for count, bad in checked:
            progress.advance(count if isinstance(source, PhotoFolder) else 1)  # a photo of a folder is a file
            records += count
            _note(bad, kinds)
    summary = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    result = f"{sum(kinds.values())} with a defect: {summary}" if kinds else "all sound"
    seen = f", labels {min(labels)} to {max(labels)}" if labels else ""
    say(f"{counted(records, 'record')} in {counted(len(source.files), 'file')}{seen}, {result}")
    return ExitStatus.DATA if kinds else ExitStatus.OK


def _note(bad: Sequence[Defect], kinds: Counter[str]) -> None:
    """Counts defects by kind, and prints the first."""
    for defect in bad:
        kinds[defect.kind] += 1
        if sum(kinds.values()) <= _SHOWN:
            say(f"{defect.kind:12} {defect}")


_Work = Callable[[Sequence[str], Mapping[str, Any], Watchdog], ExitStatus]


def _part(name: str, meaning: str, work: _Work, flags: Sequence[Flag], example: str, *, words: str = "DIR") -> Verb:
    """Returns a subcommand. Flags that are not given have their defaults, unless those are phrases."""

    def run(given: Parsed, command: Sequence[str]) -> ExitStatus:
        usual = {flag.name: flag.usual for flag in flags if given.values[flag.name] is None}
        with watched() as watchdog:
            return work(given.words, {**given.values, **usual}, watchdog)

    examples = (f"data {name} {example}",)
    return Verb(f"data {name}", {"Flags": flags}, run, "words", words, examples=examples, meaning=meaning)


VERB = Verb(
    "data",
    examples=("data make_imagenet data/fake --train_images=512", "data check data/fake"),
    parts=(
        _part(
            "make_imagenet",
            "write a fake ImageNet: TFRecords of photos that are drawn at random",
            _make_imagenet,
            (*_MAKING, _PER_SHARD, _RESIZE, _DECODED),
            "data/fake --train_images=512",
        ),
        *(
            _part(f"make_{name}", f"write {what}", partial(_make_small_images, name), flags, f"data/{name}")
            for name, what, flags in (
                ("cifar10", "a fake CIFAR-10", _MAKING),
                ("mnist", "a fake MNIST", _MAKING),
                ("digits", "real handwritten digits, in the format of MNIST", (_OVERWRITE,)),
            )
        ),
        _part(
            "convert",
            "convert folders of photos, tar archives or TFRecords to TFRecords; resumes where it was interrupted",
            _convert,
            (
                _SPLIT,
                _RESIZE,
                _DECODED,
                dataclasses.replace(_PER_SHARD, default=f"{_CONVERTED_PER_SHARD}; TFRecords keep theirs"),
                dataclasses.replace(_NUM_CLASSES, default="ImageNet's"),
                _SEED,
            ),
            "photos data/imagenet --resize=480",
            words="SRC DIR",
        ),
        _part(
            "check",
            "read every record, and list the defects",
            _check,
            (
                Flag("data_name", str, "the data set", tuple(DATA_SETS), default="imagenet"),
                _SPLIT,
                Flag("decode", bool, "also decode every photo"),
                _NUM_CLASSES,
            ),
            "data/fake",
        ),
    ),
)
