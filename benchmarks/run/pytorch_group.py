"""Several processes that train together in PyTorch: its process group, and what they check of each other's weights.

The workers find each other by the suite's own meeting, which has the deadlines; gradients travel by gloo between CPUs
and by NCCL between GPUs.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator

import tensorflow as tf
import torch
import torch.distributed as dist
from torch import nn

from benchmarks.cluster.cluster_spec import Cluster
from benchmarks.cluster.member import Team
from benchmarks.errors import headline


@contextlib.contextmanager
def joined(cluster: Cluster, team: Team, device: torch.device, limit_seconds: float) -> Iterator[None]:
    """Joins the process group of all workers, and leaves it at the end; worker 0 chooses a free port for its store.

    Raises:
        tf.errors.UnavailableError: the connection to another worker broke; `Team.explain` knows why.
    """
    timeout = datetime.timedelta(seconds=limit_seconds)
    host = cluster.workers[0].rpartition(":")[0].strip("[]")
    leads = cluster.own.index == 0
    with broken_connections_explained():
        store = dist.TCPStore(host, 0, None, True, timeout, wait_for_workers=False) if leads else None
        messages = team.meet("PyTorch's store", store.port if store else None)
        port = next(port for port in messages.values() if port is not None)
        team.deadlines.preparation("Joining PyTorch's process group")
        store = store or dist.TCPStore(host, port, None, False, timeout, wait_for_workers=False)
        dist.init_process_group(
            "gloo" if device.type == "cpu" else "nccl",
            store=store,
            rank=cluster.own.index,
            world_size=cluster.num_workers,
            timeout=timeout,
            device_id=None if device.type == "cpu" else device,
        )
        team.deadlines.none()
    try:
        with broken_connections_explained():
            yield
    finally:
        with contextlib.suppress(RuntimeError):  # another worker may have ended
            dist.destroy_process_group()


def drift(module: nn.Module) -> float:
    """Returns the largest difference between the copies of a weight that worker 0 and the others have."""
    largest = torch.zeros((), device=next(module.parameters()).device)
    with torch.no_grad(), broken_connections_explained():
        for parameter in module.parameters():
            first = parameter.detach().clone()
            dist.broadcast(first, 0)
            largest = torch.maximum(largest, (first - parameter).abs().max())
        dist.all_reduce(largest, dist.ReduceOp.MAX)
    return float(largest)


@contextlib.contextmanager
def broken_connections_explained() -> Iterator[None]:
    """Raises PyTorch's errors of a lost connection as TensorFlow's, which the team explains by the task that was lost.

    Raises:
        tf.errors.UnavailableError: a connection broke.
    """
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or "gloo" in str(error):  # it raises plain ones, which name its files
            raise tf.errors.UnavailableError(None, None, f"PyTorch: {headline(error)}") from error
        raise
