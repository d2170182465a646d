"""Results as pandas data frames, for notebooks, reports and exports. A run never imports this module, nor pandas."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from results import loading, store
from results.columns import COLUMNS, Column
from results.record import Record, flat

# Missing values keep the type of a column: pandas' own integers and booleans have them.
_DTYPES: Mapping[type, str] = {
    str: "string",
    int: "Int64",
    float: "float64",
    bool: "boolean",
}
_STEP_UNITS = {"seconds": "s", "images_per_sec": "images/s", "input_wait_seconds": "s"}
_WORKER_UNITS = {"seconds": "s", "compute_seconds": "s"}
_CONDITION = r"\w+\s*=[^=,<>]*"


class FilterError(ValueError):
    """A condition cannot be understood; the message says why, and `unknown` is the column that does not exist."""

    def __init__(self, why: str, unknown: str = "") -> None:
        super().__init__(why)
        self.unknown = unknown


@dataclasses.dataclass(frozen=True)
class Results:
    """Records of runs; `load` reads them.

    Every data frame has the run's `run_id`, so that they can be merged. `frame.attrs["units"]` has the unit of each
    column of numbers that has one. Missing values are `pandas.NA`, `NaN` or `NaT`.

    Attributes:
        records: the records, each run once.
        problems: a sentence for every line of the files that was not a record.
    """

    records: Sequence[Record]
    problems: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.records)

    def where(self, condition: str) -> Results:
        """Returns the results whose row of `to_frame` fulfils a condition, as in `pandas.DataFrame.query`.

        `model=vgg16,status=ok` is short for both, in any case of letters, and `time_utc=2026-01-31` for a day. Times
        are in UTC, without a zone.

        Raises:
            FilterError: it is no condition, or names no column.
        """
        named = [column for column in COLUMNS if re.search(rf"\b{column.name}\b", condition)]
        kept = _fulfilled(_frame(self.records, named), condition)
        return dataclasses.replace(self, records=list(itertools.compress(self.records, kept)))

    def to_frame(self) -> pd.DataFrame:
        """Returns a row per run, with the columns of `results.csv` (docs/reference/record.md)."""
        return _frame(self.records, COLUMNS)

    def configuration(self) -> pd.DataFrame:
        """Returns a row per run, with a column per field of its configuration, such as `input.cycle_length`."""
        rows = []
        for record in self.records:
            run_id = {"run_id": record.identity.run_id}
            rows.append(run_id | flat(record.config) | run_id)  # first, and not what a configuration calls so
        return pd.DataFrame(rows, columns=None if rows else ["run_id"]).convert_dtypes()

    def steps(self) -> pd.DataFrame:
        """Returns a row per step that has a time.

        `phase` is `first`, `warmup` or `measured`; `step` counts them all from 1. `seconds` is the time of the step,
        `loss` is without the penalty of weight decay. Accuracies are shares, before the step's update.
        """
        kinds = {"run_id": str, "phase": str, "step": int, "seconds": float, "images_per_sec": float, "loss": float}
        kinds |= dict.fromkeys(("top_1_accuracy", "top_5_accuracy", "loss_scale", "input_wait_seconds"), float)
        return _table(_steps, self.records, kinds, _STEP_UNITS)

    def workers(self) -> pd.DataFrame:
        """Returns, of runs in a cluster, a row per worker and measured step, by the worker's own clock.

        `compute_seconds` is from the start of the step until the worker has its gradients.
        """
        kinds = {"run_id": str, "worker": int, "step": int, "seconds": float, "compute_seconds": float}
        return _table(_workers, self.records, kinds, _WORKER_UNITS)

    def telemetry(self) -> pd.DataFrame:
        """Returns a row per run, process that measured, and device: `host` or `GPU 0`.

        The columns are what was sampled during the measured steps, such as `power_watts.mean`. Their units are in
        their names; docs/reference/record.md describes them.
        """
        rows = [row for record in self.records for row in _telemetry(record)]
        return pd.DataFrame(rows, columns=None if rows else ["run_id", "worker", "device"]).convert_dtypes()


def load(*paths: str | os.PathLike[str], where: str = "") -> Results:
    """Reads the records of files, or of directories with a `results.jsonl`; without any, those in `out`.

    A run that is in several files counts once. Lines that are not records are left out, with a warning for each.

    Raises:
        OSError: a file cannot be read.
        FilterError: `where` is no condition; see `Results.where`.
    """
    named = [Path(path) for path in paths] or [Path("out")]
    loaded = loading.load(*(path / store.JSONL_NAME if path.is_dir() else path for path in named))
    for problem in loaded.problems:
        warnings.warn(problem, stacklevel=2)
    results = Results(loaded.records, tuple(loaded.problems))
    return results.where(where) if where else results


def _frame(records: Sequence[Record], columns: Sequence[Column]) -> pd.DataFrame:
    series = {column.name: _series(list(map(column.of, records)), column.kind) for column in columns}
    frame = pd.DataFrame(series, index=range(len(records)))
    frame.attrs["units"] = {column.name: column.unit for column in columns if column.unit}
    return frame


def _fulfilled(frame: pd.DataFrame, condition: str) -> Sequence[bool]:
    """Returns for each row whether it fulfils a condition.

    Raises:
        FilterError: it is no condition, or names no column.
    """
    if "time_utc" in frame:  # with a zone, pandas would compare it with no text that has none
        frame["time_utc"] = frame["time_utc"].dt.tz_localize(None)
    if re.fullmatch(rf"{_CONDITION}(,\s*{_CONDITION})*", condition):
        kept = pd.Series(True, frame.index)
        for name, value in (map(str.strip, part.split("=")) for part in condition.split(",")):
            if name not in frame:
                raise FilterError(f"there is no column '{name}'", unknown=name)
            texts, wanted = frame[name].astype("string").fillna("").str.lower(), value.strip("'\"").lower()
            # A time may be a day, or the beginning of another time.
            is_time = name == "time_utc" and wanted
            time = wanted.replace("t", " ").removesuffix("z").removesuffix("+00:00")
            kept &= texts.str.startswith(time) if is_time else texts == wanted
        return list(kept)
    try:  # without the variables of this program
        fulfilled = frame.eval(condition, engine="python", local_dict={}, global_dict={})
    except pd.errors.UndefinedVariableError as error:
        name = str(error).partition("'")[2].partition("'")[0]
        raise FilterError(f"there is no column '{name}'", unknown=name) from error
    except Exception as error:  # pandas raises almost anything
        raise FilterError(" ".join(str(error).split()) or type(error).__name__) from error
    if not isinstance(fulfilled, pd.Series) or not pd.api.types.is_bool_dtype(fulfilled):
        raise FilterError("it is no condition that is true or false for each run")
    return list(fulfilled.fillna(False))


def _series(values: Sequence[Any], kind: type) -> pd.Series[Any]:
    """Returns values in the type of a column; what an odd record has instead is missing."""
    if kind is str:
        values = [None if value is None else str(value) for value in values]
    elif kind is bool:
        values = [value if isinstance(value, bool) else None for value in values]
    elif kind is datetime.datetime:
        return pd.to_datetime(pd.Series(values, dtype="object"), utc=True, errors="coerce", format="ISO8601")
    else:
        values = [value if isinstance(value, int | float) and not isinstance(value, bool) else None for value in values]
        if kind is int:  # a record may have integers that no 64 bits hold, and 2.0 for 2
            values = [
                int(value) if value is not None and value == value // 1 and abs(value) < 2**63 else None
                for value in values
            ]
    return pd.Series(values, dtype=_DTYPES[kind])


def _table(
    lines: Callable[[Record], Iterable[tuple[Any, ...]]],
    records: Sequence[Record],
    kinds: Mapping[str, type],
    units: Mapping[str, str],
) -> pd.DataFrame:
    """Returns the lines of all records; each begins with the run id and has a value for each of the other columns."""
    columns: list[list[Any]] = [[] for _ in kinds]
    for record in records:
        for line in lines(record):
            for column, value in zip(columns, (record.identity.run_id, *line), strict=True):
                column.append(value)
    series = {name: _series(column, kind) for (name, kind), column in zip(kinds.items(), columns, strict=True)}
    frame = pd.DataFrame(series)
    frame.attrs["units"] = dict(units)
    return frame


def _steps(record: Record) -> Iterator[tuple[Any, ...]]:
    taken, images = record.measurement, record.measurement.images_per_step
    early = [] if taken.first_step_seconds is None else [("first", taken.first_step_seconds)]
    early += [("warmup", seconds) for seconds in taken.warmup_step_seconds]
    measured = (taken.top_1_accuracies, taken.top_5_accuracies, taken.loss_scales, taken.input_wait_seconds)
    for at, (phase, seconds) in enumerate([*early, *(("measured", seconds) for seconds in taken.step_seconds)]):
        rate = images / seconds if images and seconds else None
        number = at - len(early)  # of the measured step
        losses = (taken.losses, number) if number >= 0 else (taken.warmup_losses, number + len(taken.warmup_losses))
        yield phase, at + 1, seconds, rate, _at(*losses), *(_at(values, number) for values in measured)


def _at(values: Sequence[Any], index: int) -> Any:
    return values[index] if 0 <= index < len(values) else None


def _workers(record: Record) -> Iterator[tuple[Any, ...]]:
    taken = record.measurement
    for worker, seconds in enumerate(taken.worker_step_seconds):
        computed = _at(taken.worker_compute_seconds, worker) or ()
        for at, step_seconds in enumerate(seconds):
            yield worker, at + 1, step_seconds, _at(computed, at)


def _telemetry(record: Record) -> Iterator[dict[str, Any]]:
    for worker, process in enumerate(record.measurement.telemetry):
        whose = {"run_id": record.identity.run_id, "worker": worker}
        yield {**whose, "device": "host", **flat({name: value for name, value in process.items() if name != "gpus"})}
        gpus = process.get("gpus")
        for gpu in gpus if isinstance(gpus, list) else ():
            if isinstance(gpu, Mapping):
                yield {**whose, "device": f"GPU {gpu.get('index')}", **flat(gpu)}
