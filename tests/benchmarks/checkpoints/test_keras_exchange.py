"""Values from files of Keras come into the right variables, and files of other models are refused."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from benchmarks.checkpoints import keras_exchange, resuming
from benchmarks.checkpoints.training_state import of_other_classes
from benchmarks.config.outside_models import Facts, outside_spec
from benchmarks.errors import DataError, UsageError
from models import building, specs
from models.building import Model
from tests.support.models import build
from tests.support.rotation import rotating

pytestmark = [
    pytest.mark.xdist_group("models"),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # Keras, when it saves
]


def _application(name: str, num_classes: int, data_format: str = "NHWC") -> Model:
    facts = Facts(image_size=32, channels=3, outputs=num_classes, takes_classes=True)
    return building.build(outside_spec(name, facts), data_format=data_format, num_classes=num_classes, seed=0)


def _drawn(model: Model) -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    return {
        variable.name: random.normal(size=variable.shape).astype(np.float32)
        for variable in model.variables
        if variable.kind != "tower_state"
    }


@pytest.mark.slow
@rotating(("ending", "data_format"), [(".keras", "NHWC"), (".weights.h5", "NCHW")], first=1)
def test_weights_of_keras_applications_are_found(ending: str, data_format: str, tmp_path: Path) -> None:
    theirs = keras.applications.EfficientNetB0(weights=None, classes=7, input_shape=(32, 32, 3))
    random = np.random.default_rng(0)
    for variable in theirs.weights:
        variable.assign(random.uniform(0.0, 10.0, variable.shape))
    path = tmp_path / f"theirs{ending}"
    theirs.save(path) if ending == ".keras" else theirs.save_weights(path)
    values = keras_exchange.read_keras_weights(path, _application("keras:EfficientNetB0", 7, data_format))
    expected = {
        variable.path.replace("predictions/", "logits/"): variable.numpy()
        for variable in theirs.weights
        if not variable.path.startswith("normalization")  # of the images, which the input does here
    }
    assert values.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(values[name], value, err_msg=name)


def test_a_model_comes_back(tmp_path: Path) -> None:
    model = build("resnet20", num_classes=10)
    values = _drawn(model)
    keras_exchange.to_model(specs.find_model("resnet20"), 10, values).save(tmp_path / "model.keras")
    found = keras_exchange.read_keras_weights(tmp_path / "model.keras", model)
    assert found.keys() == values.keys()
    assert all(np.array_equal(found[name], value) for name, value in values.items())


def test_a_served_model_does_not_train_where_it_augments(tmp_path: Path) -> None:
    images = keras.Input((8, 8, 3))
    x = keras.layers.BatchNormalization()(keras.Sequential([keras.layers.RandomFlip()])(images))
    model = keras.Model(images, keras.layers.Dense(4)(keras.layers.Flatten()(x)))
    keras_exchange.in_inference(model).export(tmp_path / "served", verbose=False)
    batch = np.random.default_rng(1).normal(size=(3, 8, 8, 3)).astype(np.float32)
    served = tf.saved_model.load(tmp_path / "served")
    np.testing.assert_allclose(served.serve(batch), model(batch, training=False), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", [1.0, 1 / 255])
def test_the_normalization_of_images_is_left_out_at_any_depth_and_behind_operations(
    tmp_path: Path, scale: float
) -> None:
    images = keras.Input((28, 28, 1))
    normal = keras.Sequential([keras.layers.Normalization()])(images if scale == 1.0 else images * scale)
    hidden = keras.layers.Dense(100)(keras.layers.Flatten()(normal))
    theirs = keras.Model(images, keras.layers.Dense(10)(hidden))
    theirs.save(tmp_path / "theirs.keras")
    values = keras_exchange.read_keras_weights(tmp_path / "theirs.keras", build("mlp", num_classes=10))
    np.testing.assert_array_equal(values["logits/kernel"], theirs.weights[-2].numpy())


def test_other_names_are_taken_in_order(tmp_path: Path) -> None:
    layers = [keras.layers.Flatten(), keras.layers.Dense(100, name="a"), keras.layers.Dense(10, name="b")]
    theirs = keras.Sequential([keras.Input((28, 28, 1)), *layers])
    theirs.save(tmp_path / "theirs.keras")
    values = keras_exchange.read_keras_weights(tmp_path / "theirs.keras", build("mlp", num_classes=10))
    names = ("hidden/kernel", "hidden/bias", "logits/kernel", "logits/bias")
    for name, variable in zip(names, theirs.weights, strict=True):
        np.testing.assert_array_equal(values[name], variable.numpy())


def test_a_last_layer_for_other_classes_is_told_from_one_for_imagenet(tmp_path: Path) -> None:
    path = tmp_path / "theirs.keras"
    keras_exchange.to_model(specs.find_model("mlp"), 10, _drawn(build("mlp", num_classes=10))).save(path)
    model = build("mlp", num_classes=7)
    assert {*of_other_classes(keras_exchange.read_keras_weights(path, model), model.variables)} == {
        "logits/kernel",
        "logits/bias",
    }
    with pytest.raises(DataError, match=r"the model has logits/kernel \(100, 1000\), the file has .* as many classes"):
        keras_exchange.read_keras_weights(path, build("mlp", num_classes=1000))


@pytest.mark.filterwarnings("ignore:Skipping nested container")  # Keras, before it says that the shapes differ
@pytest.mark.parametrize("ending", [".keras", ".weights.h5"])
def test_another_model_is_refused(ending: str, tmp_path: Path) -> None:
    theirs = keras.Sequential([keras.Input((28, 28, 1)), keras.layers.Flatten(), keras.layers.Dense(10)])
    path = tmp_path / f"theirs{ending}"
    theirs.save(path) if ending == ".keras" else theirs.save_weights(path)
    with pytest.raises(DataError) as failed:
        keras_exchange.read_keras_weights(path, build("mlp", num_classes=10))
    by_ending = {
        ".keras": r"where the model has hidden/kernel \(784, 100\), the file has dense\w*/kernel \(784, 10\)\. Pass",
        ".weights.h5": "cannot be read into mlp: .*[^.][.] If it is for other classes, load it into a model of Keras",
    }
    assert re.search(by_ending[ending], str(failed.value))


@pytest.mark.parametrize("ending", [".weights.h5", ".h5", ".hdf5", ".keras"])
def test_a_damaged_file_is_not_called_one_for_other_classes(ending: str, tmp_path: Path) -> None:
    model, path = build("mlp", num_classes=10), tmp_path / f"bad{ending}"
    path.write_bytes(b"PK\3\4 no archive")
    with pytest.raises(DataError, match=rf"bad{ending} cannot be read into mlp: ") as failed:
        keras_exchange.read_keras_weights(path, model)
    assert "other classes" not in str(failed.value)
    assert ("If it is cut off, copy it again." in str(failed.value)) is (ending != ".keras")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("missing.keras", "is no file on this host: pass one that Model.save() or Model.save_weights() of Keras has"),
        ("empty.h5", "is empty: pass one that"),
        ("empty.keras", "is empty: pass one that"),
        ("pointer.keras", "is a pointer of Git LFS and not the file itself: run git lfs pull."),
        ("pointer.weights.h5", "is a pointer of Git LFS and not the file itself: run git lfs pull."),
        ("cut.keras", "is an archive that is cut off: copy it again."),
        ("hdf5.keras", "is HDF5 and no archive: let its name end in .weights.h5 if Model.save_weights() has written"),
        ("archive.h5", "is an archive and no HDF5: if Model.save() has written it, let its name end in .keras."),
        ("text.keras", "is no archive: pass one that"),
        ("text.hdf5", "is no HDF5: pass one that"),
        ("archive.keras", None),
        ("hdf5.weights.h5", None),
        ("hdf5.h5", None),
    ],
)
def test_how_a_file_begins_is_looked_at_before_anything_is_built(
    name: str, problem: str | None, tmp_path: Path
) -> None:
    theirs = keras.Sequential([keras.Input((28, 28, 1)), keras.layers.Flatten(), keras.layers.Dense(10)])
    theirs.save(tmp_path / "theirs.keras")
    theirs.save_weights(tmp_path / "theirs.weights.h5")
    archive = (tmp_path / "theirs.keras").read_bytes()
    contents = {
        "empty": b"",
        "pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
        "cut": archive[: len(archive) // 2],
        "archive": archive,
        "hdf5": (tmp_path / "theirs.weights.h5").read_bytes(),
        "text": b"<html>Not Found</html>",
    }
    path = tmp_path / name
    if path.name != "missing.keras":
        path.write_bytes(contents[name.partition(".")[0]])
    with pytest.raises(DataError) if problem else contextlib.nullcontext() as failed:
        assert resuming._of_other_training(str(path)) == {}
    assert problem is None or f"--initial_weights={path} {problem}" in str(failed.value)


def test_a_checkpoint_of_another_model_is_refused() -> None:
    values = _drawn(build("mlp", num_classes=10))
    wrong = [values | {"hidden/bias": np.zeros(3)}, {name: values[name] for name in values if name != "hidden/bias"}]
    for given, found in zip(wrong, (r"a value of shape \(3,\)", "no value"), strict=True):
        with pytest.raises(DataError, match=rf"has {found} for hidden/bias, which has the shape \(100,\) in mlp"):
            keras_exchange.to_model(specs.find_model("mlp"), 10, given)


class _Scaled(keras.layers.Layer):
    def __init__(self, factor: float = 1.0, **options: Any) -> None:
        super().__init__(**options)
        self.factor = factor

    def call(self, inputs: Any) -> Any:
        return self.factor * inputs

    def get_config(self) -> dict[str, Any]:
        return super().get_config()


def test_a_layer_that_would_be_saved_without_an_argument_is_refused() -> None:
    def scaled(images: Any, layers: Any, num_classes: int) -> Any:
        return _Scaled(3.0)(layers.classifier(layers.flatten(images), num_classes))

    spec = dataclasses.replace(specs.find_model("mlp"), build=scaled)
    with tf.Graph().as_default():
        model = building.build(spec, data_format="NHWC", num_classes=10, seed=0)
    with pytest.raises(UsageError, match=r"another function: the get_config\(\) of one of its layers leaves out"):
        keras_exchange.to_model(spec, 10, _drawn(model))
