"""The options of the input pipeline. Imports without TensorFlow."""

from __future__ import annotations

import dataclasses
from typing import Literal

from benchmarks.system import hardware

RESIZE_METHODS = ("bilinear", "nearest", "bicubic", "area")
ROUND_ROBIN = "round_robin"
AUTOTUNE = -1  # as in tf.data


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputOptions:
    """How images are read and prepared. docs/background/input.md gives the measurements behind the defaults.

    Attributes:
        split: the part of the data set.
        crop: `distorted` takes a random part and flips half of the images; `central` takes the middle, for evaluation.
        fuse_decode_and_crop: decode only the part of the photo that the crop keeps.
        decode_scaling: decode a part of at least twice the final size at 1/2, 1/4 or 1/8 of its size, in the DCT.
        resize_method: one of RESIZE_METHODS; `round_robin` uses them in order, image by image.
        distortions: change brightness, contrast, saturation and hue at random.
        distort_color_in_yiq: change saturation and hue in YIQ, by one matrix; otherwise in HSV.
        cycle_length: number of files read at a time.
        shuffle_records: size of the shuffle buffer in records, of about 110 KB each for photos.
        parallel_calls: number of images prepared at a time; 0 is the number of cores + 1; AUTOTUNE lets tf.data choose.
        prefetch_batches: number of batches per tower made ahead; 0 makes each batch on request.
        private_threads: number of threads of the pipeline alone; 0 shares the session's threads.
        autotune_cpu_budget: number of cores that tf.data's autotuning may use; 0 is all.
        sloppy: yield records in the order in which they become ready, so that equal seeds give different runs.
        cache: `records` keeps all records in memory; `one_record` repeats the first record, so that reading costs
            nothing.
        on_bad_record: `fail` ends the run and names the record; `skip` leaves it out and counts it.
    """

    split: Literal["train", "validation"] = "train"
    crop: Literal["distorted", "central"] = "distorted"
    fuse_decode_and_crop: bool = True
    decode_scaling: bool = False
    resize_method: str = "bilinear"
    distortions: bool = False
    distort_color_in_yiq: bool = True
    cycle_length: int = 10
    shuffle_records: int = 256
    parallel_calls: int = 0
    prefetch_batches: int = 2
    private_threads: int = 0
    autotune_cpu_budget: int = 0
    sloppy: bool = False
    cache: Literal["none", "records", "one_record"] = "none"
    on_bad_record: Literal["fail", "skip"] = "fail"


def of_validation(options: InputOptions) -> InputOptions:
    """Returns the options of an evaluation: of the validation set, in a fixed order, no image changed at random."""
    return dataclasses.replace(
        options, split="validation", crop="central", distortions=False, sloppy=False, cache="none"
    )


def parallel_calls(options: InputOptions) -> int:
    """Returns the number of images prepared at a time; by default one more than cores, as one is being handed over."""
    return options.parallel_calls or hardware.usable_cores() + 1
