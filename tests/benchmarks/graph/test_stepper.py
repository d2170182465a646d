"""What a step fetches and is fed."""

from __future__ import annotations

import pytest
import tensorflow as tf

from benchmarks.graph import stepper
from benchmarks.training.training_step import Loop, Step
from results.measurement import Observed


@pytest.mark.parametrize("more", [False, True])
def test_a_step_has_its_own_rate_and_its_numbers_their_names(more: bool) -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        rate = tf.compat.v1.placeholder_with_default(9.0, [])
        observed = Observed(top_1_accuracies=tf.constant(0.25), top_5_accuracies=tf.constant(0.75))
        loop = Loop(tf.no_op(), 2.0 * rate, observed=observed, learning_rate=rate)
        options, extra = tf.compat.v1.RunOptions(), [tf.constant(7)] if more else []
        with stepper.stepping(session, Step([loop], []), options, rates=float, steps_before=3) as steps:
            assert steps.take_with is not None
            taken = [steps.take(), steps.take_with(extra, None)[0], steps.take()]
            assert steps.take_with(extra, None)[1] == [7] * more
    assert [step.loss for step in taken] == [6.0, 8.0, 10.0]
    assert [step.observed for step in taken] == [{"top_1_accuracies": 0.25, "top_5_accuracies": 0.75}] * 3
