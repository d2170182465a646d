from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from variable_mgr.place import balance_by_bytes

sizes = st.lists(st.integers(0, 10**9), max_size=60)


def test_by_hand() -> None:
    assert balance_by_bytes([100, 10, 20, 80], ["a", "b"]) == ["a", "b", "b", "b"]
    assert balance_by_bytes([1, 1, 1], ["only"]) == ["only"] * 3


@pytest.mark.row("G3.1")
@given(sizes, st.integers(1, 8))
def test_no_device_is_ahead_by_more_than_one_variable(sizes_bytes: list[int], count: int) -> None:
    devices = [f"d{i}" for i in range(count)]
    homes = balance_by_bytes(sizes_bytes, devices)
    assert len(homes) == len(sizes_bytes)
    load = {device: 0 for device in devices}
    for size, home in zip(sizes_bytes, homes, strict=True):
        load[home] += size
    assert max(load.values()) - min(load.values()) <= max(sizes_bytes, default=0)
