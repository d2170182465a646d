"""OverFeat, the fast model (Sermanet et al. 2013, arXiv:1312.6229), as in tf_cnn_benchmarks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from models.model_spec import ModelSpec, Style

if TYPE_CHECKING:
    from models.layers import Layers, Tensor

# With the gain of He et al. the first loss is about 13, and the first steps do not converge.
_STYLE = Style(kernel_gain=1.1)


def build(images: Tensor, layers: Layers, num_classes: int) -> Tensor:
    """Returns logits."""
    layers = layers.styled(_STYLE)
    x = layers.conv(images, 96, 11, stride=4, padding="valid", name="conv1")
    x = layers.pool(x, "max", 2, 2, name="pool1")
    x = layers.conv(x, 256, 5, padding="valid", name="conv2")
    x = layers.pool(x, "max", 2, 2, name="pool2")
    x = layers.conv(x, 512, 3, name="conv3")
    x = layers.conv(x, 1024, 3, name="conv4")
    x = layers.conv(x, 1024, 3, name="conv5")
    x = layers.pool(x, "max", 2, 2, name="pool5")
    x = layers.flatten(x)
    for number, units in ((6, 3072), (7, 4096)):
        x = layers.dropout(layers.dense(x, units, name=f"fc{number}"), name=f"dropout{number}")
    return layers.classifier(x, num_classes)


SPECS = (
    ModelSpec(
        name="overfeat",
        title="OverFeat, fast model",
        build=build,
        image_size=231,
        batch_on_gpu=32,
        batch_on_cpu=8,
        learning_rate=0.001,
        parameters=145_920_872,
        gflop_per_image=5.6,
        source="Sermanet et al., 'OverFeat', arXiv:1312.6229, fast model: 145 M parameters; exact parameters and "
        "operations counted by hand",
    ),
)
