"""ResNet for 32x32 pixels (He et al. 2015, arXiv:1512.03385, section 4.2); its shortcuts have no parameters."""

from __future__ import annotations

from models.layers import Layers, Tensor

_FILTERS = (16, 32, 64)


def build(images: Tensor, layers: Layers, num_classes: int, *, blocks_per_stage: int) -> Tensor:
    """Returns logits. There are 6 * `blocks_per_stage` + 2 layers with weights."""
    x = layers.conv_bn(images, _FILTERS[0], 3, name="stem")
    for stage, filters in enumerate(_FILTERS, start=1):
        for block in range(1, blocks_per_stage + 1):
            name = f"stage{stage}_block{block}"
            shortcut, stride = x, 1
            if block == 1 and stage > 1:
                stride = 2
                shortcut = layers.pad_channels(layers.pool(x, "avg", 1, stride, name=f"{name}_every_other"), filters)
            y = layers.conv_bn(x, filters, 3, stride=stride, padding="symmetric", name=f"{name}_conv1")
            y = layers.conv_bn(y, filters, 3, relu=False, name=f"{name}_conv2")
            x = layers.add_relu(y, shortcut, name=name)
    return layers.classifier(layers.global_average(x), num_classes)
