"""Checkpoints as files, in TensorFlow's own format: values by name, and facts about the training that they are of.

`tf.train.latest_checkpoint` and `tf.train.load_variable` read them. A checkpoint is complete before its name appears.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.checkpoints.training_state import IN_FLIGHT
from benchmarks.console import warn
from benchmarks.data.sources.safe_files import read_file
from benchmarks.data.sources.storage import Address, StorageError, path_of
from benchmarks.errors import DataError, headline
from results.loading import open_file

_FACTS = "facts_of_the_training"  # the entry with JSON
_NAME, _STATE, _TEMPORARY = "model.ckpt", "checkpoint", ".saving-"
_SUFFIXES = (".index", ".data-00000-of-00001")
_IN_PATTERNS = {*"*?[\\"}  # TensorFlow looks for a checkpoint by a pattern, and reads it by its name
_MOST_STATE_BYTES = 2**20
_MOST_COUNT = 2**53  # exact as a number of JSON and as a float


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MOST_COUNT


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


# What later runs use of the facts, and what it must be.
_MUST_BE: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("steps", "images", "ends_at_step", "num_classes"), _is_count),
    **dict.fromkeys(("model", "data_name", "optimizer"), _is_text),
    "images_per_epoch": lambda value: _is_count(value) and value > 0,
    "model_digest": lambda value: value is None or _is_text(value),
    "classes": lambda value: value is None or isinstance(value, dict),
}


@dataclasses.dataclass(frozen=True)
class Saved:
    """A whole checkpoint.

    Attributes:
        prefix: of its files, which is TensorFlow's name for it.
        steps: of the training, when it was saved.
        facts: of the training, as JSON can hold them.
        values: by name; `saving` lets only those in flight be other than finite.
    """

    prefix: Path
    steps: int
    facts: Mapping[str, Any]
    values: Mapping[str, np.ndarray]


def write(
    directory: str | Path, steps: int, values: Mapping[str, np.ndarray], facts: Mapping[str, Any], keep: int
) -> Path:
    """Saves a checkpoint, makes it the latest, removes older ones but `keep` (0: all stay), and returns its prefix.

    The directory is made if it does not exist; no other process may write to it. At an address TensorFlow writes the
    files one after the other, and the index, which makes it a checkpoint, last. `steps` is added to the facts.

    Raises:
        OSError, tf.errors.OpError: it cannot be written; the checkpoints that were there stay.
    """
    directory = path_of(directory).absolute()
    prefix = directory / f"{_NAME}-{steps}"
    entries = {**values, _FACTS: np.array(json.dumps({**facts, "steps": steps}).encode(), dtype=object)}
    directory.mkdir(parents=True, exist_ok=True)
    earlier = [path for path in _complete(directory) if path != prefix]
    earlier.sort(key=lambda path: _steps_of(path) < steps)  # newer ones were damaged: they go first
    _remove_leftovers(directory)
    kept = [*earlier, prefix][-keep:]
    # Names relative to the directory stay as they are if that is absolute, and an address is not, to TensorFlow.
    state = tf.compat.v1.train.generate_checkpoint_state_proto(
        os.sep, prefix.name, all_model_checkpoint_paths=[path.name for path in kept]
    )
    if isinstance(directory, Address):
        _remove(prefix)  # a damaged one
        _save(prefix, entries)
        (directory / _STATE).unlink(missing_ok=True)  # ram:// would append
        (directory / _STATE).write_text(str(state))
    else:
        _save_whole(prefix, entries, str(state))
    for path in earlier:
        if path not in kept:
            _remove(path)
    return prefix


def _save_whole(prefix: Path, entries: Mapping[str, np.ndarray], state: str) -> None:
    """Writes a checkpoint and the state of its directory, whose files get their names once they are on the disk."""
    with tempfile.TemporaryDirectory(dir=prefix.parent, prefix=_TEMPORARY) as name:
        temporary = Path(name)
        _save(temporary / _NAME, entries)
        for suffix in reversed(_SUFFIXES):  # the index makes it a checkpoint, so it comes last
            _move(temporary / f"{_NAME}{suffix}", _part(prefix, suffix))
        (temporary / _STATE).write_text(state)
        _move(temporary / _STATE, prefix.with_name(_STATE))


def latest(directory: str | Path) -> Saved | None:
    """Returns the newest whole checkpoint of a directory; None if it has none, or does not exist.

    Warns if a newer one is damaged.

    Raises:
        DataError: there are or were some, of which none can be used, or a storage does not answer.
    """
    directory = path_of(directory)
    named, problems = _named(directory), []
    newest_first = [prefix for prefix in reversed(_complete(directory)) if prefix != named]
    for prefix in [named, *newest_first] if named else newest_first:
        try:
            saved = _read(prefix)
        except StorageError:  # a newer one may be whole
            raise
        except DataError as error:
            if not _has_index(prefix):  # a training that runs has removed it: there are newer ones
                return latest(directory)
            problems.append(str(error))
            continue
        if problems:
            warn(f"{' '.join(problems)} {prefix.name} is used instead.")
        return saved
    if problems:
        raise DataError(f"{' '.join(problems)} {directory} has no other checkpoint: pass another directory.")
    if (state := directory / _STATE).exists():  # only a whole checkpoint is followed by it
        raise DataError(
            f"{directory} has lost its checkpoints, which {state} should name: pass another directory, or remove "
            f"{_STATE} to begin anew."
        )
    return None


def read_checkpoint(path: str | Path) -> Saved:
    """Returns the checkpoint that a path means: a prefix, one of its files, or a directory, of which the newest whole.

    Raises:
        DataError: it is missing, damaged, or was not saved by this suite.
    """
    path = path_of(path)
    if path.is_dir():
        found = latest(path)
        if found is None:
            raise DataError(f"{path} has no checkpoint: pass a directory that training with --train_dir has filled.")
        return found
    prefix = path_of(re.sub(r"\.(index|data-\d+-of-\d+)$", "", str(path)))
    if not _has_index(prefix):
        what = f"{prefix} is not a checkpoint of this suite" if prefix.exists() else f"There is no checkpoint {prefix}"
        raise DataError(
            f"{what}: pass a directory that has one, a prefix, or for --initial_weights a .keras or .h5 file of Keras."
        )
    try:
        return _read(prefix)
    except StorageError:
        raise
    except DataError as error:
        raise DataError(f"{error} Name another, or a directory, whose newest whole checkpoint is used.") from error


def _read(prefix: Path) -> Saved:
    """Returns a checkpoint after all of it was read, with its checksums.

    Raises:
        DataError: it is damaged, or was not saved by this suite.
        StorageError: it is at an address, and cannot be copied from there.
    """
    with _at_hand(prefix) as local:
        try:
            entries = _entries(local)
            stated = entries.pop(_FACTS, None)
            facts = None if stated is None else json.loads(stated.item())
        except Exception as error:  # TensorFlow raises many types for damaged files
            raise DataError(f"The checkpoint {prefix} is damaged ({reason_of(error)}).") from error
    if facts is None:
        raise DataError(f"The checkpoint {prefix} was not saved by this suite: it does not say which model it is of.")
    held = facts if isinstance(facts, dict) else {}
    if wrong := [name for name, is_valid in _MUST_BE.items() if not is_valid(held.get(name))]:
        raise DataError(f"The checkpoint {prefix} is damaged (it has no valid {', '.join(wrong)}).")
    return Saved(prefix, held["steps"], held, entries)


def not_finite(values: Mapping[str, np.ndarray]) -> str:
    """Returns the name of a value that has made a training useless, if there is one; what is in flight may be so."""
    numbers = {name: value for name, value in values.items() if value.dtype.kind == "f"}
    return next((n for n, v in numbers.items() if not n.startswith(IN_FLIGHT) and not np.isfinite(v).all()), "")


@contextlib.contextmanager
def _at_hand(prefix: Path) -> Iterator[Path]:
    """Yields the prefix of a checkpoint on this host, under which TensorFlow can read it.

    That is a copy of one at an address, since TensorFlow does not distinguish a damaged file from a storage that does
    not answer; and links to one whose path TensorFlow would take for a pattern.

    Raises:
        StorageError: it cannot be copied.
    """
    is_far = isinstance(prefix, Address)
    if not is_far and not _IN_PATTERNS & {*str(prefix)}:
        yield prefix
        return
    with tempfile.TemporaryDirectory() as name:
        local = Path(name) / _NAME
        for path in prefix.parent.iterdir():
            if not path.name.startswith(f"{prefix.name}."):
                continue
            part = _part(local, path.name.removeprefix(prefix.name))
            if not is_far:
                part.symlink_to(path.resolve())
                continue
            with path.open("rb") as file:
                content = file.read()
            try:
                part.write_bytes(content)
            except OSError as error:
                raise StorageError(error.errno, f"it cannot be copied ({error.strerror}: {name})", path) from error
        yield local


def _entries(prefix: Path) -> dict[str, np.ndarray]:
    """Returns all entries of a checkpoint by name.

    Raises:
        Exception: it cannot be read; of any type.
    """
    size = 0
    for path in prefix.parent.iterdir():
        if path.name.startswith(f"{prefix.name}."):
            with open_file(path) as file:  # TensorFlow would wait for the writer of a FIFO
                size += os.fstat(file.fileno()).st_size
    reader = tf.compat.v1.train.NewCheckpointReader(str(prefix))
    shapes, types = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    if sum(math.prod(shape) * types[name].size for name, shape in shapes.items()) > size:
        raise ValueError("its index states more values than its files can hold")
    return {name: np.asarray(reader.get_tensor(name)) for name in sorted(shapes)}


def reason_of(error: Exception) -> str:
    """Returns why a file could not be read or written, for a sentence."""
    stated = error.strerror if isinstance(error, OSError) else headline(error)
    return stated or type(error).__name__


def _named(directory: Path) -> Path | None:
    """Returns the checkpoint that the state of a directory names; None if it is damaged, or names none that exists."""
    with contextlib.suppress(Exception):  # TensorFlow raises many types for a damaged state
        read_file(directory / _STATE, _MOST_STATE_BYTES)  # TensorFlow would wait for the writer of a FIFO
        named = path_of(tf.train.get_checkpoint_state(str(directory)).model_checkpoint_path)
        return named if _has_index(named) else None
    return None


def _part(prefix: Path, suffix: str) -> Path:
    return path_of(f"{prefix}{suffix}")


def _has_index(prefix: Path) -> bool:
    index = _part(prefix, _SUFFIXES[0])
    return index.exists() if isinstance(index, Address) else os.path.lexists(index)


def _save(prefix: Path, entries: Mapping[str, np.ndarray]) -> None:
    """Writes the files of a checkpoint, in a session without GPUs."""
    with tf.Graph().as_default() as graph, tf.device("/cpu:0"):
        fed = [tf.compat.v1.placeholder(tf.string if v.dtype == object else v.dtype, v.shape) for v in entries.values()]
        names, whole = list(entries), [""] * len(entries)
        save = tf.raw_ops.SaveV2(prefix=str(prefix), tensor_names=names, shape_and_slices=whole, tensors=fed)
        config = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
        with tf.compat.v1.Session(graph=graph, config=config) as session:
            session.run(save, feed_dict=dict(zip(fed, entries.values(), strict=True)))


def _complete(directory: Path) -> list[Path]:
    """Returns the prefixes of this suite's complete checkpoints in a directory, the newest last."""
    indexes = [
        path for path in directory.glob(f"{_NAME}-*.index") if re.fullmatch("[0-9]+", path.stem.rpartition("-")[2])
    ]
    prefixes = [path.with_suffix("") for path in indexes if path.with_suffix(_SUFFIXES[1]).exists()]
    return sorted(prefixes, key=_steps_of)


def _steps_of(prefix: Path) -> int:
    return int(prefix.name.rpartition("-")[2])


def _remove_leftovers(directory: Path) -> None:
    """Removes what processes have left that ended while they saved."""
    for path in () if isinstance(directory, Address) else directory.glob(f"{_TEMPORARY}*"):
        shutil.rmtree(path, ignore_errors=True)
    for data in directory.glob(f"{_NAME}-*{_SUFFIXES[1]}"):
        if not data.with_suffix(".index").exists():
            data.unlink()
    for path in directory.glob(f"{_NAME}-*.tempstate*"):  # as TensorFlow names what it has not written whole
        path.unlink()


def _remove(prefix: Path) -> None:
    """Removes a checkpoint, its index first, so that no part of it passes for the whole."""
    for suffix in _SUFFIXES:
        _part(prefix, suffix).unlink(missing_ok=True)


def _move(written: Path, to: Path) -> None:
    """Gives a file its final name, once its content is on the disk."""
    _sync(written)
    os.replace(written, to)
    _sync(to.parent)


def _sync(path: str | Path) -> None:
    """Waits until a file, or the names in a directory, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
