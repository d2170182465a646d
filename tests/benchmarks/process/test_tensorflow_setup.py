"""The environment that a run sets for TensorFlow."""

from __future__ import annotations

import os
import runpy
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.errors import UsageError
from benchmarks.machine.provenance import is_recorded
from benchmarks.process import tensorflow_setup
from benchmarks.process.tensorflow_setup import Runtime


@pytest.mark.parametrize(("given", "is_replaced"), [(None, False), ("1", False), ("TRUE", False), ("0", True)])
def test_steps_are_always_awaited(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], given: str | None, is_replaced: bool
) -> None:
    environment = {} if given is None else {"TF_SYNC_ON_FINISH": given}
    monkeypatch.setattr(os, "environ", environment)
    monkeypatch.setattr(tensorflow_setup.sys, "modules", {})
    tensorflow_setup.prepare(Runtime())
    assert environment["TF_SYNC_ON_FINISH"] == "1"
    assert ("TF_SYNC_ON_FINISH=0 is replaced by 1: " in capsys.readouterr().err) == is_replaced
    assert is_recorded("TF_SYNC_ON_FINISH")


@pytest.mark.parametrize(
    ("make", "reason"),
    [(lambda file: file.write_text('{"floatx": "float99"}'), "float64"), (Path.mkdir, "Is a directory: .*")],
)
def test_a_keras_json_that_keras_refuses_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, make: Callable[[Path], object], reason: str
) -> None:
    from keras.src.backend import config

    make(tmp_path / "keras.json")
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.setattr(tensorflow_setup, "_import_quietly", lambda: runpy.run_path(str(config.__file__)))
    with pytest.raises(
        UsageError, match=rf"Keras cannot be .*{reason}.*\. Correct or remove {tmp_path}/keras\.json, or"
    ):
        tensorflow_setup.import_tensorflow()


def test_what_keras_asserts_without_a_message_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As Keras 3.12 and 3.13 do."""
    (tmp_path / "config.py").write_text('_config_path, _floatx = "keras.json", "half"\nassert _floatx in {"float32"}')
    monkeypatch.setattr(tensorflow_setup, "_import_quietly", lambda: runpy.run_path(str(tmp_path / "config.py")))
    with pytest.raises(UsageError, match=r'imported: assert _floatx in {"float32"}\. Correct or remove keras\.json'):
        tensorflow_setup.import_tensorflow()


def test_other_errors_of_the_import_are_not_put_down_to_keras(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ValueError("numpy.dtype size changed, may indicate binary incompatibility")

    monkeypatch.setattr(tensorflow_setup, "_import_quietly", fail)
    with pytest.raises(ValueError, match="size changed"):
        tensorflow_setup.import_tensorflow()


def test_a_library_that_finds_no_room_is_named_with_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ImportError("libtensorflow_cc.so.2: failed to map segment from shared object")

    monkeypatch.setattr(tensorflow_setup, "_import_quietly", fail)
    with pytest.raises(UsageError, match=r"imported: libtensorflow_cc\.so\.2: failed to map .*ulimit -v unlimited"):
        tensorflow_setup.import_tensorflow()


@pytest.mark.parametrize(("error", "shown"), [(KeyboardInterrupt(), ""), (ValueError("broken"), "a notice")])
def test_notices_of_the_import_are_shown_if_it_fails_but_not_after_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], error: BaseException, shown: str
) -> None:
    class Fails:
        def find_spec(self, *of_module: object) -> None:
            os.write(2, b"a notice")
            raise error

    monkeypatch.setattr(os, "environ", {"TF_CPP_MIN_LOG_LEVEL": "3"})
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Fails()])
    with pytest.raises(type(error)):
        tensorflow_setup.import_tensorflow()
    monkeypatch.undo()
    assert capfd.readouterr().err == shown


def test_a_python_built_for_an_old_c_library_shows_notices_of_the_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a Python, as some of conda's, has no `os.memfd_create`."""
    monkeypatch.setattr(os, "environ", {"TF_CPP_MIN_LOG_LEVEL": "3"})
    monkeypatch.delattr(os, "memfd_create")
    keras = types.ModuleType("keras")
    monkeypatch.setitem(sys.modules, "keras", keras)
    tensorflow_setup.import_tensorflow()
    assert sys.modules["keras"] is keras
