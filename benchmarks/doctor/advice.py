"""What the ladder found, for a person: rows of a table, shares, and what to try next. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

from benchmarks.doctor.breakdown import NEVER_SAVE, Cost, Ladder, Part, Rung, Span, Verdict

# A part that takes less of a step than this is not worth a sentence.
WORTH_A_WORD = 0.05
# Where runs differ by this share of a step by chance, no part of it is worth one either.
_TOO_MUCH_CHANCE = 0.25
_MANY_TIMES = 10.0
_PART, _WHAT, _RATE, _STEP = 12, 44, 26, 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """What the rungs ran, as far as advice depends on it.

    Attributes:
        model: its name.
        device: `cpu` or `gpu`.
        num_devices: of a step.
        at_once: devices that can really compute at the same time.
        batch_per_device: images.
        precision: of the arithmetic.
        manager: as the user spells it.
        photos: whether its data are photos, which are decoded.
        virtual_gpus: logical GPUs that each physical one is split into.
        has_bf16: whether the device has instructions for bfloat16.
        as_matmul: names of flags that compute some of the model's convolutions as matrix products.
        other_onednn: the mode of --onednn that TensorFlow does not take by itself; None if the user has decided.
        data_dir: where the user's data are; None if they were made up.
        attained: the share of what the device could do at best that computing reaches; None if nobody knows.
        disturbing: names of what disturbs measurements on the machine, as it was seen before the first rung.
    """

    model: str
    device: str
    num_devices: int
    at_once: int
    batch_per_device: int
    precision: str
    manager: str
    photos: bool
    virtual_gpus: int = 1
    has_bf16: bool = True
    as_matmul: Sequence[str] = ()
    other_onednn: str | None = None
    data_dir: str | None = None
    attained: float | None = None
    disturbing: Sequence[str] = ()


def heading() -> str:
    """Returns the head of the table of rungs."""
    return (
        f"{'adds':{_PART}}  {'what ran':{_WHAT}}  {'images/s (95 %)':>{_RATE}}  {'ms a step':>{_STEP}}  ms added (95 %)"
    )


def row(rung: Rung, what: str, cost: Cost | None) -> str:
    """Returns a line of the table.

    Args:
        rung: of which it is.
        what: ran.
        cost: what it adds; None if it has no rate.
    """
    start = f"{rung.part:{_PART}}  {what:{_WHAT}}"
    if cost is None or rung.images_per_sec is None:
        return f"{start}  {'failed' if rung.failed else 'left out'}: {rung.reason}"
    together = f" with {', '.join(cost.parts[:-1])}" if len(cost.parts) > 1 else ""
    in_words = "" if cost.verdict is Verdict.COSTS else f"  {cost.verdict}"
    return (
        f"{start}  {_with_interval(rung.images_per_sec):>{_RATE}}  {_figures(1000 * cost.up_to.value):>{_STEP}}  "
        f"{_with_interval(_milliseconds(cost.added))}{in_words}{together}"
    )


def shares(ladder: Ladder, setting: Setting) -> list[str]:
    """Returns where the time of a step goes, a line per part; empty if nothing is known."""
    if ladder.step is None:
        return []
    step, images = ladder.step.value, setting.num_devices * setting.batch_per_device
    lines = [
        f"A step of {images} images takes {_figures(1000 * step)} ms. Of this:",
        *(f"{ladder.share(cost):6.0%}  {cost.name}{_doubt(cost, step)}" for cost in ladder.costs),
    ]
    return [*lines, *(f"     ?  {rung.part}: its run failed, and it is not in the step" for rung in ladder.unknown)]


def _doubt(cost: Cost, step_seconds: float) -> str:
    if cost.verdict is Verdict.NOISE and cost.added.high is not None:
        return f": no measurable cost; noise could hide {max(0.0, cost.added.high) / step_seconds:.0%}"
    if cost.verdict is Verdict.UNSURE:
        return ": too few steps to tell it from noise"
    if cost.verdict is Verdict.SAVES:
        return ": seems to save time" if cost.parts[-1] in NEVER_SAVE else ": saves time"
    return ""


def sentences(ladder: Ladder, setting: Setting) -> list[str]:
    """Returns what takes most of a step, what to try, and what that gains at most; the largest part first."""
    if ladder.step is None:
        return ["Nothing is known of where the time goes: no run of the model has a rate."]
    chance = ladder.impossible
    if chance and -ladder.share(chance) >= _TOO_MUCH_CHANCE:
        return [*_unrest(setting), *_chance(ladder), *_doubts(ladder)]
    worth = [cost for cost in ladder.known if ladder.share(cost) >= WORTH_A_WORD]
    most = [f"Most of the time goes to {cost.name}: {ladder.share(cost):.0%}." for cost in worth[:1]]
    unsure = max((cost.added.value for cost in ladder.costs if cost.verdict is Verdict.UNSURE), default=0.0)
    said = _unrest(setting) + _chance(ladder) + (most if worth and worth[0].added.value > unsure else [])
    said += [_next(ladder, cost, setting) for cost in worth]
    if [cost.parts for cost in worth] == [(Part.COMPUTE,)] and not (_chance(ladder) or _doubts(ladder)):
        said.append(f"Nothing else takes {WORTH_A_WORD:.0%} or more.")
    return said + _doubts(ladder)


def _unrest(setting: Setting) -> list[str]:
    """Returns what to doubt all else for, where the machine was not quiet."""
    if not setting.disturbing:
        return []
    return [
        f"This machine is not quiet ({', '.join(setting.disturbing)}). Intervals rest on the steps of one or two "
        "processes, and hardly show how much that makes processes differ, so what is said below may be chance: let the "
        "machine be quiet, and look again."
    ]


def _chance(ladder: Ladder) -> list[str]:
    """Returns how much runs differ by chance, where that shows."""
    chance = ladder.impossible
    if chance is None:
        return []
    return [
        f"{_begin(chance.name)} seems to save {-ladder.share(chance):.0%}, which it cannot: on this machine, as it is "
        "now, runs differ by so much by chance, and less means nothing. Let it be quiet, and look again."
    ]


def _doubts(ladder: Ladder) -> list[str]:
    """Returns what is not known, and how it might be."""
    said = []
    if ladder.unknown:
        said.append(f"Not known, since its run failed: what {', '.join(rung.part for rung in ladder.unknown)} costs.")
    unsure = [cost.name for cost in ladder.costs if cost.verdict is Verdict.UNSURE]
    if unsure:
        said.append(
            f"Too few steps to tell from noise: {', '.join(unsure)}. Say a longer --time_limit_seconds, or a smaller "
            "--batch_size."
        )
    return said


def _next(ladder: Ladder, cost: Cost, setting: Setting) -> str:
    advice = " ".join(_ADVICE[part](setting) for part in cost.parts)
    takes = f"{_begin(cost.name)} ({ladder.share(cost):.0%})"
    if Part.COMPUTE not in cost.parts:
        return f"{takes}: without it, {_more(ladder.gain(cost))}. {advice}"
    if setting.attained is None:
        return f"{takes}: {advice}"
    avoidable = max(0.0, 1 - setting.attained)
    return (
        f"{takes}: it reaches {setting.attained:.0%} of what the device could do at best; there, "
        f"{_more(ladder.gain(cost, avoidable))}. {advice}"
    )


def _more(gain: float) -> str:
    return f"at most {gain:.0%} more images/s" if gain < _MANY_TIMES else "many times as many images/s"


def _fixed(setting: Setting) -> str:
    return (
        f"This is what TensorFlow and the suite need for any step: spread it over more images by a --batch_size above "
        f"{setting.batch_per_device}."
    )


def _compute(setting: Setting) -> str:
    lower = setting.has_bf16 and setting.precision not in ("bf16", "fp16")
    tried = {
        "--precision=bf16 (which changes the arithmetic: --check_precision says how far losses move)": lower,
        "--xla": setting.device == "gpu",
        "--onednn=on": setting.device == "cpu" and setting.other_onednn == "on",
        **{f"--{name}": setting.device == "cpu" for name in setting.as_matmul},
    }
    own = [flag for flag, helps in tried.items() if helps]
    tries = ", ".join([*own, f"a --batch_size above {setting.batch_per_device} if memory suffices"])
    return f"Try {tries}; {_recommend(setting)} tries batch sizes and layouts."


def _recommend(setting: Setting) -> str:
    return f"'run_bench.py recommend --model={setting.model} {_where(setting)}'"


def _where(setting: Setting) -> str:
    """Returns the flags of the devices, without which a command would refuse more logical GPUs than physical ones."""
    split = f" --virtual_gpus={setting.virtual_gpus}" if setting.virtual_gpus > 1 else ""
    return f"--device={setting.device} --num_gpus={setting.num_devices}{split}"


def _devices(setting: Setting) -> str:
    if setting.at_once < setting.num_devices:
        return (
            "The devices are logical and share what computes: use fewer with a larger --batch_size, or on a CPU give "
            "each operation fewer threads (--num_intra_threads)."
        )
    return (
        "Side by side the devices are slower than one alone: look for what they share, which is the host's cores (try "
        f"--gpu_thread_mode=gpu_private, or a process per GPU: --local_cluster=worker:{setting.num_devices}), power "
        "and cooling."
    )


def _exchange(setting: Setting) -> str:
    first = "" if setting.manager == "replicated" else "--variable_update=replicated with "
    # Its usual type is float16, which is refused for gradients of a scaled loss.
    shorter = "" if setting.precision == "fp16" else " or --compact_gradient_transfer"
    return (
        f"'run_bench.py allreduce {_where(setting)} --model={setting.model}' says which reduction is the fastest here; "
        f"then try {first}its --all_reduce_spec, --gradient_repacking=8{shorter}, or let {_recommend(setting)} look. "
        "With a larger --batch_size there are fewer exchanges per image."
    )


def _host_copy(setting: Setting) -> str:
    where = (
        "keep the process on the cores next to its GPUs (numactl)"
        if setting.device == "gpu"
        else "on a CPU it takes the cores that compute"
    )
    return f"Images go from the host to the devices, beside the computing: leave --pipelined_input on; {where}."


def _input(setting: Setting) -> str:
    directory = setting.data_dir or "DIR"
    said = f"'run_bench.py input --model={setting.model} --data_dir={directory}' says which stage of it limits; "
    faster = "--decode_scaling, --datasets_use_caching, " if setting.photos else ""
    said += f"then try {faster}--datasets_parallel_calls, --datasets_num_private_threads, or more cores per device."
    return said if setting.data_dir else f"{said} The images were made up: name your own with --data_dir."


_ADVICE: Mapping[Part, Callable[[Setting], str]] = {
    Part.FIXED: _fixed,
    Part.COMPUTE: _compute,
    Part.DEVICES: _devices,
    Part.EXCHANGE: _exchange,
    Part.HOST_COPY: _host_copy,
    Part.INPUT: _input,
}


def _begin(words: str) -> str:
    return words[:1].upper() + words[1:]


def _milliseconds(span: Span) -> Span:
    low, high = (None if bound is None else 1000 * bound for bound in (span.low, span.high))
    return Span(1000 * span.value, low, high)


def _with_interval(span: Span) -> str:
    if span.low is None or span.high is None:
        return _figures(span.value)
    return f"{_figures(span.value)} ({_figures(span.low)} to {_figures(span.high)})"


def _figures(number: float) -> str:
    """Returns a number with three figures at least, and none after the point that say nothing."""
    if number == 0:
        return "0"
    return f"{number:.{max(0, 2 - math.floor(math.log10(abs(number))))}f}"
