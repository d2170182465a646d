"""From flags to how towers compute: precision, layout, loss scaling, XLA, kernels. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from benchmarks.config.flag import Flag
from benchmarks.errors import UsageError
from benchmarks.process.tensorflow_setup import PERSISTENT_BATCH_NORM
from benchmarks.system import gpu_topology
from benchmarks.system.hardware import CPUINFO, cpu_instructions
from models.model_spec import ModelSpec
from variable_mgr.catalog import MANAGERS
from variable_mgr.modifiers import Modifiers

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
XLA_MODES = ("off", "jit")
ONEDNN_MODES = ("on", "off")
# Flags by which convolutions, or parts of them, are computed as matrix products, and whose.
_CONVOLUTIONS = {"conv1x1_as_matmul": "of one pixel", "filter_gradients_as_matmul": "of more than one pixel"}
AS_MATMUL = tuple(_CONVOLUTIONS)
_16_BITS = ("bf16", "fp16")
# The major compute capability of the first GPUs with tensor cores for them: Volta, Ampere.
_TENSOR_CORES_SINCE = {"fp16": 7, "bf16": 8}
_INSTRUCTIONS = {  # as Linux names them: x86, Arm
    "tf32": {"amx_bf16", "bf16"},  # oneDNN rounds factors of float32 products with these alone
    "bf16": {"avx512_bf16", "amx_bf16", "bf16"},
    "fp16": {"avx512_fp16", "amx_fp16", "asimdhp"},
}
# TensorFlow turns oneDNN on by itself where an x86 CPU has one of these (tensorflow/core/util/util.cc).
_FOR_ONEDNN = set("avx512_vnni avx512_bf16 avx512_fp16 avx_vnni avx_vnni_int8 avx_ne_convert".split())
_FOR_ONEDNN |= {"amx_tile", "amx_int8", "amx_bf16", "amx_fp16"}
_SWITCHES = {"1": True, "true": True, "0": False, "false": False}  # TensorFlow's variables, in any case
LOSS_SCALE = 128.0  # tf_cnn_benchmarks' for most models
FIRST_DYNAMIC_SCALE = 2.0**15
SCALED_UP_EVERY = 1000


@dataclasses.dataclass(frozen=True)
class LossScaling:
    """Loss scaling: the loss is multiplied, and gradients are divided, so that small float16 gradients do not vanish.

    Attributes:
        initial: the factor in the first step.
        increase_every: double it after so many steps without overflow, and halve it and skip the update on each
            overflow; 0: it stays.
    """

    initial: float
    increase_every: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Computing:
    """How a tower computes.

    Attributes:
        precision: one of `PRECISIONS`. tf32 keeps float32 and rounds the factors of products: to 10 bits of mantissa
            on GPUs, to bfloat16 on CPUs.
        loss_scaling: None without float16, or without gradients.
        xla: `jit` compiles each tower as a whole.
        conv1x1_as_matmul: convolutions of one pixel are computed as matrix products.
        filter_gradients_as_matmul: the gradients by the filter of larger ones without strides are.
        fused_bn: batch normalisation is TensorFlow's fused kernel, not separate operations.
        batchnorm_persistent: GPUs train it with cuDNN's persistent kernels; None on CPUs.
        onednn: whether TensorFlow uses oneDNN's kernels on CPUs, `on` or `off`; None leaves it to TensorFlow and the
            user's environment.
        check_precision: train a second time in fp32 after the run, and compare the losses.
    """

    precision: str = "fp32"
    loss_scaling: LossScaling | None = None
    xla: Literal["off", "jit"] = "off"
    conv1x1_as_matmul: bool = False
    filter_gradients_as_matmul: bool = False
    fused_bn: bool = True
    batchnorm_persistent: bool | None = None
    onednn: Literal["on", "off"] | None = None
    check_precision: bool = False


COMPUTING_FLAGS = (
    Flag(
        "precision",
        str,
        "precision of the arithmetic; weights, batch-norm statistics and loss stay in float32; tf32 rounds "
        "factors of products: to 10 bits of mantissa on GPUs, to bfloat16 on CPUs with AMX-BF16 or Arm's BF16",
        PRECISIONS,
        default=Computing.precision,
    ),
    Flag("use_fp16", bool, "the same as --precision=fp16"),
    Flag(
        "fp16_loss_scale",
        float,
        "factor of the loss",
        default=f"{LOSS_SCALE:g}, or {FIRST_DYNAMIC_SCALE:g} if it is dynamic",
        above=0,
        at_most=2**32,
    ),
    Flag("fp16_enable_auto_loss_scale", bool, "dynamic: halve it when a gradient overflows, and skip that update"),
    Flag(
        "fp16_inc_loss_scale_every_n",
        int,
        "dynamic: double it after this many good steps",
        default=SCALED_UP_EVERY,
        at_least=1,
    ),
    Flag("check_precision", bool, "train again in fp32 after the run and compare the losses"),
    Flag(
        "xla",
        str,
        "jit, or --xla: XLA compiles each tower as a whole",
        XLA_MODES,
        ("jit", "off"),
        default=Computing.xla,
    ),
    Flag("xla_compile", bool, "tf_cnn_benchmarks' spelling of --xla=jit"),
    Flag("conv1x1_as_matmul", bool, "compute 1x1 convolutions as matrix products (NHWC; for CPUs)"),
    Flag(
        "filter_gradients_as_matmul",
        bool,
        "compute filter gradients of larger convolutions without strides as matrix products (NHWC; for CPUs)",
    ),
    Flag(
        "fused_bn",
        bool,
        "batch normalisation in TensorFlow's fused kernel; with --nofused_bn in separate operations",
        default=Computing.fused_bn,
    ),
    Flag(
        "batchnorm_persistent",
        bool,
        "on GPUs cuDNN's persistent kernels train batch normalisation, the only ones for 16 bits in NHWC; extreme "
        "values may overflow in them",
        default=True,
    ),
)


def layout(
    given: Mapping[str, Any], spec: ModelSpec, devices: Mapping[str, Any], *, keras_application: bool
) -> Literal["NHWC", "NCHW"]:
    """Returns the layout of images and convolutions.

    The default is that of cuDNN's tensor-core kernels for 16 bits, NHWC, where GPUs have such cores, else NCHW. It is
    also what TensorFlow's layout optimizer chooses (tensorflow/core/grappler/optimizers/generic_layout_optimizer.cc).

    Args:
        given: flag values; None: not given.
        spec: of the model.
        devices: the decisions of `device_options.resolve`.
        keras_application: the model is Keras' own, and has its layout.

    Raises:
        UsageError: the model cannot be built in the layout that is given.
    """
    wanted: Literal["NHWC", "NCHW", "auto"] = given["data_format"] or "auto"
    if wanted == "NCHW" and not spec.nchw:
        raise UsageError(f"--data_format=NCHW: the code of {spec.name} builds it for NHWC only: use that, or auto.")
    if wanted != "auto":
        return wanted
    if devices["device"] == "cpu" or keras_application or not spec.nchw:
        return "NHWC"
    first = _TENSOR_CORES_SINCE.get(_named_precision(given))
    return "NHWC" if first and _oldest_capability(devices, first) >= first else "NCHW"


def _oldest_capability(devices: Mapping[str, Any], unknown: int) -> int:
    """Returns the smallest major compute capability of the GPUs that a run uses, or `unknown`."""
    gpus = gpu_topology.read().only(devices["visible_gpus"] or range(devices["num_devices"])).gpus
    needed = -(-devices["num_devices"] // devices["virtual_gpus"])
    versions = [gpu.compute_capability for gpu in gpus[:needed]]
    return min((int(version.partition(".")[0]) for version in versions if version), default=unknown)


def resolve(
    given: Mapping[str, Any],
    *,
    on_gpu: bool,
    manager: str,
    modifiers: Modifiers,
    data_format: str,
    cpuinfo: Path = CPUINFO,
) -> tuple[Computing, tuple[str, ...]]:
    """Returns how towers compute, and sentences on what to expect of it.

    Args:
        given: flag values; None: not given.
        on_gpu: whether GPUs compute.
        manager: of the variables.
        modifiers: of the manager.
        data_format: layout of images.
        cpuinfo: the kernel's description of the CPU.

    Raises:
        UsageError: these devices cannot do it, or flags contradict each other.
    """
    precision, notices = _precision(given, on_gpu, cpuinfo)
    xla, of_xla = _xla(given)
    computing = Computing(
        precision=precision,
        loss_scaling=_loss_scaling(given, precision, manager, modifiers),
        xla=xla,
        conv1x1_as_matmul=bool(given["conv1x1_as_matmul"]),
        filter_gradients_as_matmul=bool(given["filter_gradients_as_matmul"]),
        fused_bn=given["fused_bn"] is not False,
        batchnorm_persistent=_batchnorm_persistent(given) if on_gpu else None,
        onednn=given["onednn"],
        check_precision=bool(given["check_precision"]),
    )
    _refuse(computing, given, on_gpu, modifiers, data_format)
    if precision == "tf32" and not on_gpu:
        _refuse_tf32(computing, cpuinfo)
    if not computing.fused_bn and xla != "off":
        of_xla += ("--nofused_bn: XLA compiles batch normalisation to kernels of its own, fused or not.",)
    return computing, notices + of_xla


def as_matmul_of(spec: ModelSpec, *, forward_only: bool = False) -> tuple[str, ...]:
    """Returns which of `AS_MATMUL` have something to act on: convolutions that the model has, and their gradients."""
    has = {
        "conv1x1_as_matmul": spec.has_conv1x1,
        "filter_gradients_as_matmul": spec.has_larger_convolutions and not forward_only,
    }
    return tuple(flag for flag in AS_MATMUL if has[flag])


def refuse_without_layers(given: Mapping[str, Any], spec: ModelSpec) -> None:
    """Refuses flags of `AS_MATMUL`, and --nofused_bn, where the model has no such layers.

    Args:
        given: flag values; None: not given.
        spec: of the model.

    Raises:
        UsageError: it has none.
    """
    for flag in AS_MATMUL:
        if given[flag] and flag not in as_matmul_of(spec):
            raise UsageError(f"--{flag}: {spec.name} has no convolutions {_CONVOLUTIONS[flag]}: leave it out.")
    if given["fused_bn"] is False and not spec.has_batch_norm:
        raise UsageError(f"--nofused_bn: {spec.name} has no batch normalisation: leave it out.")


def _precision(given: Mapping[str, Any], on_gpu: bool, cpuinfo: Path) -> tuple[str, tuple[str, ...]]:
    precision = _named_precision(given)
    if given["use_fp16"] is not None and given["use_fp16"] != (precision == "fp16"):
        raise UsageError(f"--use_fp16={given['use_fp16']} and --precision={precision} contradict each other: drop one.")
    if precision in _16_BITS and not on_gpu and not has_instructions(precision, cpuinfo):
        name = {"bf16": "bfloat16", "fp16": "float16"}[precision]
        better = "fp32" if precision == "bf16" or not has_instructions("bf16", cpuinfo) else "bf16 or fp32"
        return precision, (
            f"--precision={precision}: this CPU has no {name} instructions, and emulating them is much slower than "
            f"fp32: use --precision={better}.",
        )
    return precision, ()


def _named_precision(given: Mapping[str, Any]) -> str:
    return given["precision"] or ("fp16" if given["use_fp16"] else "fp32")


def _batchnorm_persistent(given: Mapping[str, Any]) -> bool | None:
    if given["batchnorm_persistent"] is None and PERSISTENT_BATCH_NORM in os.environ:
        return _SWITCHES.get(os.environ[PERSISTENT_BATCH_NORM].lower())
    return given["batchnorm_persistent"] is not False


def _xla(given: Mapping[str, Any]) -> tuple[Any, tuple[str, ...]]:
    """Returns the mode, and how the spelling of tf_cnn_benchmarks was understood."""
    if given["xla_compile"] is None:
        return given["xla"] or "off", ()
    mode = "jit" if given["xla_compile"] else "off"
    if given["xla"] not in (None, mode):
        raise UsageError(
            f"--xla={given['xla']} and --xla_compile={given['xla_compile']} contradict each other: drop one."
        )
    return mode, (f"--xla_compile={given['xla_compile']}: understood as --xla={mode}.",)


def _refuse(
    computing: Computing, given: Mapping[str, Any], on_gpu: bool, modifiers: Modifiers, data_format: str
) -> None:
    """Refuses what cannot be had here or contradicts itself, and a check that would compare nothing."""
    precision = computing.precision
    if modifiers.fc_model_parallel and precision in _16_BITS:
        raise UsageError(f"--precision={precision}: layers divided by --fc_model_parallel compute in fp32: drop one.")
    if modifiers.fc_model_parallel and computing.xla != "off":
        raise UsageError("--xla=jit compiles each tower alone, and --fc_model_parallel connects them: drop one.")
    for flag in AS_MATMUL:
        if getattr(computing, flag) and data_format != "NHWC":
            raise UsageError(f"--{flag} needs channels as the last dimension: use --data_format=NHWC, or leave it out.")
    if computing.filter_gradients_as_matmul and given["forward_only"]:
        raise UsageError("--filter_gradients_as_matmul: with --forward_only there are no gradients: drop one.")
    if computing.onednn and on_gpu:
        raise UsageError(f"--onednn={computing.onednn} chooses kernels of CPUs: use it with --device=cpu, or drop it.")
    if precision == "fp16" and modifiers.wire_dtype == "float16":
        instead = "use --compact_gradient_dtype=bfloat16"
        instead += ", or omit it with --all_reduce_spec=nccl, which has none" if modifiers.uses_nccl else ""
        raise UsageError(
            f"--compact_gradient_transfer sends gradients unscaled, and in float16 small ones vanish: {instead}."
        )
    if computing.check_precision:
        _refuse_check(precision, given, modifiers)


def _refuse_tf32(computing: Computing, cpuinfo: Path) -> None:
    """Refuses tf32 where a CPU would compute in fp32: it is a mode of oneDNN's kernels for some CPUs."""
    if not has_instructions("tf32", cpuinfo):
        instead = "bf16 or fp32" if has_instructions("bf16", cpuinfo) else "fp32"
        raise UsageError(
            "--precision=tf32: on CPUs, oneDNN rounds factors to bfloat16 with the instructions AMX-BF16 (x86) or BF16 "
            f"(Arm), and this CPU has neither, so it would compute in fp32: use {instead}."
        )
    if computing.xla != "off":
        raise UsageError("--precision=tf32: on CPUs it is a mode of oneDNN, which --xla=jit does not use: drop one.")
    is_off = computing.onednn == "off" if computing.onednn else other_onednn_mode(os.environ, cpuinfo) == "on"
    if is_off:
        raise UsageError("--precision=tf32: on CPUs it is a mode of oneDNN, which is off here: pass --onednn=on.")


def _refuse_check(precision: str, given: Mapping[str, Any], modifiers: Modifiers) -> None:
    if precision == "fp32":
        raise UsageError("--check_precision compares another precision with fp32: use --precision=bf16, fp16 or tf32.")
    if given["datasets_sloppy_parallel_interleave"]:
        raise UsageError("--check_precision needs the same images twice: drop --datasets_sloppy_parallel_interleave.")
    if given["forward_only"] or modifiers.asynchronous:
        raise UsageError(
            "--check_precision trains twice and compares the losses of all towers together: leave out --forward_only "
            "and --nocross_replica_sync, or the check."
        )


def _loss_scaling(given: Mapping[str, Any], precision: str, manager: str, modifiers: Modifiers) -> LossScaling | None:
    """Returns how the loss is scaled.

    Raises:
        UsageError: there is nothing to scale, or towers cannot agree on skipping an update.
    """
    names = ("fp16_loss_scale", "fp16_enable_auto_loss_scale", "fp16_inc_loss_scale_every_n")
    scale, dynamic, every = (given[name] for name in names)
    if precision != "fp16" or given["forward_only"]:
        acting = " and ".join(f"--{name}" for name in names if given[name])
        if acting:
            raise UsageError(f"{acting}: only gradients in float16 are scaled: use --precision=fp16 and train.")
        return None
    if every and not dynamic:
        raise UsageError("--fp16_inc_loss_scale_every_n acts only with --fp16_enable_auto_loss_scale: give that, too.")
    if not dynamic:
        return LossScaling(scale or LOSS_SCALE)
    if (manager in MANAGERS and not MANAGERS[manager].exchanges_gradients) or modifiers.asynchronous:
        raise UsageError(
            "--fp16_enable_auto_loss_scale: all towers must skip the same updates, and here they update independently: "
            "use --variable_update=replicated, or give a fixed --fp16_loss_scale."
        )
    if modifiers.staged_vars or modifiers.relaxed_consistency:
        raise UsageError(
            "--fp16_enable_auto_loss_scale: where gradients are applied a step later, an overflow is seen too late: "
            "give a fixed --fp16_loss_scale, or leave out --staged_vars and --variable_consistency=relaxed."
        )
    return LossScaling(scale or FIRST_DYNAMIC_SCALE, every or SCALED_UP_EVERY)


def has_instructions(precision: str, cpuinfo: Path = CPUINFO) -> bool:
    """Returns whether the CPU has instructions for `tf32`, `bf16` or `fp16`; true if that is not known."""
    instructions = cpu_instructions(cpuinfo)
    return instructions is None or bool(instructions & _INSTRUCTIONS[precision])


def other_onednn_mode(environ: Mapping[str, str], cpuinfo: Path = CPUINFO) -> Literal["on", "off"] | None:
    """Returns the mode that TensorFlow would not choose; None if CPU and environment do not show what it chooses."""
    instructions = cpu_instructions(cpuinfo)
    by_itself = bool(instructions & _FOR_ONEDNN) if instructions and "sse2" in instructions else None
    is_on = _SWITCHES.get(environ.get("TF_ENABLE_ONEDNN_OPTS", "").lower(), by_itself)
    return {True: "off", False: "on", None: None}[is_on]
