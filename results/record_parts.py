"""The fields of `config`, `environment`, `model` and `placement` that views read, with their types.

Other fields may hold anything. A wrong type in these refuses the record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from results.measurement import Count, Number

_Scalar = str | Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | float | bool | None
_Bytes = Annotated[float, msgspec.Meta(ge=0, le=1e15)]


class Config(msgspec.Struct):
    """Of a run whose flags were refused, each field is what the user wrote."""

    model: _Scalar = None
    message: _Scalar = None
    variable_update: _Scalar = None
    shared_on: _Scalar = None
    device: _Scalar = None
    precision: _Scalar = None
    data_name: _Scalar = None
    data_set: _Scalar = None
    data_format: _Scalar = None
    optimizer: _Scalar = None
    forward_only: _Scalar = None
    num_devices: _Scalar = None
    num_workers: _Scalar = None
    num_ps: _Scalar = None
    batch_per_device: _Scalar = None
    virtual_gpus: _Scalar = None
    torch_version: _Scalar = None
    modifiers: Mapping[str, _Scalar] | None = None
    pipeline: Mapping[str, Any] | None = None
    input: Mapping[str, Any] | None = None


class Environment(msgspec.Struct):
    """The machine and its software."""

    tensorflow_version: _Scalar = None
    cpu_cores_usable: Number | None = None
    container_cores: Number | None = None
    cores_used_by_others_before: Number | None = None
    gpus: Sequence[str] | None = None
    variables: Mapping[str, _Scalar] | None = None


class Model(msgspec.Struct):
    """Facts about the model."""

    gflop_per_image: Number | None = None


class Sent(msgspec.Struct):
    """What a step sends by formula; `by_kind` has the number of transfers and their bytes."""

    total_bytes: _Bytes | None = None
    busiest_ps_bytes: _Bytes | None = None
    read_bytes: _Bytes | None = None
    gradient_bytes: _Bytes | None = None
    weight_bytes: _Bytes | None = None
    activation_bytes: _Bytes | None = None
    by_kind: Mapping[str, tuple[Number | None, Number | None]] | None = None


class Measured(msgspec.Struct):
    """What a traced step sent."""

    by_kind: Mapping[str, tuple[Number, Number]]
    scalars: tuple[Number, Number]


class Group(msgspec.Struct):
    """Variables of one kind on the same devices: the name, shape and bytes of each."""

    kind: str
    devices: Sequence[str]
    variables: Sequence[tuple[str, Sequence[Count], Count]]


class Aggregation(msgspec.Struct):
    """Gradients that the same operations sum, each with its device."""

    operations: Sequence[tuple[str, str]]
    gradients: Sequence[str]


class Placement(msgspec.Struct):
    """What is where, and what is sent in a step."""

    sent_per_step: Sent | None = None
    measured_per_step: Measured | None = None
    variable_groups: Sequence[Group] = ()
    aggregations: Sequence[Aggregation] = ()
    variable_bytes_per_device: Mapping[str, _Bytes] | None = None
    slot_bytes_per_device: Mapping[str, _Bytes] | None = None
    gradient_bytes_per_device: Mapping[str, _Bytes] | None = None
    staged_bytes_per_device: Mapping[str, _Bytes] | None = None


PARTS: Mapping[str, type] = {"config": Config, "environment": Environment, "model": Model, "placement": Placement}
# The fields of `config` that are whole numbers.
COUNTS = ("num_devices", "num_workers", "num_ps", "num_hosts", "batch_per_device", "virtual_gpus")
