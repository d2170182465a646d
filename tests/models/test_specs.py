from __future__ import annotations

import dataclasses
import pickle

import pytest

from models import applications, specs


def test_names_are_found_in_any_case_and_by_other_spellings() -> None:
    assert specs.find_model("ResNet50").name == "resnet50"
    assert specs.find_model("inception_v3").name == "inception3"
    assert specs.find_model("resnet50_v15").name == "resnet50_v1.5"
    assert specs.find_model("ViT-B/16").name == "vit_b_16"
    assert specs.find_model("NASNet_mobile").name == "nasnet"


def test_a_miss_names_the_nearest_or_all() -> None:
    with pytest.raises(specs.UnknownModelError, match=r"'vgg61'. Did you mean 'vgg16'\? See .* --list_models"):
        specs.find_model("vgg61")
    with pytest.raises(specs.UnknownModelError) as caught:
        specs.find_model("transformer")
    assert "Did you mean" not in str(caught.value)
    with pytest.raises(specs.UnknownModelError, match="no model .yolo.. Models: alexnet"):
        specs.find_model("yolo")


def test_names_are_unique() -> None:
    plain = {"".join(filter(str.isalnum, name)) for name in specs.names()}
    assert len(plain) == len(specs.MODELS)


def test_a_variant_is_found_by_the_name_of_the_model_and_its_data_set() -> None:
    variants = [spec for spec in specs.MODELS if spec.variant_of]
    assert {"alexnet_cifar10", "lenet_mnist", "nasnet_cifar10"} <= {spec.name for spec in variants}
    for spec in variants:
        assert specs.find_model(spec.variant_of).data_name != spec.data_name
        assert specs.find_model(spec.variant_of, spec.data_name) is specs.find_model(spec.name) is spec


def test_every_model_can_be_sent_to_another_process() -> None:
    """`doctor` counts the operations of a step in a process of its own."""
    for spec in (*specs.MODELS, dataclasses.replace(specs.MODELS[0], build=applications.builder("mine.py:make"))):
        sent = pickle.loads(pickle.dumps(spec))
        assert sent.name == spec.name and callable(sent.build)
