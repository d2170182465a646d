"""TensorBoard: event files, written with its own messages and without TensorFlow."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.hparams import metadata as hparams
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo, SessionStartInfo
from tensorboard.plugins.text import metadata as text
from tensorboard.summary.writer.record_writer import RecordWriter

from benchmarks.trackers.tracked_run import TrackedRun
from results.text import Table

_PREFIX, _FORMAT = "events.out.tfevents.", "brain.Event:2"
# The numbers of `hparams.api_pb2.Status`.
_SUCCESS, _FAILURE = 1, 2


def send(run: TrackedRun, target: str) -> str:
    """Writes a run into a folder of a directory, in place of its earlier event file.

    It has scalars of the steps, hyperparameters and their results, and tables of facts as text.
    """
    directory = Path(target) / run.run_id
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{_PREFIX}{round(run.began):010d}.{run.run_id}"
    partial = directory / f".partial.{run.run_id}.{os.getpid()}"  # TensorBoard reads all names with "tfevents"
    try:
        with contextlib.closing(RecordWriter(partial.open("wb"))) as writer:
            for event in _events(run):
                writer.write(event.SerializeToString())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    for old in directory.glob(f"{_PREFIX}[0-9]*.{run.run_id}"):
        if old != path:
            old.unlink()
    return str(directory)


def _events(run: TrackedRun) -> Iterator[Event]:
    yield Event(wall_time=run.began, file_version=_FORMAT)
    start = SessionStartInfo(group_name=run.run_id, start_time_secs=run.began)
    for name, value in run.parameters.items():
        if isinstance(value, bool):
            start.hparams[name].bool_value = value
        elif isinstance(value, str):
            start.hparams[name].string_value = value
        else:
            start.hparams[name].number_value = value
    yield _of_session(run.began, hparams.SESSION_START_INFO_TAG, HParamsPluginData(session_start_info=start))
    for title, table in (("configuration", run.parameters), ("facts", run.tags)):
        rows = [(name, str(value)) for name, value in table.items()]
        yield _of_text(run.began, title, "\n".join(Table((title, ""), rows).markdown()))
    if run.notes:
        yield _of_text(run.ended, "notes", run.notes)
    for point in run.points:
        yield _scalars(point.at, point.step, point.values)
    last = run.points[-1].step if run.points else 0
    yield _scalars(run.ended, last, {name if "/" in name else f"run/{name}": n for name, n in run.metrics.items()})
    end = SessionEndInfo(status=_SUCCESS if run.is_ok else _FAILURE, end_time_secs=run.ended)
    yield _of_session(run.ended, hparams.SESSION_END_INFO_TAG, HParamsPluginData(session_end_info=end))


def _scalars(at: float, step: int, values: Mapping[str, float]) -> Event:
    found = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
    return Event(wall_time=at, step=step, summary=Summary(value=found))


def _of_session(at: float, tag: str, data: HParamsPluginData) -> Event:
    return _of_tensor(at, tag, hparams.NULL_TENSOR, hparams.create_summary_metadata(data))


def _of_text(at: float, tag: str, content: str) -> Event:
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    tensor = TensorProto(dtype=DT_STRING, tensor_shape=shape, string_val=[content.encode()])
    return _of_tensor(at, tag, tensor, text.create_summary_metadata(tag, ""))


def _of_tensor(at: float, tag: str, tensor: TensorProto, metadata: SummaryMetadata) -> Event:
    value = Summary.Value(tag=tag, tensor=tensor, metadata=metadata)
    return Event(wall_time=at, summary=Summary(value=[value]))
