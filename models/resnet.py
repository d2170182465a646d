"""ResNet-50 (He et al. 2015, arXiv:1512.03385, table 1), v1 and v1.5."""

from __future__ import annotations

from models.layers import Layers, Tensor

_BLOCKS = (3, 4, 6, 3)
_FILTERS = (64, 128, 256, 512)
_EXPANSION = 4


def build(images: Tensor, layers: Layers, num_classes: int, *, stride_in_3x3: bool) -> Tensor:
    """Returns logits. v1 strides in a block's first 1x1 convolution, v1.5 in its 3x3."""
    x = layers.conv_bn(images, 64, 7, stride=2, padding="symmetric", name="stem")
    x = layers.pool(x, "max", 3, 2, padding="symmetric", name="stem_pool")
    for stage, (blocks, filters) in enumerate(zip(_BLOCKS, _FILTERS, strict=True), start=1):
        for block in range(1, blocks + 1):
            stride = 2 if block == 1 and stage > 1 else 1
            name = f"stage{stage}_block{block}"
            shortcut = x
            if block == 1:  # depth changes: project
                wide = _EXPANSION * filters
                shortcut = layers.conv_bn(x, wide, 1, stride=stride, relu=False, name=f"{name}_shortcut")
            first, second = (1, stride) if stride_in_3x3 else (stride, 1)
            y = layers.conv_bn(x, filters, 1, stride=first, name=f"{name}_conv1")
            y = layers.conv_bn(y, filters, 3, stride=second, padding="symmetric", name=f"{name}_conv2")
            y = layers.conv_bn(y, _EXPANSION * filters, 1, relu=False, name=f"{name}_conv3")
            x = layers.add_relu(y, shortcut, name=name)
    return layers.classifier(layers.global_average(x), num_classes)
