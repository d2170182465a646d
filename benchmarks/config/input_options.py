"""From flags to where images come from and how they reach the devices. Imports without TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from benchmarks.config.flag import Flag, Groups
from benchmarks.errors import UsageError
from benchmarks.input.catalog import DATA_SETS, SYNTHETIC, SYNTHETIC_HOST
from benchmarks.input.options import AUTOTUNE, RESIZE_METHODS, ROUND_ROBIN, InputOptions, of_validation
from models import specs
from models.model_spec import ModelSpec

IMAGE_FLAGS: Groups = {
    "Data": (
        Flag(
            "data_dir",
            str,
            "directory of the images; of TFRecords, also an address such as gs://bucket/x",
            default="synthetic images",
            path="directory",
            addresses=True,
            unset="",
        ),
        Flag(
            "data_name",
            str,
            "data set; synthetic: images made once on the devices; synthetic_host: made once on the host, so that the "
            "copy to the device is measured",
            (*DATA_SETS, SYNTHETIC, SYNTHETIC_HOST),
            default="the model's with --data_dir, else synthetic",
        ),
        Flag("data_split", str, "part of the data set", ("train", "validation"), default="train"),
        Flag(
            "on_bad_record",
            str,
            "fail: end the run and report file, record and reason; skip: count it and go on",
            ("fail", "skip"),
            default="fail",
        ),
        Flag(
            "pipelined_input",
            bool,
            "copy the next step's images to the device during this step",
            default="true unless images are synthetic",
        ),
    ),
    "How images are prepared": (
        Flag(
            "image_crop",
            str,
            "distorted: a random part, flipped at random; central: the middle",
            ("distorted", "central"),
            default="distorted; with --forward_only, central",
        ),
        Flag("fuse_decode_and_crop", bool, "decode only the part that is kept", default=True),
        Flag("decode_scaling", bool, "decode at 1/2, 1/4 or 1/8 of the size where the part is that much too large"),
        Flag(
            "resize_method",
            str,
            "how images are resized; round_robin alternates the methods",
            (*RESIZE_METHODS, ROUND_ROBIN),
            default=InputOptions.resize_method,
        ),
        Flag("distortions", bool, "random brightness, saturation, hue and contrast"),
        Flag("distort_color_in_yiq", bool, "saturation and hue of --distortions in YIQ, else in HSV", default=True),
    ),
    "How files are read": (
        Flag(
            "datasets_parallel_interleave_cycle_length",
            int,
            "files read at a time",
            default=InputOptions.cycle_length,
            at_least=1,
        ),
        Flag(
            "datasets_shuffle_records",
            int,
            "size of the shuffle buffer in records; 0 or 1: no shuffling",
            default=InputOptions.shuffle_records,
            at_least=0,
        ),
        Flag(
            "datasets_parallel_calls",
            int,
            "images prepared at a time; 0: cores + 1; -1: tf.data chooses",
            default=InputOptions.parallel_calls,
            at_least=AUTOTUNE,
        ),
        Flag("datasets_use_prefetch", bool, "prefetch batches", default=True),
        Flag(
            "datasets_prefetch_buffer_size",
            int,
            "prefetched batches per device",
            default=InputOptions.prefetch_batches,
            at_least=0,
        ),
        Flag(
            "datasets_num_private_threads",
            int,
            "threads of the pipeline alone; 0: it shares the session's",
            default=InputOptions.private_threads,
            at_least=0,
        ),
        Flag(
            "datasets_autotune_cpu_budget",
            int,
            "cores for --datasets_parallel_calls=-1; 0: all",
            default=InputOptions.autotune_cpu_budget,
            at_least=0,
        ),
        Flag("datasets_sloppy_parallel_interleave", bool, "take what is ready first; runs then differ"),
        Flag("datasets_use_caching", bool, "keep all records in memory, as they are on disk"),
        Flag("datasets_repeat_cached_sample", bool, "use the first record again and again: no reading"),
    ),
}

# The option that each flag sets.
_OPTION_OF_FLAG = {
    "data_split": "split",
    "image_crop": "crop",
    "fuse_decode_and_crop": "fuse_decode_and_crop",
    "decode_scaling": "decode_scaling",
    "resize_method": "resize_method",
    "distortions": "distortions",
    "distort_color_in_yiq": "distort_color_in_yiq",
    "datasets_parallel_interleave_cycle_length": "cycle_length",
    "datasets_shuffle_records": "shuffle_records",
    "datasets_parallel_calls": "parallel_calls",
    "datasets_prefetch_buffer_size": "prefetch_batches",
    "datasets_num_private_threads": "private_threads",
    "datasets_autotune_cpu_budget": "autotune_cpu_budget",
    "datasets_sloppy_parallel_interleave": "sloppy",
    "on_bad_record": "on_bad_record",
}
_CACHE_FLAGS: dict[str, Literal["records", "one_record"]] = {
    "datasets_use_caching": "records",
    "datasets_repeat_cached_sample": "one_record",
}
_FOR_PHOTOS = (
    "fuse_decode_and_crop",
    "decode_scaling",
    "resize_method",
    "distortions",
    "distort_color_in_yiq",
    "datasets_parallel_interleave_cycle_length",
    "datasets_shuffle_records",
    "datasets_sloppy_parallel_interleave",
    "datasets_use_caching",
    "on_bad_record",
)
# These also act on batches that are made on the host, not read.
_FOR_HOST_BATCHES = ("datasets_prefetch_buffer_size", "datasets_use_prefetch", "datasets_num_private_threads")
FLAGS = (*_OPTION_OF_FLAG, *_CACHE_FLAGS, "datasets_use_prefetch")


def resolve(given: Mapping[str, Any], spec: ModelSpec) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Decides on the input.

    Args:
        given: flag values by name; None is not given.
        spec: the model, which determines the kind of images.

    Returns:
        The fields of the configuration that are about input, and sentences on how flags were understood.

    Raises:
        UsageError: flags that contradict each other or would have no effect.
    """
    name, notices = _data_name(given, spec)
    if given["pipelined_input"] and name == SYNTHETIC:
        raise UsageError(
            "--pipelined_input copies images to the devices, where synthetic ones already are: give --data_dir, or "
            "leave it out."
        )
    fields = {
        "data_name": name,
        "data_dir": given["data_dir"],
        "num_classes": _num_classes(given["num_classes"], spec, name),
        "pipelined_input": name != SYNTHETIC and given["pipelined_input"] is not False,
    }
    _refuse_without_effect(given, name)
    return {**fields, "input": None if name == SYNTHETIC else _options(given, name)}, notices


def _data_name(given: Mapping[str, Any], spec: ModelSpec) -> tuple[str, tuple[str, ...]]:
    name, directory = given["data_name"], given["data_dir"]
    if spec.data_name == SYNTHETIC and (name in DATA_SETS or directory is not None):
        flag = f"data_name={name}" if name in DATA_SETS else f"data_dir={directory}"
        raise UsageError(
            f"--{flag}: the images of {spec.name}, {spec.image_size}x{spec.image_size} pixels with {spec.channels} "
            f"channel(s), and its {spec.usual_outputs} outputs fit no data set: imagenet has 3 channels; cifar10 "
            "32x32x3 and 10 classes; mnist 28x28x1 and 10 classes. Leave the flag out for synthetic images."
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


def _num_classes(wanted: int | None, spec: ModelSpec, data_name: str) -> int:
    if spec.outputs and wanted not in (None, spec.outputs):
        raise UsageError(f"--num_classes={wanted}: {spec.name} always has {spec.outputs} outputs; leave it out.")
    if data_name in ("cifar10", "mnist") and wanted not in (None, spec.classes):
        raise UsageError(f"--num_classes={wanted}: {data_name} has {spec.classes} classes; leave it out.")
    return wanted or spec.usual_outputs


def _options(given: Mapping[str, Any], name: str) -> InputOptions:
    chosen = {option: given[flag] for flag, option in _OPTION_OF_FLAG.items() if given[flag] is not None}
    if given["forward_only"] and name != "mnist":
        chosen.setdefault("crop", "central")
    caches = [cache for flag, cache in _CACHE_FLAGS.items() if given[flag]]
    if len(caches) > 1:
        raise UsageError(f"--{' and --'.join(_CACHE_FLAGS)} exclude each other: drop one.")
    if given["datasets_use_prefetch"] is False:
        if given["datasets_prefetch_buffer_size"]:
            raise UsageError("--nodatasets_use_prefetch and --datasets_prefetch_buffer_size contradict each other.")
        chosen["prefetch_batches"] = 0
    options = InputOptions(**chosen, cache=caches[0] if caches else "none")
    if given["distort_color_in_yiq"] is not None and not options.distortions:
        raise UsageError("--distort_color_in_yiq is about --distortions: give both, or leave it out.")
    if options.distortions and options.crop == "central":
        raise UsageError("--distortions are for training: give --image_crop=distorted as well, or leave them out.")
    if options.decode_scaling and not options.fuse_decode_and_crop:
        raise UsageError("--decode_scaling needs --fuse_decode_and_crop: drop one of them.")
    if given["eval"]:
        options = of_validation(options)
    if options.autotune_cpu_budget and options.parallel_calls != AUTOTUNE:
        raise UsageError("--datasets_autotune_cpu_budget needs --datasets_parallel_calls=-1: give both, or neither.")
    if options.sloppy and options.on_bad_record == "skip":
        raise UsageError(
            "--on_bad_record=skip needs a fixed order of reading: drop --datasets_sloppy_parallel_interleave."
        )
    if options.cache != "none" and options.on_bad_record == "skip":
        raise UsageError("--on_bad_record=skip counts what is read, and a cache reads once: drop one of them.")
    return options


def _refuse_without_effect(given: Mapping[str, Any], name: str) -> None:
    """Refuses flags about reading if nothing is read, and flags about photos if the data set has none."""
    kept = {SYNTHETIC: (), SYNTHETIC_HOST: _FOR_HOST_BATCHES, "imagenet": FLAGS}
    small = [flag for flag in FLAGS if flag not in _FOR_PHOTOS and not (flag == "image_crop" and name == "mnist")]
    effective = kept.get(name, small)
    defaults = dataclasses.asdict(InputOptions()) | {"datasets_use_prefetch": True}
    for flag in FLAGS:
        usual = defaults.get(_OPTION_OF_FLAG.get(flag, flag), False)
        if flag in effective or given[flag] is None or given[flag] == usual:
            continue
        if name in (SYNTHETIC, SYNTHETIC_HOST):
            raise UsageError(f"--{flag} is about images that are read, and these are {name}: give --data_dir too.")
        raise UsageError(f"--{flag} is about photos, and {name} has none: leave it out.")


DataName = Literal["imagenet", "cifar10", "mnist", "synthetic", "synthetic_host"]
