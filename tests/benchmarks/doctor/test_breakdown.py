"""The step-time breakdown's arithmetic and words, from made-up rates."""

from __future__ import annotations

import collections
import dataclasses
import json
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.cli import main
from benchmarks.config import flag, run_flags
from benchmarks.config.workload import Workload
from benchmarks.data import input_verb
from benchmarks.devices import options
from benchmarks.doctor import advice
from benchmarks.doctor.breakdown import Breakdown, Part, Setting, Significance, Stage
from benchmarks.microbench import allreduce_verb
from benchmarks.process.tensorflow_setup import Devices
from benchmarks.tune import recommend_verb
from results.intervals import Interval

GPUS = Setting(
    workload=Workload(batch_per_device=50, num_classes=1001, data_format="NHWC"),
    devices=Devices(device="gpu", num_devices=4),
    precision="fp32",
    manager="parameter_server",
    photos=True,
    takes_xla=True,
)
CPU = dataclasses.replace(
    GPUS,
    workload=dataclasses.replace(GPUS.workload, batch_per_device=8),
    devices=Devices(num_devices=2),
    takes_xla=False,
)
# Images per second of four GPUs of which everything costs something: 1 ms; 500, 50, 250, 50 and 150 ms a step.
RATES = {
    Part.FIXED: 1000.0,
    Part.COMPUTE: 50 / 0.5,
    Part.DEVICES: 200 / 0.55,
    Part.EXCHANGE: 200 / 0.8,
    Part.HOST_COPY: 200 / 0.85,
    Part.INPUT: 200 / 1.0,
}
STUDENT_5 = 2.5705818  # Student's t with 5 degrees of freedom, 95 % in the middle
FAILED, LEFT_OUT = "failed", "left out"
# The verbs that advice sends a reader to.
ADVISED = {
    "recommend": recommend_verb.RECOMMEND_FLAGS,
    "allreduce": allreduce_verb.ALLREDUCE_FLAGS,
    "input": input_verb.INPUT_FLAGS,
}


def measured(setting: Setting = GPUS, noise: float | None = 0.001, **rates: float | str) -> Breakdown:
    """Returns a breakdown with these rates; `real_input=FAILED` and so on for those without one.

    Args:
        setting: devices and batch.
        noise: half the interval, as a share, as five pairs of processes show it; None for single runs of too few steps.
        rates: instead of RATES.
    """
    stages = []
    for part, usual in RATES.items():
        found = rates.get(part.replace(" ", "_"), usual)
        if isinstance(found, str):
            stages.append(Stage(part=part, failed=found == FAILED, reason=f"it was {found}"))
            continue
        apart = None if noise is None else math.exp(noise / STUDENT_5)
        pair = (found / apart, found * apart) if apart else ()
        images = setting.images_of(part)
        stages.append(Stage(part=part, what="what", images_per_sec=Interval(found), rates=pair, images=images))
    return Breakdown(stages)


def all_advice(setting: Setting) -> str:
    """Returns the sentences on a step of which every part takes a second."""
    rates = {}
    for seconds, part in enumerate(Part, start=1):
        images = setting.images_of(part)
        rates[part.replace(" ", "_")] = images / seconds
    words = said(measured(setting, **rates), setting)
    assert words.count("(17%)") == len(Part), "one sentence for each part"
    return words


def added(found: Breakdown) -> dict[str, float]:
    return {cost.part: cost.added.value for cost in found.costs}


def said(found: Breakdown, setting: Setting = GPUS) -> str:
    return "\n".join(advice.sentences(found, setting))


@pytest.mark.parametrize(
    ("part", "at_once", "images"),
    [(Part.FIXED, 4, 1), (Part.COMPUTE, 4, 50), (Part.COMPUTE, 2, 100), (Part.COMPUTE, 1, 200), (Part.DEVICES, 4, 200)],
)
def test_devices_that_share_one_take_their_turns(part: Part, at_once: int, images: int) -> None:
    devices = Devices(device="gpu", num_devices=4, virtual_gpus=4 // at_once)
    assert dataclasses.replace(GPUS, devices=devices).images_of(part) == images


def test_the_most_that_can_be_gained_is_a_bound() -> None:
    found = measured(noise=0.1)
    (cost,) = [cost for cost in found.costs if cost.part == "exchange"]
    assert cost.below.low == pytest.approx(0.55 * math.exp(-0.1))
    assert found.gain(cost) == pytest.approx(cost.added.high / (0.2 + cost.below.low)), "0.2 s are above it"
    assert found.gain(cost) > 0.5 > 1 / 3
    assert found.gain(cost, avoidable=0.0) == 0
    less_noisy = measured(noise=0.05)
    gain = less_noisy.gain(less_noisy.worth_advice[1])
    assert f"Exchange (25%): without it, at most {gain:.0%} more images/s." in said(less_noisy)


@pytest.mark.parametrize("setting", [GPUS, CPU])
def test_devices_that_do_not_disturb_each_other_cost_nothing(setting: Setting) -> None:
    together = 100.0 * setting.at_once
    found = measured(setting, compute=100.0, more_devices=together, exchange=together)
    significance = {cost.part: cost.significance for cost in found.costs}
    assert significance["more devices"] == significance["exchange"] == Significance.NOISE
    lines = advice.shares(found, setting)
    assert "    0%  more devices: no measurable cost; noise could hide 0%" in lines


def test_without_further_devices_their_parts_are_not_there() -> None:
    alone = dataclasses.replace(GPUS, devices=Devices(device="gpu"))
    found = measured(alone, more_devices=LEFT_OUT, exchange=LEFT_OUT, compute=100, host_copy=90, real_input=50)
    step = {"fixed cost": 0.001, "compute": 0.499, "host copy": 50 / 90 - 0.5, "real input": 1 - 50 / 90}
    assert added(found) == pytest.approx(step)
    assert found.failed is None and "failed" not in said(found, alone)
    assert advice.shares(found, alone)[0] == "A step of 50 images takes 1000 ms. Of this:"


def test_of_what_failed_and_comes_after_it_no_cost_is_known() -> None:
    found = measured(exchange=FAILED)
    assert list(added(found)) == ["fixed cost", "compute", "more devices"]
    assert found.step is not None and found.step.value == pytest.approx(0.55)
    assert "Not known: the cost of exchange, whose run failed, and of what comes after it." in said(found)
    assert advice.row(found, Part.HOST_COPY).endswith("  850  unknown, since exchange failed")
    assert advice.shares(found, GPUS)[0] == "A step of 200 images takes 550 ms up to more devices. Of this:"
    assert said(measured(fixed_cost=FAILED)) == "Where the time goes is unknown: the run of fixed cost failed."


@pytest.mark.parametrize("kept", [(), (Part.FIXED,)])
def test_nothing_is_known_if_the_model_never_ran(kept: tuple[Part, ...]) -> None:
    failed = measured(**{part.replace(" ", "_"): FAILED for part in Part if part not in kept})
    stopped = Breakdown(failed.stages[: len(kept)])  # before any stage of the model
    for found in (failed, stopped):
        assert found.step is None and found.worth_advice == [] and advice.shares(found, GPUS) == []
        assert said(found).startswith("Where the time goes is unknown")
        assert found.to_dict()["step_seconds"] is None


def test_a_difference_within_the_intervals_is_noise() -> None:
    found = measured(noise=0.2)
    significance = {cost.part: cost.significance for cost in found.costs}
    assert significance["more devices"] == significance["host copy"] == significance["real input"] == Significance.NOISE
    assert significance["compute"] == Significance.COSTS
    assert "Host copy" not in said(found)
    (line,) = [line for line in advice.shares(found, GPUS) if "host copy" in line]
    hidden = re.search(r"no measurable cost; noise could hide (\d+)%", line)
    assert hidden and 20 < int(hidden[1]) < 40


@pytest.mark.parametrize("repeated", [0, 1])
def test_without_repeats_equal_processes_are_assumed_to_differ_by_a_tenth(repeated: int) -> None:
    stages = [
        Stage(part=part, images_per_sec=Interval(rate, 0.999 * rate, 1.001 * rate), images=GPUS.images_of(part))
        for part, rate in RATES.items()
    ]
    stages[1] = dataclasses.replace(stages[1], rates=[100.0, 100.0] if repeated else ())
    found = Breakdown(stages)
    costs = [cost.part for cost in found.costs if cost.significance is Significance.COSTS]
    assert costs == ["fixed cost", "compute", "exchange"], "0.05 of 0.55 s and 0.15 of 1 s may be chance"
    assert "Nothing was repeated, so equal processes are assumed to differ by 10%" in said(found)
    assert "Nothing was repeated" not in said(measured())


@pytest.mark.parametrize("between", [0.0, 0.01, 0.05])
@pytest.mark.parametrize("processes", [1, 2])
def test_a_stage_that_adds_nothing_seldom_costs_or_saves(between: float, processes: int) -> None:
    random = np.random.default_rng(3)
    parts = (Part.COMPUTE, Part.DEVICES, Part.EXCHANGE, Part.HOST_COPY, Part.INPUT)
    called = 0
    for _ in range(400):
        rates = 100 * np.exp(between * random.standard_normal((len(parts), processes)))
        stages = []
        for part, own in zip(parts, rates, strict=True):
            rate = float(np.exp(np.log(own).mean()))
            bounds, pair = ((0.99 * rate, 1.01 * rate), ()) if processes == 1 else ((), tuple(own))
            stages.append(Stage(part=part, images_per_sec=Interval(rate, *bounds), rates=pair))
        exchange = Breakdown(stages).cost_of(Part.EXCHANGE)
        assert exchange is not None
        called += exchange.significance in (Significance.COSTS, Significance.SAVES)
    assert called <= 0.06 * 400  # 5 % and what 400 trials may differ by


def test_a_small_share_of_a_step_is_no_cost_unless_it_is_the_fixed_one() -> None:
    assert measured().costs[0].significance is Significance.COSTS and "ixed cost" not in said(measured())
    close = measured(noise=0.0, exchange=200 / 0.8, host_copy=200 / 0.81)
    assert {cost.part: cost.significance for cost in close.costs}["host copy"] is Significance.NOISE
    beyond = measured(noise=0.0, exchange=200 / 0.8, host_copy=200 / 0.82)
    assert {cost.part: cost.significance for cost in beyond.costs}["host copy"] is Significance.COSTS


def test_too_few_steps_prove_nothing() -> None:
    found = measured(noise=None)
    assert {cost.significance for cost in found.costs} == {Significance.UNSURE}
    assert found.worth_advice == []
    assert said(found).startswith("Too few steps to tell from noise: fixed cost, compute,")
    assert "--budget_seconds" in said(found)
    assert all("too few steps" in line for line in advice.shares(found, GPUS)[1:])


@pytest.mark.parametrize(("part", "is_most"), [(Part.COMPUTE, False), (Part.HOST_COPY, True)])
def test_what_takes_most_is_said_only_if_nothing_unknown_may_take_more(part: Part, is_most: bool) -> None:
    stages = [
        dataclasses.replace(stage, rates=()) if stage.part is part else stage
        for stage in measured().stages
        if stage.images_per_sec is not None
    ]
    words = said(Breakdown(stages))
    assert ("Most of the time goes to compute: 50%." in words) is is_most
    assert "Too few steps to tell from noise" in words


def test_devices_may_save_time_where_they_share_one() -> None:
    found = measured(CPU, compute=10, more_devices=12, exchange=11.9, host_copy=11.8, real_input=11.7)
    assert {cost.part: cost.significance for cost in found.costs}["more devices"] is Significance.SAVES
    assert any(
        line.endswith("more devices: saves time, or the runs differ by chance") for line in advice.shares(found, CPU)
    )
    assert said(found, CPU).endswith("Nothing else takes 5% or more.")


RATE = st.floats(1e-3, 1e6)


@given(st.lists(st.one_of(RATE, st.sampled_from([FAILED, LEFT_OUT])), min_size=6, max_size=6), st.booleans())
def test_shares_add_up_and_no_gain_is_without_bound(rates: list[float | str], with_intervals: bool) -> None:
    named = {part.replace(" ", "_"): found for part, found in zip(Part, rates, strict=True)}
    found = measured(noise=0.05 if with_intervals else None, **named)
    json.dumps(found.to_dict(), allow_nan=False)
    assert all(advice.sentences(found, GPUS))
    if found.step is not None:
        assert sum(found.share(cost) for cost in found.costs) == pytest.approx(1.0)
        assert sum(cost.added.value for cost in found.costs) == pytest.approx(found.step.value)
        assert all(0 <= found.gain(cost) < float("inf") for cost in found.costs[1:])


@pytest.mark.parametrize(
    ("setting", "words", "is_advised"),
    [
        (GPUS, "try a --batch_size above 50", True),
        (GPUS, "--gpu_thread_mode=gpu_private", True),
        (GPUS, "--local_cluster=worker:4 --num_gpus=1 --variable_update=collective_all_reduce", True),
        (GPUS, "If its GPUs are on one NUMA node ('run_bench.py devices' prints it), ", True),
        (GPUS, "Compute (17%): Try --precision=bf16 (which changes the arithmetic: ", True),
        (CPU, "Compute (17%): Try --precision=bf16 (which changes the arithmetic: ", True),
        (dataclasses.replace(GPUS, in_16_bits="fp16"), "Compute (17%): Try --precision=fp16 (which changes", True),
        (dataclasses.replace(CPU, in_16_bits=None), "Compute (17%): Try a --batch_size above 8", True),
        (dataclasses.replace(GPUS, precision="bf16"), "--precision", False),
        (GPUS, "Try --xla. Try a", True),
        (CPU, "--xla", False),
        (dataclasses.replace(CPU, as_matmul=("conv1x1_as_matmul",)), "Try --conv1x1_as_matmul. ", True),
        (dataclasses.replace(GPUS, as_matmul=("conv1x1_as_matmul",)), "--conv1x1_as_matmul", False),
        (dataclasses.replace(CPU, lacks_onednn=True), "Try --onednn=on. ", True),
        (dataclasses.replace(CPU, lacks_onednn=False), "--onednn", False),
        # parameter_server takes none of them in one process.
        (GPUS, "--compact_gradient_transfer. These flags need --variable_update=replicated. A larger", True),
        (dataclasses.replace(GPUS, manager="replicated"), "Try --compact_gradient_transfer. A larger", True),
        (dataclasses.replace(GPUS, manager="collective_all_reduce"), "These flags need", False),
        (dataclasses.replace(GPUS, precision="fp16"), "--compact_gradient_transfer", False),
        (GPUS, "These images were generated: pass your own with --data_dir", True),
        (dataclasses.replace(GPUS, data_dir="/photos"), "--data_dir=/photos", True),
        (dataclasses.replace(GPUS, data_dir="/photos"), "generated", False),
    ],
)
def test_only_what_can_help_is_advised(setting: Setting, words: str, is_advised: bool) -> None:
    assert (words in all_advice(setting)) == is_advised


@pytest.mark.parametrize(("attained", "gain"), [(0.6, 25), (1.3, 0)])
def test_compute_is_set_beside_the_roofline_if_that_is_known(attained: float, gain: int) -> None:
    words = said(measured(), dataclasses.replace(GPUS, attained=attained))
    reached = f"it reaches {attained:.0%} of the device's roofline; at its bound, at most {gain}% more images/s."
    assert f"Compute (50%): {reached}" in words


@pytest.mark.parametrize("split", [1, 2])
def test_commands_name_virtual_gpus(split: int) -> None:
    shared = dataclasses.replace(GPUS, devices=Devices(device="gpu", num_devices=2 * split, virtual_gpus=split))
    commands = re.findall(r"'run_bench.py (recommend|allreduce) ([^']+)'", all_advice(shared))
    assert {verb for verb, _ in commands} == {"recommend", "allreduce"}
    for verb, words in commands:
        values = flag.parse(words.split(), ADVISED[verb]).values
        given = collections.defaultdict(str, {**values, "num_gpus": int(values["num_gpus"])})
        assert options.choose(given, lambda: 2).virtual_gpus == split, words


@pytest.mark.parametrize("setting", [GPUS, CPU, dataclasses.replace(GPUS, photos=False, data_dir="here")])
def test_all_that_is_advised_exists(setting: Setting) -> None:
    text = all_advice(setting)
    commands = re.findall(r"'run_bench.py ([a-z]+) ([^']+)'", text)
    assert {verb for verb, _ in commands} == {*ADVISED}
    for verb, words in commands:
        assert main.dispatch([verb, "--help"]) == 0, "there is such a verb"
        assert not flag.parse(words.split(), ADVISED[verb]).words, "it has such flags, and parsing raises if not"
    named = set(re.findall(r"--([a-z0-9_]+)", re.sub(r"'run_bench.py [^']+'", "", text)))
    of_a_run = {flag.name for group in run_flags.RUN_FLAGS.values() for flag in group}
    assert len(named) >= 8 and named <= of_a_run


def test_rows_of_the_table() -> None:
    found = measured(real_input=FAILED, host_copy=LEFT_OUT, exchange=200 / 0.551)
    rows = [advice.row(found, part) for part in Part]
    assert rows[0].split() == "fixed cost what 1000.0 (998.8 to 1001.2) 1.00 1.0000 (0.9988 to 1.0012)".split()
    assert rows[3].endswith("no measurable cost") and "1.00 (" in rows[3]
    assert rows[4].endswith("left out: it was left out") and rows[5].endswith("failed: it was failed")
    assert rows[0].index("1000.0 (") + len("1000.0 (998.8 to 1001.2)") == advice.TABLE.line().index("(95 %)") + len(
        "(95 %)"
    )
