"""The step-time breakdown in words: rows of its table, shares of a step, and what to try. Imports no TensorFlow."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.doctor.breakdown import (
    WORTH_ADVICE,
    Breakdown,
    Cost,
    Part,
    Setting,
    Significance,
)
from results.text import Table, rounded

_MANY_TIMES = 10.0
TABLE = Table(
    ("adds", "what ran", "images/s (95 %)", "ms a step", "ms added (95 %)"),
    numbers=("images/s (95 %)", "ms a step"),
    widths=(12, 44, 26, 10, 0),
)


# What to try where a part costs much, in the order in which it is said: the part, its condition if any, the sentence.
_ADVICE: tuple[tuple[Part, Callable[[Setting], object] | None, str], ...] = (
    (
        Part.FIXED,
        None,
        "TensorFlow and the suite need this time for every step: try a --batch_size above {batch}, so that more images "
        "share it.",
    ),
    (
        Part.COMPUTE,
        lambda of: of.in_16_bits and of.precision not in ("bf16", "fp16"),
        "Try --precision={in_16_bits} (which changes the arithmetic: --check_precision reports how far losses move).",
    ),
    (Part.COMPUTE, lambda of: of.takes_xla, "Try --xla."),
    (Part.COMPUTE, lambda of: not of.devices.on_gpu and of.lacks_onednn, "Try --onednn=on."),
    (Part.COMPUTE, lambda of: not of.devices.on_gpu and of.as_matmul, "Try {as_matmul}."),
    (Part.COMPUTE, None, "Try a --batch_size above {batch} if memory suffices."),
    (Part.COMPUTE, None, "{recommend} tries batch sizes and layouts."),
    (
        Part.DEVICES,
        lambda of: of.is_shared,
        "The devices are logical and share the hardware: try fewer with a larger --batch_size, or on a CPU fewer "
        "threads per operation (--num_intra_threads).",
    ),
    (
        Part.DEVICES,
        lambda of: not of.is_shared,
        "Together the devices are slower than one alone, so check what they share: host cores (try "
        "--gpu_thread_mode=gpu_private, or a process per GPU: --local_cluster=worker:{count} --num_gpus=1 "
        "--variable_update=collective_all_reduce), power and cooling.",
    ),
    (
        Part.EXCHANGE,
        None,
        "'run_bench.py allreduce {devices} --model={model}' measures which reduction is the fastest here: try its "
        "--all_reduce_spec with --gradient_repacking=8, as {recommend} does.",
    ),
    # Its default type is float16, which is rejected for gradients of a scaled loss.
    (Part.EXCHANGE, lambda of: of.precision != "fp16", "Try --compact_gradient_transfer."),
    (
        Part.EXCHANGE,
        lambda of: of.manager not in ("replicated", "collective_all_reduce"),
        "These flags need --variable_update=replicated.",
    ),
    (Part.EXCHANGE, None, "A larger --batch_size needs fewer exchanges per image."),
    (Part.HOST_COPY, None, "Images are copied to the devices while these compute: leave --pipelined_input on."),
    (
        Part.HOST_COPY,
        lambda of: of.devices.on_gpu,
        "If its GPUs are on one NUMA node ('run_bench.py devices' prints it), keep the process on its cores (numactl).",
    ),
    (Part.HOST_COPY, lambda of: not of.devices.on_gpu, "On a CPU the copy takes cores from the model."),
    (
        Part.INPUT,
        None,
        "'run_bench.py input --model={model} --data_dir={data_dir}' measures which stage of the input limits.",
    ),
    (Part.INPUT, None, "Try --datasets_parallel_calls, --datasets_num_private_threads, or more cores per device."),
    (Part.INPUT, lambda of: of.photos, "Try --datasets_use_caching, or --decode_scaling for JPEGs."),
    (Part.INPUT, lambda of: not of.data_dir, "These images were generated: pass your own with --data_dir."),
)


def _advice(part: Part, of: Setting) -> str:
    """Returns what a part's cost means and what to try: the sentences whose conditions hold."""
    model, count = of.workload.model, of.devices.num_devices
    split = f" --virtual_gpus={of.devices.virtual_gpus}" if of.devices.virtual_gpus > 1 else ""
    devices = f"--device={of.devices.device} --num_gpus={count}{split}"
    words = {
        "model": model,
        "batch": of.workload.batch_per_device,
        "count": count,
        "devices": devices,
        "recommend": f"'run_bench.py recommend --model={model} {devices}'",
        "in_16_bits": of.in_16_bits,
        "as_matmul": ", ".join(f"--{name}" for name in of.as_matmul),
        "data_dir": of.data_dir or "DIR",
    }
    said = (text for of_part, holds, text in _ADVICE if of_part is part and (holds is None or holds(of)))
    return " ".join(text.format(**words) for text in said)


def row(breakdown: Breakdown, part: Part) -> str:
    """Returns a row of the table: a stage, what it ran in words, and what its part adds."""
    (stage,) = (stage for stage in breakdown.stages if stage.part is part)
    cost, rate = breakdown.cost_of(part), breakdown.rate_of(stage)
    if rate is None:
        return TABLE.line([part, stage.what, f"{'failed' if stage.failed else 'left out'}: {stage.reason}", "", ""])
    if cost is None:
        added = f"unknown, since {breakdown.failed} failed"
    else:
        in_words = "" if cost.significance is Significance.COSTS else f"  {cost.significance}"
        added = f"{cost.added.scaled(1000).text()}{in_words}"
    milliseconds = 1000 * rate.inverse(stage.images).value
    return TABLE.line([part, stage.what, rate.text(), rounded(milliseconds), added])


def shares(breakdown: Breakdown, setting: Setting) -> list[str]:
    """Returns where the time of a step goes, a line per part; empty if nothing is known."""
    if breakdown.step is None:
        return []
    step = breakdown.step.value
    end = f" up to {breakdown.costs[-1].part}" if breakdown.failed else ""
    lines = [f"A step of {setting.images_per_step} images takes {rounded(1000 * step)} ms{end}. Of this:"]
    for cost in breakdown.costs:
        remark = {
            Significance.COSTS: "",
            Significance.NOISE: f": no measurable cost; noise could hide {max(0.0, cost.added.high) / step:.0%}",
            Significance.UNSURE: ": too few steps to tell it from noise",
            Significance.SAVES: ": saves time, or the runs differ by chance",
        }[cost.significance]
        lines.append(f"{breakdown.share(cost):6.0%}  {cost.part}{remark}")
    return lines


def sentences(breakdown: Breakdown, setting: Setting) -> list[str]:
    """Returns warnings, then what takes most of a step, what to try and the most it can gain; largest part first."""
    if breakdown.step is None:
        why = f"the run of {breakdown.failed} failed" if breakdown.failed else "no run of the model has a rate"
        return [f"Where the time goes is unknown: {why}."]
    warnings, unknown = [], []
    if breakdown.failed:
        unknown.append(f"Not known: the cost of {breakdown.failed}, whose run failed, and of what comes after it.")
    unsure = [cost for cost in breakdown.costs if cost.significance is Significance.UNSURE]
    if unsure:
        unknown.append(
            f"Too few steps to tell from noise: {', '.join(cost.part for cost in unsure)}. Pass a larger "
            "--budget_seconds, or a smaller --batch_size."
        )
    if setting.disturbing:
        warnings.append(
            f"This machine is not quiet ({', '.join(setting.disturbing)}), so everything below may be chance: quiet it "
            "and measure again."
        )
    if not breakdown.degrees:
        unknown.append(
            f"Nothing was repeated, so equal processes are assumed to differ by {breakdown.spread:.0%}, which can "
            "hide costs: pass a larger --budget_seconds, with which every stage runs twice."
        )
    worth = breakdown.worth_advice
    most = [f"Most of the time goes to {cost.part}: {breakdown.share(cost):.0%}." for cost in worth[:1]]
    advice = most if worth and all(cost.added.value < worth[0].added.value for cost in unsure) else []
    advice += [_sentence(breakdown, cost, setting) for cost in worth]
    if [cost.part for cost in worth] == [Part.COMPUTE] and not unknown:
        advice.append(f"Nothing else takes {WORTH_ADVICE:.0%} or more.")
    return warnings + advice + unknown


def _sentence(breakdown: Breakdown, cost: Cost, setting: Setting) -> str:
    advice = _advice(cost.part, setting)
    start = f"{cost.part.capitalize()} ({breakdown.share(cost):.0%}):"
    if cost.part is not Part.COMPUTE:
        avoided, avoidable = "without it", 1.0
    elif setting.attained is None:
        return f"{start} {advice}"
    else:
        avoided = f"it reaches {setting.attained:.0%} of the device's roofline; at its bound"
        avoidable = max(0.0, 1 - setting.attained)
    gain = breakdown.gain(cost, avoidable)
    more = f"at most {gain:.0%} more images/s" if gain < _MANY_TIMES else "many times as many images/s"
    return f"{start} {avoided}, {more}. {advice}"
