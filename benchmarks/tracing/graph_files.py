"""The files of a graph, and whether a file can be written."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterable
from pathlib import Path

import tensorflow as tf
from google.protobuf import text_format

from benchmarks.config.config import Config
from benchmarks.data.sources.storage import Address, path_of
from benchmarks.errors import UsageError


def require_files(config: Config, *, saves: bool, leads: bool) -> None:
    """Finds out, before a run, whether what it will write can be written: by the leader, checkpoints and files of all.

    Raises:
        UsageError: a file or a directory cannot be written.
    """
    train_dir, output_dir = config.checkpoints.train_dir, config.output.output_dir
    for flag in ("trace_file", "graph_file", "partitioned_graph_file_prefix"):
        path = getattr(config.traces, flag)
        if path and leads:
            _require_writable(Path(path), f"--{flag}={path}")
    if (saves and leads) or config.summaries.summary_verbosity or config.traces.profile_steps:
        flag, directory = ("train_dir", train_dir) if train_dir else ("output_dir", output_dir)
        if train_dir and path_of(f"{directory}.index").exists() and not path_of(directory).is_dir():
            raise UsageError(
                f"--{flag}={directory} is one checkpoint: pass its directory to continue from the newest, or "
                f"--initial_weights={directory} to begin with its weights."
            )
        _require_writable(path_of(directory) / "events", f"--{flag}={directory}")


def _require_writable(path: Path, flag: str) -> None:
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
        what = "a file has this name, or a link to nothing" if isinstance(error, FileExistsError) else error.strerror
        raise UsageError(f"{flag} cannot be written ({what}): pass a path that can be.") from error
    if path.is_dir():
        raise UsageError(f"{flag} is a directory: pass the path of a file.")


def write_graph(graph: tf.compat.v1.GraphDef, path: Path) -> None:
    """Writes a graph, as text if the name ends in `txt`, else binary."""
    if path.name.endswith("txt"):  # tf.io.write_graph of TensorFlow 2.20 cannot write text with protobuf 7
        path.write_text(text_format.MessageToString(graph))
    else:
        path.write_bytes(graph.SerializeToString(deterministic=True))


def write_partitions(graphs: Iterable[tf.compat.v1.GraphDef], prefix: Path) -> None:
    """Writes the graph of each device to a file whose name is the prefix with the device before its extension."""
    for graph in graphs:
        device = graph.node[0].device.replace("/", "_").replace(":", "_")
        write_graph(graph, prefix.with_name(f"{prefix.stem}{device}{prefix.suffix}"))
