"""NASNet-A (Zoph et al. 2017, arXiv:1707.07012, figures 2 and 4), without auxiliary head and without drop path."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Literal

from models.model_spec import ModelSpec, Style

if TYPE_CHECKING:
    from models.layers import Layers, Tensor

_STYLE = Style(batch_norm_epsilon=1e-3)

# An operation's kind and kernel size, and its input: 0 is the output of the last cell, 1 that of the cell before it, 2
# and up are the sums of this cell's earlier pairs.
_Kind = Literal["separable", "identity", "max", "avg"]
_Operation = tuple[_Kind, int, int]


@dataclasses.dataclass(frozen=True)
class _Cell:
    """Pairs of operations whose results are added; the sums, and inputs from `first_output` on, are concatenated."""

    pairs: tuple[tuple[_Operation, _Operation], ...]
    stride: int
    first_output: int


_NORMAL = _Cell(
    (
        (("separable", 5, 0), ("separable", 3, 1)),
        (("separable", 5, 1), ("separable", 3, 1)),
        (("avg", 3, 0), ("identity", 1, 1)),
        (("avg", 3, 1), ("avg", 3, 1)),
        (("separable", 3, 0), ("identity", 1, 0)),
    ),
    stride=1,
    first_output=1,
)
_REDUCTION = _Cell(
    (
        (("separable", 5, 0), ("separable", 7, 1)),
        (("max", 3, 0), ("separable", 7, 1)),
        (("avg", 3, 0), ("separable", 5, 1)),
        (("identity", 1, 3), ("avg", 3, 2)),
        (("separable", 3, 2), ("max", 3, 0)),
    ),
    stride=2,
    first_output=3,
)


def build(
    images: Tensor,
    layers: Layers,
    num_classes: int,
    *,
    cells: int,
    filters: int,
    stem_filters: int,
    stem_reductions: int = 0,
    skips_reduction: bool = False,
) -> Tensor:
    """Returns logits.

    Args:
        images: [batch, ...] in the data format of the layers.
        layers: makes the layers.
        num_classes: number of logits.
        cells: normal cells in each of the three stages.
        filters: of an operation in the first stage. The paper names a model by 24 times as many.
        stem_filters: of the first convolution.
        stem_reductions: reduction cells before the first stage.
        skips_reduction: the second input of the cell after a reduction cell is also that of the reduction cell.
    """
    layers = layers.styled(_STYLE)
    stride, padding = (2, "valid") if stem_reductions else (1, "same")
    x = layers.conv_bn(images, stem_filters, 3, stride=stride, padding=padding, relu=False, name="stem")
    before = x
    for number in range(1, stem_reductions + 1):
        narrow = filters // 2 ** (stem_reductions + 1 - number)
        before, x = x, _apply(_REDUCTION, x, before, layers, narrow, name=f"stem_reduction{number}")
    for stage in range(1, 4):
        if stage > 1:
            filters *= 2
            reduced = _apply(_REDUCTION, x, before, layers, filters, name=f"stage{stage}_reduction")
            before, x = before if skips_reduction else x, reduced
        for cell in range(1, cells + 1):
            before, x = x, _apply(_NORMAL, x, before, layers, filters, name=f"stage{stage}_cell{cell}")
    return layers.classifier(layers.global_average(layers.relu(x, name="last_relu")), num_classes)


def _apply(cell: _Cell, x: Tensor, before: Tensor, layers: Layers, filters: int, *, name: str) -> Tensor:
    """Returns the output of a cell, given those of the last cell and of the one before it."""
    states = [
        _projected(x, layers, filters, name=f"{name}_last"),
        _adjusted(before, x, layers, filters, name=f"{name}_before"),
    ]
    for number, pair in enumerate(cell.pairs, start=1):
        results = []
        for side, (kind, size, source) in zip(("left", "right"), pair, strict=True):
            stride, end = cell.stride if source < 2 else 1, f"{name}_pair{number}_{side}"
            results.append(_operation(states[source], layers, filters, kind, size, stride, name=end))
        states.append(layers.add(*results, name=f"{name}_pair{number}"))
    outputs = enumerate(states[cell.first_output :])
    return layers.concat([_fitted(x, layers, filters, name=f"{name}_output{n}") for n, x in outputs], name=name)


def _operation(x: Tensor, layers: Layers, filters: int, kind: _Kind, size: int, stride: int, *, name: str) -> Tensor:
    if kind == "identity":
        return x if layers.channels(x) == filters else _projected(x, layers, filters, name=name)
    if kind != "separable":
        return _fitted(
            layers.pool(x, kind, size, stride, padding="same", name=f"{name}_pool"), layers, filters, name=name
        )
    for number, step in ((1, stride), (2, 1)):  # a separable convolution is always applied twice
        x = layers.relu(x, name=f"{name}_relu{number}")
        x = layers.depthwise(x, size, stride=step, name=f"{name}_separable{number}_depthwise")
        x = layers.conv_bn(x, filters, 1, relu=False, name=f"{name}_separable{number}")
    return x


def _projected(x: Tensor, layers: Layers, filters: int, *, name: str) -> Tensor:
    return layers.conv_bn(layers.relu(x, name=f"{name}_relu"), filters, 1, relu=False, name=name)


def _fitted(x: Tensor, layers: Layers, filters: int, *, name: str) -> Tensor:
    """Projects to that many filters. Only the first cell for CIFAR-10, whose inputs are both the stem, needs it."""
    return x if layers.channels(x) == filters else layers.conv_bn(x, filters, 1, relu=False, name=name)


def _adjusted(before: Tensor, x: Tensor, layers: Layers, filters: int, *, name: str) -> Tensor:
    """Gives the output of the cell before the last the size of the last one's and that many filters."""
    if before is x:
        return x
    if layers.height(before) == layers.height(x):
        return _projected(before, layers, filters, name=name)
    # Every second pixel for half of the filters, and the pixels diagonally between them for the others.
    before = layers.relu(before, name=f"{name}_relu")
    shifted = layers.shift(before, name=f"{name}_shift")
    one = layers.conv_bn(before, filters // 2, 1, stride=2, relu=False, name=f"{name}_even")
    other = layers.conv_bn(shifted, filters // 2, 1, stride=2, relu=False, name=f"{name}_odd")
    return layers.concat([one, other], name=name)


_MOBILE = ModelSpec(
    name="nasnet",
    title="NASNet-A (4 @ 1056), mobile, no auxiliary head or drop path",
    build=functools.partial(build, cells=4, filters=44, stem_filters=32, stem_reductions=2),
    image_size=224,
    has_conv1x1=True,
    has_batch_norm=True,
    has_larger_convolutions=False,
    batch_on_gpu=32,
    batch_on_cpu=16,
    learning_rate=0.02,
    parameters=5_289_978,
    gflop_per_image=1.13,
    source="Zoph et al., 'Learning transferable architectures for scalable image recognition', arXiv:1707.07012, "
    "table 3: 5.3 M parameters, 564 M multiply-adds; exact: the trainable parameters of Keras' NASNetMobile",
)
SPECS = (
    _MOBILE,
    dataclasses.replace(
        _MOBILE,
        name="nasnetlarge",
        title="NASNet-A (6 @ 4032), large, no auxiliary head or drop path",
        build=functools.partial(build, cells=6, filters=168, stem_filters=96, stem_reductions=2, skips_reduction=True),
        image_size=331,
        batch_on_gpu=16,
        batch_on_cpu=2,
        parameters=88_753_150,
        gflop_per_image=47.6,
        source="as nasnet, table 2: 88.9 M parameters, 23.8 G multiply-adds; exact: Keras' NASNetLarge",
    ),
    dataclasses.replace(
        _MOBILE,
        name="nasnet_cifar10",
        title="NASNet-A (6 @ 768), for CIFAR-10, no auxiliary head or drop path",
        build=functools.partial(build, cells=6, filters=32, stem_filters=96),
        variant_of="nasnet",
        data_name="cifar10",
        image_size=32,
        classes=10,
        has_larger_convolutions=True,
        batch_on_cpu=16,
        parameters=3_346_538,
        gflop_per_image=1.09,
        source="as nasnet, table 1: 3.3 M parameters; exact parameters and operations counted by hand",
    ),
)
