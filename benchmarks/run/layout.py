"""How a run is spread over processes, as one of them sees it. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses

from benchmarks.config.config import Config
from variable_mgr.catalog import IN_GRAPH


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """This process' part of a run.

    Attributes:
        drives_all: whether this process takes the steps of all towers, alone or as the client of all workers.
        asynchronous: whether this is a worker of a cluster that waits for no other.
        images_per_step: images of a step that this process times.
        images_per_line: images of a step as its progress lines count them: of all workers, if they step together.
        worker, workers: which of how many processes with their own input this is.
    """

    drives_all: bool
    asynchronous: bool
    images_per_step: int
    images_per_line: int
    worker: int
    workers: int


def layout_of(config: Config) -> Layout:
    """Returns the layout that a configuration asks for."""
    in_graph = config.variable_update in IN_GRAPH
    drives_all = config.cluster is None or in_graph
    asynchronous = not drives_all and (config.modifiers.asynchronous or config.forward_only)
    own_images = config.batch_per_device * config.num_devices
    return Layout(
        drives_all=drives_all,
        asynchronous=asynchronous,
        images_per_step=config.batch_global if drives_all else own_images,
        images_per_line=own_images if asynchronous else config.batch_global,
        worker=config.cluster.own.index if config.cluster and not in_graph else 0,
        workers=1 if in_graph else config.num_workers,
    )
