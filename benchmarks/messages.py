"""What `allreduce` reduces, how often, and what comes of it. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
import math

from variable_mgr.all_reduce_spec import describe_size
from variable_mgr.traffic import FLOAT32_BYTES


@dataclasses.dataclass(frozen=True)
class Message:
    """What is reduced: float32 tensors of these shapes on every tower."""

    name: str
    shapes: tuple[tuple[int, ...], ...]

    @property
    def size_bytes(self) -> int:
        """Returns the size of one tower's tensors."""
        return FLOAT32_BYTES * sum(math.prod(shape) for shape in self.shapes)


@dataclasses.dataclass(frozen=True)
class Patience:
    """How often a message is reduced: rounds in which every reduction has its turn.

    Attributes:
        warmup_rounds: not measured; the first pays for graph optimisation.
        rounds: measured, at most.
        enough_seconds: once a message has taken so long, three measured rounds suffice.
    """

    warmup_rounds: int
    rounds: int
    enough_seconds: float


@dataclasses.dataclass
class Timing:
    """What came of one reduction of one message: seconds of each round and the error, or why it failed."""

    seconds: list[float] = dataclasses.field(default_factory=list)
    error: float | None = None
    failure: str = ""
    out_of_memory: bool = False


def of_size(size_bytes: int) -> Message:
    """Returns one tensor of that size."""
    return Message(describe_size(size_bytes), ((size_bytes // FLOAT32_BYTES,),))
