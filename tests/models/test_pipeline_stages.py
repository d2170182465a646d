"""A model in stages is still the same model, and its stages are balanced."""

from __future__ import annotations

import itertools

import numpy as np
import tensorflow as tf

from benchmarks.devices import device_plan
from benchmarks.process.tensorflow_setup import Devices
from models import building, pipeline_stages, specs
from models.building import Model
from models.model_spec import ModelSpec
from tests.support.models import small_models


def _fresh(spec: ModelSpec) -> Model:
    """Builds a model of its own: stages become part of its layers."""
    return building.build(spec, data_format="NHWC", num_classes=spec.classes + 1, seed=1)


@small_models
def test_all_stages_make_the_whole(spec: ModelSpec) -> None:
    model = _fresh(spec)
    parts = pipeline_stages.cut(model, pipeline_stages.cut_points(model))
    assert sorted(v.name for part in parts for v in part.variables) == sorted(v.name for v in model.variables)
    assert parts[0].input_shape == (spec.image_size, spec.image_size, spec.channels)
    with tf.Graph().as_default(), tf.device(device_plan.HOST):
        values = [variable.initial_value() for variable in model.variables]
        by_name = {variable.name: value for variable, value in zip(model.variables, values, strict=True)}
        images = tf.random.stateless_normal((2, *parts[0].input_shape), (1, 2))
        logits, state = model.call(values, images, training=True)
        outputs, its_state = images, {}
        for part in parts:
            outputs, new = part.call(by_name, outputs)
            its_state |= new
        with tf.compat.v1.Session(config=device_plan.session_config(Devices())) as session:
            whole, chained = session.run([(logits, state), (outputs, its_state)])
    np.testing.assert_allclose(chained[0], whole[0], rtol=1e-5, atol=1e-5)
    assert chained[1].keys() == whole[1].keys()
    for name, value in whole[1].items():
        np.testing.assert_allclose(chained[1][name], value, rtol=1e-5, atol=1e-6)


def test_blocks_with_branches_are_not_cut() -> None:
    model = _fresh(specs.find_model("resnet20"))
    ends = [stage.layers[1] for stage in pipeline_stages.cut(model, pipeline_stages.cut_points(model))]
    blocks = [
        f"stage{stage}_block{block}_{end}" for stage in (1, 2, 3) for block in (1, 2, 3) for end in ("add", "relu")
    ]
    assert ends == ["stem", "stem_bn", "stem_relu", *blocks, "global_average", "logits"]
    inception = _fresh(specs.find_model("inception3"))
    ends = [stage.layers[1] for stage in pipeline_stages.cut(inception, pipeline_stages.cut_points(inception))]
    assert [end for end in ends if "35" in end] == ["mixed35_1", "mixed35_2", "mixed35_3", "reduce35"]


def test_the_most_expensive_stage_is_as_cheap_as_possible() -> None:
    # 3+4 | 6 | 2+3: in all other groupings of these in three, one has 8 or more.
    assert pipeline_stages.balanced([3, 4, 6, 2, 3], [1, 1, 1, 1, 1], 3) == [1, 2]
    assert pipeline_stages.balanced([3, 4, 6, 2, 3], [1, 1, 1, 1, 1], 1) == []
    # 4+4 | 2+2+4: the piece without cost goes where less is sent, and otherwise stays with the piece before it.
    assert pipeline_stages.balanced([4, 4, 0, 2, 2, 4], [9, 9, 5, 9, 9, 9], 2) == [2]
    assert pipeline_stages.balanced([4, 4, 0, 2, 2, 4], [9, 5, 9, 9, 9, 9], 2) == [1]
    assert pipeline_stages.balanced([4, 4, 0, 2, 2, 4], [9, 9, 9, 9, 9, 9], 2) == [2]


def test_every_stage_has_some_work() -> None:
    assert pipeline_stages.balanced([0, 3, 0, 5, 0], [1, 1, 1, 1, 1], 2) == [2]
    assert pipeline_stages.balanced([0, 3, 0, 5, 0], [1, 1, 1, 1, 1], 3) is None


def test_no_other_grouping_is_better() -> None:
    generator = np.random.default_rng(3)
    for _ in range(50):
        costs, sent = generator.integers(0, 5, 7).tolist(), generator.integers(1, 4, 7).tolist()
        possible = {}
        for ends in itertools.combinations(range(6), 2):
            groups = np.split(costs, [end + 1 for end in ends])
            sums = [int(group.sum()) for group in groups]
            if min(sums) > 0:
                possible[ends] = (max(sums), sum(sent[end] for end in ends))
        found = pipeline_stages.balanced(costs, sent, 3)
        assert found is None if not possible else possible[tuple(found or ())] == min(possible.values())
