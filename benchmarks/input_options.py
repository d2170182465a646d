"""From flags to where images come from and how they reach the devices. Imports without TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from benchmarks.errors import UsageError


def resolve(given: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Decides on the input.

    Args:
        given: flag values by name; None is not given.

    Returns:
        The fields of the configuration that are about input, and sentences on how flags were understood.

    Raises:
        UsageError: flags that contradict each other or would have no effect.
    """
    name, notices = _data_name(given)
    fields = {
        "data_name": name,
        "data_dir": given["data_dir"],
        "pipelined_input": _pipelining(given["pipelined_input"], name),
    }
    return fields, notices


def _pipelining(wanted: bool | None, data_name: str) -> bool:
    if wanted and data_name == "synthetic":
        raise UsageError(
            "--pipelined_input brings images to the devices, where synthetic ones already are: give --data_dir, or "
            "leave it out."
        )
    return data_name != "synthetic" and wanted is not False


def _data_name(given: Mapping[str, Any]) -> tuple[Literal["imagenet", "synthetic"], tuple[str, ...]]:
    name, directory = given["data_name"], given["data_dir"]
    if directory is None and name == "imagenet":
        return "synthetic", ("--data_name=imagenet without --data_dir: the images are synthetic.",)
    if directory is not None and name == "synthetic":
        raise UsageError(f"--data_name=synthetic reads nothing, but --data_dir={directory} is given: drop one of them.")
    return ("synthetic" if directory is None else "imagenet"), ()
