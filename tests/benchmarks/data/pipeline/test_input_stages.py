"""The stages of the input: measured in turns, and what a step waits for."""

from __future__ import annotations

import functools
import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.config import config
from benchmarks.data.pipeline import imagenet_pipeline, input_pipeline, input_stages
from benchmarks.data.pipeline.input_stages import BARE_DECODE, COPY, Measuring, Probe, measure
from benchmarks.data.pipeline.tower_input import TowerInput
from benchmarks.data.writing import small_image_files
from benchmarks.devices import device_plan
from benchmarks.errors import DataError
from benchmarks.graph import run_graph
from benchmarks.machine import hardware
from benchmarks.process.deadlines import Deadlines
from benchmarks.process.tensorflow_setup import Devices
from benchmarks.training import objectives, training_step
from models import building, specs
from tests.support import damage
from tests.support.images import by_count, measure_by_count
from tests.support.settings import resolve
from tests.support.steps import cpu_session, on_cpus
from tests.support.watchdogs import NotedWatchdog
from variable_mgr import factory
from variable_mgr.modifiers import Modifiers


def _config(*arguments: str) -> config.Config:
    usual = ["--device=cpu", "--model=trivial", "--batch_size=4"]
    return resolve(*usual, *arguments)


def _measured(chosen: config.Config) -> Measuring:
    assert chosen.data.input is not None and chosen.data.data_dir is not None
    source = input_pipeline.find_source(chosen.data.data_name, chosen.data.data_dir, chosen.data.input.split)
    return Measuring(
        source=source,
        spec=run_graph.input_spec(chosen),
        options=chosen.data.input,
        num_devices=chosen.devices.num_devices,
        session_config=device_plan.session_config(Devices(num_devices=chosen.devices.num_devices)),
    )


def test_probes_take_turns_and_what_lay_ready_is_not_counted() -> None:
    now = [0.0]
    taken: list[str] = []

    def probe(name: str, seconds: float) -> Probe:
        def take() -> None:
            taken.append(name)
            now[0] += seconds

        return Probe(name, take, images=8, waiting=3)

    rates = measure(
        [probe("fast", 0.25), probe("slow", 0.5)],
        rounds=2,
        seconds=1.0,
        clock=lambda: now[0],
        sleep=lambda seconds: taken.append(f"{seconds} s"),
    )
    in_turn = [name for name, _ in itertools.groupby(taken)]
    turns = ["0.0 s", "fast", "1.0 s", "slow", "2.0 s", "fast", "1.0 s", "slow"]
    assert in_turn == turns, "a pipeline fills its buffers before the next turn"
    assert rates["fast"].images_per_sec == 32 and rates["slow"].images_per_sec == 16
    assert (taken.count("fast"), taken.count("slow")) == (2 * (4 + 4), 2 * (4 + 2))
    assert rates["slow"].rounds == [16, 16] and rates["fast"].rounds == [32, 32]


def test_each_probe_has_deadlines_of_its_own() -> None:
    watchdog = NotedWatchdog()
    probes = [Probe(name, lambda: None, images=8, waiting=3) for name in ("read", "decode")]
    measure(probes, rounds=1, seconds=5.0, **by_count(), deadlines=Deadlines(watchdog, step_timeout_seconds=10))
    of_probes = [[(f"The input up to '{name}'", 30), (f"The input up to '{name}'", 15)] for name in ("read", "decode")]
    assert watchdog.expected == [*itertools.chain(*of_probes), ("", 0)]


def test_every_stage_of_photos_is_measured(fake_imagenet: Path) -> None:
    chosen = _config(f"--data_dir={fake_imagenet}", "--num_gpus=2")
    towers = on_cpus(2).towers
    measured = _measured(chosen)
    build = functools.partial(run_graph.build_input, chosen.workload, chosen.data, measured.spec, towers)
    with input_stages.probes(measured, build) as probes:
        assert [probe.name for probe in probes] == [*imagenet_pipeline.STAGES, BARE_DECODE, COPY]
        rates = measure(probes, rounds=1, seconds=2, **by_count())
    assert {rate.images_per_sec for name, rate in rates.items() if name != COPY} == {4}, "a batch at each tick"
    assert rates[COPY].images_per_sec == 8, "a batch for each of two towers"


def test_each_stage_reads_in_an_order_of_its_own(fake_imagenet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    usual = input_pipeline.batches

    def batches(source: Any, spec: Any, *more: Any) -> tf.data.Dataset:
        seeds.append(spec.seed)
        return usual(source, spec, *more)

    monkeypatch.setattr(input_pipeline, "batches", batches)
    measured = _measured(_config(f"--data_dir={fake_imagenet}"))
    with input_stages.probes(measured):
        pass
    assert len({measured.spec.seed, *seeds}) == 1 + len(imagenet_pipeline.STAGES), "nor in that of the run"


def test_batches_that_may_lie_ready_are_counted(
    fake_imagenet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "usable_cores", lambda: 2)
    digits = small_image_files.draw("mnist", 64, seed=1, split="train")
    small_image_files.write_idx(tmp_path, *digits, split="train")
    of_photos, of_digits = ("--batch_size=64", f"--data_dir={fake_imagenet}"), ("--model=mlp", f"--data_dir={tmp_path}")
    for words, waiting in ((of_photos, 2 + 1), (of_digits, 2 + 6)):  # prefetched, and made by parallel calls
        with input_stages.probes(_measured(_config(*words))) as probes:
            assert {probe.waiting for probe in probes} == {waiting}


def test_the_stages_are_measured_after_a_run(fake_imagenet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure_by_count(monkeypatch)
    chosen = _config(f"--data_dir={fake_imagenet}")
    assert input_stages.measure_after_run(_measured(chosen)) == dict.fromkeys(imagenet_pipeline.STAGES, 4)


@pytest.mark.slow
def test_a_bad_record_is_left_out_or_ends_the_measurement_and_is_named(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure_by_count(monkeypatch, batches=11)  # more images than there are
    damage.corrupt(copied / "train-00001-of-00004", "crc")
    with input_stages.probes(_measured(_config(f"--data_dir={copied}", "--on_bad_record=skip"))) as probes:
        assert len(input_stages.measure(probes)) == 6
    failing = _config(f"--data_dir={copied}")
    with pytest.raises(DataError, match="record 5 at byte"), input_stages.probes(_measured(failing)) as probes:
        input_stages.measure(probes)
    assert input_stages.measure_after_run(_measured(failing)) == {}, "the run before it was valid"


@pytest.mark.row("G1.4")
@pytest.mark.parametrize("arrives_in_seconds", [1000.0, -1000.0])
@pytest.mark.parametrize("pipelined", [True, False])
def test_a_step_knows_how_long_it_waited(pipelined: bool, arrives_in_seconds: float) -> None:
    """A staged batch is waited for from the end of computing on, another one from when it was asked for."""
    plan = on_cpus(1)
    asked = time.time()
    arrived = asked + arrives_in_seconds
    computed: list[float] = []

    def compute(images: np.ndarray) -> np.ndarray:
        time.sleep(0.1)  # what does not wait for it is done by then
        computed.append(time.time())
        return images

    with tf.Graph().as_default():
        images = tf.numpy_function(compute, [tf.zeros([4, 28, 28, 1])], tf.float32)
        tower = TowerInput(
            tf.ensure_shape(images, [4, 28, 28, 1]),
            tf.fill([4], tf.constant(3, tf.int64)),
            tf.no_op() if pipelined else None,
            asked=tf.constant(asked, tf.float64),
            arrived=tf.constant(arrived, tf.float64),
        )
        step = training_step.build_inference_step(
            building.build(specs.find_model("mlp"), data_format="NHWC", num_classes=10, seed=1),
            [tower],
            plan,
            manager=factory.make("independent", plan.place, shared_devices=plan.shared, modifiers=Modifiers()),
            objective=objectives.Objective(loss=objectives.cross_entropy),
        )
        with cpu_session() as session:
            step.initialize(session)
            loop = step.loops[0]
            everything = tf.compat.v1.RunMetadata()
            waited, _ = session.run(
                [loop.observed["input_wait_seconds"], loop.operation],
                options=tf.compat.v1.RunOptions(output_partition_graphs=True),
                run_metadata=everything,
            )
    ran = {node.op for partition in everything.partition_graphs for node in partition.node}
    assert not pipelined or "Square" in ran, "what the end of computing is waited for by must not be optimised away"
    if arrives_in_seconds < 0:
        assert waited == 0
    elif pipelined:
        assert computed[-1] <= arrived - waited <= time.time(), "it waits from the end of computing on"
    else:
        assert waited == pytest.approx(arrives_in_seconds, abs=1e-6)


def test_accuracy_is_the_share_of_right_answers() -> None:
    logits = np.eye(8, dtype=np.float32)[[0, 1, 2, 3]] + 0.1 * np.arange(8, dtype=np.float32)
    labels = [0, 1, 7, 0]  # two right; 7 comes second; of the last, 0 comes last
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        objective = objectives.Objective(loss=objectives.cross_entropy, with_accuracy=True)
        score = objective.score(tf.constant(logits), tf.constant(labels, tf.int64))
        found = session.run(dict(score.observed))
    assert found == {"top_1_accuracies": 0.5, "top_5_accuracies": 0.75}


@pytest.mark.row("G1.2")
def test_the_shuffle_buffer_is_full_until_the_epoch_ends(fake_imagenet: Path) -> None:
    chosen = _config(f"--data_dir={fake_imagenet}", "--datasets_shuffle_records=4")
    found = input_stages.shuffle_buffer(_measured(chosen), seconds=3, clock=itertools.count().__next__)
    assert found["capacity"] == 4 and found["fill_seconds"] == 1
    assert 2 <= found["at_start"] <= 4, "refilled between draws"
    assert 0 <= found["least"] <= found["at_end"] <= 4 and 0 <= found["share_half_full"] <= 1


def test_a_buffer_larger_than_an_epoch_never_fills(fake_imagenet: Path) -> None:
    chosen = _config(f"--data_dir={fake_imagenet}", "--datasets_shuffle_records=1000")
    found = input_stages.shuffle_buffer(_measured(chosen), seconds=1, clock=itertools.count().__next__)
    assert found["at_start"] < 100 and found["share_half_full"] == 0
    assert input_stages.shuffle_buffer_in_words(found).endswith("an epoch has fewer records than it holds.")


def test_the_buffer_of_the_epoch_that_is_drawn_from_counts() -> None:
    """Those of the next epochs are filled ahead; one that is over is empty."""
    samples = [
        np.array([*held, *[0] * (64 - len(held))]) for held in ([8, 8, 8], [1, 8, 8], [0, 7, 8, 8], [0, 0, 0, 9])
    ]
    assert input_stages._in_drawn_buffer(samples, 8) == [8, 1, 7, 8]


def test_sentences_on_the_shuffle_buffer() -> None:
    found = {"capacity": 256, "fill_seconds": 1.5, "at_start": 256, "at_end": 255, "least": 3, "share_half_full": 0.9}
    assert input_stages.shuffle_buffer_in_words(found) == (
        "Shuffle buffer: 256 of 256 records after the first batch, which took 1.50 s; 255 at the end, never "
        "fewer than 3. It was at least half full in 90% of the samples. It empties at the end of each epoch."
    )
