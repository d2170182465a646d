"""How towers compute: precision, layout, loss scaling, XLA, kernels. Imports without TensorFlow."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from benchmarks.errors import UsageError
from benchmarks.machine.hardware import cpu_instructions
from benchmarks.option import Flag, filled, flags_of, option
from benchmarks.outside_text import whole_number
from benchmarks.process.tensorflow_setup import PERSISTENT_BATCH_NORM
from models.model_spec import ModelSpec
from variable_mgr.catalog import PYTORCH_LOOPS

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
# Flags by which convolutions of one pixel, or parts of larger ones, are computed as matrix products.
AS_MATMUL = ("conv1x1_as_matmul", "filter_gradients_as_matmul")
IN_16_BITS = ("bf16", "fp16")
# The major compute capability of the first GPUs with tensor cores for them: Volta, Ampere.
_TENSOR_CORES_SINCE = {"fp16": 7, "tf32": 8, "bf16": 8}
# What PyTorch, timm, Keras and NVIDIA's examples call them; automatic mixed precision (amp) is in float16 there.
_OTHER_PRECISIONS = (
    ("float32", "fp32"),
    ("bfloat16", "bf16"),
    ("mixed_bfloat16", "bf16"),
    ("float16", "fp16"),
    ("mixed_float16", "fp16"),
    ("amp", "fp16"),
)
TF32_OVERRIDE = "NVIDIA_TF32_OVERRIDE"  # of cuBLAS and cuDNN: with 0 they never use TF32
_INSTRUCTIONS = {  # as Linux names them: x86, Arm
    "tf32": {"amx_bf16", "bf16"},  # oneDNN rounds factors of float32 products with these alone
    "bf16": {"avx512_bf16", "amx_bf16", "bf16"},
    # Not AVX512-FP16: for gradients of filters in float16, oneDNN 3.7 has but slow reference kernels without AMX.
    "fp16": {"amx_fp16", "asimdhp"},
}
# TensorFlow turns oneDNN on by itself where an x86 CPU has one of these (tensorflow/core/util/util.cc).
_FOR_ONEDNN = set("avx512_vnni avx512_bf16 avx512_fp16 avx_vnni avx_vnni_int8 avx_ne_convert".split())
_FOR_ONEDNN |= {"amx_tile", "amx_int8", "amx_bf16", "amx_fp16"}
_SWITCHES = {"1": True, "true": True, "0": False, "false": False}  # TensorFlow's variables, in any case
# Variables by which a graph is computed otherwise than flags say: their values, on which devices, and the effect.
_ROUNDING, _ROUNDS = ("bf16", "f16", "tf32", "any"), "oneDNN may round factors, as with tf32"
_AMP = "only NVIDIA's builds of TensorFlow read it, and --precision=fp16 is mixed precision in every build"
_OVERRULING = (
    ("ONEDNN_DEFAULT_FPMATH_MODE", _ROUNDING, "cpu", _ROUNDS),
    ("DNNL_DEFAULT_FPMATH_MODE", _ROUNDING, "cpu", _ROUNDS),
    ("TF_SET_ONEDNN_FPMATH_MODE", _ROUNDING, "cpu", _ROUNDS),
    ("TF_DETERMINISTIC_OPS", ("1", "true"), "", "kernels are those of --deterministic"),
    ("TF_ENABLE_AUTO_MIXED_PRECISION", ("1", "true"), "", _AMP),
    ("TF_ENABLE_AUTO_MIXED_PRECISION_GRAPH_REWRITE", ("1", "true"), "", _AMP),
    ("CUDA_LAUNCH_BLOCKING", ("1",), "gpu", "each kernel is awaited, so that steps take longer"),
)
# TensorFlow's variables of what these flags set.
_THREADS = (("TF_NUM_INTRAOP_THREADS", "num_intra_threads"), ("TF_NUM_INTEROP_THREADS", "num_inter_threads"))
# PyTorch takes the first that is set.
_THREADS_OF_PYTORCH = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_AUTO_JIT = re.compile("auto_jit=(?!0|-1)")
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
    """The part of a configuration on how a tower computes.

    Attributes:
        loss_scaling: None without float16, or without gradients.
        batchnorm_persistent: GPUs train it with cuDNN's persistent kernels; None on CPUs.
    """

    precision: Literal["fp32", "tf32", "bf16", "fp16"] = option(
        "precision of the arithmetic; weights, batch-norm statistics and loss stay in float32; by default tf32 on "
        "GPUs of compute capability 8.0 or higher; float32, float16, bfloat16 and amp (fp16) are accepted, too",
        default="fp32",
        default_text="tf32 or fp32",
        other_words=_OTHER_PRECISIONS,
    )
    loss_scaling: LossScaling | None = None
    check_precision: bool = option(
        "repeat the training in fp32 without XLA after the run, and compare the losses", default=False, in_key=False
    )
    xla: Literal["off", "jit"] = option(
        "compile each tower as a whole with XLA; --xla is --xla=jit",
        default="off",
        boolean=("jit", "off"),
        other_words=(("on", "jit"),),
    )
    conv1x1_as_matmul: bool = option("compute 1x1 convolutions as matrix products; NHWC only, for CPUs", default=False)
    filter_gradients_as_matmul: bool = option(
        "compute the filter gradients of larger convolutions with stride 1 as matrix products; NHWC only, for CPUs",
        default=False,
    )
    fused_bn: bool = option(
        "use TensorFlow's fused kernel for batch normalisation; --nofused_bn uses separate operations",
        default=True,
        default_text="true; false where XLA compiles for GPUs",
    )
    batchnorm_persistent: bool | None = option(
        "use cuDNN's persistent kernels for batch normalisation on GPUs; they are the only ones for 16 bits in "
        "NHWC, and extreme values may overflow in them",
        default=None,
        default_text="true",
    )


COMPUTING_FLAGS = (
    *flags_of(Computing),
    Flag("use_fp16", bool, "the same as --precision=fp16", same_as="precision", stands_for=("fp16", "")),
    Flag("xla_compile", bool, "the same as --xla=jit", same_as="xla", stands_for=("jit", "off"), unset=False),
    Flag(
        "fp16_loss_scale",
        float,
        "loss scale for fp16; if it is dynamic, the initial one",
        default=f"{LOSS_SCALE:g}, or {FIRST_DYNAMIC_SCALE:g} if it is dynamic",
        above=0,
        at_most=2**32,
        gone=(("dynamic", "use --fp16_enable_auto_loss_scale"),),
    ),
    Flag(
        "fp16_enable_auto_loss_scale",
        bool,
        "adjust the loss scale dynamically; when a gradient overflows, halve the scale and skip the update",
    ),
    Flag(
        "fp16_inc_loss_scale_every_n",
        int,
        "double a dynamic loss scale after this many steps without overflow",
        default=SCALED_UP_EVERY,
        at_least=1,
    ),
)


def usual_precision(capabilities: Sequence[str | None], environ: Mapping[str, str]) -> tuple[str, str]:
    """Returns the precision that TensorFlow itself uses, and why; on CPUs that needs no reason.

    The compute capabilities are those of the GPUs that are used; None: unknown; empty on CPUs. What a GPU of unknown
    capability does with TF32 is unknown, so that it is turned off there.
    """
    if not capabilities:
        return "fp32", ""
    if environ.get(TF32_OVERRIDE) == "0":
        return "fp32", f"{TF32_OVERRIDE}=0 turns TF32 off"
    known = [version for version in capabilities if version]
    if len(known) < len(capabilities):
        return "fp32", "the compute capability is not known here, so TF32 is off; --precision=tf32 uses it"
    if "tf32" in tensor_core_precisions(known):
        return "tf32", "TensorFlow's default on these GPUs; --precision=fp32 turns TF32 off, bf16 computes in 16 bits"
    has_none = f"compute capability {min(known, key=_major)} has no TF32"
    if "fp16" in tensor_core_precisions(known):
        return "fp32", f"{has_none}; --precision=fp16 uses tensor cores, which most of these GPUs have"
    return "fp32", has_none


def tensor_core_precisions(capabilities: Sequence[str]) -> tuple[str, ...]:
    """Returns the precisions for which all GPUs of these compute capabilities have tensor cores."""
    least = min(map(_major, capabilities), default=0)
    return tuple(name for name in PRECISIONS if _TENSOR_CORES_SINCE.get(name, math.inf) <= least)


def _major(capability: str) -> int:
    return int(capability.partition(".")[0])


def layout(precision: str, *, nchw: bool, capabilities: Sequence[str | None]) -> Literal["NHWC", "NCHW"]:
    """Returns the layout of images and convolutions if the user leaves it to the suite.

    That is the layout of cuDNN's tensor-core kernels for 16 bits, NHWC, where GPUs have such cores, else NCHW. It is
    also what TensorFlow's layout optimizer chooses (tensorflow/core/grappler/optimizers/generic_layout_optimizer.cc).
    The capabilities are as for `usual_precision`. `nchw`: the model can be built with channels before height and width.
    """
    if not capabilities or not nchw:
        return "NHWC"
    known = [version for version in capabilities if version]
    has_cores = not known or precision in tensor_core_precisions(known)
    return "NHWC" if precision in IN_16_BITS and has_cores else "NCHW"


def decide(
    given: Mapping[str, Any], spec: ModelSpec, *, on_gpu: bool, onednn: str | None
) -> tuple[Computing, tuple[str, ...]]:
    """Returns how towers compute, and sentences on what to expect of it.

    TensorFlow is told to use oneDNN's kernels (`onednn` is `on`) or not (`off`); None: it is not told.

    Raises:
        UsageError: this CPU cannot do it.
    """
    computing = filled(
        Computing,
        given,
        loss_scaling=_loss_scaling(given),
        fused_bn=_fused_bn(given, on_gpu=on_gpu and spec.has_batch_norm),
        batchnorm_persistent=_batchnorm_persistent(given) if on_gpu else None,
    )
    precision = computing.precision
    in_pytorch = given["variable_update"] in PYTORCH_LOOPS
    overruled = _overruled_in_pytorch(given, on_gpu=on_gpu)
    notices = tuple(overruled if in_pytorch else _overruled(given, precision, onednn, on_gpu=on_gpu))
    if precision in IN_16_BITS and not on_gpu and not has_instructions(precision):
        name = {"bf16": "bfloat16", "fp16": "float16"}[precision]
        better = "fp32" if precision == "bf16" or not has_instructions("bf16") else "bf16 or fp32"
        notices += (
            f"--precision={precision}: this CPU has no {name} instructions that training uses, and without them it is "
            f"much slower than fp32: use --precision={better}.",
        )
    if precision == "tf32" and not on_gpu:
        _refuse_tf32(onednn)
    if not computing.fused_bn and computing.xla != "off" and not on_gpu:
        notices += ("--nofused_bn: XLA compiles batch normalisation to kernels of its own, fused or not.",)
    return computing, notices


def _overruled(given: Mapping[str, Any], precision: str, onednn: str | None, *, on_gpu: bool) -> Iterator[str]:
    """Yields a sentence on each environment variable by which a run computes otherwise than its flags say."""
    flags = os.environ.get("TF_XLA_FLAGS", "")
    if _AUTO_JIT.search(flags) and (on_gpu or "cpu_global_jit" in flags) and given["xla"] != "jit":
        yield f"TF_XLA_FLAGS={flags}: XLA compiles parts of the graph, also without --xla: unset it, unless meant."
    for name, values, on, effect in _OVERRULING:
        value = os.environ.get(name, "")
        acts = value.lower() in values and on in ("", "gpu" if on_gpu else "cpu")
        rounds = precision != "tf32" and onednn != "off"
        if acts and (rounds if effect == _ROUNDS else name != "TF_DETERMINISTIC_OPS" or not given["deterministic"]):
            yield f"{name}={value}: {effect}: unset it, unless that is meant."
    for name, setting in _THREADS:
        if whole_number(value := os.environ.get(name, "")) and not given[setting]:
            yield (
                f"{name}={value}: it sets TensorFlow's threads, and reports have such runs in one row with others: use "
                f"--{setting}={value} instead, or unset it."
            )
    value = os.environ.get("TF_ENABLE_ONEDNN_OPTS", "")
    if not (on_gpu or onednn) and _SWITCHES.get(value.lower()) is False and onednn_mode({}) == "on":
        yield (
            f"TF_ENABLE_ONEDNN_OPTS={value}: oneDNN's kernels are off, and reports have such runs in one row with "
            "others: use --onednn=off instead, or unset it."
        )


def _overruled_in_pytorch(given: Mapping[str, Any], *, on_gpu: bool) -> Iterator[str]:
    """Yields a sentence on a variable that sets the threads of PyTorch alone, as torchrun and images of NVIDIA do.

    Tasks of a cluster have their share of the cores instead.
    """
    name = next((name for name in _THREADS_OF_PYTORCH if whole_number(os.environ.get(name, ""))), None)
    if name and given["variable_update"] == "pytorch" and not on_gpu and not given["num_intra_threads"]:
        value = os.environ[name]
        yield (
            f"{name}={value}: it sets PyTorch's threads and not TensorFlow's, so that their rates do not compare: use "
            f"--num_intra_threads={value} for both, or unset it."
        )


def as_matmul_of(spec: ModelSpec, *, forward_only: bool = False) -> tuple[str, ...]:
    """Returns which of `AS_MATMUL` have something to act on: convolutions that the model has, and their gradients."""
    acts = (spec.has_conv1x1, spec.has_larger_convolutions and not forward_only)
    return tuple(itertools.compress(AS_MATMUL, acts))


def _fused_bn(given: Mapping[str, Any], *, on_gpu: bool) -> bool:
    """Returns whether batch normalisation is TensorFlow's fused kernel.

    Inside a function that XLA compiles, no operation has a device, so Grappler takes TensorFlow's for one of a CPU and
    merges it with a ReLU for oneDNN (`_FusedBatchNormEx`). Compiled for a GPU, its gradient is then wrong (TensorFlow
    2.21). XLA fuses separate operations by itself, to steps as fast.
    """
    if given["fused_bn"] is None:
        return not (on_gpu and given["xla"] == "jit")
    return bool(given["fused_bn"])


def _batchnorm_persistent(given: Mapping[str, Any]) -> bool | None:
    if given["batchnorm_persistent"] is None and PERSISTENT_BATCH_NORM in os.environ:
        return _SWITCHES.get(os.environ[PERSISTENT_BATCH_NORM].lower())
    return given["batchnorm_persistent"] is not False


def _refuse_tf32(onednn: str | None) -> None:
    """Refuses tf32 where a CPU would compute in fp32: it is a mode of oneDNN's kernels for some CPUs."""
    if not has_instructions("tf32"):
        instead = "bf16 or fp32" if has_instructions("bf16") else "fp32"
        raise UsageError(
            "--precision=tf32: on CPUs, oneDNN rounds factors to bfloat16 with the instructions AMX-BF16 (x86) or BF16 "
            f"(Arm), and this CPU has neither, so it would compute in fp32: use {instead}."
        )
    if onednn == "off" or (onednn is None and onednn_mode(os.environ) == "off"):
        raise UsageError("--precision=tf32: on CPUs it is a mode of oneDNN, which is off here: pass --onednn=on.")


def _loss_scaling(given: Mapping[str, Any]) -> LossScaling | None:
    if given["precision"] != "fp16" or given["forward_only"] or given["eval"]:
        return None
    if not given["fp16_enable_auto_loss_scale"]:
        return LossScaling(given["fp16_loss_scale"] or LOSS_SCALE)
    every = given["fp16_inc_loss_scale_every_n"] or SCALED_UP_EVERY
    return LossScaling(given["fp16_loss_scale"] or FIRST_DYNAMIC_SCALE, every)


def has_instructions(precision: str) -> bool:
    """Returns whether the CPU has instructions for `tf32`, `bf16` or `fp16`; true if that is not known."""
    instructions = cpu_instructions()
    return instructions is None or bool(instructions & _INSTRUCTIONS[precision])


def onednn_mode(environ: Mapping[str, str]) -> Literal["on", "off"] | None:
    """Returns the mode that TensorFlow chooses by itself; None if CPU and environment do not show it."""
    instructions = cpu_instructions()
    by_itself = bool(instructions & _FOR_ONEDNN) if instructions and "sse2" in instructions else None
    is_on = _SWITCHES.get(environ.get("TF_ENABLE_ONEDNN_OPTS", "").lower(), by_itself)
    return {True: "on", False: "off", None: None}[is_on]
