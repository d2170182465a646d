"""A made-up NVIDIA driver for machines with several GPUs and chosen connections between them."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

import pynvml

PEERS = pynvml.NVML_P2P_STATUS_OK
NO_PEERS = pynvml.NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED
SWITCH = "switch"


class Machine:
    """A driver like pynvml with equal GPUs. What has no answer is refused, as by a driver that does not support it.

    Args:
        count: of GPUs.
        nvlinks: for each GPU, what each of its active NVLinks leads to: the number of a GPU, or `SWITCH`.
        ancestor: the driver's number of the path between each two GPUs, or one by pair.
        peers: the status of peer access between each two GPUs.
        refused: names of queries that this driver does not support.
    """

    NVMLError = pynvml.NVMLError

    def __init__(
        self,
        count: int,
        *,
        nvlinks: Mapping[int, list[Any]] | None = None,
        ancestor: int | Mapping[tuple[int, int], int] = pynvml.NVML_TOPOLOGY_SINGLE,
        peers: int = PEERS,
        refused: tuple[str, ...] = (),
    ) -> None:
        self._count, self._nvlinks, self._ancestor = count, nvlinks or {}, ancestor
        self._peers, self._refused = peers, refused

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
        return 12080

    def _nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return self._count

    def _nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def _nvmlDeviceGetName(self, gpu: int) -> str:  # noqa: N802
        return "NVIDIA H200"

    def _nvmlDeviceGetUUID(self, gpu: int) -> str:  # noqa: N802
        return f"GPU-{gpu}a2b3c4d-1234-5678-9abc-def012345678"

    def _nvmlDeviceGetMemoryInfo(self, gpu: int) -> Any:  # noqa: N802
        return types.SimpleNamespace(total=140 * 2**30)

    def _nvmlDeviceGetCudaComputeCapability(self, gpu: int) -> tuple[int, int]:  # noqa: N802
        return (9, 0)

    def _nvmlDeviceGetEccMode(self, gpu: int) -> list[int]:  # noqa: N802
        return [1, 1]

    def _nvmlDeviceGetMigMode(self, gpu: int) -> list[int]:  # noqa: N802
        return [0, 0]

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
