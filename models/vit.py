"""Vision Transformer (Dosovitskiy et al. 2020, arXiv:2010.11929), with the dropout of its training on ImageNet-1k."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

from models.model_spec import ModelSpec, Style

if TYPE_CHECKING:
    from models.layers import Layers, Tensor

# No ReLU halves the activations between the layers.
_STYLE = Style(kernel_gain=1.0)
_DROPOUT = 0.1


def build(
    images: Tensor, layers: Layers, num_classes: int, *, patch: int, width: int, blocks: int, heads: int, mlp: int
) -> Tensor:
    """Returns logits; a patch has `patch` pixels squared, a token `width` numbers, a perceptron `mlp` hidden units."""
    layers = layers.styled(_STYLE)
    x = layers.with_positions(layers.patches(images, width, patch, name="patches"))
    x = layers.dropout(x, _DROPOUT, name="embedding_dropout")
    for number in range(1, blocks + 1):
        x = _block(x, layers, heads, mlp, f"block{number}")
    return layers.classifier(layers.layer_norm(layers.first_token(x), name="norm"), num_classes)


def _block(x: Tensor, layers: Layers, heads: int, mlp: int, name: str) -> Tensor:
    """Attention and a perceptron, each after a layer normalisation and beside a shortcut."""
    width = x.shape[-1]
    y = layers.linear(layers.layer_norm(x, name=f"{name}_norm1"), 3 * width, name=f"{name}_qkv")
    y = layers.linear(layers.attention(y, heads, name=f"{name}_attention"), width, name=f"{name}_out")
    x = layers.add(x, layers.dropout(y, _DROPOUT, name=f"{name}_dropout1"), name=f"{name}_shortcut1")
    y = layers.linear(layers.layer_norm(x, name=f"{name}_norm2"), mlp, activation="gelu", name=f"{name}_mlp1")
    y = layers.linear(layers.dropout(y, _DROPOUT, name=f"{name}_dropout2"), width, name=f"{name}_mlp2")
    return layers.add(x, layers.dropout(y, _DROPOUT, name=f"{name}_dropout3"), name=f"{name}_shortcut2")


_VIT_B = ModelSpec(
    name="vit_b_16",
    title="ViT-B/16",
    build=functools.partial(build, patch=16, width=768, blocks=12, heads=12, mlp=3072),
    image_size=224,
    has_larger_convolutions=False,
    batch_on_gpu=64,
    batch_on_cpu=4,
    learning_rate=0.01,
    parameters=86_567_656,
    gflop_per_image=35.1,
    source="Dosovitskiy et al., 'An image is worth 16x16 words', arXiv:2010.11929, table 1; figures: torchvision model "
    "table (86.6 M parameters, 17.56 G multiply-adds)",
)
SPECS = (
    _VIT_B,
    dataclasses.replace(
        _VIT_B,
        name="vit_ti_16",
        title="ViT-Ti/16",
        build=functools.partial(build, patch=16, width=192, blocks=12, heads=3, mlp=768),
        batch_on_gpu=256,
        batch_on_cpu=16,
        learning_rate=0.03,
        parameters=5_717_416,
        gflop_per_image=2.51,
        source="Touvron et al., 'Training data-efficient image transformers', arXiv:2012.12877, table 1, without "
        "distillation: 5 M parameters; both figures counted by hand",
    ),
)
