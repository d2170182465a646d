"""The models, their defaults and their published figures. Imports without TensorFlow.

A new model is one file with a `build(images, layers, num_classes, **options)` and one entry in `MODELS`.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

BACKGROUND_CLASSES = 1001
IMAGENET_CLASSES = 1000
NUM_CHANNELS = 3


class UnknownModelError(ValueError):
    """No model has this name."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """One model: how it is built, its defaults, and the published figures that tests check.

    Attributes:
        name: the value of `--model`.
        title: the name in reports.
        module: the module below `models` whose `build` makes it.
        options: keyword arguments of that `build`.
        data_name: the data set that it trains on.
        image_size: height and width of an input image, pixels.
        channels: of an input image: 3 for colour, 1 for grey.
        classes: without a background class.
        has_conv1x1: some of its convolutions have a 1x1 kernel.
        has_batch_norm: it has batch normalisation.
        has_larger_convolutions: some of its convolutions have a larger kernel and no stride.
        batch_on_gpu: default images per device and step on a GPU.
        batch_on_cpu: default images per device and step on a CPU.
        learning_rate: default for plain SGD; chosen so that the loss falls from the first steps on.
        parameters: trainable parameters, without a background class.
        gflop_per_image: forward pass, 10^9 operations, 2 for a multiply-add, convolutions and dense layers.
        source: the paper, and the table or page of the figures.
    """

    name: str
    title: str
    module: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    data_name: str = "imagenet"
    image_size: int
    channels: int = NUM_CHANNELS
    classes: int = IMAGENET_CLASSES
    has_conv1x1: bool = False
    has_batch_norm: bool = False
    has_larger_convolutions: bool = True
    batch_on_gpu: int
    batch_on_cpu: int
    learning_rate: float
    parameters: int
    gflop_per_image: float
    source: str

    @property
    def usual_outputs(self) -> int:
        """Returns the number of logits by default: ImageNet's labels have a background class."""
        return BACKGROUND_CLASSES if self.classes == IMAGENET_CLASSES else self.classes

    def facts(self) -> dict[str, Any]:
        """Returns the fields of the model that a record stores."""
        return {name: getattr(self, name) for name in ("title", "image_size", "parameters", "gflop_per_image")}


_RESNET50 = ModelSpec(
    name="resnet50",
    title="ResNet-50 v1",
    module="resnet",
    options={"stride_in_3x3": False},
    image_size=224,
    has_conv1x1=True,
    has_batch_norm=True,
    batch_on_gpu=64,
    batch_on_cpu=8,
    learning_rate=0.003,
    parameters=25_557_032,
    gflop_per_image=7.7,
    source="He et al., 'Deep residual learning for image recognition', arXiv:1512.03385, table 1: 3.8 G multiply-adds",
)
MODELS = (
    ModelSpec(
        name="alexnet",
        title="AlexNet, one tower",
        module="alexnet",
        image_size=227,
        batch_on_gpu=512,
        batch_on_cpu=32,
        learning_rate=0.002,
        parameters=61_838_248,
        gflop_per_image=1.68,
        source="Krizhevsky, 'One weird trick for parallelizing convolutional neural networks', arXiv:1404.5997, with "
        "tf_cnn_benchmarks' filters 64-192-384-384-256, counted by hand; torchvision's variant has 256 filters in its "
        "fourth convolution: 61,100,840 parameters, 1.43 G operations",
    ),
    ModelSpec(
        name="inception3",
        title="Inception v3, no auxiliary head",
        module="inception",
        image_size=299,
        has_conv1x1=True,
        has_batch_norm=True,
        batch_on_gpu=64,
        batch_on_cpu=4,
        learning_rate=0.01,
        parameters=23_817_352,
        gflop_per_image=11.5,
        source="Szegedy et al., 'Rethinking the Inception architecture for computer vision', arXiv:1512.00567; "
        "figures: Keras applications (23.9 M with moving averages), 5.7 G multiply-adds",
    ),
    ModelSpec(
        name="mlp",
        title="perceptron with 100 hidden units, for MNIST",
        module="perceptron",
        data_name="mnist",
        image_size=28,
        channels=1,
        classes=10,
        has_larger_convolutions=False,
        batch_on_gpu=100,
        batch_on_cpu=100,
        learning_rate=0.1,
        parameters=79_510,
        gflop_per_image=0.0001588,
        source="counted by hand: 784 -> 100 -> 10, as in TensorFlow's tutorial on distributed training",
    ),
    ModelSpec(
        name="resnet20",
        title="ResNet-20, for CIFAR-10",
        module="resnet_cifar",
        options={"blocks_per_stage": 3},
        data_name="cifar10",
        image_size=32,
        classes=10,
        has_batch_norm=True,
        batch_on_gpu=128,
        batch_on_cpu=32,
        learning_rate=0.05,
        parameters=269_722,
        gflop_per_image=0.0811,
        source="He et al., 'Deep residual learning for image recognition', arXiv:1512.03385, section 4.2 and table 6: "
        "0.27 M parameters; operations counted by hand",
    ),
    _RESNET50,
    dataclasses.replace(
        _RESNET50,
        name="resnet50_v1.5",
        title="ResNet-50 v1.5",
        options={"stride_in_3x3": True},
        gflop_per_image=8.2,
        source="as resnet50, stride moved to the 3x3 convolution as in torchvision; figures: torchvision model "
        "table (25.6 M parameters, 4.09 G multiply-adds)",
    ),
    ModelSpec(
        name="trivial",
        title="three dense layers, to measure everything but the model",
        module="trivial",
        image_size=227,
        has_larger_convolutions=False,
        batch_on_gpu=32,
        batch_on_cpu=32,
        learning_rate=1e-4,
        parameters=154_588 + 8_192 + 4_097_000,
        gflop_per_image=0.0085,
        source="counted by hand: 227*227*3 -> 1 -> 4096 -> classes",
    ),
    ModelSpec(
        name="vgg16",
        title="VGG-16",
        module="vgg",
        image_size=224,
        batch_on_gpu=64,
        batch_on_cpu=4,
        learning_rate=0.002,
        parameters=138_357_544,
        gflop_per_image=30.9,
        source="Simonyan and Zisserman, 'Very deep convolutional networks', arXiv:1409.1556, table 2: 138 M "
        "parameters; 15.5 G multiply-adds",
    ),
)

# Other spellings of the names above.
_ALIASES = {"resnet50_v15": "resnet50_v1.5", "inceptionv3": "inception3", "inception_v3": "inception3"}


def names() -> list[str]:
    """Returns the names of all models."""
    return [spec.name for spec in MODELS]


def find(name: str) -> ModelSpec:
    """Returns the spec of a model; upper and lower case are the same.

    Raises:
        UnknownModelError: no model has this name.
    """
    wanted = _ALIASES.get(name.lower(), name.lower())
    for spec in MODELS:
        if spec.name == wanted:
            return spec
    near = difflib.get_close_matches(wanted, names(), n=1, cutoff=0.7)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    raise UnknownModelError(f"There is no model '{name}'.{hint} Models: {', '.join(names())}.")
