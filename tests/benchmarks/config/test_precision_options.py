from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.errors import UsageError
from benchmarks.training import computing
from benchmarks.training.computing import AS_MATMUL, Computing, LossScaling, resolve
from variable_mgr.modifiers import Modifiers

_FLAGS = (
    "precision",
    "use_fp16",
    "fp16_loss_scale",
    "fp16_enable_auto_loss_scale",
    "fp16_inc_loss_scale_every_n",
    "check_precision",
    "xla",
    "xla_compile",
    *AS_MATMUL,
    "fused_bn",
    "batchnorm_persistent",
    "onednn",
    "forward_only",
    "datasets_sloppy_parallel_interleave",
)


def _resolve(flags: dict[str, Any], **how: Any) -> tuple[Computing, tuple[str, ...]]:
    usual = {"on_gpu": False, "manager": "replicated", "modifiers": Modifiers(), "data_format": "NHWC"}
    return resolve({**dict.fromkeys(_FLAGS), **flags}, **{**usual, **how})


def _cpu(tmp_path: Path, flags: str) -> Path:
    path = tmp_path / "cpuinfo"
    path.write_text(f"processor\t: 0\nmodel name\t: A CPU\nflags\t\t: {flags}\n")
    return path


def test_float32_without_xla_is_the_default() -> None:
    assert _resolve({}, modifiers=Modifiers(fc_model_parallel=True)) == (Computing(), ())


@pytest.mark.parametrize(
    ("precision", "instructions", "name"), [("bf16", "amx_bf16", "bfloat16"), ("fp16", "avx512_fp16", "float16")]
)
def test_a_cpu_without_instructions_is_told(tmp_path: Path, precision: str, instructions: str, name: str) -> None:
    flags = {"precision": precision}
    slow, (notice,) = _resolve(flags, cpuinfo=_cpu(tmp_path, "sse2 avx2"))
    assert slow.precision == precision and f"no {name} instructions" in notice
    assert "much slower than fp32: use --precision=fp32." in notice
    assert _resolve(flags, on_gpu=True, cpuinfo=_cpu(tmp_path, "sse2"))[1] == ()
    assert _resolve(flags, cpuinfo=_cpu(tmp_path, f"sse2 {instructions}"))[1] == ()
    assert _resolve(flags, cpuinfo=tmp_path / "nothing")[1] == ()


@pytest.mark.parametrize(
    ("instructions", "flags", "environ", "message"),
    [
        ("sse2 avx512_bf16", {}, {}, "this CPU has neither, so it would compute in fp32: use bf16 or fp32"),
        ("sse2 avx2", {}, {}, "use fp32"),
        ("sse2 amx_bf16", {}, {}, None),
        ("asimd bf16", {}, {}, None),
        ("sse2 amx_bf16", {"onednn": "off"}, {}, "pass --onednn=on"),
        ("sse2 amx_bf16", {}, {"TF_ENABLE_ONEDNN_OPTS": "0"}, "pass --onednn=on"),
        ("sse2 amx_bf16", {"onednn": "on"}, {"TF_ENABLE_ONEDNN_OPTS": "0"}, None),
        ("sse2 amx_bf16", {"xla": "jit"}, {}, "--xla=jit does not use"),
    ],
)
def test_tf32_on_a_cpu_needs_what_rounds_its_factors(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    instructions: str,
    flags: dict[str, str],
    environ: dict[str, str],
    message: str | None,
) -> None:
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    cpuinfo = _cpu(tmp_path, instructions)
    if message is None:
        assert _resolve({"precision": "tf32", **flags}, cpuinfo=cpuinfo)[0].precision == "tf32"
        return
    with pytest.raises(UsageError, match=message):
        _resolve({"precision": "tf32", **flags}, cpuinfo=cpuinfo)


def test_for_float16_the_other_16_bit_type_is_named_if_the_cpu_has_it(tmp_path: Path) -> None:
    (notice,) = _resolve({"precision": "fp16"}, cpuinfo=_cpu(tmp_path, "sse2 avx512_bf16"))[1]
    assert "no float16 instructions" in notice and notice.endswith("use --precision=bf16 or fp32.")


def test_separate_batch_normalisation_is_compiled_by_xla_as_the_fused_one() -> None:
    computing, (notice,) = _resolve({"fused_bn": False, "xla": "jit"})
    assert not computing.fused_bn and "XLA compiles batch normalisation" in notice
    assert _resolve({"fused_bn": False}) == (Computing(fused_bn=False), ())


def test_the_peers_spellings_mean_the_same() -> None:
    assert _resolve({"use_fp16": True}, on_gpu=True)[0] == _resolve({"precision": "fp16"}, on_gpu=True)[0]
    assert _resolve({"use_fp16": False})[0].precision == "fp32"
    computing, (notice,) = _resolve({"xla_compile": True})
    assert computing == _resolve({"xla": "jit"})[0] and "understood as --xla=jit" in notice


@pytest.mark.parametrize(
    ("instructions", "environ", "other"),
    [
        ("sse2 avx2", {}, "on"),
        ("sse2 avx2", {"TF_ENABLE_ONEDNN_OPTS": "1"}, "off"),
        ("sse2 avx2", {"TF_ENABLE_ONEDNN_OPTS": "True"}, "off"),
        ("sse2 avx512_vnni", {}, "off"),
        ("sse2 amx_bf16", {"TF_ENABLE_ONEDNN_OPTS": "0"}, "on"),
        ("sse2 amx_bf16", {"TF_ENABLE_ONEDNN_OPTS": "false"}, "on"),
        ("asimd bf16", {}, None),
        ("asimd bf16", {"TF_ENABLE_ONEDNN_OPTS": "1"}, "off"),
    ],
)
def test_the_other_kernels_are_known(
    tmp_path: Path, instructions: str, environ: dict[str, str], other: str | None
) -> None:
    assert computing.other_onednn_mode(environ, _cpu(tmp_path, instructions)) == other


def test_float16_scales_the_loss() -> None:
    def scaling(**flags: Any) -> LossScaling | None:
        return _resolve({"precision": "fp16", **flags}, on_gpu=True)[0].loss_scaling

    assert scaling() == LossScaling(128.0)
    assert scaling(fp16_loss_scale=64.0) == LossScaling(64.0)
    assert scaling(fp16_enable_auto_loss_scale=True) == LossScaling(2.0**15, 1000)
    changing = {"fp16_enable_auto_loss_scale": True, "fp16_loss_scale": 8.0, "fp16_inc_loss_scale_every_n": 5}
    assert scaling(**changing) == LossScaling(8.0, 5)
    assert scaling(forward_only=True) is None
    assert _resolve({"precision": "bf16"}, on_gpu=True)[0].loss_scaling is None


@pytest.mark.parametrize(
    ("flags", "how", "message"),
    [
        ({"onednn": "on"}, {"on_gpu": True}, "--onednn=on chooses kernels of CPUs"),
        ({"precision": "bf16"}, {"modifiers": Modifiers(fc_model_parallel=True)}, "--fc_model_parallel"),
        ({"xla": "jit"}, {"modifiers": Modifiers(fc_model_parallel=True)}, "--fc_model_parallel"),
        ({"use_fp16": True, "precision": "bf16"}, {}, "contradict"),
        ({"use_fp16": False, "precision": "fp16"}, {}, "contradict"),
        ({"xla": "off", "xla_compile": True}, {}, "contradict"),
        ({"fp16_loss_scale": 2.0}, {}, "--fp16_loss_scale: only gradients in float16 are scaled"),
        ({"precision": "fp16", "fp16_loss_scale": 2.0, "forward_only": True}, {}, "and train"),
        ({"precision": "fp16", "fp16_inc_loss_scale_every_n": 2}, {}, "acts only with --fp16_enable_auto"),
        (
            {"precision": "fp16", "fp16_enable_auto_loss_scale": True},
            {"manager": "local_sgd"},
            "they update independently",
        ),
        (
            {"precision": "fp16", "fp16_enable_auto_loss_scale": True},
            {"modifiers": Modifiers(asynchronous=True)},
            "they update independently",
        ),
        (
            {"precision": "fp16", "fp16_enable_auto_loss_scale": True},
            {"modifiers": Modifiers(staged_vars=True)},
            "seen too late",
        ),
        (
            {"precision": "fp16", "fp16_enable_auto_loss_scale": True},
            {"modifiers": Modifiers(relaxed_consistency=True)},
            "seen too late",
        ),
        (
            {"precision": "fp16"},
            {"modifiers": Modifiers(compact_gradient_transfer=True)},
            "--compact_gradient_dtype=bfloat16",
        ),
        (
            {"check_precision": True, "precision": "bf16", "datasets_sloppy_parallel_interleave": True},
            {},
            "same images twice",
        ),
        ({"conv1x1_as_matmul": True}, {"data_format": "NCHW"}, "--conv1x1_as_matmul needs .* --data_format=NHWC"),
        ({"filter_gradients_as_matmul": True}, {"data_format": "NCHW"}, "--filter_gradients_as_matmul needs"),
        ({"filter_gradients_as_matmul": True, "forward_only": True}, {}, "there are no gradients"),
        ({"check_precision": True}, {}, "compares another precision with fp32"),
        ({"check_precision": True, "precision": "bf16", "forward_only": True}, {}, "trains twice"),
        ({"check_precision": True, "precision": "bf16"}, {"modifiers": Modifiers(asynchronous=True)}, "trains twice"),
    ],
)
def test_what_is_not_to_be_had_is_refused(flags: dict[str, Any], how: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        _resolve(flags, **how)
