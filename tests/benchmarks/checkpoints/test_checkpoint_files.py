"""Checkpoints as files: they are whole or not there, and what cannot be used is refused in words."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.checkpoints import checkpoint_files
from benchmarks.errors import DataError

FACTS = {"model": "lenet", "model_digest": None, "data_name": "mnist", "num_classes": 10, "optimizer": "sgd"}
FACTS |= {"images": 64, "images_per_epoch": 60_000, "ends_at_step": 9}
VALUES = {"dense/kernel": np.arange(6, dtype=np.float32).reshape(2, 3), "optimizer/steps": np.float32(7)}


def write(directory: Path, steps: int, keep: int = 5) -> Path:
    return checkpoint_files.write(directory, steps, {**VALUES, "steps": np.int64(steps)}, FACTS, keep)


def test_what_was_written_is_read_by_this_suite_and_by_tensorflow(tmp_path: Path) -> None:
    directory = tmp_path / "new" / "directory"
    assert checkpoint_files.latest(directory) is None
    prefix = write(directory, 4)
    saved = checkpoint_files.latest(directory)
    assert saved is not None
    assert (saved.prefix, saved.steps, saved.facts) == (prefix, 4, {**FACTS, "steps": 4})
    assert list(saved.values) == ["dense/kernel", "optimizer/steps", "steps"]
    np.testing.assert_array_equal(saved.values["dense/kernel"], VALUES["dense/kernel"])
    assert saved.values["optimizer/steps"] == 7
    assert tf.train.latest_checkpoint(str(directory)) == str(prefix)
    np.testing.assert_array_equal(tf.train.load_variable(str(directory), "dense/kernel"), VALUES["dense/kernel"])
    for path in (prefix, f"{prefix}.index", directory):
        assert checkpoint_files.read_checkpoint(path).steps == 4


def test_a_name_that_is_a_pattern_is_read_as_a_name(tmp_path: Path) -> None:
    prefix = write(tmp_path / "run[lr=0.1]*", 4)
    assert checkpoint_files.read_checkpoint(tmp_path / "run[lr=0.1]*").steps == 4
    for path in prefix.parent.glob(f"{prefix.name}.*"):
        path.rename(tmp_path / f"best[1]{path.name.removeprefix(prefix.name)}")
    assert checkpoint_files.read_checkpoint(tmp_path / "best[1]").steps == 4


def test_a_directory_may_be_moved(tmp_path: Path) -> None:
    write(tmp_path / "a", 4)
    (tmp_path / "a").rename(tmp_path / "b")
    assert checkpoint_files.read_checkpoint(tmp_path / "b").steps == 4


@pytest.mark.parametrize(
    ("written", "keep", "left"),
    [
        ((2, 3, 9, 10), 2, {9, 10}),
        ((2, 3, 9, 10), 0, {2, 3, 9, 10}),
        ((2, 9, 4), 2, {2, 4}),  # 9 was damaged, or the training would not have continued after 2
    ],
)
def test_older_ones_are_removed(tmp_path: Path, written: tuple[int, ...], keep: int, left: set[int]) -> None:
    for steps in written:
        write(tmp_path, steps, keep)
    names = {f"model.ckpt-{steps}{end}" for steps in left for end in (".index", ".data-00000-of-00001")}
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint", *names}


@pytest.mark.parametrize("replaced", range(3))
def test_a_process_that_dies_while_saving_leaves_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: int
) -> None:
    """After none, one or two of the three files have their names: values, index, and the state of the directory."""
    write(tmp_path, 4)
    names = iter(range(replaced))
    rename = os.replace

    def die(written: Path, to: str) -> None:
        if next(names, None) is None:
            shutil.copytree(written.parent, tmp_path / ".saving-left")  # a dead process removes nothing
            raise KeyboardInterrupt
        rename(written, to)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "replace", die)
        write(tmp_path, 6)
    assert checkpoint_files.read_checkpoint(tmp_path).steps == 4
    assert checkpoint_files.read_checkpoint(tmp_path).values["steps"] == 4
    write(tmp_path, 8, keep=1)
    assert len(list(tmp_path.iterdir())) == 3, "what the dead process left is removed"


def _flip(path: Path) -> None:
    path.write_bytes(bytes(byte ^ 255 for byte in path.read_bytes()))


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def _empty(path: Path) -> None:
    os.truncate(path, 0)


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


DAMAGES = (_flip, _cut, _empty, _fifo, _device)


@pytest.mark.parametrize("damage", [*DAMAGES, Path.unlink])
def test_without_a_state_the_directory_has_its_newest_checkpoint(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    write(tmp_path, 9)
    write(tmp_path, 10)
    damage(tmp_path / "checkpoint")
    assert checkpoint_files.read_checkpoint(tmp_path).steps == 10


@pytest.mark.fault(
    "R10",
    "the index or the data of the newest checkpoint is flipped, cut off, empty, a FIFO or a device",
    survives="the checkpoint before is used, with a warning that names the damaged one",
)
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("part", [".index", ".data-00000-of-00001"])
def test_a_damaged_one_is_named_and_the_whole_one_before_is_used(
    tmp_path: Path, part: str, damage: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    first, newest = write(tmp_path, 4), write(tmp_path, 6)
    damage(Path(f"{newest}{part}"))
    assert checkpoint_files.read_checkpoint(tmp_path).steps == 4
    assert "model.ckpt-6 is damaged" in (said := capsys.readouterr().err) and "model.ckpt-4 is used instead" in said
    with pytest.raises(DataError, match=r"model.ckpt-6 is damaged .* Name another, or a directory"):
        checkpoint_files.read_checkpoint(newest)
    damage(Path(f"{first}{part}"))
    with pytest.raises(DataError, match=r"model.ckpt-4 is damaged .* has no other checkpoint: pass another directory"):
        checkpoint_files.latest(tmp_path)
    write(tmp_path, 5, keep=1)
    assert checkpoint_files.read_checkpoint(tmp_path).steps == 5
    assert not list(tmp_path.glob("model.ckpt-6*")), "the damaged one goes first"


@pytest.mark.parametrize("part", [".index", ".data-00000-of-00001"])
def test_a_directory_that_has_lost_its_checkpoints_is_not_an_empty_one(tmp_path: Path, part: str) -> None:
    assert checkpoint_files.latest(tmp_path) is None
    Path(f"{write(tmp_path, 4)}{part}").unlink()
    with pytest.raises(DataError, match="model.ckpt-4 is damaged|has lost its checkpoints, which .*/checkpoint should"):
        checkpoint_files.latest(tmp_path)
    (tmp_path / "checkpoint").unlink()
    assert checkpoint_files.latest(tmp_path) is None


def test_one_that_a_running_training_removes_meanwhile_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = checkpoint_files._entries

    def late_entries(prefix: Path) -> dict[str, np.ndarray]:
        if prefix.name == "model.ckpt-4":
            write(tmp_path, 6, keep=1)
        return entries(prefix)

    write(tmp_path, 4)
    monkeypatch.setattr(checkpoint_files, "_entries", late_entries)
    assert checkpoint_files.read_checkpoint(tmp_path).steps == 6
    assert "damaged" not in capsys.readouterr().err


def test_a_flipped_byte_of_an_index_is_refused_or_changes_nothing(tmp_path: Path) -> None:
    index = Path(f"{write(tmp_path, 6)}.index")
    whole, refused = index.read_bytes(), 0
    for position in range(len(whole)):
        index.write_bytes(whole[:position] + bytes([whole[position] ^ 255]) + whole[position + 1 :])
        try:
            values = checkpoint_files.read_checkpoint(index).values
        except DataError:
            refused += 1
            continue
        np.testing.assert_equal(values, {**VALUES, "steps": 6})
    assert refused > len(whole) / 2


@pytest.mark.parametrize(
    "facts",
    [{"images": -1}, {"images": 10**30}, {"images": "64"}, {"images": None}, {"model": 5}, {"images_per_epoch": 0}],
)
def test_facts_have_types_and_ranges(tmp_path: Path, facts: dict[str, Any]) -> None:
    checkpoint_files.write(tmp_path, 4, VALUES, {**FACTS, **facts}, 5)
    with pytest.raises(DataError, match=f"is damaged .it has no valid {next(iter(facts))}"):
        checkpoint_files.read_checkpoint(tmp_path)


def test_one_of_another_program_is_refused(tmp_path: Path) -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.Variable(1.0)
        session.run(variable.initializer)
        tf.compat.v1.train.Saver([variable]).save(session, str(tmp_path / "theirs"))
    with pytest.raises(DataError, match="was not saved by this suite"):
        checkpoint_files.latest(tmp_path)


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no checkpoint: pass a directory"):
        checkpoint_files.read_checkpoint(tmp_path)
    with pytest.raises(DataError, match="There is no checkpoint"):
        checkpoint_files.read_checkpoint(tmp_path / "model.ckpt-3")
    (tmp_path / "theirs.ckpt").write_bytes(b"of another program")
    with pytest.raises(DataError, match="theirs.ckpt is not a checkpoint of this suite: .* or .h5 file of Keras"):
        checkpoint_files.read_checkpoint(tmp_path / "theirs.ckpt")


def test_what_cannot_be_written_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 4)
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left on device"):
        write(tmp_path, 6)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert checkpoint_files.read_checkpoint(tmp_path).steps == 4
