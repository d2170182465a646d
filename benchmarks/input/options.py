"""What may be chosen about the input pipeline. Imports without TensorFlow."""

from __future__ import annotations

import dataclasses
from typing import Literal

RESIZE_METHODS = ("bilinear", "nearest", "bicubic", "area")
ROUND_ROBIN = "round_robin"
AUTOTUNE = -1  # as in tf.data


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputOptions:
    """How images are read and prepared. docs/data.md says what each default was measured against.

    Attributes:
        split: which part of the data set is read.
        crop: `distorted` is a random part, flipped every other time; `central` is the middle, as in evaluation.
        fuse_decode_and_crop: only the part that is kept is decoded.
        decode_scaling: a part of at least twice the wanted size is decoded at half the size, and so on, in the DCT.
        resize_method: one of RESIZE_METHODS; `round_robin` takes these in turn, image by image.
        distortions: random brightness, contrast, saturation and hue.
        distort_color_in_yiq: saturation and hue are turned in YIQ, by one matrix; otherwise in HSV.
        cycle_length: files that are read at a time.
        shuffle_records: records that wait to be drawn from; at 110 KB each for photos.
        parallel_calls: images that are prepared at a time; 0 is one more than cores; AUTOTUNE leaves it to
            tf.data.
        prefetch_batches: batches per tower that wait to be fetched; 0 makes each when it is asked for.
        private_threads: of the pipeline alone; 0 shares the session's.
        autotune_cpu_budget: how many cores tf.data may plan with, where it does; 0 is all.
        sloppy: what is ready first comes first, so that runs with equal seeds differ.
        cache: `records` keeps all records in memory; `one_record` uses the first again and again, which takes reading
            out of the measurement.
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
