from __future__ import annotations

import errno
import gzip
import io
import os
import re
import shutil
from pathlib import Path

import pytest

from benchmarks.data.sources import safe_files, tfrecord
from benchmarks.errors import DataError
from tests.support import damage


@pytest.fixture
def shard(fake_imagenet: Path, tmp_path: Path) -> Path:
    """A shard of 10 records that a test may damage."""
    return Path(shutil.copy(fake_imagenet / "train-00001-of-00004", tmp_path))


def test_records_are_those_that_tensorflow_wrote(shard: Path) -> None:
    import tensorflow as tf

    mine = list(tfrecord.walk(shard))
    theirs = [record.numpy() for record in tf.data.TFRecordDataset(str(shard))]
    assert [record.payload for record in mine] == theirs
    assert [record.number for record in mine] == list(range(10))
    assert mine[0].offset == 0
    assert mine[1].offset == 16 + len(theirs[0])
    assert tfrecord.count(shard) == (10, None)


def _flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("inside", "words"),
    [(0, "checksum of its length"), (9, "checksum of its length"), (500, "checksum of its [0-9]+ ")],
)
def test_a_flipped_byte_is_found(shard: Path, inside: int, words: str) -> None:
    damaged = list(tfrecord.walk(shard))[3]
    _flip(shard, damaged.offset + inside)
    (defect,) = (record for record in tfrecord.walk(shard) if isinstance(record, tfrecord.Defect))
    assert re.match(f"{shard}: record 3 at byte {damaged.offset}: .*{words}", str(defect))


def test_a_pointer_of_git_lfs_is_named(shard: Path) -> None:
    shard.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    (defect,) = tfrecord.walk(shard)
    assert str(defect).endswith(": it is a pointer of Git LFS and not the file itself: run git lfs pull.")


@pytest.mark.parametrize("keep", [4, 12, 100])
def test_a_file_that_ends_too_early_is_found(shard: Path, keep: int) -> None:
    damaged = list(tfrecord.walk(shard))[3]
    shard.write_bytes(shard.read_bytes()[: damaged.offset + keep])
    *_, defect = tfrecord.walk(shard)
    assert f"record 3 at byte {damaged.offset}: the file ends within" in str(defect)
    assert tfrecord.count(shard) == (4, defect)


@pytest.mark.fault(
    "R9",
    "a TFRecord that states a length beyond its file, with its right checksum; data check",
    survives="it is named before memory is taken for it",
)
@pytest.mark.parametrize("length", [2**64 - 1, 2**63 - 1, 2**40])
def test_a_length_beyond_the_file_is_found_before_it_is_read(shard: Path, length: int) -> None:
    damage.state_length(shard, length)
    (defect,) = tfrecord.walk(shard)
    assert isinstance(defect, tfrecord.Defect)
    assert str(defect).startswith(f"{shard}: record 0 at byte 0: the file ends within its {length} bytes; ")
    assert not tfrecord.lengths_are_safe(shard)


def test_lengths_are_safe_up_to_the_limit_and_in_every_record(shard: Path) -> None:
    assert tfrecord.lengths_are_safe(shard)
    for length, safe in ((safe_files.MOST_PHOTO_BYTES, True), (safe_files.MOST_PHOTO_BYTES + 1, False)):
        damage.state_length(shard, length)
        assert tfrecord.lengths_are_safe(shard) is safe, "a file that only ends too early is left to TensorFlow"
    _flip(shard, 8)
    assert tfrecord.lengths_are_safe(shard), "TensorFlow does not believe a length with a wrong checksum"


def test_lengths_in_a_compressed_shard_are_looked_at(shard: Path) -> None:
    assert tfrecord.lengths_are_safe(_compressed(shard))
    damage.state_length(shard, safe_files.MOST_PHOTO_BYTES + 1)
    assert not tfrecord.lengths_are_safe(_compressed(shard))


def _compressed(shard: Path) -> Path:
    path = shard.with_suffix(".gz")
    path.write_bytes(gzip.compress(shard.read_bytes(), compresslevel=1))
    return path


def test_a_record_above_the_limit_is_left_out_and_the_next_is_read(shard: Path) -> None:
    length = safe_files.MOST_PHOTO_BYTES + 1
    damage.state_length(shard, length)
    os.truncate(shard, 16 + length)
    with shard.open("ab") as file:
        tfrecord.write(file, b"the next one")
    first, second = tfrecord.walk(shard)
    assert isinstance(first, tfrecord.Defect) and first.kind == "size"
    assert f"its length of {length} bytes is above the limit" in first.reason
    assert second == tfrecord.FramedRecord(1, 16 + length, b"the next one")


def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "shard")
    with pytest.raises(DataError, match="shard cannot be read: it is not a regular file"):
        list(tfrecord.walk(tmp_path / "shard"))


@pytest.mark.parametrize("reads", [0, 1, 2, 3])
def test_a_disk_that_fails_while_a_shard_is_read_is_an_error_that_names_it(
    shard: Path, monkeypatch: pytest.MonkeyPatch, reads: int
) -> None:
    left = iter(range(reads))

    class Failing(io.FileIO):
        def read(self, size: int | None = -1) -> bytes:
            if next(left, None) is None:
                raise OSError(errno.EIO, "Input/output error")
            return super().read(size)

    monkeypatch.setattr(tfrecord, "open_file", Failing)
    with pytest.raises(DataError, match=f"{shard} cannot be read: Input/output error"):
        list(tfrecord.walk(shard))
