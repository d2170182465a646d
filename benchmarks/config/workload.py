"""What is trained: the model, its images per step, and whether it trains at all. Imports without TensorFlow."""

from __future__ import annotations

import dataclasses
from typing import Literal

from benchmarks.option import Flag, flags_of, option
from models import specs


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload:
    """The part of a configuration on what is computed; a batch is of images.

    Attributes:
        model_digest: of the code outside this suite that builds the model; None: no such code.
        eval_only: only the weights of a checkpoint are evaluated; then there is inference only, too.
    """

    model: str = option(
        "what is trained: a name that `models` lists, keras:NAME, or path/to/file.py:function; keras:NAME is of "
        "keras.applications, a function (also package.module:function) returns a Keras model",
        default="resnet50",
        known=tuple(specs.names()),
    )
    model_digest: str | None = None
    batch_per_device: int = option(
        "images per device and step; auto: the largest that fits, found by trying and remembered",
        flag="batch_size",
        choices=("auto",),
        default_text="the model's, smaller on a CPU",
        at_least=1,
        unset=0,
    )
    num_classes: int = option(
        "classes that the model tells apart; 1001 are ImageNet's and a background class",
        default_text="the model's",
        at_least=2,
    )
    data_format: Literal["NHWC", "NCHW"] = option(
        "layout of images and convolutions; auto: NHWC on CPUs, and with 16 bits on tensor cores; else NCHW",
        choices=("auto", "NHWC", "NCHW"),
        default_text="auto",
    )
    forward_only: bool = option("inference only: no gradients, no updates", default=False)
    eval_only: bool = False
    print_training_accuracy: bool = option("print and record the top-1 and top-5 accuracy of each step", default=False)


WORKLOAD_FLAGS: tuple[Flag, ...] = flags_of(Workload)
