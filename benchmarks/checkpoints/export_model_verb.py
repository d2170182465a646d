"""The verb `export_model`: a checkpoint's model for Keras or TensorFlow Serving. Imports TensorFlow late."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.config import outside_models
from benchmarks.config.verb import Verb
from benchmarks.console import say, warn
from benchmarks.data.sources.data_sets import data_set_of
from benchmarks.devices.start_tensorflow import start
from benchmarks.errors import BenchError, ExitStatus, UsageError
from benchmarks.option import Flag, Groups
from benchmarks.process.tensorflow_setup import Runtime

EXPORT_FLAGS: Groups = {
    "From": (
        Flag("train_dir", str, "directory of a training; its latest checkpoint", path="directory", addresses=True),
        Flag(
            "checkpoint",
            str,
            "prefix of the checkpoint's files, such as out/model.ckpt-500",
            path="file",
            addresses=True,
        ),
        Flag(
            "model",
            str,
            "your own model, if the checkpoint is of one: path/to/file.py:function; its code is executed",
        ),
    ),
    "To": (
        Flag("keras_file", str, "write a .keras file for keras.models.load_model", path="file"),
        Flag(
            "saved_model_dir",
            str,
            "write a SavedModel for TensorFlow Serving into a new directory",
            path="directory",
        ),
    ),
}


def run_export(values: Mapping[str, Any]) -> ExitStatus:
    """Exports the model of a checkpoint.

    Raises:
        UsageError: the flags do not name one checkpoint and a place that can be written to. Or the model is code that
            the user has not named, or another than the user's, or cannot be built, or not be saved by Keras.
        DataError: the checkpoint cannot be used.
        BenchError: a file cannot be written.
    """
    keras_file, saved_model = (values[name] and Path(values[name]) for name in ("keras_file", "saved_model_dir"))
    if bool(values["train_dir"]) == bool(values["checkpoint"]):
        raise UsageError("export_model needs one of --train_dir=DIR and --checkpoint=PREFIX: the checkpoint to export.")
    if not (keras_file or saved_model):
        raise UsageError(
            "export_model needs --keras_file=FILE.keras, --saved_model_dir=DIR or both: where to write the model."
        )
    if keras_file and keras_file.suffix != ".keras":
        raise UsageError(f"--keras_file={keras_file}: Keras knows its format by the ending; name a file FILE.keras.")
    if saved_model and saved_model.exists():
        raise UsageError(f"--saved_model_dir={saved_model} exists: name a new directory.")
    start(Runtime())
    from benchmarks.checkpoints import checkpoint_files, keras_exchange

    saved = checkpoint_files.read_checkpoint(values["train_dir"] or values["checkpoint"])
    facts = saved.facts
    name = _confirmed(facts["model"], values["model"], saved.prefix)
    spec = outside_models.find_any_model(name, facts["data_name"], facts["num_classes"])
    if spec.digest != facts["model_digest"]:
        warn(f"The code of {spec.name} has changed since {saved.prefix} was saved.")
    model = keras_exchange.to_model(spec, facts["num_classes"], saved.values)
    if keras_file:
        _write(keras_file, model.save)
    if saved_model:
        _write(saved_model, lambda path: keras_exchange.in_inference(model).export(path, verbose=False))
    data_set = data_set_of(spec.data_name)  # synthetic images stand for those of the model's data set
    say(f"{spec.title} after {saved.steps} steps: {', '.join(str(path) for path in (keras_file, saved_model) if path)}")
    say(
        f"It takes float32 images {tuple(model.input_shape[1:])}: values of 0 to 255, minus the mean {data_set.mean}, "
        f"divided by the standard deviation {data_set.stddev}, per channel. It returns {model.output_shape[-1]} logits."
    )
    return ExitStatus.OK


def _confirmed(stated: str, given: str | None, prefix: Path) -> str:
    """Returns the model of a checkpoint; code is executed only if the user names it, not because a file does.

    Raises:
        UsageError: it is code, and the user names none; or another model than the user's.
    """
    if outside_models.is_code(stated):
        if given is None:
            raise UsageError(
                f"The checkpoint {prefix} is of the own model {stated}, whose code would be executed: if you trust it, "
                "pass --model=FILE.py:FUNCTION, with the path where it is."
            )
        return given
    if given not in (None, stated):
        raise UsageError(f"--model={given}: the checkpoint {prefix} is of {stated}. Pass that, or omit it.")
    return stated


def _write(path: Path, write: Callable[[Path], object]) -> None:
    """Writes a file or directory, which appears under its name when it is complete."""
    import tensorflow as tf

    from benchmarks.checkpoints.checkpoint_files import reason_of

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".exporting-") as directory:
            write(Path(directory) / path.name)
            os.replace(Path(directory) / path.name, path)
    except (OSError, tf.errors.OpError) as error:
        raise BenchError(f"{path} cannot be written: {reason_of(error).rstrip('.')}. Name another place.") from error


VERB = Verb(
    "export_model",
    EXPORT_FLAGS,
    lambda given, command: run_export(given.values),
    details="The model is a plain Keras model in NHWC and float32, whatever it was trained in, and returns logits.",
    examples=(
        "export_model --train_dir=out --keras_file=model.keras",
        "export_model --checkpoint=out/model.ckpt-500 --saved_model_dir=serving/1",
    ),
)
