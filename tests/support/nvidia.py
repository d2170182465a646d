"""Made-up machines with GPUs: what NVIDIA's driver answers, which packages are installed, what TensorFlow sees."""

from __future__ import annotations

import dataclasses
import itertools
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any

import pynvml
import pytest

from benchmarks.machine import provenance

PEERS = pynvml.NVML_P2P_STATUS_OK
NO_PEERS = pynvml.NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED
SWITCH = "switch"


@dataclasses.dataclass(frozen=True)
class Card:
    """One GPU: its name, its memory, its compute capability, and the memory of its MIG instances if it is divided."""

    name: str = "NVIDIA H200"
    gib: int = 140
    capability: tuple[int, int] = (9, 0)
    instances_gib: tuple[int, ...] | None = None


class Machine:
    """A driver like pynvml. What has no answer is refused, as by a driver that does not support it.

    Args:
        cards: the GPUs, or how many H200.
        nvlinks: for each GPU, what each of its active NVLinks leads to: the number of a GPU, or `SWITCH`.
        ancestor: the driver's number of the path between each two GPUs, or one by pair.
        peers: the status of peer access between each two GPUs.
        refused: names of queries that this driver does not support.
        cuda: the newest CUDA of the driver, as it reports it.
    """

    NVMLError = pynvml.NVMLError

    def __init__(
        self,
        cards: int | Sequence[Card],
        *,
        nvlinks: Mapping[int, list[Any]] | None = None,
        ancestor: int | Mapping[tuple[int, int], int] = pynvml.NVML_TOPOLOGY_SINGLE,
        peers: int = PEERS,
        refused: tuple[str, ...] = (),
        cuda: int = 12080,
    ) -> None:
        self.cards = [Card()] * cards if isinstance(cards, int) else list(cards)
        self._nvlinks, self._ancestor = nvlinks or {}, ancestor
        self._peers, self._refused, self._cuda = peers, refused, cuda

    def __getattr__(self, name: str) -> Any:
        answer = getattr(type(self), f"_{name}", None)
        if answer is None and not name.startswith("nvmlDevice"):
            return getattr(pynvml, name)

        def ask(*arguments: Any) -> Any:
            if answer is None or name in self._refused:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return answer(self, *arguments)

        return ask

    def _nvmlInit(self) -> None:  # noqa: N802 - the driver's name, as all that follow
        pass

    def _nvmlShutdown(self) -> None:  # noqa: N802
        pass

    def _nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "570.86"

    def _nvmlSystemGetCudaDriverVersion(self) -> int:  # noqa: N802
        return self._cuda

    def _nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.cards)

    def _nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def _nvmlDeviceGetName(self, gpu: int) -> str:  # noqa: N802
        return self.cards[gpu].name

    def _nvmlDeviceGetUUID(self, gpu: int) -> str:  # noqa: N802
        return f"GPU-{gpu}a2b3c4d-1234-5678-9abc-def012345678"

    def _nvmlDeviceGetMemoryInfo(self, gpu: int | tuple[int, int]) -> Any:  # noqa: N802
        if isinstance(gpu, tuple):
            return types.SimpleNamespace(total=self._instances(gpu[0])[gpu[1]] * 2**30)
        return types.SimpleNamespace(total=self.cards[gpu].gib * 2**30)

    def _nvmlDeviceGetCudaComputeCapability(self, gpu: int) -> tuple[int, int]:  # noqa: N802
        return self.cards[gpu].capability

    def _nvmlDeviceGetEccMode(self, gpu: int) -> list[int]:  # noqa: N802
        return [1, 1]

    def _nvmlDeviceGetMigMode(self, gpu: int) -> list[int]:  # noqa: N802
        return [int(self.cards[gpu].instances_gib is not None)] * 2

    def _instances(self, gpu: int) -> tuple[int, ...]:
        return self.cards[gpu].instances_gib or ()

    def _nvmlDeviceGetMaxMigDeviceCount(self, gpu: int) -> int:  # noqa: N802
        return 7

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: int, number: int) -> tuple[int, int]:  # noqa: N802
        if number < len(self._instances(gpu)):
            return gpu, number
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def _nvmlDeviceGetHandleByUUID(self, name: str) -> tuple[int, int]:  # noqa: N802
        """Finds an instance by a name such as `MIG-0/1`."""
        gpu, number = name.removeprefix("MIG-").split("/")
        return int(gpu), int(number)

    def _nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, instance: tuple[int, int]) -> int:  # noqa: N802
        return instance[0]

    def _nvmlDeviceGetIndex(self, gpu: int) -> int:  # noqa: N802
        return gpu

    def _nvmlDeviceGetMaxPcieLinkGeneration(self, gpu: int) -> int:  # noqa: N802
        return 5

    def _nvmlDeviceGetMaxPcieLinkWidth(self, gpu: int) -> int:  # noqa: N802
        return 16

    def _nvmlDeviceGetPciInfo(self, gpu: int) -> Any:  # noqa: N802
        return types.SimpleNamespace(busId=f"00000000:{gpu:02X}:00.0")

    def _nvmlDeviceGetNvLinkState(self, gpu: int, link: int) -> int:  # noqa: N802
        return int(link < len(self._nvlinks.get(gpu, ())))

    def _nvmlDeviceGetNvLinkRemoteDeviceType(self, gpu: int, link: int) -> int:  # noqa: N802
        is_switch = self._nvlinks[gpu][link] == SWITCH
        return int(pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH if is_switch else pynvml.NVML_NVLINK_DEVICE_TYPE_GPU)

    def _nvmlDeviceGetNvLinkRemotePciInfo(self, gpu: int, link: int) -> Any:  # noqa: N802
        return self._nvmlDeviceGetPciInfo(self._nvlinks[gpu][link])

    def _nvmlDeviceGetTopologyCommonAncestor(self, gpu: int, other: int) -> int:  # noqa: N802
        if isinstance(self._ancestor, int):
            return self._ancestor
        return self._ancestor[min(gpu, other), max(gpu, other)]

    def _nvmlDeviceGetP2PStatus(self, gpu: int, other: int, index: int) -> int:  # noqa: N802
        assert (gpu != other, index) == (True, 0)
        return self._peers


_PAIRS = tuple(itertools.combinations(range(8), 2))
MACHINES = {
    "8 H100, NVSwitch": Machine(
        [Card("NVIDIA H100 80GB HBM3", 80)] * 8,
        nvlinks=dict.fromkeys(range(8), [SWITCH] * 18),
        ancestor={pair: pynvml.NVML_TOPOLOGY_SYSTEM if pair[0] < 4 <= pair[1] else 40 for pair in _PAIRS},
    ),
    "4 A100, PCIe": Machine([Card("NVIDIA A100 80GB PCIe", 80, (8, 0))] * 4, ancestor=pynvml.NVML_TOPOLOGY_SYSTEM),
    "A100 and T4": Machine([Card("NVIDIA A100-PCIE-40GB", 40, (8, 0)), Card("Tesla T4", 15, (7, 5))], peers=NO_PEERS),
    "A100 with MIG": Machine([Card("NVIDIA A100-SXM4-40GB", 40, (8, 0), (5, 10))]),
}
# An installation that has code for all of them.
CUDNN = "9.10.2.21"


def stand_in(monkeypatch: pytest.MonkeyPatch, machine: Machine, *, cudnn: str = CUDNN) -> None:
    """Lets this process find the GPUs of a machine, and this cuDNN. For TensorFlow, see `shown_to_tensorflow`."""
    installed = provenance.installed
    monkeypatch.setitem(sys.modules, "pynvml", machine)
    monkeypatch.setattr(
        provenance, "installed", lambda *names: cudnn if "nvidia-cudnn-cu12" in names else installed(*names)
    )
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)


def shown_to_tensorflow(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Lets TensorFlow list so many GPUs, none of which can compute."""
    import tensorflow as tf

    gpus = [tf.config.PhysicalDevice(f"/physical_device:GPU:{number}", "GPU") for number in range(count)]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: gpus)
