"""Makes a PyTorch module of a model of this suite: the same function of the same weights. Imports PyTorch.

Keras' graph is followed layer by layer, so no architecture is written twice. A module takes images in
[batch, channels, height, width]; those in NHWC are the same numbers in PyTorch's memory format `channels_last`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import keras
import numpy as np
import torch
from torch import fx, nn
from torch.nn import functional

from models.attention import ClassTokenAndPositions, DotProductAttention
from models.building import Model
from models.convolutions import DepthwiseConvolution, SymmetricConvolution
from models.keras_private import number_of_calls
from models.layers import FusedBatchNorm, LocalResponseNorm, Pool
from models.outside_code import UnusableModelError

# From a tensor of PyTorch to a view of it in the layout of Keras.
_View = Callable[[torch.Tensor], torch.Tensor]
_USUAL = {"noise_shape": None, "dilation_rate": (1, 1)}  # arguments that are not converted
_SIXTEEN_BITS = ("bfloat16", "float16")


@dataclasses.dataclass(frozen=True)
class _Made:
    """The modules of one layer: `before` pads; `weights` has, by Keras' name, the tensor of `main` and its view."""

    main: nn.Module
    weights: Mapping[str, tuple[str, _View]] = dataclasses.field(default_factory=dict)
    before: nn.Module | None = None


@dataclasses.dataclass(frozen=True)
class TorchModel:
    """A model as a PyTorch module.

    Attributes:
        module: from images [batch, channels, height, width] to logits [batch, classes].
        decayed: names of the parameters that weight decay applies to.
    """

    module: fx.GraphModule
    decayed: frozenset[str]
    _tensors: Mapping[str, tuple[str, _View]]

    def load(self, values: Mapping[str, np.ndarray]) -> None:
        """Copies values into the module, by the names of the model's variables, in Keras' layout."""
        state = self.module.state_dict()  # shares memory with the module
        for variable, (name, view) in self._tensors.items():
            view(state[name]).copy_(torch.from_numpy(np.asarray(values[variable])))


def convert(model: Model) -> TorchModel:
    """Makes the module of a model, with weights of its own that `load` sets.

    Raises:
        UnusableModelError: the model has a layer that has no counterpart here.
    """
    keras_model = model.keras_model
    root, graph, tensors = nn.Module(), fx.Graph(), {}
    nodes: dict[int, fx.Node] = {id(keras_model.inputs[0]): graph.placeholder("images")}
    is_mixed = any(getattr(layer, "compute_dtype", "") in _SIXTEEN_BITS for layer in keras_model.layers)
    for operation in keras_model.operations[1:]:  # after those that it needs; the first is the input
        if number_of_calls(operation) != 1:
            raise UnusableModelError(f"its layer '{operation.name}' is called several times, which is not converted.")
        name, made = re.sub(r"\W", "_", operation.name), _make(operation)
        in_float32 = is_mixed and isinstance(made.main, nn.Linear) and operation.compute_dtype == "float32"
        module, prefix = _chained(made, operation, in_float32=in_float32)
        root.add_module(name, module)
        arguments = [nodes[id(tensor)] for tensor in keras.tree.flatten(operation.input)]
        nodes[id(operation.output)] = graph.call_module(name, tuple(arguments))
        variables = getattr(operation, "variables", ())
        for variable, facts in zip(variables, model.descriptions_of(variables), strict=True):
            if facts.kind != "tower_state":  # PyTorch has its own seed of dropout
                attribute, view = made.weights[variable.path.rsplit("/", 1)[-1]]
                tensors[facts.name] = (f"{name}.{prefix}{attribute}", view)
    graph.output(nodes[id(keras_model.outputs[0])])
    _in_place(graph, root)
    trained = {tensors[facts.name][0] for facts in model.variables if facts.kind == "weight"}
    for name, parameter in root.named_parameters():
        parameter.requires_grad_(name in trained)
    decayed = {tensors[facts.name][0] for facts in model.variables if facts.decayed}
    return TorchModel(fx.GraphModule(root, graph, class_name="Converted"), frozenset(decayed), tensors)


def _make(operation: Any) -> _Made:
    is_layer = isinstance(operation, keras.layers.Layer)
    make = _MAKERS.get(type(operation) if is_layer else type(operation).__name__)
    unusual = "".join(f" with {name}" for name, usual in _USUAL.items() if getattr(operation, name, usual) != usual)
    if make is None or unusual:
        what = f"{type(operation).__name__}{unusual}"
        raise UnusableModelError(f"its layer '{operation.name}' is a {what}, which has no counterpart in PyTorch here.")
    return make(operation)


def _chained(made: _Made, layer: Any, *, in_float32: bool) -> tuple[nn.Module, str]:
    """Returns one module of what a layer does, its activation included, and where its weights are in it."""
    activation = getattr(layer, "activation", None)
    after = None if activation is None or isinstance(layer, keras.layers.Activation) else _activation(layer)
    if isinstance(after, nn.ReLU):
        after.inplace = True  # nothing else has the values before it
    modules = [module for module in (made.before, made.main, after) if module is not None]
    if in_float32:
        return _InFloat32(*modules), f"{modules.index(made.main)}."
    return (nn.Sequential(*modules), f"{modules.index(made.main)}.") if len(modules) > 1 else (made.main, "")


def _in_place(graph: fx.Graph, root: nn.Module) -> None:
    """Lets a ReLU overwrite its input where nothing else needs that, as models of torchvision do."""
    for node in graph.nodes:
        if node.op != "call_module" or not isinstance(relu := root.get_submodule(node.target), nn.ReLU):
            continue
        (source,) = node.args
        if source.op == "call_module" and len(source.users) == 1:
            module = root.get_submodule(source.target)
            module = module[-1] if isinstance(module, nn.Sequential) else module
            relu.inplace = isinstance(module, nn.Conv2d | nn.BatchNorm2d) or getattr(module, "function", None) is _sum


def _as_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _transposed(tensor: torch.Tensor) -> torch.Tensor:
    """[outputs, inputs] as [inputs, outputs]."""
    return tensor.t()


def _kernel(tensor: torch.Tensor) -> torch.Tensor:
    """[filters, channels, height, width] as [height, width, channels, filters]."""
    return tensor.permute(2, 3, 1, 0)


def _image_shape(layer: Any) -> tuple[int, int, int]:
    """Returns channels, height and width of the images that a layer takes, in either layout."""
    first, second, third = layer.input.shape[1:]
    return (first, second, third) if layer.data_format in ("channels_first", "NCHW") else (third, first, second)


def _margins(size: Iterable[int], kernel: Iterable[int], strides: Iterable[int], padding: str) -> list[tuple[int, int]]:
    """Returns how many rows and columns TensorFlow adds before and after; its `same` may add one more after."""
    if padding == "symmetric":
        return [(extent // 2, extent // 2) for extent in kernel]
    if padding == "valid":
        return [(0, 0)] * 2
    margins = []
    for pixels, extent, stride in zip(size, kernel, strides, strict=True):
        total = max((math.ceil(pixels / stride) - 1) * stride + extent - pixels, 0)
        margins.append((total // 2, total - total // 2))
    return margins


def _padded(layer: Any, padding: str) -> tuple[nn.Module | None, tuple[int, int]]:
    """Returns a module that pads unequal margins, and the padding that a convolution does by itself."""
    rows, columns = _margins(_image_shape(layer)[1:], layer.kernel_size, layer.strides, padding)
    if rows[0] == rows[1] and columns[0] == columns[1]:
        return None, (rows[0], columns[0])
    return nn.ZeroPad2d((*columns, *rows)), (0, 0)


def _convolution(layer: Any, filters: int, groups: int, kernel: _View) -> _Made:
    before, padding = _padded(layer, "symmetric" if isinstance(layer, SymmetricConvolution) else layer.padding)
    channels, *_ = _image_shape(layer)
    module = nn.Conv2d(channels, filters, layer.kernel_size, layer.strides, padding, groups=groups, bias=layer.use_bias)
    return _Made(module, {"kernel": ("weight", kernel), "bias": ("bias", _as_is)}, before)


def _ordinary(layer: Any) -> _Made:
    return _convolution(layer, layer.filters, layer.groups, _kernel)


def _depthwise(layer: Any) -> _Made:
    (channels, *_), multiplier = _image_shape(layer), layer.depth_multiplier

    def kernel(tensor: torch.Tensor) -> torch.Tensor:  # [channels * multiplier, 1, height, width]
        return tensor.unflatten(0, (channels, multiplier)).squeeze(2).permute(2, 3, 0, 1)

    return _convolution(layer, channels * multiplier, channels, kernel)


def _batch_norm(layer: FusedBatchNorm) -> _Made:
    module = nn.BatchNorm2d(_image_shape(layer)[0], eps=layer.epsilon, momentum=1.0 - layer.momentum)
    names = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var"}
    return _Made(module, {ours: (theirs, _as_is) for ours, theirs in names.items()})


def _pool(layer: Pool) -> _Made:
    kernel, strides = (layer.size,) * 2, (layer.stride,) * 2
    rows, columns = _margins(_image_shape(layer)[1:], kernel, strides, layer.padding)
    unequal = rows[0] != rows[1] or columns[0] != columns[1]
    if unequal and layer.stride == 1:
        raise UnusableModelError(f"its pool '{layer.name}' pads unequally without a stride, which is not converted.")
    # One more row after than before is a last window that is cut off, which PyTorch calls the ceiling mode.
    padding = (rows[0], columns[0])
    if layer.kind == "max":
        return _Made(nn.MaxPool2d(kernel, strides, padding, ceil_mode=unequal))
    return _Made(nn.AvgPool2d(kernel, strides, padding, ceil_mode=unequal, count_include_pad=False))


def _dense(layer: Any) -> _Made:
    module = nn.Linear(layer.input.shape[-1], layer.units, bias=layer.use_bias)
    return _Made(module, {"kernel": ("weight", _transposed), "bias": ("bias", _as_is)})


def _layer_norm(layer: Any) -> _Made:
    module = nn.LayerNorm(layer.input.shape[-1], eps=layer.epsilon)
    return _Made(module, {"gamma": ("weight", _as_is), "beta": ("bias", _as_is)})


def _activation(layer: Any) -> nn.Module | None:
    name = getattr(layer.activation, "__name__", str(layer.activation))
    if name not in _ACTIVATIONS:
        raise UnusableModelError(f"its layer '{layer.name}' has the activation {name}, which is not converted.")
    return _ACTIVATIONS[name]()


def _relu(layer: Any) -> _Made:
    if layer.negative_slope or layer.threshold or layer.max_value not in (None, 6.0):
        raise UnusableModelError(f"its layer '{layer.name}' is an unusual ReLU, which is not converted.")
    return _Made(nn.ReLU() if layer.max_value is None else nn.ReLU6())


def _framed(margins: Any, sign: int) -> _Made:
    """Adds rows and columns of zeros around images; with a negative sign, cuts them off."""
    (top, bottom), (left, right) = margins
    return _Made(nn.ZeroPad2d((sign * left, sign * right, sign * top, sign * bottom)))


def _token_cropping(layer: Any) -> _Made:
    begin, after = layer.cropping
    return _Made(_Function(lambda tokens: tokens[:, begin : tokens.shape[1] - after]))


def _channel_padding(operation: Any) -> _Made:
    """`Layers.pad_channels`: zeros are appended to the channels only."""
    added = (0, 0, 0, 0, 0, sum(after for _, after in operation.pad_width))
    return _Made(_Function(lambda images: functional.pad(images, added)))


def _positions(layer: ClassTokenAndPositions) -> _Made:
    weights = {name: (name, _as_is) for name in ("class_token", "positions")}
    return _Made(_Positions(layer.positions.shape), weights)


class _InFloat32(nn.Sequential):
    """Computes in float32 also where the rest of the model computes in 16 bits."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        with torch.autocast(images.device.type, enabled=False):
            return super().forward(images.float())


class _Function(nn.Module):
    """A function of tensors, without weights."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        return self.function(*tensors)


def _sum(*branches: torch.Tensor) -> torch.Tensor:
    return functools.reduce(operator.add, branches)


def _side_by_side(*branches: torch.Tensor) -> torch.Tensor:
    return torch.cat(branches, dim=1)


def _flattened(images: torch.Tensor) -> torch.Tensor:
    """[batch, height * width * channels], in this order, as the weights that follow have it."""
    return (images.permute(0, 2, 3, 1) if images.dim() == 4 else images).flatten(1)


def _tokens(images: torch.Tensor) -> torch.Tensor:
    """[batch, height * width, channels]."""
    return images.flatten(2).transpose(1, 2)


class _Normalized(nn.LocalResponseNorm):
    """Local response normalisation in float32."""

    def __init__(self, layer: LocalResponseNorm) -> None:
        size = 2 * layer.radius + 1
        super().__init__(size, alpha=layer.alpha * size, beta=layer.beta, k=1.0)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        with torch.autocast(images.device.type, enabled=False):
            return super().forward(images.float()).to(images.dtype)


class _Positions(nn.Module):
    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.class_token = nn.Parameter(torch.zeros(1, 1, shape[-1]))
        self.positions = nn.Parameter(torch.zeros(tuple(shape)))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        first = self.class_token.to(tokens.dtype).expand(tokens.shape[0], -1, -1)
        return torch.cat([first, tokens], dim=1) + self.positions.to(tokens.dtype)


def _global_average(layer: Any) -> _Made:
    return _Made(_Function(lambda images: images.mean((2, 3), layer.keepdims)))


def _attention(layer: DotProductAttention) -> _Made:
    def attend(tokens: torch.Tensor) -> torch.Tensor:
        split = tokens.unflatten(-1, (3, layer.heads, -1)).permute(2, 0, 3, 1, 4)
        return functional.scaled_dot_product_attention(*split.unbind()).transpose(1, 2).flatten(2)

    return _Made(_Function(attend))


_ACTIVATIONS: dict[str, Callable[[], nn.Module | None]] = {
    "linear": lambda: None,
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
}
# By the exact class of a layer: a subclass may compute something else. Keras hides the classes of operations.
_MAKERS: dict[type | str, Callable[[Any], _Made]] = {
    keras.layers.Conv2D: _ordinary,
    SymmetricConvolution: _ordinary,
    DepthwiseConvolution: _depthwise,
    FusedBatchNorm: _batch_norm,
    LocalResponseNorm: lambda layer: _Made(_Normalized(layer)),
    Pool: _pool,
    ClassTokenAndPositions: _positions,
    DotProductAttention: _attention,
    keras.layers.Activation: lambda layer: _Made(_activation(layer) or nn.Identity()),
    keras.layers.Add: lambda layer: _Made(_Function(_sum)),
    keras.layers.Concatenate: lambda layer: _Made(_Function(_side_by_side)),
    keras.layers.Cropping1D: _token_cropping,
    keras.layers.Cropping2D: lambda layer: _framed(layer.cropping, -1),
    keras.layers.Dense: _dense,
    keras.layers.Dropout: lambda layer: _Made(nn.Dropout(layer.rate)),
    keras.layers.Flatten: lambda layer: _Made(_Function(_flattened)),
    keras.layers.GlobalAveragePooling2D: _global_average,
    keras.layers.LayerNormalization: _layer_norm,
    keras.layers.Permute: lambda layer: _Made(nn.Identity()),  # of images in NCHW to tokens, with what follows
    keras.layers.ReLU: _relu,
    keras.layers.Reshape: lambda layer: _Made(_Function(_tokens)),
    keras.layers.ZeroPadding2D: lambda layer: _framed(layer.padding, 1),
    "Pad": _channel_padding,
}
