"""Between which numbers the value of a flag may be. Imports without TensorFlow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from benchmarks.errors import UsageError

Number = int | float

# flag: (smallest value, what it counts)
_AT_LEAST: dict[str, tuple[Number, str]] = {
    "batch_size": (1, "images per device"),
    "num_gpus": (1, "devices"),
    "num_batches": (1, "measured steps"),
    "num_warmup_batches": (0, "steps"),
    "display_every": (1, "steps"),
    "per_gpu_thread_count": (0, "threads; 0 leaves the choice to TensorFlow"),
    "num_intra_threads": (0, "threads; 0 leaves the choice to TensorFlow"),
    "num_inter_threads": (0, "threads; 0 leaves the choice to TensorFlow"),
    "weight_decay": (0, "as a factor"),
    "momentum": (0, "as a factor"),
    "fp16_inc_loss_scale_every_n": (1, "steps"),
    "tf_random_seed": (0, "as a seed"),
    "gradient_repacking": (0, "chunks; 0 sends gradients one by one"),
    "agg_small_grads_max_bytes": (0, "bytes; 0 sends gradients one by one"),
    "local_sgd_steps": (1, "steps"),
    "agg_small_grads_max_group": (1, "gradients in a group"),
    "datasets_parallel_interleave_cycle_length": (1, "files"),
    "datasets_shuffle_records": (0, "records; 0 or 1 leaves them in order"),
    "datasets_parallel_calls": (-1, "images at a time; 0 is cores + 1, -1 leaves it to tf.data"),
    "datasets_prefetch_buffer_size": (0, "batches per device; 0 makes each when it is asked for"),
    "datasets_num_private_threads": (0, "threads; 0 shares the session's"),
    "datasets_autotune_cpu_budget": (0, "cores; 0 is all"),
}
# A share of the memory; the largest seed that NumPy takes.
_AT_MOST = {"gpu_memory_frac": 1, "tf_random_seed": 2**32 - 1, "fp16_loss_scale": 2**32}
_ABOVE_ZERO = (
    "start_timeout_seconds",
    "step_timeout_seconds",
    "num_epochs",
    "time_limit_seconds",
    "init_learning_rate",
    "gpu_memory_frac",
    "fp16_loss_scale",
)


def check(given: Mapping[str, Any]) -> None:
    """Refuses numbers that are out of their range; None is not given.

    Raises:
        UsageError: one is.
    """
    for name, value in given.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"--{name}={value}: give a finite number.")
    for name, (smallest, what) in _AT_LEAST.items():
        if given[name] not in (None, "auto") and given[name] < smallest:
            raise UsageError(f"--{name}={given[name]} is too small: it must be at least {smallest} ({what}).")
    for name in _ABOVE_ZERO:
        if given[name] is not None and given[name] <= 0:
            raise UsageError(f"--{name}={given[name]} must be above 0.")
    for name, largest in _AT_MOST.items():
        if given[name] is not None and given[name] > largest:
            raise UsageError(f"--{name}={given[name]} is too large: it must be at most {largest}.")
