"""Every image counts once, whatever the number of towers; evaluations are due when the flags say so."""

from __future__ import annotations

import dataclasses
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from benchmarks.callbacks import evaluation as callback
from benchmarks.callbacks import options
from benchmarks.callbacks.evaluation import EvaluationCallback, Evaluator, result_of
from benchmarks.data.options import InputOptions, of_validation
from benchmarks.data.pipeline import input_pipeline
from benchmarks.data.sources.bad_records import Skipping
from benchmarks.data.sources.data_sets import DATA_SETS
from benchmarks.data.sources.small_images import Pixels
from benchmarks.data.writing import fake_imagenet, photo_records
from benchmarks.errors import DataError
from benchmarks.graph.epochs import Epochs
from benchmarks.measure.run_log import RunLog
from benchmarks.process.deadlines import Deadlines
from benchmarks.training.objectives import in_top
from models import building, specs
from tests.support import damage
from tests.support.images import spec, take
from tests.support.steps import cpu_session

RANDOM = np.random.default_rng(5)
OPTIONS = of_validation(InputOptions(distortions=True))
BATCH = 4


def digits(count: int) -> Pixels:
    images = RANDOM.integers(0, 256, (count, 28, 28, 1)).astype(np.uint8)
    labels = RANDOM.integers(0, 10, count)
    return Pixels(layout="random", directory="", split="validation", images=images, labels=labels)


def by_numpy(pixels: Pixels, weights: list[np.ndarray]) -> dict[str, Any]:
    """Returns the result of a perceptron."""
    kernel, bias, top_kernel, top_bias = weights
    mean, deviation = DATA_SETS["mnist"].mean, DATA_SETS["mnist"].stddev
    x = ((pixels.images - np.array(mean)) / np.array(deviation)).reshape(len(pixels.images), -1)
    logits = np.maximum(x @ kernel + bias, 0) @ top_kernel + top_bias
    order = np.argsort(-logits, axis=1)
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(x)), pixels.labels]
    return {
        "images": len(x),
        "top_1_accuracy": np.mean(order[:, 0] == pixels.labels),
        "top_5_accuracy": np.mean([label in best for label, best in zip(pixels.labels, order[:, :5], strict=True)]),
        "loss": pytest.approx(losses.mean(), rel=1e-5),
    }


def with_state() -> building.Model:
    """A perceptron, with what would change its result if it were training."""
    with building.stateless_building(seed=1):
        images = keras.Input((28, 28, 1))
        x = keras.layers.BatchNormalization(epsilon=0.0, center=False, scale=False)(images)
        x = keras.layers.Dense(100, activation="relu", name="hidden")(keras.layers.Flatten()(x))
        x = keras.layers.Dropout(0.5)(x)
        return building.adapt(keras.Model(images, keras.layers.Dense(10, name="logits")(x)))


@pytest.mark.parametrize("images", [23, 24, 3])
@pytest.mark.parametrize("towers", [1, 2, 3])
def test_the_result_is_that_of_numpy_over_all_images_once(
    images: int, towers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels, names = digits(images), [f"/cpu:{tower}" for tower in range(towers)]
    weights = [RANDOM.normal(0, 0.05, shape).astype(np.float32) for shape in ((784, 100), (100,), (100, 10), (10,))]
    with tf.Graph().as_default():
        mlp, model, values = specs.find_model("mlp"), with_state(), iter(weights)
        variables = {
            variable.name: [tf.Variable(part) for part in np.split(next(values), 2, axis=-1)]
            if variable.kind == "weight"
            else [tf.Variable(variable.initial_value())]
            for variable in model.variables
        }
        read = spec(batch_per_device=BATCH, image_size=28, channels=1, num_classes=10)
        given = input_pipeline.build(mlp, read, names, OPTIONS, pixels, once=True)
        limits: list[float] = []
        deadlines = Deadlines(step_timeout_seconds=20.0)
        monkeypatch.setattr(deadlines.watchdog, "expect", lambda what, seconds: limits.append(seconds))
        evaluator = Evaluator(model, variables, names, given, 10, deadlines)
        with_background = Evaluator(model, variables, names, given, 1001, deadlines)
        with cpu_session(towers) as session:
            session.run(tf.compat.v1.global_variables_initializer())
            expected = by_numpy(pixels, weights)
            assert evaluator.evaluate(session) == expected
            assert limits == [60.0] * len(limits) and len(limits) * BATCH * towers > images, "of every step"
            next(evaluator.steps(session))
            assert evaluator.evaluate(session) == expected  # a pass begins anew
            zeros = np.count_nonzero(pixels.labels == 0)
            counted = {"background_images": zeros} if zeros else {}
            assert with_background.evaluate(session) == {**expected, **counted}


def test_a_logit_that_is_no_number_is_no_correct_answer() -> None:
    nan, inf = np.nan, np.inf
    logits = tf.constant([[nan, nan, nan], [0.0, nan, 1.0], [2.0, 2.0, 1.0], [inf, inf, inf], [inf, 2.0, 1.0]])
    labels = tf.constant([0, 2, 1, 0, 1], tf.int64)
    assert in_top(logits, labels, 1).numpy().tolist() == [False, False, True, False, False]
    assert in_top(logits, labels, 2).numpy().tolist() == [False, True, True, False, True]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("photos")
    fake_imagenet.write(directory, photo_records.split("validation", 11, 4), seed=3)
    return directory


def read_once(directory: Path, batches: int, skipping: bool = False) -> list[tuple[np.ndarray, np.ndarray]]:
    source = input_pipeline.find_source("imagenet", str(directory), "validation")
    skips = Skipping() if skipping else None
    second = spec(worker=1, workers=2)  # reads all images nevertheless
    return take(lambda: input_pipeline.one_pass(source, second, OPTIONS, skips), batches)


def test_photos_come_once_in_their_order_and_are_followed_by_nothing(photos: Path) -> None:
    first, second = read_once(photos, 5), read_once(photos, 5)
    labels = np.concatenate([labels for _, labels in first])
    assert (labels[:11] >= 0).all() and (labels[11:] == input_pipeline.NO_LABEL).all()
    assert {images.shape for images, _ in first} == {(4, 32, 32, 3)}
    for (images, its_labels), (again, same_labels) in zip(first, second, strict=True):
        np.testing.assert_array_equal(images, again)
        np.testing.assert_array_equal(its_labels, same_labels)
    assert len({image.tobytes() for images, _ in first[:3] for image in images}) == 12  # the last one is black


def test_a_bad_photo_is_skipped_or_named(photos: Path, tmp_path: Path) -> None:
    for file in photos.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    damage.corrupt(sorted(tmp_path.glob("validation-*"))[1], "not_jpeg")
    labels = np.concatenate([labels for _, labels in read_once(tmp_path, 4, skipping=True)])
    assert (labels[:10] >= 0).all() and (labels[10:] == input_pipeline.NO_LABEL).all()
    with tf.Graph().as_default():
        trivial, names = specs.find_model("trivial"), ["/cpu:0"]
        model = building.build(trivial, data_format="NHWC", num_classes=1001, seed=1)
        source = input_pipeline.find_source("imagenet", str(tmp_path), "validation")
        size = spec(image_size=trivial.image_size)
        lenient = dataclasses.replace(OPTIONS, on_bad_record="skip")
        inputs = [input_pipeline.build(trivial, size, names, each, source, once=True) for each in (OPTIONS, lenient)]
        weights = {each.name: [tf.Variable(tf.zeros(each.shape, each.dtype))] for each in model.variables}
        evaluator, skipping = (Evaluator(model, weights, names, given, 1001, Deadlines()) for given in inputs)
        with cpu_session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            with pytest.raises(DataError, match="validation-00001-of-00003"):
                evaluator.evaluate(session)
            next(skipping.steps(session))
            assert (skipping.evaluate(session)["images"], skipping.skipped) == (10, 1)
            last = sorted(tmp_path.glob("validation-*"))[-1]
            content = last.read_bytes()
            last.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
            assert (skipping.evaluate(session)["images"], skipping.skipped) == (9, 2), "also after the last good one"


@pytest.mark.parametrize(
    ("wanted", "due"),
    [
        ({"eval_every_steps": 4}, {4, 8, 12}),
        ({"eval_at_steps": (1, 3), "eval_every_steps": 5}, {1, 3, 5, 10}),
        ({"eval_every_epochs": 1.0}, {3, 5, 8, 10}),
        ({"eval_every_epochs": 0.1}, set(range(1, 13))),
        ({"eval_at_epochs": (0.4, 2.0)}, {1, 5}),
        ({}, set()),
    ],
)
def test_an_evaluation_follows_the_step_that_completes_the_epochs(wanted: dict[str, Any], due: set[int]) -> None:
    config = types.SimpleNamespace(evaluation=options.Evaluation(**wanted))
    run: Any = types.SimpleNamespace(config=config, epochs=Epochs(images_per_epoch=50, images_per_step=20))
    evaluation = EvaluationCallback(run, None)
    assert {steps for steps in range(1, 13) if evaluation.is_due(steps, last=False)} == due
    assert all(evaluation.is_due(steps, last=True) != (steps in due) for steps in range(1, 13)), "the last, once"


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"eval_at_steps": (1, 12, 13), "eval_at_epochs": (4.8, 5.0)}, "No evaluation follows step 13, epoch 5: "),
        ({"eval_at_steps": (12,), "eval_at_epochs": (4.8,), "eval_every_steps": 20}, ""),
    ],
)
def test_points_after_the_end_are_named_by_the_process_that_evaluates(
    wanted: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = types.SimpleNamespace(evaluation=options.Evaluation(**wanted))
    epochs = Epochs(images_per_epoch=50, images_per_step=20)
    run: Any = types.SimpleNamespace(config=config, epochs=epochs, last_step=12)
    EvaluationCallback(run, None)
    assert capsys.readouterr().err == ""
    EvaluationCallback(run, object())  # type: ignore[arg-type]
    found = capsys.readouterr().err
    assert (said + "the training ends after step 12." in found) if said else found == ""


def test_an_evaluation_is_timed_without_the_optimisation_of_its_graph_and_ends_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Slow:
        """Takes 100 s in its first step, 1 s in every other one."""

        seconds, now = 100.0, 0.0

        def steps(self, session: object) -> Iterator[np.ndarray]:
            for _ in range(3):
                self.now, self.seconds = self.now + self.seconds, 1.0
                yield np.array([4.0, 2.0, 0.0, 0.0, 0.0])

        def evaluate(self, session: object) -> dict[str, Any]:
            return result_of(np.sum([*self.steps(session)], axis=0))

    evaluator, log = Slow(), RunLog(images_per_step=20, towers=1)
    monkeypatch.setattr(time, "perf_counter", lambda: evaluator.now)
    monkeypatch.setattr(callback, "process_age_seconds", lambda: 30.0 + evaluator.now)
    log.observe(startup_seconds=30.0)
    config = types.SimpleNamespace(evaluation=options.Evaluation(eval_every_steps=1, stop_at_top_1_accuracy=0.5))
    epochs = Epochs(images_per_epoch=50, images_per_step=20)
    display = types.SimpleNamespace(evaluated=lambda result: None)
    run: Any = types.SimpleNamespace(config=config, epochs=epochs, log=log, display=display, session=None, last_step=3)
    evaluation = EvaluationCallback(run, evaluator)  # type: ignore[arg-type]
    assert evaluation.after_step(1) and evaluation.after_step(2)
    assert [(each["images"], each["seconds"]) for each in log.numbers.evaluations] == [(12, 3.0)] * 2
    assert [each["epochs"] for each in log.numbers.evaluations] == [0.4, 0.8]
    assert log.numbers.seconds_to_accuracy == 103.0, "from the first step to the end of the first that reached it"
