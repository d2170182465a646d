"""From flags to devices. Imports without TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.errors import UsageError

GPU_THREAD_MODES = ("global", "gpu_private", "gpu_shared")


def resolve(given: Mapping[str, Any], count_gpus: Callable[[], int]) -> dict[str, Any]:
    """Decides on the kind and number of devices, and on how GPUs are split.

    A number of GPUs is a demand: without --device it is never quietly met by a CPU.

    Args:
        given: flag values by name; None is not given.
        count_gpus: asks how many GPUs there are; called only if that matters.

    Returns:
        The fields of the configuration that are about devices.

    Raises:
        UsageError: more is asked for than there is, or what contradicts itself.
    """
    wanted = 1 if given["num_gpus"] is None else given["num_gpus"]
    if given["device"] == "cpu":
        return _cpu_devices(given, wanted)
    visible = _visible_gpus(given["gpus"])
    existing = count_gpus()
    demanded = given["num_gpus"] is not None and given["device"] != "auto" or visible or given["device"] == "gpu"
    if not existing and not demanded:
        return _cpu_devices(given, wanted)
    if visible and max(visible) >= existing:
        raise UsageError(f"--gpus={given['gpus']} names GPU {max(visible)}; {_there_are(existing)}")
    usable = len(visible) if visible else existing
    split = _split(given["virtual_gpus"], wanted, usable)
    if wanted > usable * split:
        asked = f"--num_gpus={wanted}" if given["num_gpus"] else f"--device={given['device']}"
        limit = f" --gpus={given['gpus']} leaves {usable} of them." if visible else ""
        raise UsageError(
            f"{asked} asks for {wanted} GPU{'s' * (wanted > 1)}; {_there_are(existing)}{limit} Ask for no more than "
            f"there are, split them with --virtual_gpus, or say --device=cpu for {wanted} logical CPU devices."
        )
    return {
        "device": "gpu",
        "num_devices": wanted,
        "virtual_gpus": split,
        "visible_gpus": visible,
        **_gpu_threads(given["gpu_thread_mode"], given["per_gpu_thread_count"] or 0),
    }


def _cpu_devices(given: Mapping[str, Any], wanted: int) -> dict[str, Any]:
    for name in ("gpus", "gpu_memory_frac", "virtual_gpus", "gpu_thread_mode", "per_gpu_thread_count"):
        if given["device"] == "cpu" and given[name] not in (None, "auto"):
            raise UsageError(f"--{name} is about GPUs, and --device=cpu uses none: leave one of them out.")
    return {"device": "cpu", "num_devices": wanted, "virtual_gpus": 1, "visible_gpus": None}


def _gpu_threads(mode: str | None, count: int) -> dict[str, Any]:
    if count and mode in (None, "global"):
        raise UsageError(
            f"--per_gpu_thread_count={count} counts threads that GPUs have for themselves, and they have none: say "
            "--gpu_thread_mode=gpu_private or gpu_shared as well, or leave it out."
        )
    return {"gpu_thread_mode": mode, "per_gpu_thread_count": count}


def _visible_gpus(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        indices = tuple(int(word) for word in text.split(","))
    except ValueError:
        indices = ()
    if not indices or min(indices) < 0 or len(set(indices)) < len(indices):
        raise UsageError(f"--gpus={text}: name different GPUs by their numbers, such as --gpus=0,2.")
    return indices


def _split(text: str | None, wanted: int, usable: int) -> int:
    if text == "auto":
        return max(1, -(-wanted // max(1, usable)))
    if text is not None and not (text.isdigit() and int(text) > 0):
        raise UsageError(f"--virtual_gpus={text}: say into how many each GPU is split, at least 1, or auto.")
    return int(text or 1)


def _there_are(existing: int) -> str:
    return f"this machine has {existing} NVIDIA GPU{'s' * (existing != 1)} that this process may see."


def default_to_all(values: Mapping[str, Any], gpus: int) -> dict[str, Any]:
    """Returns flag values in which the devices are decided: all GPUs, one split in two, or two logical CPU devices."""
    if values["num_gpus"] is not None:
        return dict(values)
    usable = len(values["gpus"].split(",")) if values["gpus"] else gpus
    if values["device"] == "cpu" or not (usable or values["device"] == "gpu"):
        return {**values, "device": "cpu", "num_gpus": 2}
    if usable == 1 and values["virtual_gpus"] is None:
        return {**values, "num_gpus": 2, "virtual_gpus": "2"}
    split = int(values["virtual_gpus"]) if (values["virtual_gpus"] or "").isdigit() else 1
    return {**values, "num_gpus": max(1, usable * split)}
