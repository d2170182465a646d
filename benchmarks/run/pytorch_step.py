"""One training step in PyTorch: forward, loss, backward, update, in the precision of a run. Imports PyTorch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.nn import functional

from benchmarks.measure.timing import Numbers, TakeStep
from benchmarks.training.computing import LossScaling

_SIXTEEN_BITS = {"bf16": torch.bfloat16, "fp16": torch.float16}


def set_arithmetic(precision: str) -> None:
    """Sets for this process whether products in float32 may round their factors, and lets cuDNN search for kernels."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.benchmark = True


def make_optimizer(
    module: nn.Module, decayed: Iterable[str], *, learning_rate: float, momentum: float, weight_decay: float
) -> torch.optim.SGD:
    """Returns PyTorch's SGD with weight decay on the parameters of these names."""
    of_decay = set(decayed)
    trained = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
    groups = [
        {"params": [parameter for name, parameter in trained if name in of_decay], "weight_decay": weight_decay},
        {"params": [parameter for name, parameter in trained if name not in of_decay], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return torch.optim.SGD(groups, lr=learning_rate, momentum=momentum, fused=True)  # the fastest that it has


def make_step(
    module: Callable[[torch.Tensor], torch.Tensor],
    optimizer: torch.optim.Optimizer,
    images: torch.Tensor,
    labels: torch.Tensor,
    *,
    device: torch.device,
    precision: str,
    loss_scaling: LossScaling | None,
    label_smoothing: float,
) -> TakeStep:
    """Returns a function that takes one training step and waits until the device has ended it.

    Args:
        module: from images to logits; what calls it may have been compiled, or exchange gradients.
        optimizer: of its parameters.
        images: [batch, channels, height, width].
        labels: [batch].
        device: of the model, the images and the labels.
        precision: `fp32`, `tf32`, `bf16` or `fp16`; the last two by autocast.
        loss_scaling: None: the loss is not scaled.
        label_smoothing: the share of a label that all classes get in equal parts.
    """
    sixteen_bits = _SIXTEEN_BITS.get(precision)
    scale = _make_scale(loss_scaling, device)

    def step() -> tuple[float, int, Numbers]:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, sixteen_bits) if sixteen_bits else contextlib.nullcontext():
            logits = module(images)
        loss = functional.cross_entropy(logits.float(), labels, label_smoothing=label_smoothing)
        observed = scale(loss, optimizer)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return loss.item(), 0, observed

    return step


def _make_scale(
    scaling: LossScaling | None, device: torch.device
) -> Callable[[torch.Tensor, torch.optim.Optimizer], Numbers]:
    """Returns a function that computes the gradients of a loss, scaled as configured, and updates the weights."""

    def fixed(loss: torch.Tensor, optimizer: torch.optim.Optimizer) -> Numbers:
        factor = scaling.initial if scaling else 1.0
        (loss * factor if scaling else loss).backward()
        if scaling:
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            torch._foreach_mul_([p.grad for p in parameters if p.grad is not None], 1.0 / factor)
        optimizer.step()
        return {}

    if scaling is None or not scaling.increase_every:
        return fixed
    scaler = torch.amp.GradScaler(device.type, init_scale=scaling.initial, growth_interval=scaling.increase_every)

    latest = scaling.initial

    def dynamic(loss: torch.Tensor, optimizer: torch.optim.Optimizer) -> Numbers:
        nonlocal latest
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        factor, latest = latest, scaler.get_scale()  # waits for the device, so only after all else
        return {"loss_scales": factor, "skipped_updates": float(latest < factor)}

    return dynamic
