"""Where images come from, and how they are read, prepared and brought to the devices. Imports without TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from benchmarks.data.sources.data_sets import DATA_SETS, SMALL_IMAGES, SYNTHETIC, SYNTHETIC_HOST
from benchmarks.errors import UsageError
from benchmarks.machine import hardware
from benchmarks.option import Flag, filled, flags_of, option
from models import specs
from models.model_spec import ModelSpec

RESIZE_METHODS = ("bilinear", "nearest", "bicubic", "area")
ROUND_ROBIN = "round_robin"
AUTOTUNE = -1  # as in tf.data
_NO_MODEL = "no model of this suite is trained on it, only classifiers of images: use imagenet, cifar10 or mnist"

_OF_PHOTOS = ("cifar100", "custom", "flowers", "imagefolder", "imagenette", "places365", "tiny-imagenet")
_AS_IMAGENET = "photos of any classes are read as imagenet's, with their number in --num_classes"


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputOptions:
    """How images are read and prepared: docs/background/input.md has the stages.

    Attributes:
        cache: `records` keeps all records in memory; `one_record` repeats the first record, so that reading costs
            nothing.
    """

    split: Literal["train", "validation"] = option("part of the data set", default="train", flag="data_split")
    crop: Literal["distorted", "central"] = option(
        "crop of each image; distorted: at random, with random flips; central: the centre",
        default="distorted",
        default_text="distorted; with --forward_only, central",
        flag="image_crop",
    )
    fuse_decode_and_crop: bool = option("decode only the cropped part of a photo", default=True)
    decode_scaling: bool = option(
        "decode at 1/2, 1/4 or 1/8 of the size where the crop stays large enough", default=False
    )
    resize_method: str = option(
        "interpolation for resizing images; round_robin alternates the methods",
        default="bilinear",
        choices=(*RESIZE_METHODS, ROUND_ROBIN),
    )
    distortions: bool = option("distort brightness, saturation, hue and contrast at random", default=False)
    distort_color_in_yiq: bool = option("distort saturation and hue in YIQ instead of HSV", default=True)
    cycle_length: int = option(
        "number of files read in parallel", default=10, flag="datasets_parallel_interleave_cycle_length", at_least=1
    )
    shuffle_records: int = option(
        "size of the shuffle buffer in records, about 110 KB each for photos; 0 or 1: no shuffling",
        default=256,
        flag="datasets_shuffle_records",
        at_least=0,
    )
    parallel_calls: int = option(
        "number of images prepared in parallel; 0: 2 x cores + 2; -1: tf.data chooses",
        default=0,
        flag="datasets_parallel_calls",
        at_least=AUTOTUNE,
    )
    prefetch_batches: int = option(
        "number of batches prefetched per device; 0: none",
        default=2,
        flag="datasets_prefetch_buffer_size",
        at_least=0,
    )
    private_threads: int = option(
        "threads of a private pool for the input pipeline; 0: it uses the session's threads",
        default=0,
        flag="datasets_num_private_threads",
        at_least=0,
    )
    autotune_cpu_budget: int = option(
        "cores that tf.data may use with --datasets_parallel_calls=-1; 0: all",
        default=0,
        flag="datasets_autotune_cpu_budget",
        at_least=0,
    )
    sloppy: bool = option(
        "take records in the order in which they are ready; runs then differ",
        default=False,
        flag="datasets_sloppy_parallel_interleave",
    )
    cache: Literal["none", "records", "one_record"] = "none"
    on_bad_record: Literal["fail", "skip"] = option(
        "what to do with a damaged record; fail: end the run, and report file, record and reason; skip: count and "
        "skip it",
        default="fail",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    """The part of a configuration on images.

    Attributes:
        input: how images are read; None where they are made on the devices.
        pauses: what interrupts a run that reads images: meanwhile its input works on, so its steps wait less.
    """

    data_dir: str | None = option(
        "directory of the data set; of TFRecords, also an address such as gs://bucket/x",
        default=None,
        default_text="synthetic images",
        in_key=False,
        path="directory",
        addresses=True,
        unset="",
    )
    data_name: str = option(
        "data set; synthetic: images generated once on the devices; synthetic_host: generated once on the host, so "
        "that the copy to the device is measured",
        choices=(*DATA_SETS, SYNTHETIC, SYNTHETIC_HOST),
        gone=(("coco", _NO_MODEL), ("librispeech", _NO_MODEL), *((name, _AS_IMAGENET) for name in _OF_PHOTOS)),
        default_text="the model's with --data_dir, else synthetic",
        unset="",
    )
    pipelined_input: bool = option(
        "copy the next step's images to the device during this step", default_text="true unless images are synthetic"
    )
    input: InputOptions | None
    pauses: Mapping[str, Any] | None = dataclasses.field(default=None, hash=False)


INPUT_FLAGS = (
    *flags_of(InputOptions),
    Flag("datasets_use_prefetch", bool, "prefetch batches", default=True),
    Flag("datasets_use_caching", bool, "cache all records in memory, not decoded"),
    Flag("datasets_repeat_cached_sample", bool, "repeat the first record, so that nothing is read"),
)


def decide(given: Mapping[str, Any], name: str, pauses: Mapping[str, Any] | None) -> Data:
    """Returns where images come from and how they are brought to the devices.

    Args:
        given: flag values by name; None: not given.
        name: as `data_name` returns it.
        pauses: what interrupts the run.

    Raises:
        UsageError: training images are to be evaluated.
    """
    if name == SYNTHETIC:
        return filled(Data, given, data_name=name, pipelined_input=False, input=None)
    if given["eval"] and given["data_split"] == "train":
        raise UsageError(
            "--data_split=train does not go with --eval, which takes the validation set: leave it out. For training "
            "images, train with --print_training_accuracy, or name a --data_dir that has them as its validation set."
        )
    chosen: dict[str, Any] = {"cache": "none"}
    if given["forward_only"] and name != "mnist" and given["image_crop"] is None:
        chosen["crop"] = "central"
    if given["datasets_use_caching"]:
        chosen["cache"] = "records"
    if given["datasets_repeat_cached_sample"]:
        chosen["cache"] = "one_record"
    if given["datasets_use_prefetch"] is False:
        chosen["prefetch_batches"] = 0
    options = filled(InputOptions, given, **chosen)
    return filled(
        Data,
        given,
        data_name=name,
        pipelined_input=given["pipelined_input"] is not False,
        input=of_validation(options) if given["eval"] else options,
        pauses=pauses,
    )


def data_name(given: Mapping[str, Any], spec: ModelSpec) -> tuple[str, tuple[str, ...]]:
    """Returns the data set, or the kind of synthetic images, and sentences on how flags were understood.

    Args:
        given: flag values by name; None: not given.
        spec: the model, which determines the kind of images.

    Raises:
        UsageError: the model is for other images, or there are none.
    """
    name, directory = given["data_name"], given["data_dir"]
    if spec.data_name == SYNTHETIC and (name in DATA_SETS or directory is not None):
        flag = f"data_name={name}" if name in DATA_SETS else f"data_dir={directory}"
        raise UsageError(
            f"--{flag}: the images of {spec.name}, {spec.image_size}x{spec.image_size} pixels with {spec.channels} "
            f"channel(s), and its {spec.usual_outputs} outputs fit no data set: imagenet has 3 channels; cifar10 "
            "32x32x3 and 10 classes; mnist 28x28x1 and 10 classes. Leave the flag out for synthetic images"
            f"{'.' if spec.outputs else ', or choose the number of outputs with --num_classes.'}"
        )
    if name in DATA_SETS and name != spec.data_name:
        fitting = ", ".join(other.name for other in specs.MODELS if other.data_name == name)
        raise UsageError(
            f"--data_name={name}: {spec.name} is for {spec.data_name} ({spec.image_size}x{spec.image_size} pixels, "
            f"{spec.channels} channel(s)). Models for {name}: {fitting}."
        )
    if directory is None and name in DATA_SETS:
        return SYNTHETIC, (f"--data_name={name} without --data_dir: the images are synthetic.",)
    if directory is not None and name in (SYNTHETIC, SYNTHETIC_HOST):
        raise UsageError(f"--data_name={name} reads nothing, but --data_dir={directory} is given: drop one of them.")
    return name or (SYNTHETIC if directory is None else spec.data_name), ()


def num_classes(requested: int | None, spec: ModelSpec, data_name: str) -> int:
    """Returns the number of classes that a model tells apart; `requested` is what a flag asks for.

    Raises:
        UsageError: the model, or the data set, has another number.
    """
    if spec.outputs and requested not in (None, spec.outputs):
        own = ", or give the function a parameter num_classes" if ":" in spec.name else ""
        raise UsageError(
            f"--num_classes={requested}: {spec.name} always has {spec.outputs} outputs; leave it out{own}."
        )
    if data_name in SMALL_IMAGES and requested not in (None, spec.classes):
        raise UsageError(
            f"--num_classes={requested}: {data_name} has {spec.classes} classes; leave it out. Images of other "
            "data sets are read as photos in one folder per class, by models for imagenet and own ones."
        )
    return requested or spec.usual_outputs


def of_validation(options: InputOptions) -> InputOptions:
    """Returns the options of an evaluation: of the validation set, in a fixed order, no image changed at random."""
    return dataclasses.replace(
        options, split="validation", crop="central", distortions=False, sloppy=False, cache="none"
    )


def parallel_calls(options: InputOptions) -> int:
    """Returns the number of images prepared at a time.

    By default more than twice the cores: images are handed over in order, so behind one that takes long, others that
    are done must have a place. On 2 cores, 6 are 5 % faster than 3, and more are not faster.
    """
    return options.parallel_calls or 2 * hardware.usable_cores() + 2
