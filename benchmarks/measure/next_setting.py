"""What to try after a run, if its record shows that a better setting is obvious: one line, or none."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator

from results.environment import data_sheet_peak, used_gpus
from results.input_bottleneck import LEAST_REPORTED_WAIT
from results.record import Record, Status
from results.text import counted

# A batch that needs less than this share of a GPU's memory can be several times as large.
_LITTLE_MEMORY = 0.25


def to_try(record: Record) -> str | None:
    """Returns the flag that most probably makes such a run faster, and why; None if nothing is obvious.

    Only defaults are questioned, which have a reason in the record; and no runs of a sweep.
    """
    if record.status is not Status.OK or record.identity.session_id or record.config.get("eval_only"):
        return None
    return next(_better(record), None)


def _better(record: Record) -> Iterator[str]:
    """Yields what to try, the most valuable first."""
    config, wait = record.config, record.derived.input_wait_share
    gpus = used_gpus(record) if config.get("device") == "gpu" else []
    used = math.ceil(config["num_devices"] / (config.get("virtual_gpus") or 1))
    by_default = config.get("reasons") or {}
    directory = config.get("data_dir")  # which images that are made on the host do not have
    if directory and wait is not None and wait >= LEAST_REPORTED_WAIT:
        words = [f"--model={config['model']}", f"--data_dir={directory}"]
        yield (
            f"run_bench.py doctor {shlex.join(words)} shows what limits the input (steps waited {wait:.0%} of the time "
            "for images)"
        )
    if not gpus:
        return
    existing = len(record.environment["gpus"])
    if used < existing and not config.get("cluster") and "num_devices" in by_default:
        yield f"--num_gpus={existing} uses all GPUs (this run used {used} of {existing})"
    faster = next((name for name in ("bf16", "fp16") if data_sheet_peak(gpus[0], name)), None)
    if config.get("precision") in ("fp32", "tf32") and faster and "precision" in by_default:
        yield f"--precision={faster} computes in 16 bits on tensor cores (this run used {config['precision']})"
    needed, memory = record.measurement.peak_gpu_memory_bytes, re.search(r" (\d+) GiB$", gpus[0])
    if needed and memory and needed < _LITTLE_MEMORY * int(memory[1]) * 2**30 and "batch_per_device" in by_default:
        images = counted(config["batch_per_device"], "image")
        yield (
            f"--batch_size=auto finds the largest that fits ({images} per device needed {needed / 2**30:.1f} of "
            f"{memory[1]} GiB)"
        )
