"""Models that other code builds: any of keras.applications, and functions of users."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import psutil
import pytest

from benchmarks import console
from benchmarks.config import config, outside_models
from benchmarks.config.outside_models import Facts
from benchmarks.errors import UsageError
from benchmarks.explain import data_flow, probed_model
from benchmarks.measure.run_log import RunLog
from benchmarks.process import apart
from benchmarks.process.tensorflow_setup import Runtime
from benchmarks.training import computing
from models import building, outside_functions, specs
from models.outside_code import UnusableModelError
from tests.support.clusters import processes_in
from tests.support.commands import ROOT, Records, RunBench
from tests.support.rotation import rotating
from tests.support.settings import resolve

TrainHere = Callable[..., RunLog]
ON_CPU = ("--device=cpu", "--num_gpus=2", "--num_batches=2", "--num_warmup_batches=1", "--batch_size=2")
# Of every builder of keras.applications but the largest, the smallest model.
APPLICATIONS = (
    "ConvNeXtTiny",
    "DenseNet121",
    "EfficientNetB0",
    "EfficientNetV2B0",
    "InceptionResNetV2",
    "InceptionV3",
    "MobileNet",
    "MobileNetV2",
    "MobileNetV3Small",
    "NASNetMobile",
    "ResNet50V2",
    "VGG19",
    "Xception",
)
OWN = """
import os
import warnings

import keras
import numpy as np
import tensorflow as tf
from keras.layers import BatchNormalization, Conv2D, Dense, Flatten, ReLU
from own_width import WIDTH

print("a line on stdout")


def chain(*layers, last=None, shape=(32, 32, 3)):
    images = x = keras.Input(shape)
    for layer in (*layers, Flatten(), last or Dense(10)):
        x = layer(x)
    return keras.Model(images, x)


def net(shape, outputs):
    last = Dense(outputs, activation="softmax")
    return chain(Conv2D(WIDTH, 3), BatchNormalization(), ReLU(), last=last, shape=shape)


def build(num_classes):
    return net((32, 32, 3), num_classes)


def digits():
    return net((28, 28, 1), 10)


def five():
    return net((64, 64, 3), 5)


def grey():
    return net((20, 20, 1), 4)


def of_any_number(num_classes):
    return net((28, 28, 1), num_classes)


INSTANCE = net((32, 32, 3), 10)


def two():
    left, right = keras.Input((8, 8, 3)), keras.Input((8, 8, 3))
    return keras.Model([left, right], Flatten()(left + right))


def feature_map():
    images = keras.Input((32, 32, 3))
    return keras.Model(images, Conv2D(10, 3)(images))


def convolutional():
    images = keras.Input((32, 32, 3))
    return keras.Model(images, keras.layers.GlobalAveragePooling2D()(Conv2D(10, 3)(images)))


def compiled():
    model = net((32, 32, 3), 10)
    model.compile(keras.optimizers.Adam(1e-3), "sparse_categorical_crossentropy")
    model.optimizer.learning_rate = 0.1
    return model


def loaded():
    return keras.models.load_model("compiled.keras")


def evaluated():
    model = compiled()
    model.evaluate(np.zeros((4, 32, 32, 3)), np.zeros(4))
    return model


def doubled_weights():
    model = net((32, 32, 3), 10)
    model.set_weights([2 * weight for weight in model.get_weights()])
    return model


def frozen():
    model = net((32, 32, 3), 10)
    model.trainable = False
    return model


def quantized():
    model = net((32, 32, 3), 10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # layers that Keras leaves as they are
        model.quantize("int8")
    return model


def recurrent():
    return chain(lambda x: x[..., 0], keras.layers.LSTM(4), shape=(28, 28, 1))


def regularized():
    first = Conv2D(4, 3, kernel_regularizer="l2", bias_constraint="non_neg", name="conv")
    dense = Dense(4, activity_regularizer="l1", name="dense")
    return chain(first, Flatten(), dense, last=Dense(10, kernel_constraint="max_norm", name="last"))


class Noted(keras.layers.Layer):
    def call(self, x):
        self.note(keras.ops.mean(x))
        return x

    def note(self, loss):
        self.add_loss(loss)


class Trained(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return 2 * super().compute_loss(x, y, y_pred, sample_weight, training)


def noted():
    together = BatchNormalization(synchronized=True, name="together")
    usual = chain(keras.layers.MixUp(name="mixing"), Noted(name="noted"), together)
    model = Trained(usual.input, usual.output, name="trained")
    model.set_weights([np.zeros(each.shape) for each in model.weights])
    return model


class Tied(keras.layers.Layer):
    def __init__(self, other):
        super().__init__()
        self.other = other

    def call(self, x):
        return x @ keras.ops.transpose(self.other.kernel[0, 0])


def tied():
    conv = Conv2D(5, 1)
    return chain(conv, Tied(conv))


def of_eight():
    images = keras.Input(batch_shape=(8, 32, 32, 3))
    return keras.Model(images, Dense(10)(keras.ops.reshape(images, (8, -1))))


class Kept(keras.layers.Layer):
    def build(self, shape):
        self.factor = tf.constant(2.0)

    def call(self, x):
        return self.factor * x


class Failing(keras.layers.Layer):
    def call(self, x):
        with tf.control_dependencies([tf.raw_ops.Assert(condition=tf.reduce_all(x > 1e9), data=[x])]):
            return tf.identity(x)


def failing():
    return chain(Failing())


def either():
    is_first = keras.config.image_data_format() == "channels_first"
    return chain(keras.layers.GlobalMaxPooling2D(), shape=(3, 32, 32) if is_first else (32, 32, 3))


class Doubled(keras.Sequential):
    def call(self, x):
        return 2 * super().call(x)


class Softmax(keras.layers.Layer):
    def call(self, x):
        return keras.ops.softmax(x)


def constant_at_first():
    constant = keras.initializers.Constant(0.2)
    return chain(last=Dense(10, kernel_initializer="zeros", bias_initializer=constant))


class Drops(keras.layers.Layer):
    def call(self, x, training=None):
        return x * keras.random.uniform((1, 10)) if training else x


def preprocesses():
    images = keras.Input((8, 8, 3))
    x = keras.applications.resnet.preprocess_input(keras.layers.RandomFlip()(images))
    return keras.Model(images, keras.layers.Dense(10)(keras.layers.Flatten()(x)))


def divides_before_a_convolution():
    frozen = BatchNormalization(trainable=False)
    return chain(lambda images: images / 127.5 - 1, Conv2D(4, 3, use_bias=False), frozen)


def with_coordinates(images):
    rows = keras.ops.cumsum(keras.ops.ones_like(images[..., :1]), axis=1) / 32
    return keras.layers.Concatenate()([images, 1e-3 * keras.ops.zeros_like(rows), rows])


class Idle(keras.layers.Layer):
    def build(self, shape):
        self.idle = self.add_weight(shape=(3,), name="idle")

    def call(self, x):
        return x


def unused():
    return chain(Idle(name="layer"), last=Dense(4), shape=(20, 20, 1))


def shaped(input_shape, num_classes):
    return net(input_shape, num_classes)


def downloads():
    keras.utils.get_file("weights.h5", "file:///nowhere/weights.h5", cache_dir=os.path.dirname(__file__))
    return net((32, 32, 3), 10)


def raises():
    raise RuntimeError("of my\\nown")
"""


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "Netze für Äpfel"
    folder.mkdir()
    (folder / "own_width.py").write_text("WIDTH = 4\n")
    path = folder / "own.py"
    path.write_text(OWN)
    yield path
    sys.modules.pop("own_width", None)
    while str(folder) in sys.path:
        sys.path.remove(str(folder))


def _resolve(*words: str) -> config.Config:
    return resolve("--device=cpu", *words)


@pytest.mark.row("U1.2")
@pytest.mark.seldom
@pytest.mark.parametrize("name", APPLICATIONS)
def test_applications_train_on_two_devices(train_here: TrainHere, name: str) -> None:
    log = train_here(*ON_CPU, f"--model=keras:{name}", "--variable_update=replicated")
    assert np.isfinite(log.measured.losses).all() and len(log.measured.losses) == 2
    assert log.weights_are_finite and not log.numbers.replica_drift


@pytest.mark.row("U1.3")
def test_a_function_of_a_file_trains(run_bench: RunBench, own: Path, records: Records) -> None:
    """Its facts come from a process of its own, which sees what the file imports from its directory."""
    outside_models._facts.cache_clear()
    words = (*ON_CPU, f"--model={own}:build", "--data_name=cifar10", "--variable_update=replicated")
    done = run_bench(*words).succeeded()
    assert "own model" in done.stdout and "a line on stdout" not in done.stdout
    assert f"--model={own}:build: its code is executed now, in a separate process" in done.stderr
    (record,) = records()
    assert record["config"]["num_classes"] == 10 and len(record["config"]["model_digest"]) == 12
    assert record["model"]["parameters"] == (3 * 9 + 1) * 4 + 2 * 4 + (30 * 30 * 4 + 1) * 10


@rotating(
    ("manager", "flags"),
    [
        ("parameter_server", ("--fc_model_parallel",)),
        ("replicated", ("--precision=bf16",)),
        ("replicated", ("--filter_gradients_as_matmul",)),
        ("independent", ("--forward_only",)),
    ],
    first=2,
)
@pytest.mark.usefixtures("facts_in_this_process")
def test_a_function_goes_with_managers_and_options(
    train_here: TrainHere, own: Path, manager: str, flags: tuple[str, ...]
) -> None:
    log = train_here(*ON_CPU, f"--model={own}:digits", f"--variable_update={manager}", *flags)
    assert np.isfinite(log.measured.losses).all()


@pytest.mark.process
@pytest.mark.usefixtures("facts_in_this_process")
def test_tf32_is_checked_in_a_process_that_computes_in_fp32_and_knows_the_model(
    train_here: TrainHere, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(computing, "has_instructions", lambda *_: True)
    monkeypatch.setattr(computing, "onednn_mode", lambda *_: None)
    modes, call = [], apart.call

    def noted(runtime: Runtime, *rest: Any) -> Any:
        modes.append(runtime.fpmath)
        return call(runtime, *rest)

    monkeypatch.setattr(apart, "call", noted)
    log = train_here(*ON_CPU, f"--model={own}:digits", "--precision=tf32", "--check_precision")
    assert modes == ["STRICT"]
    assert log.measurement().fp32_losses == pytest.approx(log.measured.losses, rel=0.05)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras, when it saves
def test_compiled_models_train_as_others_do(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(own.parent)
    layers = [keras.Input((8, 8, 3)), keras.layers.Flatten(), keras.layers.Dense(10)]
    keras.Sequential(layers, name="small").save("plain.keras")
    compiled = keras.models.load_model("plain.keras")
    compiled.compile("adam", "mse")
    compiled.save("compiled.keras")
    assert probed_model.find_facts(f"{own}:compiled", 10).ignored[-1].startswith("compile() of ")
    ignored = probed_model.find_facts(f"{own}:loaded", 10).ignored
    assert ignored == ["the weights that it loads", "compile() of small"]


@pytest.mark.usefixtures("facts_in_this_process")
def test_what_training_ignores_is_named_and_left_out(train_here: TrainHere, own: Path) -> None:
    resolved = _resolve(f"--model={own}:regularized")
    (notice,) = resolved.notices
    named = "regularizer of conv/kernel, constraint of conv/bias, constraint of last/kernel, and 1 more"
    assert f"regularized: ignored in training: {named}. --optimizer" in notice
    (notice,) = _resolve(f"--model={own}:noted").notices
    named = "the weights that it loads, compute_loss() of trained, mixed labels of mixing, and 2 more"
    assert f"ignored in training: {named}. " in notice
    (notice,) = _resolve(f"--model={own}:failing").notices
    assert "failing: the CPU could not compute its outputs, so it was not checked that they are logits" in notice
    assert _resolve(f"--model={own}:digits").notices == ()
    spec = specs.find_model(resolved.workload.model)
    built = building.build(spec, data_format="NHWC", num_classes=10, seed=0).keras_model
    assert not built.losses and not any(variable.constraint for variable in built.variables)  # Keras' fit has none
    log = train_here(*ON_CPU, f"--model={own}:regularized", "--variable_update=replicated")
    assert np.isfinite(log.measured.losses).all()


@pytest.mark.usefixtures("facts_in_this_process")
def test_a_model_without_dense_layers_is_explained(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data_flow.show_data_flow(_resolve("--num_gpus=2", f"--model={own}:convolutional"))
    text = capsys.readouterr().out
    assert "Sent per step" in text and "Divided" not in text


@pytest.mark.usefixtures("facts_in_this_process")
def test_a_function_of_a_module_is_found_from_the_working_directory(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = own.parent / "package_of_mine"
    package.mkdir()
    (package / "__init__.py").touch()
    own.rename(package / "nets.py")
    monkeypatch.chdir(own.parent)
    resolved = _resolve("--model=package_of_mine.nets:digits")
    assert (resolved.workload.model, resolved.workload.num_classes) == ("package_of_mine.nets:digits", 10)
    assert specs.find_model(resolved.workload.model).data_name == "mnist"


@pytest.mark.usefixtures("facts_in_this_process")
def test_a_file_in_a_package_imports_from_the_working_directory(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = own.parent / "package_with_nets"
    package.mkdir()
    own.rename(package / "own.py")
    (package / "nets.py").write_text("from package_with_nets.own import digits\n")
    monkeypatch.chdir(own.parent)
    _resolve("--model=package_with_nets/nets.py:digits")
    sys.path.remove(str(package))


@pytest.mark.parametrize(("of_nchw", "is_same"), [(1.0, True), (1.5, False)])
def test_a_layout_in_which_a_model_computes_something_else_is_not_used(
    own: Path, monkeypatch: pytest.MonkeyPatch, of_nchw: float, is_same: bool
) -> None:
    logits = {"NHWC": 5.0 * np.eye(2, 10), "NCHW": 5.0 * of_nchw * np.eye(2, 10)}
    monkeypatch.setattr(probed_model, "_logits", lambda *_of, data_format="NHWC", **_: logits[data_format])
    assert probed_model.find_facts(f"{own}:either", 10).nchw is is_same


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("net((8, 8, 3), 2).fit([])", "it trains its model, or computes with it: do that only behind if __name__"),
        ("keras.backend.clear_session()", r"it calls clear_session\(\) or reset_default_graph\(\): leave that out"),
        ("from .own_width import WIDTH", "relative imports: name its function as package.module:function"),
        ("import sys; sys.exit(2)", r"sys.exit\(2\). If it reads arguments of the command line, .* behind if __name__"),
    ],
)
def test_what_a_file_does_when_it_is_imported_is_refused(own: Path, line: str, words: str) -> None:
    own.write_text(f"{OWN}\n{line}\n")
    with pytest.raises(UnusableModelError, match=words):
        probed_model.find_facts(f"{own}:build", 10)


@pytest.mark.usefixtures("facts_in_this_process")
def test_operations_that_cannot_be_counted_leave_the_record_without_their_number(own: Path) -> None:
    resolved = _resolve(f"--model={own}:recurrent")
    spec = specs.find_model(resolved.workload.model)
    assert (
        spec.facts(spec.usual_outputs)["gflop_per_image"] is None and spec.parameters == 4 * (28 + 4 + 1) * 4 + 5 * 10
    )


@pytest.mark.usefixtures("facts_in_this_process")
def test_what_a_model_is_decides_data_set_classes_and_defaults(own: Path) -> None:
    usual, small = _resolve(f"--model={own}:build"), _resolve(f"--model={own}:build", "--data_name=cifar10")
    assert (usual.workload.num_classes, small.workload.num_classes) == (1001, 10)
    assert specs.find_model(f"{own}:build").has_batch_norm and not specs.find_model(f"{own}:build").has_conv1x1
    with pytest.raises(UsageError, match="builds or computes it in NHWC only"):
        _resolve(f"--model={own}:digits", "--data_format=NCHW")
    with pytest.raises(UsageError, match="has no convolutions"):
        _resolve(f"--model={own}:digits", "--conv1x1_as_matmul")
    with pytest.raises(UsageError, match="always has 10 outputs"):
        _resolve(f"--model={own}:digits", "--num_classes=11")
    with pytest.raises(UsageError, match="is for mnist"):
        _resolve(f"--model={own}:digits", "--data_name=imagenet")


@pytest.mark.usefixtures("facts_in_this_process")
def test_the_digest_follows_the_code_and_is_part_of_the_key(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def digest() -> str | None:
        sys.modules.pop("own_width", None)
        sys.modules.pop(outside_functions.module_name(own), None)
        return _resolve(f"--model={own}:digits").workload.model_digest

    first = digest()
    assert first and digest() == first
    (own.parent / "own_width.py").write_text("WIDTH = 5\n")
    assert digest() not in (None, first)
    (own.parent / "own_width.py").write_text("import os\nWIDTH = int(os.environ.get('WIDTH', 5))\n")
    by_default = digest()
    monkeypatch.setenv("WIDTH", "6")
    assert digest() not in (None, first, by_default)
    (own.parent / "own_width.py").write_text("import os\nWIDTH = 5 + 0 * int(os.environ.get('LOCAL_RANK', 0))\n")
    of_any_process = digest()
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert digest() == of_any_process, "workers must agree"
    resolved = _resolve(f"--model={own}:digits")
    assert resolved.key_fields()["model_digest"] == resolved.workload.model_digest
    assert _resolve("--model=mlp").key_fields()["model_digest"] is None


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        ("missing", "has no function 'missing'. Its functions: chain, net, build"),
        ("INSTANCE", "has no function 'INSTANCE'. Its functions: chain"),
        ("shaped", r"called with num_classes only \(missing a required argument: 'input_shape'\): give its other"),
    ],
)
def test_functions_that_cannot_be_called_are_refused(own: Path, function: str, problem: str) -> None:
    with pytest.raises(UnusableModelError, match=problem):
        probed_model.find_facts(f"{own}:{function}", 10)


def _facts_of(own: Path, expression: str) -> Facts:
    """Returns the facts of a model that an expression makes of what is in the file."""
    own.write_text(f"{OWN}\n\ndef made():\n    return {expression}\n")
    return probed_model.find_facts(f"{own}:made", 10)


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("None", "returned an object of type NoneType: return a model of Keras 3"),
        ("tied()", "one of its layers uses the weights of a layer that they replace"),
        ("of_eight()", r"inputs of shape \(8, .*batch_size chooses"),
        ("quantized()", r"is quantized, which is for inference: return it before quantize\(\)"),
        ("chain(Kept())", "keeps a tensor, or a tf.Variable"),
        ("keras.Sequential([Flatten(), Dense(10)])", "no graph of layers with known shapes"),
        ("two()", r"inputs of shape \(None, 8, 8, 3\), \(None, 8, 8, 3\) to outputs of shape \(None, 192\): it must"),
        ("feature_map()", r"to outputs of shape \(None, 30, 30, 10\): it must map one batch"),
        ("doubled_weights()", r"it reads values of weights or tensors, as get_weights\(\), numpy\(\) and bool\(\) do"),
        ("evaluated()", "it trains its model, or computes with it: do that only behind if __name__ == '__main__'"),
        ("chain(Conv2D(4, 3, dtype='mixed_float16'))", "variables of type float16: they must be float32"),
        ("frozen()", "no trainable variables"),
        ("Doubled([keras.Input((32, 32, 3)), Flatten(), Dense(10)])", r"a call\(\) of its own: return keras.Model"),
        (
            "chain(net((32, 32, 3), 10), Softmax(), last=keras.layers.Activation('linear'))",
            "are probabilities: return logits",
        ),
        ("net((32, 32, 3), 1)", r"to outputs of shape \(None, 1\): .* for two classes Dense\(2\)"),
        ("chain(Flatten(), Dense(10), last=Drops())", "calls keras.random without a seed"),
        ("chain(keras.layers.SpectralNormalization(Conv2D(4, 3)))", r"assigns a value to the weight .*conv2d/kernel"),
        ("preprocesses()", "its operation 'add.*' scales the images, which are scaled already"),
        ("chain(lambda images: images / 255.0)", "'true_divide.*' scales the images, which are scaled already"),
        ("divides_before_a_convolution()", "'true_divide.*' scales the images, which are scaled already"),
        (
            "chain(lambda images: sum(images))",
            r"\(Iterating over a symbolic KerasTensor is not supported[.]\): compute",
        ),
        ("chain(last=Dense(10, activation='sigmoid'))", "always between 0 and 1, as after a sigmoid"),
        ("chain(lambda images: (keras.ops.cast(images, 'float32') - 127.5) / 127.5)", "'subtract.*' scales the images"),
        ("net((32, 48, 3), 10)", r"shape \(32, 48, 3\): they must be square"),
        ("downloads()", r"it downloads a file, which failed \(URL fetch .*build the model with weights=None"),
    ],
)
def test_models_that_do_not_fit_are_refused(own: Path, expression: str, problem: str) -> None:
    with pytest.raises(UnusableModelError, match=problem):
        _facts_of(own, expression)


@pytest.mark.parametrize("expression", ["constant_at_first()", "chain(with_coordinates)"])
def test_small_logits_are_no_probabilities_and_what_does_not_depend_on_the_images_scales_none(
    own: Path, expression: str
) -> None:
    assert _facts_of(own, expression).outputs == 10


@pytest.mark.usefixtures("facts_in_this_process")
def test_photos_fit_any_number_of_classes_and_other_images_are_synthetic(own: Path) -> None:
    photos = _resolve(f"--model={own}:five", "--data_dir=x")
    assert (photos.data.data_name, photos.workload.num_classes) == ("imagenet", 5)
    seven = _resolve(f"--model={own}:build", "--num_classes=7")
    assert seven.workload.num_classes == 7 and specs.find_model(f"{own}:build").facts(7)["parameters"]
    grey = _resolve(f"--model={own}:grey")
    assert (grey.data.data_name, grey.workload.num_classes) == ("synthetic", 4)
    with pytest.raises(UsageError, match="1001 outputs fit no data set: .*, or choose the number of outputs with"):
        _resolve(f"--model={own}:of_any_number", "--data_dir=x")
    for given in ("--data_dir=x", "--data_name=mnist"):
        with pytest.raises(UsageError, match=rf"{given}: the images of .*, 20x20 pixels with 1 .* fit no data set"):
            _resolve(f"--model={own}:grey", given)


@pytest.mark.parametrize("flags", [(), ("--data_name=synthetic_host",)])
@pytest.mark.usefixtures("facts_in_this_process")
def test_images_that_no_data_set_has_are_trained_on(train_here: TrainHere, own: Path, flags: tuple[str, ...]) -> None:
    log = train_here(*ON_CPU, f"--model={own}:grey", "--init_learning_rate=0.001", *flags)
    assert np.isfinite(log.measured.losses).all()


@pytest.mark.usefixtures("facts_in_this_process")
def test_a_weight_that_does_not_reach_the_loss_is_named(train_here: TrainHere, own: Path) -> None:
    with pytest.raises(UsageError, match="not depend on the weight layer/idle, .* remove it .* or set trainable=False"):
        train_here(*ON_CPU, f"--model={own}:unused")


@pytest.mark.parametrize(
    ("reason", "hides"),
    [
        ("ModuleNotFoundError: No module named 'models.blocks'", "models"),
        ("ImportError: cannot import name 'net' from 'results.nets' (/x/results/nets.py)", "results"),
        ("RuntimeError: no 'models.x'", None),
    ],
)
def test_a_package_that_the_suite_hides_is_explained(reason: str, hides: str | None) -> None:
    wanted = f"'{hides}' is a package of this suite, which hides another with that name: rename yours. "
    assert outside_models._hidden_package(reason) == (wanted if hides else "")


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        ("keras:ResNet51", "keras.applications has no model 'ResNet51'. Did you mean 'resnet50'?"),
        ("no/such/file.py:build", "the file no/such/file.py does not exist"),
        ("own.py", "names no function. Use keras:NAME"),
        ("own.py:", "names no function. Use keras:NAME"),
        ("own.py:build:x", "names no function. Use keras:NAME"),
        ("vgg61", "Did you mean 'vgg16'? See"),
        ("efficientnet_b0", "Did you mean 'keras:EfficientNetB0'?"),
        ("keras.applications.ResNet50", "Did you mean 'keras:ResNet50'?"),
        ("saved/net.keras", "names a file that is no Python code. Write a function that returns its model"),
        ("net.ipynb:build", "names a file that is no Python code. Write a function that returns its model"),
    ],
)
def test_names_of_nothing_are_refused_without_building(
    monkeypatch: pytest.MonkeyPatch, model: str, problem: str
) -> None:
    monkeypatch.setattr(outside_models, "_probe", None)
    with pytest.raises(UsageError) as caught:
        _resolve(f"--model={model}")
    assert problem in str(caught.value)


@pytest.mark.slow
def test_an_error_of_the_users_code_is_a_sentence_that_names_the_whole_output(run_bench: RunBench, own: Path) -> None:
    done = run_bench(*ON_CPU, f"--model={own}:raises")
    assert done.status == 2 and done.stdout == ""
    *_, line = done.stderr.splitlines()
    assert ":raises: the model cannot be built: RuntimeError: of my own. The whole output: /" in line
    log = Path(line.rpartition(" ")[-1])
    assert "Traceback" in log.read_text() and "a line on stdout" in log.read_text()
    log.unlink()


def test_facts_are_kept_until_the_code_changes(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    probed = []

    def probe(name: str, num_classes: int, *place: object) -> Facts:
        probed.append(name)
        sources = {str(own): outside_models.digest_of(str(own))} if name.endswith("build") else {}
        return Facts(image_size=32, channels=3, outputs=num_classes, takes_classes=True, sources=sources)

    monkeypatch.setattr(outside_models, "_probe", probe)
    for name in (f"{own}:build", "keras:MobileNet"):
        for _ in range(2):
            outside_models._facts.cache_clear()
            assert outside_models.find_any_model(name).image_size == 32
    assert probed == [f"{own}:build", "keras:MobileNet"]
    own.write_text(OWN + "\n")
    for name in (f"{own}:build", "keras:MobileNet"):
        outside_models._facts.cache_clear()
        outside_models.find_any_model(name)
    assert probed == [f"{own}:build", "keras:MobileNet", f"{own}:build"]
    held = json.loads((tmp_path / "cache" / "cnn_bench" / "models.json").read_text())
    assert len(held["entries"]) == 2
    outside_models._facts.cache_clear()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    outside_models.find_any_model(f"{own}:build")
    assert len(probed) == 4, "its imports may be other files now"
    outside_models._facts.cache_clear()


@pytest.mark.usefixtures("facts_in_this_process")
def test_the_function_of_the_documentation_is_one(own: Path) -> None:
    page = (ROOT / "docs" / "howto" / "own-model.md").read_text()
    own.write_text(page.split("```python\n")[1].split("```")[0])
    _resolve(f"--model={own}:build")
    assert specs.find_model(f"{own}:build").parameters == 27 * 32 + 2 * 32 + 33 * 1000


def test_the_list_of_applications_is_that_of_keras() -> None:
    import keras

    theirs = [name for name in dir(keras.applications) if name[0].isupper()]
    assert sorted(outside_models.applications_of_keras()) == sorted(theirs)


MISBEHAVING = """
import atexit, multiprocessing, os, subprocess, sys, threading, time
import keras
import tensorflow as tf

IS_RUN = "model_probe" not in " ".join(sys.orig_argv)


def net():
    images = keras.Input((8, 8, 3))
    return keras.Model(images, keras.layers.Dense(10)(keras.layers.Flatten()(images)))


def leaves_the_run():
    return os._exit(0) if IS_RUN else net()


def never_ends():
    while True:
        time.sleep(0.1)


def leaves_a_thread_and_a_process_and_breaks_what_is_shared():
    threading.Thread(target=time.sleep, args=(1000,)).start()
    atexit.register(time.sleep, 1000)
    subprocess.Popen(["sleep", "1000"])
    os.write(1, 2**20 * b"loud ")
    sys.stdout.close()
    os.close(1)
    os.close(2)
    sys.argv[:] = []
    os.environ.clear()
    return net()


class Ending(keras.layers.Layer):
    def call(self, x):
        def end(x):
            return os._exit(0) if IS_RUN else x

        return x + 0 * tf.ensure_shape(tf.numpy_function(end, [tf.stop_gradient(x)], x.dtype), x.shape)


def leaves_in_a_step():
    images = keras.Input((8, 8, 3))
    return keras.Model(images, keras.layers.Dense(10)(Ending()(keras.layers.Flatten()(images))))


class Starting(keras.layers.Layer):
    def call(self, x):
        def start(values):
            subprocess.Popen(["sleep", "1000"])
            if IS_RUN:
                child = multiprocessing.get_context("fork").Process(target=len, args=([],))
                child.start()
                child.join()
            return values

        return x + 0 * tf.ensure_shape(tf.numpy_function(start, [tf.stop_gradient(x)], x.dtype), x.shape)


def starts_and_forks_processes_in_steps():
    images = keras.Input((8, 8, 3))
    return keras.Model(images, keras.layers.Dense(10)(Starting()(keras.layers.Flatten()(images))))


def recurses():
    return recurses()


def breaks_memory():
    import ctypes

    ctypes.string_at(0)
"""


@pytest.mark.fault(
    "R10",
    "an own model whose code ends the process, never returns, or breaks stdout, memory or the stack",
    survives="a sentence that names --model, and no run that looks right",
)
@pytest.mark.process
@pytest.mark.parametrize(
    ("function", "status", "words"),
    [
        ("leaves_the_run", 4, "--model=net.py:leaves_the_run: its code would end the process, by os._exit"),
        ("leaves_in_a_step", 4, "its code would end the process, by os._exit"),
        ("leaves_a_thread_and_a_process_and_breaks_what_is_shared", 0, "loud"),
        ("starts_and_forks_processes_in_steps", 0, ""),
        ("recurses", 2, "the model cannot be built: RecursionError"),
        (
            "breaks_memory",
            2,
            "the model cannot be built: its process ended by signal 11 (Segmentation fault). The whole",
        ),
    ],
)
def test_a_model_neither_ends_nor_holds_the_process(
    run_process: RunBench, tmp_path: Path, function: str, status: int, words: str
) -> None:
    (tmp_path / "net.py").write_text(MISBEHAVING)
    done = run_process(f"--model=net.py:{function}", "--device=cpu", "--num_batches=2", "--batch_size=2")
    assert done.status == status and words in done.stderr
    assert ("status:         ok" in done.stdout) is (status == 0)
    assert ("run_bench: the model's code had left a process running: sleep (" in done.stderr) is (status == 0)
    assert "loud" not in done.stdout
    assert not psutil.wait_procs(processes_in(tmp_path), timeout=10)[1]


@pytest.mark.slow
@pytest.mark.process
def test_the_wait_for_a_model_that_never_ends_is_printed(
    run_bench: RunBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "net.py").write_text(MISBEHAVING)
    monkeypatch.setattr(outside_models, "_LIMIT_SECONDS", 3.0)
    monkeypatch.setattr(console, "_FIRST_LINE_SECONDS", 1.0)
    done = run_bench("--model=net.py:never_ends", "--device=cpu", "--print_config")
    assert done.status == 2 and "it took longer than 3 s" in done.stderr
    assert "Building net.py:never_ends, for at most 3 s" in done.stderr
