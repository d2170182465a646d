"""From flags to devices. Imports without TensorFlow."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.config.precision_options import Computing
from benchmarks.errors import UsageError
from benchmarks.input.catalog import SYNTHETIC_HOST
from benchmarks.outside_text import whole_number
from benchmarks.process.tensorflow_setup import SPLIT_FRACTION
from benchmarks.system import gpu_support, hardware
from benchmarks.system.provenance import describe_software
from benchmarks.topology.cluster import Cluster
from results.text import counted

GPU_THREAD_MODES = ("global", "gpu_private", "gpu_shared")
_MOST_DEVICES = 1024
_OF_GPUS = (
    "gpus",
    "gpu_memory_frac",
    "gpu_memory_limit_mb",
    "virtual_gpus",
    "gpu_thread_mode",
    "per_gpu_thread_count",
)


def resolve(given: Mapping[str, Any], count_gpus: Callable[[], int]) -> dict[str, Any]:
    """Decides on the kind and number of devices, and on how GPUs are split.

    `--num_gpus` without `--device` fails rather than fall back to a CPU.

    Args:
        given: flag values by name; None is not given.
        count_gpus: counts the GPUs of this machine; called only if that matters.

    Returns:
        The fields of the configuration that are about devices.

    Raises:
        UsageError: there are too few GPUs, or flags contradict each other.
    """
    wanted = 1 if given["num_gpus"] is None else given["num_gpus"]
    if wanted > _MOST_DEVICES:
        raise UsageError(f"--num_gpus={wanted}: one process drives at most {_MOST_DEVICES:,} devices.")
    on_cpu = {
        "device": "cpu",
        "num_devices": wanted,
        "virtual_gpus": 1,
        "visible_gpus": None,
        "gpu_memory_fraction": None,
    }
    if given["device"] == "cpu":
        _refuse_on_cpu(given, "--device=cpu uses none: leave one of them out")
        return on_cpu
    visible = _visible_gpus(given["gpus"])
    existing = count_gpus()
    demanded = given["num_gpus"] is not None and given["device"] != "auto" or visible or given["device"] == "gpu"
    if not existing and not demanded:
        _refuse_on_cpu(given, "this machine has none that this process may see: leave it out")
        return on_cpu
    there_are = f"this machine has {counted(existing, 'NVIDIA GPU')} that this process may see."
    if visible and max(visible) >= existing:
        raise UsageError(f"--gpus={given['gpus']} names GPU {max(visible)}; {there_are}")
    usable = len(visible) if visible else existing
    split = _split(given["virtual_gpus"], wanted, usable)
    if wanted > usable * split:
        asked = f"--num_gpus={wanted}" if given["num_gpus"] else f"--device={given['device']}"
        limit = f"--gpus={given['gpus']} names {usable}." if visible else there_are
        if any(gpu.is_divided for gpu in hardware.gpu_inventory().gpus):
            limit += " Of GPUs that are divided (MIG), CUDA shows a process one instance."
        raise UsageError(
            f"{asked} asks for {counted(wanted, 'GPU')}; {limit} Ask for fewer, split them with --virtual_gpus, or "
            f"use --device=cpu for {counted(wanted, 'logical CPU device')}."
        )
    if given["gpu_memory_limit_mb"] and given["gpu_memory_frac"]:
        raise UsageError("--gpu_memory_limit_mb and --gpu_memory_frac both limit a GPU's memory: drop one of them.")
    return {
        "device": "gpu",
        "num_devices": wanted,
        "virtual_gpus": split,
        "visible_gpus": visible,
        "gpu_memory_fraction": given["gpu_memory_frac"],
        "gpu_memory_limit_mib": given["gpu_memory_limit_mb"],
        **_launching(given),
        "force_gpu_compatible": _is_pinned(given),
    }


def judge(devices: Mapping[str, Any], computing: Computing) -> tuple[str, ...]:
    """Returns sentences on what the chosen GPUs of this machine do badly; nothing where its driver shows none.

    Args:
        devices: as `resolve` returns them.
        computing: how towers compute.

    Raises:
        UsageError: these GPUs, this driver or its libraries cannot do it.
    """
    order, override = (os.environ.get(name) for name in ("CUDA_DEVICE_ORDER", "NVIDIA_TF32_OVERRIDE"))
    if order not in (None, "PCI_BUS_ID"):
        raise UsageError(
            f"CUDA_DEVICE_ORDER={order}: the driver, which names and measures GPUs, counts them by PCI_BUS_ID: unset "
            "it, and choose GPUs with --gpus."
        )
    if (computing.precision, override) == ("tf32", "0"):
        raise UsageError("--precision=tf32: NVIDIA_TF32_OVERRIDE=0 turns TF32 off: unset it, or use --precision=fp32.")
    inventory = _chosen(devices)
    capabilities = {gpu.name: gpu.compute_capability for gpu in inventory.gpus}
    found = gpu_support.judge(
        capabilities,
        inventory.cuda_version,
        describe_software(),
        precision=computing.precision,
        xla=computing.xla,
    )
    if found and found[0].is_fatal:
        raise UsageError(found[0].sentence)
    return tuple(one.sentence for one in found)


def owns_gpus(
    devices: Mapping[str, Any], given: Mapping[str, Any], cluster: Cluster | None, environ: Mapping[str, str]
) -> bool:
    """Returns whether every tower has a whole GPU of its own, as NCCL needs it."""
    if devices["device"] == "cpu" or devices["virtual_gpus"] > 1 or _shares_gpus(devices, given, cluster, environ):
        return False
    return not any(gpu.is_divided for gpu in _chosen(devices).gpus)


def _chosen(devices: Mapping[str, Any]) -> hardware.Inventory:
    """Returns the GPUs of this machine that are used, as far as its driver shows them."""
    physical = -(-devices["num_devices"] // devices["virtual_gpus"])
    return hardware.gpu_inventory().only((devices["visible_gpus"] or range(physical))[:physical])


def _launching(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the threads that launch kernels.

    An input pipeline keeps TensorFlow's threads busy, so GPUs have their own, unless the user's variable decides.

    Raises:
        UsageError: threads are counted that do not exist.
    """
    mode, threads = given["gpu_thread_mode"], given["per_gpu_thread_count"] or 0
    if mode is None and given["data_dir"]:
        mode = os.environ.get("TF_GPU_THREAD_MODE", "gpu_private").lower()
    if threads and mode in (None, "global"):
        raise UsageError(
            f"--per_gpu_thread_count={threads} counts threads of each GPU, and there are only global ones: use "
            "--gpu_thread_mode=gpu_private or gpu_shared as well, or leave it out."
        )
    return {"gpu_thread_mode": mode, "per_gpu_thread_count": threads}


def _is_pinned(given: Mapping[str, Any]) -> bool:
    """Returns whether tensors on the host are in pinned memory: what an input pipeline makes is not by itself."""
    if given["force_gpu_compatible"] is not None:
        return bool(given["force_gpu_compatible"])
    return bool(given["data_dir"]) or given["data_name"] == SYNTHETIC_HOST


def _refuse_on_cpu(given: Mapping[str, Any], why: str) -> None:
    """Refuses flags that ask for something of a GPU."""
    for name in _OF_GPUS:
        if given[name] not in (None, "auto"):
            raise UsageError(f"--{name} is about GPUs, and {why}.")


def _visible_gpus(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    numbers = [whole_number(word) for word in text.split(",")]
    given = tuple(number for number in numbers if number is not None)
    if len(set(given)) < len(numbers):
        raise UsageError(f"--gpus={text}: name different GPUs by their numbers, such as --gpus=0,2.")
    return given


def _split(parts: int | str | None, wanted: int, usable: int) -> int:
    if parts == "auto":
        return max(1, -(-wanted // max(1, usable)))
    return int(parts or 1)


def of_rank(
    given: Mapping[str, Any], cluster: Cluster | None, count_gpus: Callable[[], int], environ: Mapping[str, str]
) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Returns flag values by which each worker that mpirun has started on a host has GPUs of its own, and a notice.

    Other launchers do this themselves, and so may the user with --gpus or CUDA_VISIBLE_DEVICES.
    """
    alone = cluster is None or not cluster.own.has_towers or cluster.workers_on_this_host == 1
    decided = given["gpus"] is not None or given["virtual_gpus"] is not None or "CUDA_VISIBLE_DEVICES" in environ
    if cluster is None or alone or decided or given["cluster"] != "mpi" or given["device"] == "cpu" or not count_gpus():
        return given, ()
    each = given["num_gpus"] or 1
    first = each * cluster.number_on_this_host
    own = ",".join(map(str, range(first, first + each)))
    return {**given, "gpus": own}, (f"--cluster=mpi: this worker has --gpus={own}, since others are on its host.",)


def share_of_worker(
    devices: dict[str, Any], given: Mapping[str, Any], cluster: Cluster | None, environ: Mapping[str, str]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Returns decisions on devices in which workers that share GPUs divide their memory, and a notice.

    Raises:
        UsageError: together they would take more than there is.
    """
    if cluster is None or not _shares_gpus(devices, given, cluster, environ) or devices["gpu_memory_limit_mib"]:
        return devices, ()
    workers, fraction = cluster.workers_on_this_host, devices["gpu_memory_fraction"]
    each = round(SPLIT_FRACTION / workers, 3)
    if fraction is None:
        notice = f"{workers} workers share GPUs, so each takes at most {each:g} of their memory: --gpu_memory_frac."
        return {**devices, "gpu_memory_fraction": each}, (notice,)
    if workers * fraction > 1:
        raise UsageError(
            f"--gpu_memory_frac={fraction:g}: {workers} workers share GPUs, and would take more than their memory. Use "
            f"at most {each:g}, or leave it out."
        )
    return devices, ()


def _shares_gpus(
    devices: Mapping[str, Any], given: Mapping[str, Any], cluster: Cluster | None, environ: Mapping[str, str]
) -> bool:
    """Returns whether several workers of this host use the same GPUs.

    They do unless each has its own: whole ones of `--local_cluster`, or those of --gpus or CUDA_VISIBLE_DEVICES.
    """
    if cluster is None or devices["device"] == "cpu" or cluster.workers_on_this_host == 1:
        return False
    if not cluster.own.has_towers:
        return False
    if cluster.local:
        return bool(devices["virtual_gpus"] > 1)
    return given["gpus"] is None and "CUDA_VISIBLE_DEVICES" not in environ


def default_to_all(values: Mapping[str, Any], gpus: int) -> dict[str, Any]:
    """Returns flag values in which the devices are decided: all GPUs, one split in two, or two logical CPU devices."""
    if values["num_gpus"] is not None:
        return dict(values)
    usable = len(values["gpus"].split(",")) if values["gpus"] else gpus
    if values["device"] == "cpu" or not (usable or values["device"] == "gpu"):
        return {**values, "device": "cpu", "num_gpus": 2}
    if usable == 1 and values["virtual_gpus"] is None:
        return {**values, "num_gpus": 2, "virtual_gpus": 2}
    split = 1 if values["virtual_gpus"] in (None, "auto") else int(values["virtual_gpus"])
    return {**values, "num_gpus": max(1, usable * split)}
