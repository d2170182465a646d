"""MLflow: a run for each record, which its tag `run_id` identifies."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import mlflow
from mlflow.entities import Metric, Param, RunTag
from mlflow.environment_variables import MLFLOW_EXPERIMENT_NAME

from benchmarks.trackers.tracked_run import TrackedRun

_EXPERIMENT = "cnn-train-bench"
# What a request may have.
_MOST_METRICS, _MOST_TEXTS = 1000, 100
_RUNNING = "RUNNING"


class MLflow:
    """Sends runs to a server or a database, into the experiment of MLFLOW_EXPERIMENT_NAME."""

    def __init__(self, target: str) -> None:
        self._client = mlflow.MlflowClient(target)
        self._experiment = MLFLOW_EXPERIMENT_NAME.get() or _EXPERIMENT

    def send(self, run: TrackedRun) -> str:
        """Sends a run unless the experiment has it; one that was sent in part is deleted once this one is complete."""
        experiment = self._experiment_id()
        earlier = [found.info for found in self._client.search_runs([experiment], f"tags.run_id = '{run.run_id}'")]
        if complete := [info.run_id for info in earlier if info.status != _RUNNING]:
            return self._where(experiment, complete[0])
        created = self._client.create_run(
            experiment,
            start_time=_ms(run.began),
            tags={"run_id": run.run_id},
            run_name=run.name,
        )
        try:
            self._log(created.info.run_id, run)
        except Exception:
            with contextlib.suppress(Exception):  # the first error says why
                self._client.delete_run(created.info.run_id)
            raise
        for partial in earlier:
            self._client.delete_run(partial.run_id)
        return self._where(experiment, created.info.run_id)

    def _log(self, number: str, run: TrackedRun) -> None:
        """Fills a run that was created, and ends it."""
        tags = {**run.tags, "mlflow.note.content": run.notes, "session_id": run.group, "labels": ", ".join(run.labels)}
        last = run.points[-1].step if run.points else 0
        for some in _chunks((RunTag(name, value) for name, value in tags.items() if value), _MOST_TEXTS):
            self._client.log_batch(number, tags=some)
        for some in _chunks((Param(name, str(value)) for name, value in run.parameters.items()), _MOST_TEXTS):
            self._client.log_batch(number, params=some)
        steps = (Metric(name, n, _ms(point.at), point.step) for point in run.points for name, n in point.values.items())
        of_run = (Metric(name, value, _ms(run.ended), last) for name, value in run.metrics.items())
        for some in _chunks(itertools.chain(steps, of_run), _MOST_METRICS):
            self._client.log_batch(number, metrics=some)
        self._client.set_terminated(number, "FINISHED" if run.is_ok else "FAILED", _ms(run.ended))

    def _experiment_id(self) -> str:
        if found := self._client.get_experiment_by_name(self._experiment):
            return str(found.experiment_id)
        return str(self._client.create_experiment(self._experiment))

    def _where(self, experiment: str, number: str) -> str:
        address = self._client.tracking_uri
        in_browser = f"{address.rstrip('/')}/#/experiments/{experiment}/runs/{number}"
        return in_browser if address.startswith("http") else f"run {number} of {self._experiment} in {address}"


def _chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    rest = iter(items)
    while some := list(itertools.islice(rest, size)):
        yield some


def _ms(seconds: float) -> int:
    return round(1000 * seconds)
