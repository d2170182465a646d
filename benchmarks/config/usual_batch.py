"""How many images a device gets per step if no flag says it: on GPUs by model, memory and precision. No TensorFlow.

`results/data/batches.csv` has published batches. For other models on ImageNet, `activations.csv` has the results of an
image's forward pass that the backward pass reads, as counted in this suite's graphs; they fill most of the memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.machine.hardware import Inventory
from benchmarks.process.tensorflow_setup import Devices
from benchmarks.training import computing
from models.model_spec import ModelSpec
from results.environment import published_table

# Activations may take this share of a GPU's memory. Those of the published ResNet-50 take 58 % of 40 GB, 73 % of 16.
_SHARE_OF_MEMORY = 0.6
# As of the published ResNet-50: another batch trains differently.
_LARGEST = 256


def decide(given: Mapping[str, Any], spec: ModelSpec, devices: Devices, gpus: Inventory) -> tuple[int, str]:
    """Returns images per device and step, and where the number is from; nothing if flags give it."""
    batch = (given["eval"] and given["eval_batch_size"]) or given["batch_size"]
    if batch:
        return batch, ""
    return usual_batch(spec, given["precision"], _memory_bytes(devices, gpus), on_gpu=devices.on_gpu)


def _memory_bytes(devices: Devices, gpus: Inventory) -> float | None:
    """Returns the memory that the smallest of the GPUs has for a tower; None if it is not known."""
    if not gpus.gpus:
        return None
    memory: float = min(gpu.memory_bytes for gpu in gpus.gpus)
    if devices.gpu_memory_limit_mib:
        memory = min(memory, devices.gpu_memory_limit_mib * 2**20)
    return memory * (devices.gpu_memory_fraction or 1.0) / devices.virtual_gpus


def usual_batch(spec: ModelSpec, precision: str, memory: float | None, *, on_gpu: bool) -> tuple[int, str]:
    """Returns images per device and step, and where the number is from; nothing on CPUs.

    A tower has `memory` bytes; None: unknown.
    """
    if not on_gpu:
        return spec.batch_on_cpu, ""
    bits = "16" if precision in computing.IN_16_BITS else "32"
    if memory is None:
        return spec.batch_on_gpu, "the model's default: the GPU's memory is not known here"
    published = [
        row
        for row in published_table("batches")
        if (row["model"], row["bits"]) == (spec.name, bits) and 1e9 * float(row["memory_gb"]) <= memory
    ]
    if published:
        row = max(published, key=lambda row: float(row["memory_gb"]))
        return int(row["batch_per_device"]), row["source"]
    each = next((row[f"kb_{bits}_bits"] for row in published_table("activations") if row["model"] == spec.name), None)
    if each is None:
        return spec.batch_on_gpu, "the model's default"
    batch = max(_LARGEST, spec.batch_on_gpu)
    while batch > 1 and 1e3 * float(each) * batch > _SHARE_OF_MEMORY * memory:
        batch //= 2
    needs = f"{1e-6 * float(each) * batch:.2g} of {1e-9 * memory:.0f} GB"
    return batch, f"its activations take {needs}; --batch_size=auto finds the largest that fits"
