"""`explain` for several processes: where weights are, what crosses the network, how old gradients are."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from benchmarks.config.config import Config
from benchmarks.topology import placement
from benchmarks.topology.cluster import Cluster
from variable_mgr import network_traffic
from variable_mgr.placement import balance_by_bytes

_SERVERS = """\
    worker 0: tower 0, 1 ...      worker 1: tower 0, 1 ...
       ^            |                ^            |
    weights   mean gradient       weights   mean gradient        over the network, once per worker
       |            v                |            v
    [parameter servers: weights, {update}]"""
_MASTERS = """\
    worker 0: tower 0, 1 ...      worker 1: tower 0, 1 ...       one copy of the weights per tower
       ^            |                ^            |
    new value  mean gradient      new value  mean gradient       each weight on its own, as soon as it is there
       |            v                |            v
    [parameter servers: master weights, one update of each when all workers' gradients are there]"""
_PEERS = """\
    worker 0: tower 0   tower 1 ...   worker 1: tower 0   tower 1 ...    one copy of the weights per tower
              |         |                       |         |
              +---------+{what:-^23}+---------+
              |         |                       |         |
              update    update                  update    update"""
_DIAGRAMS = {
    "collective_all_reduce": _PEERS.format(what=" mean "),
    "distributed_all_reduce": _PEERS.format(what=" mean ") + "\n    all driven by one client, at worker 0",
    "distributed_replicated": _MASTERS,
    "local_sgd": _PEERS.format(what=" mean of weights "),
}


@dataclasses.dataclass(frozen=True)
class _Planned:
    """Where a variable would be."""

    kind: str
    device: str
    size_bytes: int


def facts(config: Config, cluster: Cluster, sizes: Sequence[tuple[str, int]]) -> dict[str, str]:
    """Returns what a person should know of a manager across processes.

    Args:
        config: of the run.
        cluster: its tasks.
        sizes: kind and bytes of each of the model's variables, in order.
    """
    place = placement.place(config.device, config.num_devices, cluster=cluster, manager=config.variable_update)
    sent = network_traffic.links(
        config.variable_update, config.modifiers, place, list(_placed(config, sizes, place.ps, place.towers))
    )
    towers = f"{config.num_devices} tower{'s' * (config.num_devices > 1)}"
    return {
        "Configuration": f"{config.variable_update}, {config.model}, {cluster.num_workers} workers with {towers} of "
        f"{config.batch_per_device} each: batch {config.batch_global}"
        + (f"; {_servers(cluster)}" if cluster.num_ps else ""),
        "Weights": _weights(config, cluster),
        "Gradients": _gradients(config),
        "Applied at step t": _staleness(config),
        "Arithmetic": _arithmetic(config),
        **_network(sent),
    }


def diagram(config: Config) -> str:
    """Returns the flow as a picture of characters."""
    update = "an update per worker" if config.modifiers.asynchronous else "mean over the workers, one update"
    return _DIAGRAMS.get(config.variable_update, _SERVERS.format(update=update))


def _placed(
    config: Config, sizes: Sequence[tuple[str, int]], servers: Sequence[str], towers: Sequence[str]
) -> Iterator[_Planned]:
    """Yields what one worker would see: shared variables on the servers, copies on towers."""
    on_servers = [
        (kind, size)
        for kind, size in sizes
        if kind == "weight" or (kind == "statistic" and config.variable_update == "parameter_server")
    ]
    if servers:
        homes = balance_by_bytes([size for _, size in on_servers], servers)
        for (kind, size), home in zip(on_servers, homes, strict=True):
            yield _Planned(kind, home, size)
        return
    for tower in towers:
        for kind, size in sizes:
            yield _Planned(kind, tower, size)


def _servers(cluster: Cluster) -> str:
    return f"{cluster.num_ps} parameter server{'s' * (cluster.num_ps > 1)}"


def _weights(config: Config, cluster: Cluster) -> str:
    copies = config.num_devices * cluster.num_workers
    if config.variable_update == "parameter_server":
        return f"one copy, spread over {_servers(cluster)} by bytes"
    masters = f", and a master copy on {_servers(cluster)}" if cluster.num_ps else ""
    return f"{copies} copies, one per tower{masters}"


def _gradients(config: Config) -> str:
    if config.variable_update == "local_sgd":
        return f"not exchanged; the weights are averaged after every {config.modifiers.local_sgd_steps} step(s)"
    if config.variable_update == "collective_all_reduce":
        return "reduced over all towers of all workers by TensorFlow's ring collective"
    if config.variable_update == "distributed_all_reduce":
        return f"reduced over all towers of all workers by {config.modifiers.all_reduce_spec}"
    how = "each worker's applied as it comes" if config.modifiers.asynchronous else "those of all workers applied once"
    return f"averaged over a worker's towers before they leave it; {how}"


def _staleness(config: Config) -> str:
    if config.modifiers.asynchronous:
        return "the gradient of whatever the weights were when the worker read them (a record has a histogram)"
    if config.modifiers.staged_vars:
        return "the gradient computed in step t-1 from weights read in step t-2"
    if config.modifiers.relaxed_consistency:
        return "the gradient computed in step t-1 (zeros in the first step)"
    return "the gradient computed in step t itself"


def _arithmetic(config: Config) -> str:
    modifiers = config.modifiers
    if modifiers.asynchronous:
        return "not plain SGD: one update per worker, of weights that others have updated meanwhile"
    if modifiers.staged_vars or modifiers.relaxed_consistency:
        return "not plain SGD: the gradient is of earlier weights, see above"
    if config.variable_update == "local_sgd" and not (modifiers.local_sgd_steps == 1 and config.optimizer == "sgd"):
        return "every tower steps by its own gradient: not what one device with the whole batch does"
    rounded = f", but gradients are rounded to {modifiers.wire_dtype}" if modifiers.compact_gradient_transfer else ""
    return f"as one device with a batch of {config.batch_global}, batch-norm statistics aside{rounded}"


def _network(sent: Mapping[str, int]) -> dict[str, str]:
    if not sent:
        return {"Sent per step": "not known by link: it depends on which tower adds which gradient"}
    busiest = network_traffic.busiest_server(sent)
    at_server = f"; {busiest / 1e6:.1f} MB in and out of the busiest parameter server" if busiest else ""
    links = {f"  {link}": f"{size / 1e6:.1f} MB" for link, size in sent.items()}
    return {"Sent per step": f"{sum(sent.values()) / 1e6:.1f} MB between processes{at_server}", **links}
