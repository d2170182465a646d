"""The files of a graph, and whether a file can be written."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterable
from pathlib import Path

import tensorflow as tf

from benchmarks.data.sources.storage import Address
from benchmarks.errors import UsageError


def require_writable(path: Path, flag: str) -> None:
    """Makes the directory of a file, if it is missing, and tries whether files can be written there.

    Raises:
        UsageError: they cannot, or the path is a directory; the sentence begins with `flag`.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(path, Address):
            tried = path.with_name(f".{uuid.uuid4()}")
            tried.write_bytes(b"")
            tried.unlink()
        else:
            with tempfile.TemporaryFile(dir=path.parent):
                pass
    except OSError as error:
        raise UsageError(f"{flag} cannot be written ({error.strerror}): pass a path that can be.") from error
    if path.is_dir():
        raise UsageError(f"{flag} is a directory: pass the path of a file.")


def write_graph(graph: tf.compat.v1.GraphDef, path: Path) -> None:
    """Writes a graph, as text if the name ends in `txt`, else binary."""
    tf.io.write_graph(graph, str(path.parent), path.name, as_text=path.name.endswith("txt"))


def write_partitions(graphs: Iterable[tf.compat.v1.GraphDef], prefix: Path) -> None:
    """Writes the graph of each device to a file whose name is the prefix with the device before its extension."""
    for graph in graphs:
        device = graph.node[0].device.replace("/", "_").replace(":", "_")
        write_graph(graph, prefix.with_name(f"{prefix.stem}{device}{prefix.suffix}"))
