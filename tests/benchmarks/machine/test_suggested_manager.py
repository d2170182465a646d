"""Which manager the connections between GPUs suggest."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.config import config, flag, run_flags
from benchmarks.machine import gpu_topology
from benchmarks.machine.suggested_manager import RULES, advice, rule_for
from tests.support.nvidia import NO_PEERS, SWITCH, Machine

PCIE_SWITCH, BETWEEN_SOCKETS = 20, 50
ON_GPUS = ("--variable_update=parameter_server", "--local_parameter_device=gpu")
ON_HOST = ("--variable_update=parameter_server", "--local_parameter_device=cpu")
NCCL = ("--variable_update=replicated", "--all_reduce_spec=nccl")


@pytest.mark.row("G4.3")
@pytest.mark.parametrize(
    ("machine", "flags"),
    [
        (Machine(0), ("--device=cpu",)),
        (Machine(1, nvlinks={0: [SWITCH] * 18}), ("--variable_update=parameter_server",)),
        (Machine(8, nvlinks=dict.fromkeys(range(8), [SWITCH] * 18), ancestor=BETWEEN_SOCKETS), NCCL),
        (Machine(8, ancestor=PCIE_SWITCH), ON_GPUS),
        (Machine(8, ancestor=PCIE_SWITCH, peers=NO_PEERS), ON_HOST),
        (Machine(8, ancestor=BETWEEN_SOCKETS), ON_HOST),
    ],
)
def test_connections_suggest_a_manager(machine: Machine, flags: tuple[str, ...]) -> None:
    found = gpu_topology.read_gpu_links({}, machine, Path("/nowhere"))
    assert rule_for(found).flags == flags
    line = advice(found)
    count = len(found.gpus)
    assert "not measured" in line and " ".join(flags) in line
    assert (f"--num_gpus={count} " in line) == bool(count)
    given = [*flags, *([f"--num_gpus={count}"] if count else [])]
    config.resolve(flag.parse(given, run_flags.RUN_FLAGS).values, lambda: count)


def test_only_the_last_rule_holds_always() -> None:
    one = gpu_topology.read_gpu_links({}, Machine(2, peers=NO_PEERS), Path("/nowhere"))
    assert [rule for rule in RULES if rule.holds(one)] == [RULES[-1]]
