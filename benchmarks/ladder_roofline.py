"""How near the ladder's computing comes to the roofline, found out by a process of its own. Imports TensorFlow late."""

from __future__ import annotations

import dataclasses
import multiprocessing
import signal
from multiprocessing.connection import Connection
from typing import Any

from benchmarks import roofline_job
from benchmarks.config.config import Config
from benchmarks.errors import BenchError
from benchmarks.process import tensorflow_setup
from benchmarks.roofline import Roofline

_SECONDS = 300.0


def measure_apart(config: Config, images_per_sec: float) -> tuple[Roofline | None, str]:
    """Sets what one device reaches beside what it could. It takes some seconds, and no GPU is held afterwards.

    Args:
        config: of the run on all devices.
        images_per_sec: of one of them.

    Returns:
        The roofline, or None, and why there is none.
    """
    context = multiprocessing.get_context("spawn")
    answers, answer = context.Pipe(duplex=False)
    alone = dataclasses.replace(config, num_devices=1)
    process = context.Process(target=_measure, args=(alone, images_per_sec, answer), daemon=True)
    process.start()
    answer.close()
    try:
        found = answers.recv() if answers.poll(_SECONDS) else f"it took longer than {_SECONDS:g} s"
    except EOFError:
        found = "the process that measures it ended before it could say"
    finally:
        process.kill()
        process.join()
    return (None, found) if isinstance(found, str) else (found, "")


def _measure(config: Config, images_per_sec: float, answer: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who has started this process ends it
    tensorflow_setup.prepare(device=config.device, visible_gpus=None)  # what is visible has been inherited
    try:
        answer.send(roofline_job.measure(config, images_per_sec))
    except BenchError as error:
        answer.send(str(error))


def to_dict(found: Roofline) -> dict[str, Any]:
    """Returns it as JSON can hold it."""
    return {
        **dataclasses.asdict(found),
        "limit": found.limit,
        "most_images_per_sec": found.most_images_per_sec,
        "mfu": found.mfu,
        "share_of_bound": found.share_of_bound,
        "sentences": found.sentences(),
    }
