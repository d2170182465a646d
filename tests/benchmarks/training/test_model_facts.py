from __future__ import annotations

import pytest

from benchmarks.training import model_facts
from benchmarks.training.model_facts import ModelFacts
from models import specs
from tests.support import models

pytestmark = pytest.mark.xdist_group("models")


def _facts(name: str) -> ModelFacts:
    spec = specs.find_model(name)
    return model_facts.of(models.build(name, num_classes=spec.classes), spec)


def test_a_perceptron_by_hand() -> None:
    """784 -> 100 -> 10 with biases. Backward, each product is done twice, but images need no gradient."""
    facts = _facts("mlp")
    assert facts.parameters_by_kind == {"convolution": 0, "dense": 785 * 100 + 101 * 10, "other": 0}
    assert facts.flops_by_kind == {"convolution": 0, "dense": 2 * (2 * 784 * 100 + 3 * 100 * 10)}
    assert facts.gradient_bytes == 4 * 79_510 and facts.flops_per_image == 319_600


def test_alexnets_dense_layers_have_the_parameters_and_its_convolutions_the_operations() -> None:
    """Convolutions by hand: kernel, channels before and after, side of the result; the last pool leaves 256 x 6 x 6."""
    convolutions = [(11, 3, 64, 55), (5, 64, 192, 27), (3, 192, 384, 13), (3, 384, 384, 13), (3, 384, 256, 13)]
    facts = _facts("alexnet")
    parameters = sum((size**2 * before + 1) * after for size, before, after, _ in convolutions)
    dense = (256 * 6 * 6 + 1) * 4096 + (4096 + 1) * 4096 + (4096 + 1) * 1000
    assert facts.parameters_by_kind == {"convolution": parameters, "dense": dense, "other": 0}
    assert facts.parameters == specs.find_model("alexnet").parameters
    forward = [2 * size**2 * before * after * side**2 for size, before, after, side in convolutions]
    assert facts.flops_by_kind == {
        "convolution": 3 * sum(forward) - forward[0],
        "dense": 3 * 2 * (256 * 6 * 6 * 4096 + 4096 * 4096 + 4096 * 1000),
    }


def test_scales_and_offsets_are_neither() -> None:
    """19 batch normalisations of 16, 32 and 64 channels."""
    parameters = _facts("resnet20").parameters_by_kind
    assert parameters["other"] == 2 * (7 * 16 + 6 * 32 + 6 * 64)
    assert parameters["dense"] == 64 * 10 + 10
    assert sum(parameters.values()) == specs.find_model("resnet20").parameters
