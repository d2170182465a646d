"""Made-up machines with GPUs: what NVIDIA's driver answers, which packages are installed, what TensorFlow sees."""

from __future__ import annotations

import dataclasses
import itertools
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pynvml
import pytest

from benchmarks.machine import provenance

PEERS = pynvml.NVML_P2P_STATUS_OK
NO_PEERS = pynvml.NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED
SWITCH = "switch"


@dataclasses.dataclass(frozen=True)
class Card:
    """One GPU: its name, memory, compute capability, the memory of its MIG instances, and what others have taken."""

    name: str = "NVIDIA H200"
    gib: int = 140
    capability: tuple[int, int] = (9, 0)
    instances_gib: tuple[int, ...] = ()
    used_gib: int = 0


class Machine:
    """A driver like pynvml. What has no answer is refused, as by a driver that does not support it.

    Args:
        cards: the GPUs, or how many H200.
        nvlinks: for each GPU, what each of its active NVLinks leads to: the number of a GPU, or `SWITCH`.
        ancestor: the driver's number of the path between each two GPUs, or one by pair.
        peers: the status of peer access between each two GPUs.
        refused: names of queries that this driver does not support.
        lost: the errors of GPUs that do not answer, by their numbers.
        cuda: the newest CUDA of the driver, as it reports it.
        answers: what each GPU answers to further queries, by their names.
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
        lost: Mapping[int, int] | None = None,
        cuda: int = 12080,
        answers: Mapping[str, Any] | None = None,
    ) -> None:
        self.cards = [Card()] * cards if isinstance(cards, int) else list(cards)
        self._nvlinks, self._refused, self._lost = nvlinks or {}, refused, lost or {}
        # What a GPU answers by its number, or an instance of a divided one by `(GPU, number)`.
        self._answers: dict[str, Callable[..., Any]] = {
            "nvmlInit": lambda: None,
            "nvmlShutdown": lambda: None,
            "nvmlSystemGetDriverVersion": lambda: "570.86",
            "nvmlSystemGetCudaDriverVersion": lambda: cuda,
            "nvmlDeviceGetCount": lambda: len(self.cards),
            "nvmlDeviceGetHandleByIndex": self._handle,
            "nvmlDeviceGetIndex": lambda gpu: gpu,
            "nvmlDeviceGetName": lambda gpu: self.cards[gpu].name,
            "nvmlDeviceGetUUID": lambda gpu: f"GPU-{gpu}a2b3c4d-1234-5678-9abc-def012345678",
            "nvmlDeviceGetMemoryInfo": lambda gpu: types.SimpleNamespace(
                total=self._gib(gpu) * 2**30, used=self.cards[gpu].used_gib * 2**30 if isinstance(gpu, int) else 0
            ),
            "nvmlDeviceGetCudaComputeCapability": lambda gpu: self.cards[gpu].capability,
            "nvmlDeviceGetEccMode": lambda gpu: [1, 1],
            "nvmlDeviceGetMigMode": lambda gpu: [int(bool(self.cards[gpu].instances_gib))] * 2,
            "nvmlDeviceGetMaxMigDeviceCount": lambda gpu: 7,
            "nvmlDeviceGetMigDeviceHandleByIndex": self._instance,
            "nvmlDeviceGetHandleByUUID": lambda name: tuple(map(int, name.removeprefix("MIG-").split("/"))),
            "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": lambda instance: instance[0],
            "nvmlDeviceGetMaxPcieLinkGeneration": lambda gpu: 5,
            "nvmlDeviceGetMaxPcieLinkWidth": lambda gpu: 16,
            "nvmlDeviceGetPciInfo": self._pci,
            "nvmlDeviceGetNvLinkState": lambda gpu, link: int(link < len(self._nvlinks.get(gpu, ()))),
            "nvmlDeviceGetNvLinkRemoteDeviceType": lambda gpu, link: (
                pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
                if self._nvlinks[gpu][link] == SWITCH
                else pynvml.NVML_NVLINK_DEVICE_TYPE_GPU
            ),
            "nvmlDeviceGetNvLinkRemotePciInfo": lambda gpu, link: self._pci(self._nvlinks[gpu][link]),
            "nvmlDeviceGetTopologyCommonAncestor": lambda gpu, other: (
                ancestor if isinstance(ancestor, int) else ancestor[min(gpu, other), max(gpu, other)]
            ),
            "nvmlDeviceGetP2PStatus": lambda gpu, other, index: {0: peers}[index],
            **{name: lambda *_, answer=answer: answer for name, answer in (answers or {}).items()},
        }

    def __getattr__(self, name: str) -> Any:
        if name not in self._answers and not name.startswith("nvmlDevice"):
            return getattr(pynvml, name)

        def ask(*arguments: Any) -> Any:
            if name not in self._answers or name in self._refused:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return self._answers[name](*arguments)

        return ask

    def _handle(self, gpu: int) -> int:
        if gpu in self._lost:
            raise pynvml.NVMLError(self._lost[gpu])
        return gpu

    def _instance(self, gpu: int, number: int) -> tuple[int, int]:
        if number < len(self.cards[gpu].instances_gib):
            return gpu, number
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def _gib(self, gpu: int | tuple[int, int]) -> int:
        return self.cards[gpu].gib if isinstance(gpu, int) else self.cards[gpu[0]].instances_gib[gpu[1]]

    def _pci(self, gpu: int) -> types.SimpleNamespace:
        return types.SimpleNamespace(busId=f"0000FACE:{gpu:02X}:00.0")  # no real machine has this domain


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
    "8 A100, NVSwitch": Machine(
        [Card("NVIDIA A100-SXM4-40GB", 40, (8, 0))] * 8, nvlinks=dict.fromkeys(range(8), [SWITCH] * 12)
    ),
    "8 T4, PCIe": Machine([Card("Tesla T4", 15, (7, 5))] * 8, ancestor=pynvml.NVML_TOPOLOGY_SYSTEM),
    "2 V100, NVLink": Machine([Card("Tesla V100-SXM2-16GB", 16, (7, 0))] * 2, nvlinks={0: [1, 1], 1: [0, 0]}),
    "no capability": Machine(2, refused=("nvmlDeviceGetCudaComputeCapability", "nvmlDeviceGetNvLinkState")),
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
    import tensorflow as tf

    gpus = [tf.config.PhysicalDevice(f"/physical_device:GPU:{number}", "GPU") for number in range(count)]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: gpus)
