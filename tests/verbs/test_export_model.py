"""The verb `export`: the model of a checkpoint as Keras and TensorFlow read it without this suite."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from benchmarks.checkpoints import checkpoint_files
from benchmarks.errors import ExitStatus
from tests.support.commands import RunBench
from tests.support.models import build

pytestmark = [
    pytest.mark.process,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # Keras, when it saves
]
FACTS = {"model": "alexnet_cifar10", "model_digest": None, "data_name": "cifar10", "num_classes": 10}
WITHOUT_THE_SUITE = """
import sys, keras, numpy, tensorflow
batch = numpy.load("batch.npy")
numpy.save("by_keras.npy", keras.models.load_model("new/model.keras")(batch))
served = tensorflow.saved_model.load("serving/1")
numpy.save("by_tensorflow.npy", served.serve(batch))
assert not {"models", "benchmarks"} & set(sys.modules)
"""
FACTS |= {"optimizer": "sgd", "images": 160, "images_per_epoch": 50_000, "ends_at_step": 5}


@pytest.fixture
def trained(tmp_path: Path) -> dict[str, np.ndarray]:
    """Writes a checkpoint after 5 steps to `trained`, and returns its values."""
    random = np.random.default_rng(3)
    values = {
        variable.name: np.asarray(0.1 * random.normal(size=variable.shape)).astype(variable.dtype)
        for variable in build("alexnet_cifar10", num_classes=10).variables
    }
    checkpoint_files.write(tmp_path / "trained", 5, {**values, "optimizer/count": np.int64(5)}, FACTS, 0)
    return values


@pytest.mark.fault(
    "R17",
    "export of a checkpoint from elsewhere that names a model's file",
    survives="a sentence, and the file was not executed",
)
@pytest.mark.parametrize(
    ("named", "sentence"),
    [
        ([], "if you trust it, pass --model=FILE.py:FUNCTION"),
        (["--model=net.py:build"], "net.py has no function 'build'"),
    ],
)
def test_code_that_a_checkpoint_names_is_executed_only_if_the_user_names_it(
    run_bench: RunBench, tmp_path: Path, named: list[str], sentence: str
) -> None:
    (tmp_path / "net.py").write_text("open('executed', 'w')")
    facts = {**FACTS, "model": "moved/net.py:build" if named else "net.py:build"}
    checkpoint_files.write(tmp_path / "theirs", 5, {"w": np.float32(1)}, facts, 0)
    done = run_bench("export_model", "--train_dir=theirs", "--keras_file=model.keras", *named)
    assert done.status == ExitStatus.USAGE and sentence in done.stderr
    assert (tmp_path / "executed").exists() == bool(named)


@pytest.mark.row("U1.8")
@pytest.mark.slow
def test_an_exported_model_needs_no_suite(run_bench: RunBench, trained: dict[str, np.ndarray], tmp_path: Path) -> None:
    done = run_bench(
        "export_model", "--train_dir=trained", "--keras_file=new/model.keras", "--saved_model_dir=serving/1"
    ).succeeded()
    assert "for CIFAR-10 after 5 steps: new/model.keras, serving/1\n" in done.stdout
    assert "(32, 32, 3): values of 0 to 255, minus the mean (125.31, 122.95, 113.87), divided by" in done.stdout
    model = build("alexnet_cifar10", num_classes=10)
    batch = np.random.default_rng(1).normal(size=(3, 32, 32, 3)).astype(np.float32)
    expected, _ = model.call([tf.constant(trained[of.name]) for of in model.variables], batch, training=False)
    np.save(tmp_path / "batch.npy", batch)
    subprocess.run([sys.executable, "-I", "-c", WITHOUT_THE_SUITE], cwd=tmp_path, check=True, timeout=100)
    for reader in ("by_keras", "by_tensorflow"):
        np.testing.assert_allclose(np.load(tmp_path / f"{reader}.npy"), expected, rtol=1e-4, atol=1e-5)


def test_a_model_that_is_not_that_of_the_checkpoint_is_refused(
    run_bench: RunBench, trained: dict[str, np.ndarray]
) -> None:
    done = run_bench("export_model", "--train_dir=trained", "--keras_file=m.keras", "--model=lenet")
    assert done.status == ExitStatus.USAGE
    assert "trained/model.ckpt-5 is of alexnet_cifar10. Pass that, or omit it." in done.stderr


def test_a_disk_that_fills_is_a_sentence(
    run_bench: RunBench, trained: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill_the_disk(*_: object, **__: object) -> None:
        raise tf.errors.ResourceExhaustedError(None, None, "variables.tempstate1; No space left on device [Op:SaveV2]")

    monkeypatch.setattr(keras.Model, "export", fill_the_disk)
    done = run_bench("export_model", "--train_dir=trained", "--saved_model_dir=serving/1")
    assert done.status == ExitStatus.RUN_FAILED and "Traceback" not in done.stderr
    assert "serving/1 cannot be written: " in done.stderr and "No space left on device" in done.stderr
