"""What `recommend` tries, stage by stage: each varies a few flags, on top of the best of those before. No TensorFlow.

First what one device computes, then how several exchange their gradients, last the threads for all of it: no stage
multiplies with another, since the full product would take days.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence

from benchmarks.config import precision_options
from benchmarks.config.config import Config
from benchmarks.config.precision_options import ONEDNN_MODES, PRECISIONS, XLA_MODES, as_matmul_of
from benchmarks.sweep import grid
from benchmarks.sweep.grid import Cell
from benchmarks.system import hardware
from models import specs
from variable_mgr.reductions.algorithms import ALGORITHMS

Texts = Mapping[str, str]

_BATCH_FACTORS = (1, 2, 4, 0.5)
_CHUNKS = ("0", "2", "8")
# Flags that say the same in other words.
_ALSO_SAID_BY = {
    "precision": ("use_fp16",),
    "xla": ("xla_compile",),
    "all_reduce_spec": ("hierarchical_copy", "use_nccl"),
    "gradient_repacking": ("agg_small_grads_max_bytes",),
}
# As a reduction of `replicated` this is what collective_all_reduce does.
_THE_SAME = "collective"


@dataclasses.dataclass(frozen=True)
class Stage:
    """A stage.

    Attributes:
        title: for a person.
        choices: flags that are added to those that are fixed and chosen; the first is the default.
        on_one_device: whether one device suffices to choose.
    """

    title: str
    choices: Sequence[Texts]
    on_one_device: bool


def stages(fixed: Texts, usual: Config, *, any_precision: bool) -> list[Stage]:
    """Returns the stages; one that has nothing to choose has one choice.

    Args:
        fixed: flags that the user has given; they are not varied.
        usual: what these come to.
        any_precision: whether the arithmetic may change.
    """
    one_device = [
        *([Stage("kernels of the CPU", _kernels(fixed), True)] if usual.device == "cpu" else []),
        Stage("layout, precision and compilation", _computing(fixed, usual, any_precision), True),
        Stage("batch size", _batches(fixed, usual), True),
    ]
    managers = _agreeing(_managers(usual), fixed)
    several = usual.num_devices > 1 and not usual.forward_only
    chunks = _axis("gradient_repacking", _CHUNKS if several else (), fixed)
    threads = [Stage("threads of the CPU", _agreeing(_threads(usual), fixed), False)] if usual.device == "cpu" else []
    exchange = [Stage("variable manager", managers, False), Stage("gradient repacking", chunks, False)]
    return [*one_device, *exchange, *threads]


def cells(
    stage: Stage, fixed: Texts, chosen: Texts, usual: Config, count_gpus: Callable[[], int]
) -> list[tuple[Texts, Cell]]:
    """Returns the choices of a stage that differ, each as a cell: what cannot be run says why."""
    alone = {"num_gpus": "1"} if stage.on_one_device and usual.num_devices > 1 else {}
    merged = [{**fixed, **alone, **chosen, **choice} for choice in stage.choices]
    found = grid.cells([{name: [value] for name, value in one.items()} for one in merged], count_gpus)
    return [(choice, cell) for choice, cell in zip(stage.choices, found, strict=True) if not cell.same_as_before]


def _is_fixed(name: str, fixed: Texts) -> bool:
    return any(alias in fixed for alias in (name, *_ALSO_SAID_BY.get(name, ())))


def _axis(name: str, values: Iterable[str], fixed: Texts) -> list[Texts]:
    """Returns the choices of one flag; the empty one alone if it is fixed, or there is nothing to choose."""
    return [{name: value} for value in values if not _is_fixed(name, fixed)] or [{}]


def _kernels(fixed: Texts) -> list[Texts]:
    if _is_fixed("onednn", fixed):
        return [{}]
    other = precision_options.other_onednn_mode(os.environ)
    return [{}, *({"onednn": mode} for mode in ([other] if other else ONEDNN_MODES))]


def _computing(fixed: Texts, usual: Config, any_precision: bool) -> list[Texts]:
    spec = specs.find(usual.model)
    as_matmul = as_matmul_of(spec, forward_only=usual.forward_only) if usual.device == "cpu" else ()
    layouts = sorted(("NHWC", "NCHW"), key=lambda layout: layout != usual.data_format)
    axes = [
        _axis("data_format", layouts, fixed),
        _axis("xla", XLA_MODES, fixed),
        *(_axis(flag, ("false", "true"), fixed) for flag in as_matmul),
        _axis("precision", PRECISIONS if any_precision else (), fixed),
    ]
    merged = [dict(itertools.chain(*(one.items() for one in choices))) for choices in itertools.product(*axes)]

    def can_be(one: Texts) -> bool:  # products only where an image's channels lie side by side
        products = [one[flag] == "true" if flag in one else getattr(usual, flag) for flag in as_matmul]
        return one.get("data_format", usual.data_format) == "NHWC" or not any(products)

    return [one for one in merged if can_be(one)]


def _batches(fixed: Texts, usual: Config) -> list[Texts]:
    sizes = dict.fromkeys(str(max(1, int(factor * usual.batch_per_device))) for factor in _BATCH_FACTORS)
    return _axis("batch_size", sizes, fixed)


def _managers(usual: Config) -> list[Texts]:
    """Returns the managers that train the same model as one device with the whole batch would."""
    if usual.num_devices == 1:
        return [{"variable_update": "parameter_server"}, {"variable_update": "replicated"}]
    places = sorted(("cpu", "gpu"), key=lambda place: place != usual.shared_on)
    shared = [{"variable_update": "parameter_server", "local_parameter_device": place} for place in places]
    if usual.forward_only:
        return [*shared, {"variable_update": "replicated"}]
    reductions = [spec for spec in ALGORITHMS if spec != _THE_SAME]
    return [
        *shared,
        *({"variable_update": "replicated", "all_reduce_spec": spec} for spec in reductions),
        {"variable_update": "collective_all_reduce"},
    ]


def _threads(usual: Config) -> list[Texts]:
    """Returns how many threads an operation may have, or how many operations may run at a time.

    TensorFlow gives both all cores. Fewer may be faster where devices compute side by side, or threads share a core.
    """
    cores, count = hardware.usable_cores(), usual.num_devices
    within = sorted({max(1, cores // count), max(1, cores // 2), 1} - {cores}, reverse=True)
    at_once = {count} - {cores}
    return [
        {},
        *({"num_intra_threads": str(threads)} for threads in within),
        *({"num_inter_threads": str(operations)} for operations in at_once),
    ]


def _agreeing(choices: Iterable[Texts], fixed: Texts) -> list[Texts]:
    """Returns the choices that contradict nothing that is fixed, without it; the empty one if none is left."""
    agreeing: list[Texts] = [
        {name: value for name, value in choice.items() if not _is_fixed(name, fixed)}
        for choice in choices
        if all(fixed.get(name, value) == value for name, value in choice.items())
    ]
    return agreeing or [{}]
