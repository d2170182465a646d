from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks.errors import DataError
from benchmarks.input import tfrecord


@pytest.fixture
def shard(fake_imagenet: Path, tmp_path: Path) -> Path:
    """A shard of 10 records that a test may damage."""
    return Path(shutil.copy(fake_imagenet / "train-00001-of-00004", tmp_path))


def test_records_are_those_that_tensorflow_wrote(shard: Path) -> None:
    import tensorflow as tf

    mine = list(tfrecord.records(shard))
    theirs = [record.numpy() for record in tf.data.TFRecordDataset(str(shard))]
    assert [record.payload for record in mine] == theirs
    assert [record.number for record in mine] == list(range(10))
    assert mine[0].offset == 0
    assert mine[1].offset == 16 + len(theirs[0])
    assert tfrecord.count(shard) == 10


def _third(shard: Path) -> tfrecord.FramedRecord:
    return list(tfrecord.records(shard))[3]


def _flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("inside", "words"),
    [(0, "checksum of its length"), (9, "checksum of its length"), (500, "checksum of its [0-9]+ ")],
)
def test_a_flipped_byte_is_found(shard: Path, inside: int, words: str) -> None:
    damaged = _third(shard)
    _flip(shard, damaged.offset + inside)
    with pytest.raises(DataError, match=f"{shard}: record 3 at byte {damaged.offset}: .*{words}"):
        list(tfrecord.records(shard))


@pytest.mark.parametrize("keep", [4, 12, 100])
def test_a_file_that_ends_too_early_is_found(shard: Path, keep: int) -> None:
    damaged = _third(shard)
    shard.write_bytes(shard.read_bytes()[: damaged.offset + keep])
    with pytest.raises(DataError, match=f"record 3 at byte {damaged.offset}: the file ends within"):
        list(tfrecord.records(shard))
    with pytest.raises(DataError, match="the file ends within"):
        tfrecord.count(shard)
