"""What a model gets of a data set: float32 of about mean 0 and deviation 1, by constants that others publish."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.config.config import Config
from benchmarks.data.pipeline.input_pipeline import RunInput
from benchmarks.data.writing import small_image_files
from benchmarks.data.writing.small_image_files import draw
from benchmarks.graph import run_graph
from tests.support.settings import resolve
from tests.support.steps import cpu_session

# Mean and deviation of the pixels of each channel, in 0..1: ImageNet's as in the documentation of torchvision's
# models; CIFAR-10's and MNIST's of their training images, to four digits, as PyTorch's examples have them.
PUBLISHED = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "mnist": ((0.1307,), (0.3081,)),
}
MODELS = {"imagenet": "trivial", "cifar10": "resnet20", "mnist": "mlp"}


def _build_input(chosen: Config, device: str) -> RunInput:
    return run_graph.build_input(chosen.workload, chosen.data, run_graph.input_spec(chosen), [device])


@pytest.mark.parametrize("name", PUBLISHED)
def test_pixels_are_normalised_by_published_constants(fake_imagenet: Path, tmp_path: Path, name: str) -> None:
    if name == "mnist":
        small_image_files.write_idx(tmp_path, *draw(name, 50, 1, "train"), split="train")
    elif name == "cifar10":
        small_image_files.write_cifar10(tmp_path, *draw(name, 50, 1, "train"), split="train")
    directory = fake_imagenet if name == "imagenet" else tmp_path
    words = ["--device=cpu", f"--model={MODELS[name]}", f"--data_dir={directory}", "--batch_size=16"]
    chosen = resolve(*words, "--nopipelined_input")
    with tf.Graph().as_default():
        built = _build_input(chosen, "/cpu:0")
        with cpu_session() as session:
            for initializer in built.initializers:
                session.run(initializer)
            images = session.run(built.towers[0].images)
    assert images.dtype == np.float32
    mean, deviation = (255 * np.array(values) for values in PUBLISHED[name])
    # What was whole numbers on disk is so again; with other constants it would not be.
    pixels = images * deviation + mean
    assert np.abs(pixels - pixels.round()).max() < 0.05
    assert 0 <= pixels.round().min() < 30 and 200 < pixels.round().max() <= 255


@pytest.mark.parametrize(("device", "compiled"), [("/cpu:0", True), ("/gpu:0", False)])
@pytest.mark.parametrize("pipelined", [True, False])
def test_xla_compiles_it_for_cpus_alone(device: str, compiled: bool, pipelined: bool) -> None:
    words = ["--device=cpu", "--model=resnet20", "--data_name=synthetic_host", f"--pipelined_input={pipelined}"]
    chosen = resolve(*words)
    with tf.Graph().as_default() as built_in:
        _build_input(chosen, device)
        functions = built_in.as_graph_def().library.function
    assert any("_XlaMustCompile" in function.attr for function in functions) == compiled
