"""What `recommend` tries. Each stage varies a few flags, on top of the best of the stages before. No TensorFlow.

First the settings of one device, then how devices exchange gradients, last the threads of all of it. The stages are not
multiplied, since the full product would take days. On CPUs, where a run takes long, precision, layout with compilation,
and convolutions as products are stages of their own, too.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Callable, Iterable, Mapping

from benchmarks.config.config import Config
from benchmarks.devices import options
from benchmarks.machine import hardware
from benchmarks.sweep import grid
from benchmarks.sweep.grid import Cell
from benchmarks.training import computing
from benchmarks.training.computing import AS_MATMUL, PRECISIONS, as_matmul_of
from models import specs
from variable_mgr.reductions.algorithm_catalog import ALGORITHMS

Texts = Mapping[str, str]

MANAGERS = "variable manager"  # the title of their stage
_BATCH_FACTORS = (1, 2, 4, 0.5)
_REPACKINGS = ("0", "2", "8")  # NCCL's default is none of them
# Flags that set what another one does.
_SETS_ALSO = {"use_nccl": "all_reduce_spec", "use_fp16": "precision", "agg_small_grads_max_bytes": "gradient_repacking"}


@dataclasses.dataclass(frozen=True)
class SearchStage:
    """A stage: its `choices` are flags that are added to the fixed and the chosen ones; the first is the default."""

    title: str
    choices: list[Texts]
    devices: int

    @property
    def is_measured(self) -> bool:
        """Whether there is something to choose, or, on all devices, the choices of the stages before to measure."""
        return len(self.choices) > 1 or self.title == MANAGERS


def precisions_to_try(usual: Config) -> tuple[str, ...]:
    """Returns the precision of a configuration, and those for which its devices have tensor cores or instructions."""
    if usual.devices.on_gpu:
        capabilities = [gpu.compute_capability for gpu in options.chosen_gpus(usual.devices).gpus]
        known = [capability for capability in capabilities if capability]
        also = computing.tensor_core_precisions(known) if len(known) == len(capabilities) else ()
    else:
        also = tuple(name for name in PRECISIONS if name != "fp32" and computing.has_instructions(name))
    return tuple(dict.fromkeys((usual.computing.precision, *also)))


def stages(fixed: Texts, usual: Config) -> list[SearchStage]:
    """Returns the stages; a stage without alternatives has one choice.

    `fixed` are the user's flags, which are not varied; `usual` is the configuration that they give.
    """
    workload, count = usual.workload, usual.devices.num_devices
    batches = dict.fromkeys(str(max(1, int(factor * workload.batch_per_device))) for factor in _BATCH_FACTORS)
    repackings = _REPACKINGS if count > 1 and not workload.forward_only else ()
    on_one = {**_computing(fixed, usual), "batch size": _product(batch_size=batches)}
    on_all = {
        MANAGERS: _managers(count, usual.variables.shared_on, forward_only=workload.forward_only),
        "gradient repacking": [{}, *_product(gradient_repacking=repackings)],
        **({} if usual.devices.on_gpu else {"threads of the CPU": _threads(count)}),
    }
    return [
        *(SearchStage(title, _agreeing(choices, fixed), devices=1) for title, choices in on_one.items()),
        *(SearchStage(title, _agreeing(choices, fixed), devices=count) for title, choices in on_all.items()),
    ]


def cells(stage: SearchStage, fixed: Texts, chosen: Texts, count_gpus: Callable[[], int]) -> list[tuple[Texts, Cell]]:
    """Returns the different choices of a stage, each with its cell; an impossible cell has the reason."""
    devices = {"num_gpus": str(stage.devices)} if "num_gpus" in fixed else {}
    merged = [{**fixed, **devices, **chosen, **choice} for choice in stage.choices]
    resolved = grid.cells([{name: [value] for name, value in flags.items()} for flags in merged], count_gpus)
    return [(choice, cell) for choice, cell in zip(stage.choices, resolved, strict=True) if not cell.same_as_before]


def _agreeing(choices: Iterable[Texts], fixed: Texts) -> list[Texts]:
    """Returns the different choices that do not contradict the fixed flags, without these."""
    agreeing = [choice for choice in choices if all(fixed.get(name, value) == value for name, value in choice.items())]
    set_by_user = {*fixed, *(_SETS_ALSO[name] for name in fixed if name in _SETS_ALSO)}
    free = [{name: value for name, value in choice.items() if name not in set_by_user} for choice in agreeing]
    return [choice for number, choice in enumerate(free) if choice not in free[:number]] or [{}]


def _computing(fixed: Texts, usual: Config) -> dict[str, list[Texts]]:
    """Returns the choices of how a device computes, by the stage that tries them."""
    workload, names = usual.workload, precisions_to_try(usual)
    layouts = sorted(("NHWC", "NCHW"), key=lambda layout: layout != workload.data_format)
    if any(getattr(usual.computing, flag) for flag in AS_MATMUL):
        layouts = ["NHWC"]  # which products need
    layout_and_xla = {"data_format": layouts, "xla": ("off", "jit")}
    precision = {"precision": names} if len(names) > 1 else {}
    if usual.devices.on_gpu:
        return {"layout, precision and compilation": _product(**layout_and_xla, **precision)}
    flags = as_matmul_of(specs.find_model(workload.model), forward_only=workload.forward_only)
    if "data_format" in fixed and workload.data_format == "NCHW":
        flags = ()
    other_kernels = [mode for mode in ("on", "off") if mode != computing.onednn_mode(os.environ)]
    return {
        "kernels of the CPU": [{}, *_product(onednn=other_kernels)],
        "precision": _product(**precision),
        "layout and compilation": _product(**layout_and_xla),
        "convolutions as products": _product(**dict.fromkeys(flags, ("false", "true"))),
    }


def _product(**values: Iterable[str]) -> list[Texts]:
    """Returns all combinations of the values of flags."""
    return [dict(zip(values, choice, strict=True)) for choice in itertools.product(*values.values())]


def _managers(num_devices: int, shared_on: str, *, forward_only: bool) -> list[Texts]:
    """Returns the managers that train the same model as one device with the whole batch would."""
    if num_devices == 1:
        return [{"variable_update": "parameter_server"}, {"variable_update": "replicated"}]
    devices = sorted(("cpu", "gpu"), key=lambda device: device != shared_on)
    shared = [{"variable_update": "parameter_server", "local_parameter_device": device} for device in devices]
    if forward_only:
        return [*shared, {"variable_update": "replicated"}]
    return [
        *shared,
        # As a reduction of `replicated`, collective is the same as collective_all_reduce.
        *({"variable_update": "replicated", "all_reduce_spec": spec} for spec in ALGORITHMS if spec != "collective"),
        {"variable_update": "collective_all_reduce"},
        {"variable_update": "collective_all_reduce", "all_reduce_spec": "collective"},  # another one on GPUs
    ]


def _threads(num_devices: int) -> list[Texts]:
    """Returns numbers of threads within an operation, or of operations at once.

    TensorFlow gives both all cores. Fewer may be faster if devices compute at the same time, or threads share a core.
    """
    cores = hardware.usable_cores()
    within = sorted({max(1, cores // num_devices), max(1, cores // 2), 1} - {cores}, reverse=True)
    at_once = [{"num_inter_threads": str(num_devices)}] if num_devices != cores else []
    return [{}, *({"num_intra_threads": str(threads)} for threads in within), *at_once]
