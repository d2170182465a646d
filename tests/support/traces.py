"""Traces of a step, made by hand."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf


class Trace:
    """Makes the RunMetadata of a step by hand."""

    def __init__(self) -> None:
        self.metadata = tf.compat.v1.RunMetadata()

    def ran(
        self,
        device: str,
        name: str,
        begin: int = 0,
        micros: int = 1,
        *,
        label: str = "",
        ready: int = 0,
        shape: Sequence[int] | None = None,
    ) -> None:
        """Adds what a device reports; `ready`: when it could start; `shape`: of its output, which is float32."""
        stats = next((s for s in self.metadata.step_stats.dev_stats if s.device == device), None)
        node = (stats or self.metadata.step_stats.dev_stats.add(device=device)).node_stats.add(
            node_name=name,
            timeline_label=label,
            all_start_micros=begin,
            all_end_rel_micros=micros,
            scheduled_micros=ready,
        )
        if shape is not None:
            tensor = node.output.add(slot=0).tensor_description
            tensor.dtype = tf.float32.as_datatype_enum
            for length in shape:
                tensor.shape.dim.add(size=length)

    def holds(self, device: str, name: str, op: str, *inputs: str) -> tf.compat.v1.NodeDef:
        """Adds an operation to the graph of a device."""
        return self.metadata.partition_graphs.add().node.add(device=device, name=name, op=op, input=inputs)

    def sent(self, name: str, sender: str, receiver: str, *, to_client: bool = False) -> None:
        """Adds both ends of a transfer of the output of an operation."""
        for device, suffix, op in ((sender, "S", "_Send"), (receiver, "R", "_Recv")):
            node = self.holds(device, f"{name}_{suffix}", op, *[name] * (op == "_Send"))
            node.attr["send_device"].s, node.attr["recv_device"].s = sender.encode(), receiver.encode()
            node.attr["client_terminated"].b, node.attr["tensor_name"].s = to_client, name.encode()
