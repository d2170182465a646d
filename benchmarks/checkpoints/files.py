"""Checkpoints as files, in TensorFlow's own format: values by name, and facts about the training that they are of.

`tf.train.latest_checkpoint` and `tf.train.load_variable` read them. A checkpoint is complete before its name appears.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.errors import DataError, UnsavedError, headline

_FACTS = "facts_of_the_training"  # the entry with JSON
_NAME, _STATE, _TEMPORARY = "model.ckpt", "checkpoint", ".saving-"
_SUFFIXES = (".index", ".data-00000-of-00001")


@dataclasses.dataclass(frozen=True)
class Saved:
    """A checkpoint.

    Attributes:
        prefix: of its files, which is TensorFlow's name for it.
        steps: of the training, when it was saved.
        facts: of the training, as JSON can hold them.
    """

    prefix: Path
    steps: int
    facts: Mapping[str, Any]

    def saved_at(self) -> float:
        """Returns when it was saved, in seconds since the epoch."""
        return self.prefix.with_name(self.prefix.name + _SUFFIXES[0]).stat().st_mtime

    def names(self) -> list[str]:
        """Returns the names of the values."""
        return sorted(set(_reader(self.prefix).get_variable_to_shape_map()) - {_FACTS})

    def value(self, name: str) -> np.ndarray:
        """Returns the value of that name.

        Raises:
            DataError: it is missing or damaged.
        """
        return np.asarray(_get(self.prefix, _reader(self.prefix), name))

    def values(self) -> dict[str, np.ndarray]:
        """Returns all values by name.

        Raises:
            DataError: one is damaged.
        """
        reader = _reader(self.prefix)
        return {name: np.asarray(_get(self.prefix, reader, name)) for name in self.names()}


def write(
    directory: str | Path, steps: int, values: Mapping[str, np.ndarray], facts: Mapping[str, Any], keep: int
) -> Path:
    """Saves a checkpoint, makes it the latest, and removes older ones.

    Args:
        directory: where; it is made if it does not exist.
        steps: of the training.
        values: by name.
        facts: of the training; `steps` is added.
        keep: how many checkpoints stay; 0: all.

    Returns:
        The prefix of its files.

    Raises:
        UnsavedError: it cannot be written; the checkpoints that were there stay.
    """
    directory = Path(directory).absolute()
    prefix = directory / f"{_NAME}-{steps}"
    entries = {**values, _FACTS: np.array(json.dumps({**facts, "steps": steps}).encode(), dtype=object)}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        earlier = [path for path in _complete(directory) if path != prefix]
        _remove_leftovers(directory)
        kept = [*earlier, prefix][-keep:]
        state = tf.compat.v1.train.generate_checkpoint_state_proto(
            str(directory), prefix.name, all_model_checkpoint_paths=[path.name for path in kept]
        )
        with tempfile.TemporaryDirectory(dir=directory, prefix=_TEMPORARY) as name:
            temporary = Path(name)
            _save(temporary / _NAME, entries)
            for suffix in reversed(_SUFFIXES):  # the index makes it a checkpoint, so it comes last
                _move(temporary / f"{_NAME}{suffix}", f"{prefix}{suffix}")
            (temporary / _STATE).write_text(str(state))
            _move(temporary / _STATE, directory / _STATE)
        for path in earlier:
            if path not in kept:
                _remove(path)
    except (OSError, tf.errors.OpError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else headline(error)
        raise UnsavedError(
            f"The checkpoint {prefix} could not be saved: {reason}. Pass a --train_dir that can be written, with room "
            f"for {sum(value.nbytes for value in values.values()) / 1e6:,.0f} MB."
        ) from error
    return prefix


def latest(directory: str | Path) -> Saved | None:
    """Returns the newest checkpoint of a directory; None if there is none, or no such directory.

    Raises:
        DataError: there is one, which cannot be used.
    """
    named = tf.train.latest_checkpoint(str(directory))
    prefixes = [Path(named)] if named else _complete(Path(directory))
    return read(prefixes[-1]) if prefixes else None


def read(path: str | Path) -> Saved:
    """Returns the checkpoint that a path means: a prefix, one of its files, or a directory, of which the newest.

    Raises:
        DataError: it is missing, damaged, or was not saved by this suite.
    """
    path = Path(path)
    if path.is_dir():
        found = latest(path)
        if found is None:
            raise DataError(f"{path} has no checkpoint: pass a directory that training with --train_dir has filled.")
        return found
    prefix = Path(re.sub(r"\.(index|data-\d+-of-\d+)$", "", str(path)))
    reader = _reader(prefix)
    if not reader.has_tensor(_FACTS):
        raise DataError(
            f"The checkpoint {prefix} was not saved by this suite: it does not say which model it is of. Name one that "
            "training with --train_dir has saved."
        )
    facts = json.loads(_get(prefix, reader, _FACTS))
    return Saved(prefix, int(facts["steps"]), facts)


def _save(prefix: Path, entries: Mapping[str, np.ndarray]) -> None:
    """Writes the files of a checkpoint, in a session without GPUs."""
    with tf.Graph().as_default() as graph, tf.device("/cpu:0"):
        fed = [tf.compat.v1.placeholder(tf.string if v.dtype == object else v.dtype, v.shape) for v in entries.values()]
        names, whole = list(entries), [""] * len(entries)
        save = tf.raw_ops.SaveV2(prefix=str(prefix), tensor_names=names, shape_and_slices=whole, tensors=fed)
        config = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
        with tf.compat.v1.Session(graph=graph, config=config) as session:
            session.run(save, feed_dict=dict(zip(fed, entries.values(), strict=True)))


def _reader(prefix: Path) -> tf.train.CheckpointReader:
    try:
        return tf.train.load_checkpoint(str(prefix))
    except (tf.errors.NotFoundError, ValueError) as error:
        raise DataError(f"There is no checkpoint {prefix}: pass a directory that has one, or a prefix.") from error
    except (tf.errors.OpError, RuntimeError) as error:
        raise _damaged(prefix, error) from error


def _get(prefix: Path, reader: tf.train.CheckpointReader, name: str) -> Any:
    """Returns the value of an entry, whose checksum is compared."""
    if not reader.has_tensor(name):
        raise DataError(f"The checkpoint {prefix} has no value of {name}: it is of another model or optimizer.")
    try:
        return reader.get_tensor(name)
    except (tf.errors.OpError, RuntimeError) as error:
        raise _damaged(prefix, error) from error


def _damaged(prefix: Path, error: Exception) -> DataError:
    others = [path for path in _complete(prefix.parent) if path != prefix]
    instead = f"Remove its files, and use {others[-1].name}" if others else "Name another"
    return DataError(f"The checkpoint {prefix} is damaged ({headline(error)}). {instead}.")


def _complete(directory: Path) -> list[Path]:
    """Returns the prefixes of this suite's complete checkpoints in a directory, the newest last."""
    indexes = [path for path in directory.glob(f"{_NAME}-*.index") if path.stem.rpartition("-")[2].isdecimal()]
    prefixes = [path.with_suffix("") for path in indexes if path.with_suffix(_SUFFIXES[1]).exists()]
    return sorted(prefixes, key=lambda prefix: int(prefix.name.rpartition("-")[2]))


def _remove_leftovers(directory: Path) -> None:
    """Removes what processes have left that ended while they saved."""
    for path in directory.glob(f"{_TEMPORARY}*"):
        shutil.rmtree(path, ignore_errors=True)
    for data in directory.glob(f"{_NAME}-*{_SUFFIXES[1]}"):
        if not data.with_suffix(".index").exists():
            data.unlink()


def _remove(prefix: Path) -> None:
    """Removes a checkpoint, its index first, so that no part of it passes for the whole."""
    for suffix in _SUFFIXES:
        Path(f"{prefix}{suffix}").unlink(missing_ok=True)


def _move(written: Path, to: str | Path) -> None:
    """Gives a file its final name, once its content is on the disk."""
    _sync(written)
    os.replace(written, to)
    _sync(Path(to).parent)


def _sync(path: str | Path) -> None:
    """Waits until a file, or the names in a directory, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
