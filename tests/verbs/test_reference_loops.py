"""Training loops of others: they compute what this suite computes, and are timed and kept alike."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.devices import device_plan
from benchmarks.errors import UsageError
from benchmarks.machine.hardware import Gpu, Inventory
from benchmarks.process.tensorflow_setup import Devices
from benchmarks.run.reference_loops import _Pauses, _SGDWithDecay
from models import building, specs
from results import summary
from results.report import ranking
from results.summary import summarize
from tests.support.commands import Records, RunBench, losses_of
from tests.support.records import fake_run
from tests.support.settings import resolve
from variable_mgr.catalog import PYTORCH_LOOPS, REFERENCE_LOOPS

# tests/verbs/test_pytorch.py has the others.
LOOPS = [loop for loop in REFERENCE_LOOPS if loop not in PYTORCH_LOOPS]


@pytest.mark.parametrize(
    ("model", "num_devices"),
    [
        ("mlp", 1),
        pytest.param("mlp", 2, marks=[pytest.mark.rotates, pytest.mark.process]),
        pytest.param("resnet20", 2, marks=[pytest.mark.seldom, pytest.mark.process]),
    ],
)
def test_losses_are_those_of_replicated(
    run_bench: RunBench, run_process: RunBench, records: Records, model: str, num_devices: int
) -> None:
    chosen = ["--device=cpu", f"--model={model}", f"--num_gpus={num_devices}", "--batch_size=4"]
    chosen += ["--optimizer=momentum", "--weight_decay=1", "--num_warmup_batches=1", "--num_batches=4"]
    # Two devices need processes: the eager runtime gets its devices once, and two MirroredStrategies the same keys.
    run = run_bench if num_devices == 1 else run_process
    for loop in ("replicated", *LOOPS):
        done = run(*chosen, f"--variable_update={loop}").succeeded()
        assert "total images/sec: " in done.stdout
    for loop, record in zip(LOOPS, records()[1:], strict=True):
        assert (record["status"], record["config"]["variable_update"]) == ("ok", loop)
        assert len(record["measurement"]["step_seconds"]) == 4 and min(record["measurement"]["step_seconds"]) > 0
        assert record["measurement"]["replica_drift"] == (0.0 if num_devices > 1 else None)
        assert ("MirroredStrategy" in record["placement"]["manager"]) == (num_devices > 1 or loop != "keras_fit")
        weights = {"mlp": 79_510, "resnet20": 269_722 + 1_376}[model]  # and batch-norm statistics
        assert record["placement"]["variable_bytes_per_device"] == {
            f"/device:CPU:{i}": 4 * weights for i in range(num_devices)
        }
    ours, *others = map(losses_of, records())
    assert len(set(ours)) == 5, "it must train, or agreeing would say nothing"
    for loop, losses in zip(LOOPS, others, strict=True):
        assert losses == pytest.approx(ours, rel=1e-3), loop


def test_a_loss_that_is_not_finite_ends_fit(run_bench: RunBench, records: Records) -> None:
    done = run_bench("--device=cpu", "--model=mlp", "--init_learning_rate=1e30", "--variable_update=keras_fit")
    assert done.status == 4, done.stderr
    assert "did not end" not in done.stderr
    (record,) = records()
    assert record["status"] == "invalid"


@pytest.mark.parametrize("name", ["mlp", "resnet20"])
def test_a_model_that_owns_its_variables_begins_as_one_that_does_not(name: str) -> None:
    options = {"data_format": "NHWC", "num_classes": 10, "seed": 7}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        described = building.build(specs.find_model(name), **options).variables
        initial = session.run([variable.initial_value() for variable in described])
    owning = building.build(specs.find_model(name), **options, owning=True)
    owned = [*owning.keras_model.trainable_variables, *owning.keras_model.non_trainable_variables]
    assert [variable.path for variable in owned] == [variable.name for variable in described]
    for variable, value in zip(owned, initial, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
def test_the_application_has_logits_in_the_layout_that_is_asked_for(data_format: str) -> None:
    model = building.build_application(data_format=data_format, num_classes=1001, seed=1).keras_model
    assert model.input_shape == ((None, 3, 224, 224) if data_format == "NCHW" else (None, 224, 224, 3))
    assert model.output_shape == (None, 1001)
    assert model.layers[-1].activation.__name__ == "linear"


def test_decay_goes_through_the_momentum_and_leaves_biases_alone() -> None:
    model = building.build(specs.find_model("mlp"), data_format="NHWC", num_classes=10, seed=7, owning=True)
    weights = model.keras_model.trainable_variables
    for weight in weights:
        weight.assign(tf.ones(weight.shape))
    optimizer = _SGDWithDecay(model, 0.5, learning_rate=0.1, momentum=0.9)
    for _ in range(2):
        optimizer.apply_gradients([(tf.zeros(weight.shape), weight) for weight in weights])
    # 1 - 0.1 * 0.5 = 0.95, then 0.95 - (0.9 * 0.05 + 0.1 * 0.5 * 0.95)
    for weight in weights:
        np.testing.assert_allclose(weight.numpy(), 0.8575 if weight.path.endswith("kernel") else 1.0, rtol=1e-6)


def _pauses(model: SimpleNamespace, times: list[float]) -> _Pauses:
    pauses = _Pauses(clock=iter(times).__next__)
    pauses.set_model(model)
    return pauses


def _model() -> SimpleNamespace:
    model = SimpleNamespace(stop_training=False, resets=0)
    model.reset_metrics = lambda: setattr(model, "resets", model.resets + 1)
    return model


def test_fit_waits_for_each_turn_and_the_wait_is_not_timed() -> None:
    model = _model()
    pauses = _pauses(model, [10.0, 13.0, 20.0, 24.0, 30.0, 31.0, 32.0])

    def fit() -> None:
        for batch in range(9):
            pauses.on_train_batch_end(batch, {"loss": float(batch)})
            if model.stop_training:
                return

    thread = _in_thread(lambda: pauses.run(fit))
    taken = [pauses.take() for _ in range(2)]
    assert [(step.seconds, step.loss, step.ended_at) for step in taken] == [(3.0, 0.0, 13.0), (4.0, 1.0, 24.0)]
    pauses.stop()
    thread.join(10)
    assert not thread.is_alive()
    assert model.stop_training and model.resets == 2


@pytest.mark.parametrize(
    ("fit", "error"), [(lambda: 1 / 0, "division by zero"), (lambda: None, "ended early: unset KERAS_MAX_STEPS")]
)
def test_the_caller_gets_what_fit_raises_and_that_it_has_ended(fit: Callable[[], object], error: str) -> None:
    pauses = _pauses(_model(), [0.0] * 9)
    thread = _in_thread(lambda: pauses.run(fit))
    with pytest.raises((ZeroDivisionError, UsageError), match=error):
        pauses.take()
    thread.join(10)


def test_fit_that_was_never_asked_for_a_step_does_not_begin() -> None:
    pauses = _pauses(_model(), [0.0] * 9)
    begun: list[bool] = []
    thread = _in_thread(lambda: pauses.run(lambda: begun.append(True)))
    pauses.stop()
    thread.join(10)
    assert not thread.is_alive() and not begun


def _in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_the_application_comes_in_keras_own_layout_unless_told() -> None:
    loop = ("--device=gpu", "--variable_update=keras_fit")
    assert resolve(*loop, gpus=1).workload.data_format == "NCHW"
    assert resolve(*loop, "--keras_application", gpus=1).workload.data_format == "NHWC"
    assert resolve(*loop, "--keras_application", "--data_format=NCHW", gpus=1).workload.data_format == "NCHW"


def test_rankings_keep_them_apart() -> None:
    assert summary.LOOP_NAMES.keys() == REFERENCE_LOOPS.keys()
    rows = summarize(fake_run(variable_update=loop) for loop in ("replicated", "independent", "pytorch"))
    found = [
        ({row.config["variable_update"] for row in group.rows}, group.differs) for group in ranking.ranking_groups(rows)
    ]
    assert found == [({"replicated", "independent"}, ""), ({"pytorch"}, "PyTorch")]


def test_help_names_them_and_explain_refuses_them(run_bench: RunBench) -> None:
    words = " ".join(run_bench("--helpfull").stdout.split())
    assert f"reference training loops: {', '.join(REFERENCE_LOOPS)} (" in words
    for loop in REFERENCE_LOOPS:
        done = run_bench("explain", f"--variable_update={loop}")
        assert done.status == 2
        assert loop in done.stderr and "replicated" in done.stderr


def test_virtual_gpus_of_the_eager_runtime_share_the_memory_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    split: dict[str, list[float]] = {}
    visible: list[list[str]] = []
    monkeypatch.setattr(device_plan, "gpu_inventory", lambda: Inventory((Gpu("H200", 10 * 2**30),) * 3))
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["first", "second", "third"])
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda gpus, kind: visible.append(gpus))
    monkeypatch.setattr(
        tf.config,
        "set_logical_device_configuration",
        lambda gpu, parts: split.update({gpu: [part.memory_limit for part in parts]}),
    )
    for setting in ("set_intra_op_parallelism_threads", "set_inter_op_parallelism_threads"):
        monkeypatch.setattr(tf.config.threading, setting, lambda count: None)
    device_plan.configure_eager_runtime(Devices(device="gpu", num_devices=3, virtual_gpus=2))
    half = pytest.approx([0.9 * 10 * 1024 / 2] * 2)
    assert visible == [["first", "second"]]
    assert split == {"first": half, "second": half}
