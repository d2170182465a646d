"""MLflow: a run for each record, which its tag `run_id` identifies."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import mlflow
from mlflow.entities import Metric, Param, RunTag
from mlflow.environment_variables import MLFLOW_EXPERIMENT_ID, MLFLOW_EXPERIMENT_NAME

from benchmarks.trackers.tracked_run import TrackedRun

_EXPERIMENT = "cnn-train-bench"
# What a request may have.
_MOST_METRICS, _MOST_TEXTS = 1000, 100
_RUNNING = "RUNNING"


def send(run: TrackedRun, target: str) -> str:
    """Sends a run to a server or a database, into the experiment that the environment names, unless that has it.

    One that was sent in part is deleted once this one is complete.
    """
    client, wanted = mlflow.MlflowClient(target), MLFLOW_EXPERIMENT_ID.get()
    name = client.get_experiment(wanted).name if wanted else MLFLOW_EXPERIMENT_NAME.get() or _EXPERIMENT
    found = client.get_experiment_by_name(name)
    if found and found.lifecycle_stage == "deleted":
        raise ValueError(
            f"the experiment {name} is deleted: run mlflow experiments restore -x {found.experiment_id}, or name "
            "another in MLFLOW_EXPERIMENT_NAME"
        )
    experiment = str(found.experiment_id if found else client.create_experiment(name))
    earlier = [each.info for each in client.search_runs([experiment], f"tags.run_id = '{run.run_id}'")]
    if complete := [info.run_id for info in earlier if info.status != _RUNNING]:
        return _where(client, experiment, name, complete[0])
    created = client.create_run(
        experiment, start_time=_ms(run.began), tags={"run_id": run.run_id}, run_name=run.name
    ).info.run_id
    try:
        _log(client, created, run)
    except Exception:
        with contextlib.suppress(Exception):  # the first error says why
            client.delete_run(created)
        raise
    for partial in earlier:
        client.delete_run(partial.run_id)
    return _where(client, experiment, name, created)


def _log(client: mlflow.MlflowClient, number: str, run: TrackedRun) -> None:
    """Fills a run that was created, and ends it."""
    tags = {**run.tags, "mlflow.note.content": run.notes, "session_id": run.group, "labels": ", ".join(run.labels)}
    last = run.points[-1].step if run.points else 0
    for some in _chunks((RunTag(name, value) for name, value in tags.items() if value), _MOST_TEXTS):
        client.log_batch(number, tags=some)
    for some in _chunks((Param(name, str(value)) for name, value in run.parameters.items()), _MOST_TEXTS):
        client.log_batch(number, params=some)
    steps = (Metric(name, n, _ms(point.at), point.step) for point in run.points for name, n in point.values.items())
    of_run = (Metric(name, value, _ms(run.ended), last) for name, value in run.metrics.items())
    for some in _chunks(itertools.chain(steps, of_run), _MOST_METRICS):
        client.log_batch(number, metrics=some)
    client.set_terminated(number, "FINISHED" if run.is_ok else "FAILED", _ms(run.ended))


def _where(client: mlflow.MlflowClient, experiment: str, name: str, number: str) -> str:
    address = client.tracking_uri
    in_browser = f"{address.rstrip('/')}/#/experiments/{experiment}/runs/{number}"
    return in_browser if address.startswith("http") else f"run {number} of {name} in {address}"


def _chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    rest = iter(items)
    while some := list(itertools.islice(rest, size)):
        yield some


def _ms(seconds: float) -> int:
    return round(1000 * seconds)
