from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.training.traffic import manager_on_real_devices
from variable_mgr.catalog import IN_ONE_PROCESS
from variable_mgr.modifiers import Modifiers
from variable_mgr.reductions.algorithms import ALGORITHMS
from variable_mgr.traffic import Traffic

WEIGHTS = [1000, 24]  # 4096 bytes


def _sent(manager: str, towers: int, *, on_host: bool = True, **modifiers: object) -> Traffic:
    shared_on = "cpu" if on_host else "gpu"
    spec = {"all_reduce_spec": "pscpu" if on_host else "psgpu"} if manager == "replicated" else {}
    made = manager_on_real_devices(
        manager, Modifiers(**{**spec, **modifiers}), device="cpu", towers=towers, shared_on=shared_on
    )
    return made.traffic(WEIGHTS)


def test_by_hand() -> None:
    assert _sent("independent", 4) == Traffic()
    # Every one of 4 towers reads all from the host and sends all to it.
    each = (4 * 2, 4 * 4096)
    assert _sent("parameter_server", 4) == Traffic(
        read_bytes=4 * 4096, gradient_bytes=4 * 4096, by_kind={"host to device": each, "device to host": each}
    )
    # Each variable lives on one of the towers: three others read it.
    assert _sent("parameter_server", 4, on_host=False) == Traffic(
        read_bytes=3 * 4096, gradient_bytes=3 * 4096, by_kind={"device to device": (2 * 3 * 2, 2 * 3 * 4096)}
    )
    # Each of 4 towers of a ring sends 2 * 3/4 of the bytes.
    assert _sent("replicated", 4, all_reduce_spec="xring").gradient_bytes == 4 * 2 * 3 * 4096 // 4
    assert _sent("replicated", 4, all_reduce_spec="pscpu").gradient_bytes == 8 * 4096
    assert _sent("replicated", 4, all_reduce_spec="hierarchical").gradient_bytes == 6 * 4096
    assert _sent("replicated", 4, all_reduce_spec="xring", compact_gradient_transfer=True).gradient_bytes == 3 * 4096
    assert _sent("local_sgd", 4, local_sgd_steps=4).weight_bytes == 2 * 4096
    # The two travel together, 1024 elements, so by xring.
    together = {"agg_small_grads_max_bytes": 4000, "all_reduce_spec": "pscpu:1000:xring"}
    assert _sent("replicated", 2, **together).gradient_bytes == 2 * 4096
    # By size: 24 elements by pscpu, 1000 by xring.
    assert _sent("replicated", 2, all_reduce_spec="pscpu:100:xring").gradient_bytes == 4 * 96 + 2 * 4000


@pytest.mark.parametrize("manager", IN_ONE_PROCESS)
def test_one_tower_on_its_own_device_sends_nothing(manager: str) -> None:
    assert _sent(manager, 1, on_host=False).total_bytes == 0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(towers=st.integers(2, 64))
def test_no_algorithm_sends_less_than_is_needed(algorithm: str, towers: int) -> None:
    """Every tower must give its values away and get the mean: 2 (n-1) in all, but a group may share."""
    sent = ALGORITHMS[algorithm].sent
    assert sent is not None
    assert sent(towers) >= 2 * (towers - 1)


@given(st.integers(1, 20))
def test_packing_sends_the_same(chunks: int) -> None:
    plain = _sent("replicated", 3, all_reduce_spec="xring")
    packed = _sent("replicated", 3, all_reduce_spec="xring", gradient_repacking=chunks)
    assert packed.gradient_bytes == plain.gradient_bytes
    # Each of the chunks is in 3 parts, which each go from tower to tower 2 times to be added, and 2 times on.
    assert packed.by_kind == {"device to device": (chunks * 3 * 4, plain.gradient_bytes)}
