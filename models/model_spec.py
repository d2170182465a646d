"""What the file of a model states: its specs, and the style of its layers. Imports without TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

BACKGROUND_CLASSES = 1001
IMAGENET_CLASSES = 1000
NUM_CHANNELS = 3

# From a symbolic batch of images, the run's `models.layers.Layers`, and the number of classes, to symbolic logits.
Builder = Callable[[Any, Any, int], Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """One model: how it is built, its defaults, and the published figures that tests check.

    Attributes:
        name: the value of `--model`.
        title: the name in reports.
        build: makes it.
        variant_of: the model that this one stands for with `--data_name` of its own data set.
        data_name: the data set that it trains on; `synthetic` if its images are those of no data set.
        image_size: height and width of an input image, pixels.
        channels: of an input image: 3 for colour, 1 for grey.
        classes: by default, without a background class.
        outputs: number of logits if the model has a fixed one; None: any number.
        nchw: it can be built with channels before height and width.
        digest: of the code outside this suite that builds it; None: no such code.
        code: the file of that code, below the root of its git repository, and the commit, as `net.py at 0123456789ab`;
            `+` follows if files of it were changed. Without a repository, the name of the file.
        has_conv1x1: some of its convolutions have a 1x1 kernel.
        has_batch_norm: it has batch normalisation.
        has_larger_convolutions: some of its convolutions have a larger kernel and no stride.
        batch_on_gpu: default images per device and step on a GPU whose memory does not decide, see `results/data`.
        batch_on_cpu: default images per device and step on a CPU.
        learning_rate: default for plain SGD; chosen so that the loss falls from the first steps on.
        parameters: trainable parameters, without a background class.
        is_checked: its outputs are logits, and its first operations do not scale the images, as far as a CPU shows it.
        ignored: what its code asks for and training does not do, such as `regularizer of conv/kernel`.
        gflop_per_image: forward pass, 10^9 operations, 2 for a multiply-add, convolutions and dense layers; 0: unknown.
        source: the paper, and the table or page of the figures.
    """

    name: str
    title: str
    build: Builder
    variant_of: str = ""
    data_name: str = "imagenet"
    image_size: int
    channels: int = NUM_CHANNELS
    classes: int = IMAGENET_CLASSES
    outputs: int | None = None
    nchw: bool = True
    digest: str | None = None
    code: str | None = None
    has_conv1x1: bool = False
    has_batch_norm: bool = False
    has_larger_convolutions: bool = True
    is_checked: bool = True
    ignored: Sequence[str] = ()
    batch_on_gpu: int
    batch_on_cpu: int
    learning_rate: float
    parameters: int
    gflop_per_image: float
    source: str

    @property
    def usual_outputs(self) -> int:
        """Returns the number of logits by default: ImageNet's labels have a background class."""
        if self.outputs:
            return self.outputs
        return BACKGROUND_CLASSES if self.classes == IMAGENET_CLASSES else self.classes

    def facts(self, num_classes: int) -> dict[str, Any]:
        """Returns the fields of the model that a record stores; None where another number of classes changes it."""
        is_usual = num_classes in (self.usual_outputs, self.classes)
        return {
            "title": self.title,
            "image_size": self.image_size,
            "parameters": self.parameters if is_usual else None,
            "gflop_per_image": (self.gflop_per_image or None) if is_usual else None,
            **({"code": self.code} if self.code else {}),
        }


@dataclasses.dataclass(frozen=True)
class Style:
    """The settings that differ between families of models: initial kernels and batch normalisation."""

    kernel_gain: float = 2.0
    batch_norm_scale: bool = True
    batch_norm_epsilon: float = 1e-5
