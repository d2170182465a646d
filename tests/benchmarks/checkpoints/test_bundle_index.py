"""The index of a checkpoint: what it states is what TensorFlow wrote, and no forged one ends the process."""

from __future__ import annotations

import contextlib
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.checkpoints import bundle_index, checkpoint_files
from benchmarks.data.sources import tfrecord
from benchmarks.errors import DataError
from tests.benchmarks.checkpoints.test_checkpoint_files import FACTS


def saved(directory: Path) -> Path:
    """Saves a checkpoint and returns the path of its index."""
    values = {f"dense_{number}/kernel": np.ones((number, 3), np.float32) for number in range(9)}
    return Path(f"{checkpoint_files.write(directory, 6, values, FACTS, 5)}.index")


def signed(index: bytes) -> bytes:
    """Returns an index whose blocks have the right checksums, as far as it says where they are."""
    signed = bytearray(index)
    root = bundle_index._handle(index[-48:], bundle_index._handle(index[-48:], 0)[1])[0]
    blocks = [bundle_index._handle(handle, 0)[0] for _, handle in bundle_index._entries(index[root[0] : sum(root) - 8])]
    for offset, size in (*blocks, root):
        end = offset + size + 1
        if end + 4 < len(index) - 48:
            signed[end : end + 4] = struct.pack("<I", tfrecord._masked_crc(index[offset:end]))
    return bytes(signed)


def test_it_states_what_was_written(tmp_path: Path) -> None:
    stated = bundle_index.stated_bytes(saved(tmp_path).read_bytes())
    facts = stated.pop("facts_of_the_training")
    assert stated == {f"dense_{number}/kernel": 12 * number for number in range(9)} and facts > 100


@pytest.mark.process
def test_no_byte_of_an_index_ends_the_process(tmp_path: Path) -> None:
    """TensorFlow's reader aborts for many of them, so they are tried in a process of their own."""
    saved(tmp_path)
    tried = subprocess.run([sys.executable, "-m", __name__, str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert tried.returncode == 0, tried.stderr
    read, refused = map(int, tried.stdout.split())
    assert refused > 100 and read > 0


if __name__ == "__main__":
    (index,) = Path(sys.argv[1]).glob("*.index")
    good, read = index.read_bytes(), 0
    assert signed(good) == good
    for position in range(len(good) - 48):
        with contextlib.suppress(DataError, ValueError):
            index.write_bytes(signed(good[:position] + bytes([good[position] ^ 255]) + good[position + 1 :]))
            checkpoint_files.read_checkpoint(index)
            read += 1
    sys.stdout.write(f"{read} {len(good) - 48 - read}\n")
