from __future__ import annotations

import pytest

from models import specs


def test_names_are_found_in_any_case_and_by_other_spellings() -> None:
    assert specs.find("ResNet50").name == "resnet50"
    assert specs.find("inception_v3").name == "inception3"
    assert specs.find("resnet50_v15").name == "resnet50_v1.5"


def test_a_miss_names_the_nearest_and_all() -> None:
    with pytest.raises(specs.UnknownModelError, match=r"'vgg61'. Did you mean 'vgg16'\? Models: alexnet, inception3"):
        specs.find("vgg61")
    with pytest.raises(specs.UnknownModelError) as caught:
        specs.find("transformer")
    assert "Did you mean" not in str(caught.value)
    with pytest.raises(specs.UnknownModelError, match="no model .googlenet.. Models: alexnet"):
        specs.find("googlenet")


def test_names_are_unique() -> None:
    assert len(set(specs.names())) == len(specs.MODELS)
