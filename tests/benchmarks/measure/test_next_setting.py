from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from benchmarks.measure.next_setting import to_try
from results.input_bottleneck import LEAST_REPORTED_WAIT
from results.record import Record, Status
from tests.support.records import fake_run

H100, V100, OTHER = (f"NVIDIA {name} GiB" for name in ("H100 80GB HBM3 80", "V100-SXM2-16GB 16", "Z1 80"))
DEFAULTS = ("num_devices", "precision", "batch_per_device")
GIB = 2**30


def _run(*chosen: str, gpus: list[str], needed_gib: float = 60, wait: float | None = None, **config: Any) -> Record:
    """A run on GPUs; `chosen` are the fields for which flags decided, in whatever spelling, or in a file."""
    record = fake_run(**config, reasons={name: "a default" for name in DEFAULTS if name not in chosen})
    return replace(
        record,
        environment={**record.environment, "gpus": gpus},
        measurement=replace(record.measurement, peak_gpu_memory_bytes=int(needed_gib * GIB)),
        derived=replace(record.derived, input_wait_share=wait),
    )


@pytest.mark.parametrize(
    ("record", "better"),
    [
        (_run(gpus=[H100] * 8), "--num_gpus=8 uses all GPUs (this run used 1 of 8)"),
        (_run(gpus=[H100] * 8, num_devices=4, virtual_gpus=2), "--num_gpus=8 uses all GPUs (this run used 2 of 8)"),
        (
            _run(gpus=[H100] * 8, wait=LEAST_REPORTED_WAIT, data_dir="/a b"),
            "doctor --model=resnet50 '--data_dir=/a b' shows what",
        ),
        (_run(gpus=[H100], wait=0.4, data_dir=None), "--precision=bf16 computes in 16 bits"),
        (_run("num_devices", gpus=[H100] * 8), "--precision=bf16 computes in 16 bits on tensor cores"),
        (_run(gpus=[H100] * 2, num_devices=2), "--precision=bf16 computes in 16 bits on tensor cores"),
        (_run(gpus=[H100], precision="tf32"), "--precision=bf16 computes in 16 bits"),
        (_run("precision", gpus=[H100], precision="tf32"), None),
        (_run(gpus=[V100]), "--precision=fp16 computes in 16 bits on tensor cores"),
        (_run("num_devices", gpus=[H100, V100], visible_gpus=(1,)), "--precision=fp16 computes in 16 bits"),
        (
            _run(gpus=[H100], precision="bf16", needed_gib=6),
            "--batch_size=auto finds the largest that fits (32 images per device needed 6.0 of 80 GiB)",
        ),
        # Nothing is obvious.
        (_run(gpus=[H100], precision="bf16"), None),
        (_run(gpus=[OTHER]), None),
        (_run(gpus=[], device="cpu"), None),
        (_run(gpus=[H100], device="cpu"), None),
        (_run(gpus=[H100], wait=0.01, precision="bf16"), None),
        # The user has decided.
        (_run("precision", gpus=[H100]), None),
        (_run("batch_per_device", gpus=[H100], precision="bf16", needed_gib=6), None),
        # Other workers use the other GPUs.
        (_run(gpus=[H100] * 8, precision="bf16", cluster={"workers": ["a", "b"]}), None),
    ],
)  # fmt: skip
def test_a_record_shows_what_to_try(record: Record, better: str | None) -> None:
    found = to_try(record)
    assert (found is None) if better is None else better in str(found)


def test_runs_of_a_sweep_and_runs_without_a_result_get_no_advice() -> None:
    run = _run(gpus=[H100] * 8)
    assert to_try(run)
    assert to_try(replace(run, identity=replace(run.identity, session_id="5e551011"))) is None
    assert to_try(replace(run, status=Status.OUT_OF_MEMORY)) is None
