from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.errors import UsageError
from benchmarks.precision_options import resolve


def _cpu(tmp_path: Path, flags: str) -> Path:
    path = tmp_path / "cpuinfo"
    path.write_text(f"processor\t: 0\nmodel name\t: A CPU\nflags\t\t: {flags}\n")
    return path


def test_float32_is_the_default() -> None:
    assert resolve({"precision": None}, on_gpu=False, divides_layers=True) == ("fp32", ())


def test_a_cpu_without_bfloat16_is_told(tmp_path: Path) -> None:
    given = {"precision": "bf16"}
    slow = resolve(given, on_gpu=False, divides_layers=False, cpuinfo=_cpu(tmp_path, "sse2 avx2"))
    assert slow[0] == "bf16" and "no instructions for bfloat16" in slow[1][0]
    assert resolve(given, on_gpu=True, divides_layers=False, cpuinfo=_cpu(tmp_path, "sse2"))[1] == ()
    for flags in ("sse2 avx512_bf16", "amx_bf16"):
        assert resolve(given, on_gpu=False, divides_layers=False, cpuinfo=_cpu(tmp_path, flags)) == ("bf16", ())
    assert resolve(given, on_gpu=False, divides_layers=False, cpuinfo=tmp_path / "nothing") == ("bf16", ())


def test_what_is_not_to_be_had_is_refused() -> None:
    with pytest.raises(UsageError, match="tf32 is a mode of NVIDIA GPUs"):
        resolve({"precision": "tf32"}, on_gpu=False, divides_layers=False)
    assert resolve({"precision": "tf32"}, on_gpu=True, divides_layers=True) == ("tf32", ())
    with pytest.raises(UsageError, match="--fc_model_parallel"):
        resolve({"precision": "bf16"}, on_gpu=True, divides_layers=True)
