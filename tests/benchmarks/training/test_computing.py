from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.config import run_flags
from benchmarks.errors import UsageError
from benchmarks.training import computing
from benchmarks.training.computing import Computing, LossScaling, layout, onednn_mode
from models import specs

Cpu = Callable[[str], None]


def decide(*, on_gpu: bool = False, onednn: str | None = None, **flags: Any) -> tuple[Computing, tuple[str, ...]]:
    resnet50 = specs.find_model("resnet50")
    return computing.decide(run_flags.unset(flags), resnet50, on_gpu=on_gpu, onednn=onednn)


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch) -> Cpu:
    """Replaces the CPU by one with these instructions."""
    return lambda names: monkeypatch.setattr(computing, "cpu_instructions", lambda: frozenset(names.split()) or None)


@pytest.mark.parametrize(
    ("name", "value", "on_cpu", "on_gpu"),
    [
        ("TF_XLA_FLAGS", "--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit", True, True),
        ("TF_XLA_FLAGS", "--tf_xla_auto_jit=2", False, True),
        ("TF_XLA_FLAGS", "--tf_xla_cpu_global_jit --tf_xla_auto_jit=0", False, False),
        ("ONEDNN_DEFAULT_FPMATH_MODE", "BF16", True, False),
        ("ONEDNN_DEFAULT_FPMATH_MODE", "STRICT", False, False),
        ("DNNL_DEFAULT_FPMATH_MODE", "BF16", True, False),
        ("TF_SET_ONEDNN_FPMATH_MODE", "bf16", True, False),
        ("TF_DETERMINISTIC_OPS", "1", True, True),
        ("TF_DETERMINISTIC_OPS", "0", False, False),
        ("TF_ENABLE_AUTO_MIXED_PRECISION", "1", True, True),
        ("CUDA_LAUNCH_BLOCKING", "1", False, True),
        ("TF_NUM_INTRAOP_THREADS", "1", True, True),
        ("TF_NUM_INTEROP_THREADS", "2", True, True),
        ("TF_ENABLE_ONEDNN_OPTS", "0", True, False),
        ("TF_ENABLE_ONEDNN_OPTS", "1", False, False),
    ],
)
def test_a_variable_that_overrules_flags_has_a_notice(
    cpu: Cpu, monkeypatch: pytest.MonkeyPatch, name: str, value: str, on_cpu: bool, on_gpu: bool
) -> None:
    cpu("sse2 avx512_vnni")
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    monkeypatch.setenv(name, value)
    for device, expected in ((False, on_cpu), (True, on_gpu)):
        notices = decide(on_gpu=device)[1]
        assert [notice.startswith(f"{name}={value}: ") for notice in notices] == [True] * expected
    if name == "TF_ENABLE_ONEDNN_OPTS":
        assert not decide(onednn="off")[1]
    if name == "TF_NUM_INTRAOP_THREADS":
        assert not decide(num_intra_threads=4)[1]


def test_a_variable_that_sets_pytorchs_threads_alone_has_a_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (notice,) = decide(variable_update="pytorch")[1]
    assert notice.startswith("OMP_NUM_THREADS=1: it sets PyTorch's threads") and "--num_intra_threads=1" in notice
    assert not decide()[1] and not decide(variable_update="pytorch_ddp")[1]
    assert not decide(variable_update="pytorch", on_gpu=True)[1]
    assert not decide(variable_update="pytorch", num_intra_threads=2)[1]


@pytest.mark.parametrize(
    ("precision", "nchw", "capabilities", "expected"),
    [
        ("fp32", True, ["9.0"], "NCHW"),
        ("tf32", True, ["9.0"], "NCHW"),
        ("bf16", True, ["9.0"], "NHWC"),
        ("bf16", True, ["7.0"], "NCHW"),
        ("fp16", True, ["7.0"], "NHWC"),
        ("fp16", True, ["6.0"], "NCHW"),
        ("fp16", True, ["9.0", "6.0"], "NCHW"),
        ("fp16", True, [None], "NHWC"),
        ("fp32", False, ["9.0"], "NHWC"),
        ("fp32", True, [], "NHWC"),
    ],
)
def test_the_layout_is_that_of_the_fastest_kernels(
    precision: str, nchw: bool, capabilities: list[str | None], expected: str
) -> None:
    """A GPU of which the driver reports nothing is one of today."""
    assert layout(precision, nchw=nchw, capabilities=capabilities) == expected


@pytest.mark.parametrize(
    ("precision", "instructions", "name"), [("bf16", "amx_bf16", "bfloat16"), ("fp16", "amx_fp16", "float16")]
)
def test_a_cpu_without_instructions_has_a_notice(cpu: Cpu, precision: str, instructions: str, name: str) -> None:
    cpu("sse2 avx2 avx512_fp16")
    slow, (notice,) = decide(precision=precision)
    assert slow.precision == precision and f"no {name} instructions" in notice
    assert "much slower than fp32: use --precision=fp32." in notice
    assert decide(precision=precision, on_gpu=True)[1] == ()
    for sufficient_or_unknown in (f"sse2 {instructions}", ""):
        cpu(sufficient_or_unknown)
        assert decide(precision=precision)[1] == ()


@pytest.mark.parametrize(
    ("instructions", "onednn", "variable", "message"),
    [
        ("sse2 avx512_bf16", None, "", "this CPU has neither, so it would compute in fp32: use bf16 or fp32"),
        ("sse2 avx2", None, "", "use fp32"),
        ("sse2 amx_bf16", None, "", None),
        ("asimd bf16", None, "", None),
        ("sse2 amx_bf16", "off", "", "pass --onednn=on"),
        ("sse2 amx_bf16", None, "0", "pass --onednn=on"),
        ("sse2 amx_bf16", "on", "0", None),
    ],
)
def test_tf32_on_a_cpu_needs_what_rounds_its_factors(
    cpu: Cpu,
    monkeypatch: pytest.MonkeyPatch,
    instructions: str,
    onednn: str | None,
    variable: str,
    message: str | None,
) -> None:
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", variable)
    cpu(instructions)
    if message is None:
        assert decide(precision="tf32", onednn=onednn)[0].precision == "tf32"
        return
    with pytest.raises(UsageError, match=message):
        decide(precision="tf32", onednn=onednn)


def test_for_float16_the_other_16_bit_type_is_named_if_the_cpu_has_it(cpu: Cpu) -> None:
    cpu("sse2 avx512_bf16")
    (notice,) = decide(precision="fp16")[1]
    assert "no float16 instructions" in notice and notice.endswith("use --precision=bf16 or fp32.")


def test_separate_batch_normalisation_is_compiled_by_xla_as_the_fused_one() -> None:
    compiled, (notice,) = decide(fused_bn=False, xla="jit")
    assert not compiled.fused_bn and "XLA compiles batch normalisation" in notice
    assert decide(fused_bn=False) == (Computing(fused_bn=False), ())


def test_xla_gets_separate_batch_normalisation_on_gpus() -> None:
    assert [decide(on_gpu=on_gpu, xla=xla)[0].fused_bn for on_gpu in (True, False) for xla in ("jit", "off")] == [
        False,
        True,
        True,
        True,
    ]
    assert decide(on_gpu=True, xla="jit", fused_bn=False)[1] == ()
    without = computing.decide(run_flags.unset({"xla": "jit"}), specs.find_model("vgg16"), on_gpu=True, onednn=None)
    assert without[0].fused_bn, "there is none"


@pytest.mark.parametrize(
    ("instructions", "environ", "mode"),
    [
        ("sse2 avx2", {}, "off"),
        ("sse2 avx2", {"TF_ENABLE_ONEDNN_OPTS": "1"}, "on"),
        ("sse2 avx2", {"TF_ENABLE_ONEDNN_OPTS": "True"}, "on"),
        ("sse2 avx512_vnni", {}, "on"),
        ("sse2 amx_bf16", {"TF_ENABLE_ONEDNN_OPTS": "0"}, "off"),
        ("sse2 amx_bf16", {"TF_ENABLE_ONEDNN_OPTS": "false"}, "off"),
        ("asimd bf16", {}, None),
        ("asimd bf16", {"TF_ENABLE_ONEDNN_OPTS": "1"}, "on"),
    ],
)
def test_the_kernels_that_tensorflow_chooses_are_known(
    cpu: Cpu, instructions: str, environ: dict[str, str], mode: str | None
) -> None:
    cpu(instructions)
    assert onednn_mode(environ) == mode


def test_float16_scales_the_loss() -> None:
    def scaling(**flags: Any) -> LossScaling | None:
        return decide(**{"precision": "fp16", **flags}, on_gpu=True)[0].loss_scaling

    assert scaling() == LossScaling(128.0)
    assert scaling(fp16_loss_scale=64.0) == LossScaling(64.0)
    assert scaling(fp16_enable_auto_loss_scale=True) == LossScaling(2.0**15, 1000)
    changing = {"fp16_enable_auto_loss_scale": True, "fp16_loss_scale": 8.0, "fp16_inc_loss_scale_every_n": 5}
    assert scaling(**changing) == LossScaling(8.0, 5)
    assert scaling(forward_only=True) is None
    assert scaling(eval=True) is None
    assert scaling(precision="bf16") is None
