from __future__ import annotations

import itertools
import math
import random
import re
import statistics

import pytest
from msgspec.structs import replace

from benchmarks import console
from benchmarks.measure.display import FIRST_STEP, Display
from benchmarks.measure.timing import Phase
from results.measurement import Derived, derive
from results.record import Status
from tests.support.records import fake_run, make_record

RULE = "-" * 64


class TfCnnBenchmarks:
    """What tf_cnn_benchmarks prints from its heading to its result, of steps that took these times.

    Written from its format strings: the rate is of the mean step time; the uncertainty is the standard deviation of the
    steps' rates over the root of their number; the jitter is 1.4826 times the median absolute deviation.
    """

    def __init__(self, batch: int, every: int, *, accuracies: bool) -> None:
        self.batch, self.every, self.accuracies = batch, every, accuracies

    def output(self, seconds: list[float], losses: list[float], observed: dict[str, list[float]]) -> str:
        lines = ["Step\tImg/sec\ttotal_loss" + "\ttop_1_accuracy\ttop_5_accuracy" * self.accuracies]
        for step in range(1, len(seconds) + 1):
            if step == 1 or step % self.every == 0:
                lines.append(self.line(step, seconds[:step], losses[step - 1]))
                if self.accuracies:
                    lines[-1] += "".join(f"\t{numbers[step - 1]:.3f}" for numbers in observed.values())
        total = self.batch * len(seconds) / math.fsum(seconds)
        return "\n".join([*lines, RULE, f"total images/sec: {total:.2f}", RULE, ""])

    def line(self, step: int, seconds: list[float], loss: float) -> str:
        rates = [self.batch / each for each in seconds]
        mean = self.batch / (math.fsum(seconds) / step)
        uncertainty = statistics.pstdev(rates) / math.sqrt(step)
        median = statistics.median(rates)
        jitter = 1.4826 * statistics.median(abs(rate - median) for rate in rates)
        return f"{step}\timages/sec: {mean:.1f} +/- {uncertainty:.1f} (jitter = {jitter:.1f})\t{loss:.3f}"


@pytest.mark.row("G1.5")
@pytest.mark.parametrize("accuracies", [False, True])
@pytest.mark.parametrize("every", [1, 3, 10, 100])
def test_lines_are_those_of_tf_cnn_benchmarks_to_the_byte(
    every: int, accuracies: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = random.Random(every)
    seconds = [draw.uniform(0.001, 3.0) for _ in range(31)]
    losses = [draw.uniform(0.0, 20.0) for _ in seconds]
    names = ("top_1_accuracies", "top_5_accuracies") if accuracies else ()
    observed = {name: [draw.random() for _ in seconds] for name in names}
    display = Display(96, display_every=every, accuracies=accuracies, loss_type="total_loss")
    display.phase("measuring", len(seconds))
    for step in range(1, len(seconds) + 1):
        so_far = {name: numbers[:step] for name, numbers in observed.items()}
        display.after_step(Phase(seconds[:step], losses[:step], observed=so_far))
    display.stop()
    measured = replace(make_record().measurement, images_per_step=96, step_seconds=seconds, losses=losses)
    display.finish(make_record(measurement=measured, derived=derive(measured, 1)))
    expected = TfCnnBenchmarks(96, every, accuracies=accuracies).output(seconds, losses, observed)
    assert capsys.readouterr().out.startswith(expected)


def test_no_other_line_looks_like_a_rate_or_an_accuracy_to_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    last = {"step": 2, "epochs": 1.0, "loss": 1.0, "images": 8, "seconds": 2.0}
    last |= {"top_1_accuracy": 0.5, "top_5_accuracy": 0.75}
    seconds = [0.1 + 0.01 * (step % 3) for step in range(30)]
    measured = replace(
        make_record().measurement, step_seconds=seconds, worker_step_seconds=[seconds, [250.0]], evaluations=[last]
    )
    display = Display(16, display_every=1)
    display.phase("measuring", len(seconds))
    for step in range(1, len(seconds) + 1):
        display.after_step(Phase(seconds[:step], [1.0] * step))
    display.evaluated(last)
    display.finish(make_record(measurement=measured, derived=derive(measured, 2)))
    display.part(measured, "worker 1", "worker 0")
    display.part(replace(measured, images_per_step=8, step_seconds=[250.0] * 2), "worker 2", "worker 0")
    lines = capsys.readouterr().out.splitlines()
    assert any(re.match(r"workers: +[\d.]+, 0\.\d{5,} images/s", line) for line in lines), "more than two decimals"
    assert lines[-1].startswith("worker 2: 0.032000 images/s in 2 steps")
    for name in ("95 % interval:", "per device:", "workers:", "evaluation:", "worker 1:"):
        assert any(line.startswith(name) for line in lines), name
    rates = [line for line in lines if "images/sec" in line]
    steps = [re.match(r"([0-9]+)\s+images\/sec: ([0-9\.]+) \+\/- ([0-9\.]+) \(jitter =", line) for line in rates[:-1]]
    assert len(steps) == len(seconds) and all(steps), (
        "scripts read every line with images/sec, but the total, as a step"
    )
    assert rates[-1].split()[:2] == ["total", "images/sec:"], "`grep images/sec | tail -1`"
    accuracies = [line for line in lines if "Accuracy @" in line]
    assert [line.split()[9] for line in accuracies] == ["0.7500"], "`grep 'Accuracy @ 5' | awk '{print $10}'`"


def test_the_penalty_is_computed_before_each_printed_step_and_at_no_other_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    done: list[str] = []

    def penalty() -> float:
        done.append("penalty")
        return 10.0 * done.count("penalty")

    display = Display(8, display_every=3, loss_type="total_loss")
    display.add_penalty(penalty)
    assert done == ["penalty"], "what it needs is prepared before any step"
    for name, steps in ((FIRST_STEP, 1), ("warm-up", 4), ("measuring", 7)):
        display.phase(name, steps)
        phase = Phase()
        for step in range(1, steps + 1):
            done.append(f"{name} {step}")
            phase.step_seconds.append(0.5)
            phase.losses.append(0.25)
            display.after_step(phase)
    before_a_step = [after for before, after in itertools.pairwise(done) if before == "penalty"]
    assert before_a_step == ["first step 1", "measuring 1", "measuring 3", "measuring 6"]
    losses = re.findall(r"^\d\timages.*\t(\S+)$", capsys.readouterr().out, re.MULTILINE)
    assert losses == ["20.250", "30.250", "40.250"], "each with the penalty from right before it"


def test_the_record_alone_needs_no_penalty() -> None:
    Display().add_penalty(lambda: pytest.fail("it is not printed"))


def test_a_failure_is_a_word_since_its_reason_is_printed_as_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display(8, display_every=3)
    display.start({"Model": "trivial"})
    display.finish(make_record(status=Status.OUT_OF_MEMORY, reason="No memory.", derived=Derived()))
    assert capsys.readouterr().out.splitlines()[-1] == "status:         oom"


def test_what_to_try_is_the_last_line_of_text_and_none_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    run = fake_run(num_devices=1, reasons={"num_devices": "a default"})
    run = replace(run, environment={**run.environment, "gpus": ["NVIDIA T4 15 GiB"] * 2})
    display = Display(8, display_every=3, hardware="1 x NVIDIA T4 (of 2; 1 unused)")
    display.start({"Model": "trivial", "Devices": "1 GPU"})
    display.stored(run, "somewhere")
    out = capsys.readouterr().out
    assert "Model:   trivial\nDevices: 1 GPU: 1 x NVIDIA T4 (of 2; 1 unused)\n===" in out
    assert out.splitlines()[-1].startswith("try:            --num_gpus=2 uses all GPUs")
    Display().stored(run, "somewhere")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("display", [Display(8), Display(8, display_every=1)])
def test_measured_steps_are_silent_for_the_thread_and_the_first_is_not(
    display: Display, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "_FIRST_LINE_SECONDS", 0.0)
    for name, steps, is_silent in (
        ("building the graph", None, False),
        (FIRST_STEP, 1, False),
        ("warm-up", 4, True),
        ("measuring", 4, True),
        ("measuring the input's stages", None, False),
    ):
        display.phase(name, steps)
        capsys.readouterr()
        console.progress.look()
        assert (capsys.readouterr().err == "") == is_silent, name
    display.stop()
