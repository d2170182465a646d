"""The stages of the input: measured in turns, and what a step waits for."""

from __future__ import annotations

import shutil
import statistics
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import config, devices, flags, input_stages, objectives, run_input, training
from benchmarks.datasets import corrupting
from benchmarks.devices import HOST
from benchmarks.errors import DataError
from benchmarks.input_stages import BARE_DECODE, COPY, Probe, measure
from benchmarks.inputs import TowerInput
from models import building, specs
from variable_mgr import factory
from variable_mgr.modifiers import Modifiers


def _config(*arguments: str) -> config.Config:
    usual = ["--device=cpu", "--model=trivial", "--batch_size=4"]
    return config.resolve(flags.unset(flags.parse([*usual, *arguments], flags.RUN_FLAGS).values), lambda: 0)


def test_probes_take_turns_and_what_lay_ready_is_not_counted() -> None:
    now = [0.0]
    taken = {"fast": 0, "slow": 0}

    def probe(name: str, seconds: float) -> Probe:
        def take() -> None:
            taken[name] += 1
            now[0] += seconds

        return Probe(name, take, images=8, waiting=3)

    turns: list[str] = []
    rates = measure(
        [probe("fast", 0.25), probe("slow", 0.5)],
        rounds=2,
        seconds=1.0,
        clock=lambda: now[0],
        after_turn=turns.append,
    )
    assert turns == ["fast", "slow"] * 2
    assert rates["fast"].images_per_sec == 32 and rates["slow"].images_per_sec == 16
    assert taken == {"fast": 2 * (4 + 4), "slow": 2 * (4 + 2)}
    assert input_stages.ratios(rates["slow"], rates["fast"]) == [0.5, 0.5]


def test_every_stage_of_photos_is_measured(fake_imagenet: Path) -> None:
    chosen = _config(f"--data_dir={fake_imagenet}", "--num_gpus=2")
    source = run_input.find(chosen)
    assert source is not None
    towers = devices.plan("cpu", 2, virtual_gpus=1, shared_on="cpu").towers
    with input_stages.probes(chosen, source, towers) as probes:
        assert [probe.name for probe in probes] == ["read", "parse", "decode", "augment", "batch", BARE_DECODE, COPY]
        rates = measure(probes, rounds=1, seconds=0.05)
    assert all(rate.images_per_sec > 0 for rate in rates.values())
    assert rates[COPY].images == 8 and rates["batch"].images == 4
    assert set(input_stages.measure_after_run(chosen, source)) == {"read", "parse", "decode", "augment", "batch"}


def test_bad_records_do_not_end_the_measurement_where_they_may_be_left_out(fake_imagenet: Path, tmp_path: Path) -> None:
    bad = Path(shutil.copytree(fake_imagenet, tmp_path / "bad"))
    corrupting.corrupt(bad / "train-00001-of-00004", "crc")
    chosen = _config(f"--data_dir={bad}", "--on_bad_record=skip")
    source = run_input.find(chosen)
    assert source is not None
    with input_stages.probes(chosen, source) as probes:
        assert len(measure(probes, rounds=1, seconds=0.1)) == 6
    failing = _config(f"--data_dir={bad}")
    with pytest.raises(DataError, match="record 5 at byte"), input_stages.probes(failing, source) as probes:
        measure(probes, rounds=1, seconds=1.0)
    assert input_stages.measure_after_run(failing, source) == {}, "the run before it was valid"


ARRIVES_LATE_SECONDS = 0.3


@pytest.mark.parametrize("pipelined", [True, False])
@pytest.mark.parametrize("late", [True, False])
def test_a_step_knows_how_long_it_waited(pipelined: bool, late: bool) -> None:
    plan = devices.plan("cpu", 1, virtual_gpus=1, shared_on="cpu")
    spec = specs.find("mlp")
    with tf.Graph().as_default():
        with tf.device(HOST):
            asked = tf.timestamp()
            with tf.control_dependencies([asked]):
                seconds = ARRIVES_LATE_SECONDS if late else 0.0
                drawn = tf.numpy_function(lambda: __import__("time").sleep(seconds) or np.int64(3), [], tf.int64)
            with tf.control_dependencies([drawn]):
                arrived = tf.timestamp()
        images = tf.zeros([4, 28, 28, 1])
        stage = tf.group(drawn) if pipelined else None
        labels = tf.fill([4], tf.constant(3, tf.int64) if pipelined else tf.ensure_shape(drawn, []))
        manager = factory.make("independent", plan.place, shared_devices=plan.shared, modifiers=Modifiers())
        step = training.build_inference_step(
            building.build(spec, data_format="NHWC", num_classes=10, seed=1),
            [TowerInput(images, labels, stage, asked=asked, arrived=arrived)],
            plan,
            manager=manager,
            objective=objectives.Objective(loss=objectives.cross_entropy),
        )
        with tf.compat.v1.Session(config=devices.session_config("cpu", 1)) as session:
            step.initialize(session)
            loop = step.together
            fetches = [loop.observed["input_wait_seconds"], loop.operation]
            waits = [session.run(fetches)[0] for _ in range(7)]
            everything = tf.compat.v1.RunMetadata()
            with_graphs = tf.compat.v1.RunOptions(output_partition_graphs=True)
            session.run(fetches, options=with_graphs, run_metadata=everything)
    ran = {node.op for partition in everything.partition_graphs for node in partition.node}
    assert not pipelined or "Square" in ran, "what the end of computing is waited for by must not be optimised away"
    if late:
        usual = statistics.median(waits[1:])  # a machine that others use may hold up one of them
        assert 0.6 * ARRIVES_LATE_SECONDS < usual < 3 * ARRIVES_LATE_SECONDS
    else:
        assert min(waits) < 0.1 * ARRIVES_LATE_SECONDS


def test_accuracy_is_the_share_of_right_answers() -> None:
    logits = np.eye(8, dtype=np.float32)[[0, 1, 2, 3]] + 0.1 * np.arange(8, dtype=np.float32)
    labels = [0, 1, 7, 0]  # two right; 7 comes second; of the last, 0 comes last
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        objective = objectives.Objective(loss=objectives.cross_entropy, with_accuracy=True)
        score = objective.score(tf.constant(logits), tf.constant(labels, tf.int64))
        found = session.run(dict(score.accuracy))
    assert found == {"top_1_accuracies": 0.5, "top_5_accuracies": 0.75}
