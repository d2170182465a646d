"""The arithmetic of a pipeline, the order of its passes, and the share of a step in which its devices are idle."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from benchmarks.data.pipeline.tower_input import TowerInput
from benchmarks.devices import device_plan
from benchmarks.errors import UsageError
from benchmarks.process.tensorflow_setup import Devices
from benchmarks.training import flop_count, pipeline
from benchmarks.training.objectives import Objective, cross_entropy
from models import building
from models.building import Model
from models.layers import Layers
from variable_mgr.place import HOST
from variable_mgr.transfers import DEVICE, Transfer

TWO = ("/cpu:0", "/cpu:1")


def _model() -> Model:
    """Builds a network whose batches matter (batch norm) and in which state passes on (dropout)."""
    with building.stateless_building(seed=5):
        layers = Layers("NHWC")
        images = keras.Input((8, 8, 3))
        x = layers.conv_bn(images, 4, 3, name="first")
        x = layers.add_relu(layers.conv_bn(x, 4, 3, relu=False, name="second"), x, name="block")
        x = keras.layers.Dropout(0.5, seed=7)(layers.dense(layers.flatten(x), 6, name="dense"))
        return building.adapt(keras.Model(images, layers.classifier(x, 5)))


def _batch(images: int) -> TowerInput:
    draw = np.random.default_rng(2)
    pixels = draw.normal(size=(images, 8, 8, 3)).astype(np.float32)
    return TowerInput(tf.constant(pixels), tf.constant(draw.integers(0, 5, images)))


@pytest.mark.parametrize(("stages", "loss_scale"), [(1, None), (2, None), (2, 8.0), (4, None)])
def test_gradients_and_state_are_those_of_the_micro_batches_one_after_the_other(
    stages: int, loss_scale: float | None
) -> None:
    objective, names = Objective(loss=cross_entropy, weight_decay=0.1, with_accuracy=True), TWO * 2
    with tf.Graph().as_default():
        model = _model()
        split = pipeline.plan(model, stages=stages, micro_batches=3)
        manager = split.manager(names[:stages])
        manager.create(model.variables)
        values = dict(zip((variable.name for variable in model.variables), manager.tower_values(0), strict=True))
        batch = _batch(6)
        scale = None if loss_scale is None else tf.constant(loss_scale)
        score, update, _ = pipeline.train(split, batch, names[:stages], values, objective, scale)
        now, losses, gradients = dict(values), [], []
        weights = [variable for variable in model.variables if variable.kind == "weight"]
        for part in range(3):
            logits, state = model.call(list(now.values()), batch.images[2 * part : 2 * part + 2], training=True)
            losses.append(cross_entropy(logits, batch.labels[2 * part : 2 * part + 2]))
            gradients.append(tf.gradients(losses[-1], [now[variable.name] for variable in weights]))
            now |= state
        with tf.compat.v1.Session(config=device_plan.session_config(Devices(num_devices=2))) as session:
            session.run(tf.compat.v1.global_variables_initializer())
            got, wanted = session.run(
                [(score.loss, update.gradients, update.state), (losses, gradients, {n: now[n] for n in update.state})]
            )
            before = session.run(values)
            accuracy = session.run(score.observed)
    assert got[0] == pytest.approx(np.mean(wanted[0]), rel=1e-6)
    for variable, each in zip(weights, zip(*wanted[1], strict=True), strict=True):
        decay = 0.1 * before[variable.name] if variable.decayed else 0.0
        np.testing.assert_allclose(got[1][variable.name], np.mean(each, axis=0) + decay, rtol=1e-4, atol=1e-6)
    assert got[2].keys() == {variable.name for variable in model.variables} - {variable.name for variable in weights}
    for name, value in wanted[2].items():
        np.testing.assert_allclose(got[2][name], value, rtol=1e-6)
        assert not np.array_equal(value, before[name]), f"{name} has moved"
    assert 0.0 <= accuracy["top_1_accuracies"] <= accuracy["top_5_accuracies"] == 1.0


def test_passes_wait_for_their_input_and_for_the_pass_before_on_their_device_and_for_nothing_else() -> None:
    with tf.Graph().as_default(), tf.device(HOST):
        model = _model()
        split = pipeline.plan(model, stages=2, micro_batches=3)
        manager = split.manager(TWO)
        manager.create(model.variables)
        values = dict(zip((variable.name for variable in model.variables), manager.tower_values(0), strict=True))
        _, _, ends = pipeline.train(split, _batch(3), TWO, values, Objective(loss=cross_entropy))
        # FLOPs needed before the end of each pass, [stages, micro-batches].
        forward, backward = (
            np.array([[flop_count.count([end]).flops for end in row.op.inputs] for row in stacked.op.inputs])
            for stacked in (ends.forward, ends.backward)
        )
    (f0, b0), (f1, b1) = ((work.forward_flops, work.backward_flops) for work in split.work)
    np.testing.assert_array_equal(forward[0], [f0, 2 * f0, 3 * f0])
    np.testing.assert_array_equal(forward[1], [f0 + f1, 2 * (f0 + f1), 3 * (f0 + f1)])
    all_forward = 3 * (f0 + f1)
    np.testing.assert_array_equal(backward[1], [all_forward + n * b1 for n in (3, 2, 1)])
    # Of the same micro-batch, stage 0 needs the gradient of the activations only, not those of stage 1's weights.
    of_weights = b1 // 2
    np.testing.assert_array_equal(backward[0], [all_forward + n * (b0 + b1) - of_weights for n in (3, 2, 1)])


def _ends(forward: list[list[float]], backward: list[list[float]]) -> pipeline.PassTimes:
    return pipeline.PassTimes(0.0, np.array(forward), np.array(backward), sent=np.array(backward))


# Two equal stages and micro-batches of which a forward pass takes 1 and a backward pass 2; and one whose passes of
# device 0 take 1 and 2, those of device 1 take 2 and 1.
EQUAL = _ends([[1, 2], [2, 3]], [[9, 7], [7, 5]])
UNEQUAL = _ends([[1, 2], [3, 5]], [[10, 8], [7, 6]])


def test_unequal_stages_by_hand() -> None:
    # Device 0: 1 1 . . . 2 2, with device 1 computing 2 2 from 1 to 5 and 1 1 from 5 to 7.
    # Backward passes of device 0 start when device 1 has finished the same micro-batch: at 6 and 8; they end at 10.
    assert pipeline.idle_shares(UNEQUAL) == pytest.approx([0.4, 0.4])
    assert pipeline.idle_shares(EQUAL) == pytest.approx([1 / 3, 1 / 3])


def test_a_gradient_that_is_sent_before_its_pass_ends_lets_the_stage_before_start() -> None:
    ends = pipeline.PassTimes(1.0, np.array([[3.0], [5.0]]), np.array([[10.0], [9.0]]), sent=np.array([[10.0], [7.0]]))
    # Device 0 computes from 1 to 3 and from 7 to 10, device 1 from 3 to 9.
    assert pipeline.idle_shares(ends) == pytest.approx([4 / 9, 3 / 9])


def test_ends_that_contradict_the_schedule_have_no_idle_shares() -> None:
    assert pipeline.idle_shares(_ends([[4], [3]], [[10], [9]])) is None
    # The second pass of device 1 seems to last 0.1 longer than it did, since the first seems to last -0.1.
    assert pipeline.idle_shares(_ends([[4], [3.9]], [[10], [9]])) == pytest.approx([0.5, 0.5])


def test_facts_are_counted_and_too_many_stages_are_refused() -> None:
    split = pipeline.plan(_model(), stages=2, micro_batches=2)
    facts = split.facts(TWO, images=8)
    # Forward and backward: 64 pixels, 3x3 kernels, 3 and 4 channels to 4; dense 256 to 6 and 6 to 5. The images need
    # no gradient, so the first convolution is computed twice, all else three times.
    first, second, dense = 2 * 64 * 9 * 3 * 4, 2 * 64 * 9 * 4 * 4, 2 * (256 * 6 + 6 * 5)
    assert [stage["flops_per_image"] for stage in facts["stages"]] == [2 * first, 3 * (second + dense)]
    assert facts["stages"][0]["layers"] == "first to first_relu"
    assert facts["stages"][0]["variable_bytes"] == 4 * (9 * 3 * 4 + 4 * 4)
    assert facts["stages"][0]["output_bytes_per_image"] == 4 * 64 * 4
    sent = Transfer(DEVICE, DEVICE, 2 * 8 * 4 * 64 * 4, number=2 * 2, what="activation")
    assert split.transfers(8) == [sent], "of each micro-batch, forward and back"
    assert (facts["micro_batches"], facts["images_per_micro_batch"]) == (2, 4)
    assert facts["idle_share_of_equal_stages"] == pytest.approx(1 / 3)
    with pytest.raises(UsageError, match=r"at most 4 stages.*--pipeline_stages=4 --num_gpus=4"):
        pipeline.plan(_model(), stages=5, micro_batches=2)


def test_measured_idle_shares_are_the_medians_of_steps_that_all_follow_the_schedule() -> None:
    class Session:
        """Returns these ends of steps; of the first, which does not count, nothing is used."""

        def __init__(self, *ends: pipeline.PassTimes) -> None:
            self.ends = [None, *ends]

        def run(self, fetches: object, options: object = None) -> tuple[pipeline.PassTimes | None, None]:
            return self.ends.pop(0), None

    session = Session(UNEQUAL, EQUAL, _ends([[1, 2], [2, 3]], [[8, 7], [7, 5]]))
    measured = pipeline.measured_idle_shares(session, EQUAL, object())  # type: ignore[arg-type]
    assert measured == pytest.approx([3 / 8, 1 / 3])
    impossible = _ends([[1, 4], [2, 3]], [[6, 6], [5, 5]])
    assert pipeline.idle_shares(impossible) is None
    session = Session(EQUAL, impossible, EQUAL)
    assert pipeline.measured_idle_shares(session, EQUAL, object()) is None  # type: ignore[arg-type]
