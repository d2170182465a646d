"""The reference loop in PyTorch: it trains as the suite's own managers, and is timed and kept alike."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

from benchmarks.config import variable_update
from benchmarks.errors import UsageError
from benchmarks.training.computing import LossScaling
from tests.support.commands import Records, RunBench, losses_of
from tests.support.settings import resolve
from variable_mgr.catalog import PYTORCH_LOOPS

torch = pytest.importorskip("torch")
from benchmarks.run import pytorch_step  # noqa: E402 - it imports PyTorch

FLAGS = ("--device=cpu", "--batch_size=4", "--num_warmup_batches=1", "--num_batches=4", "--optimizer=momentum")


@pytest.mark.parametrize(
    ("model", "flags"),
    [
        ("mlp", ()),
        ("alexnet_cifar10", ("--data_format=NCHW", "--label_smoothing=0.1")),
        ("resnet20", ("--weight_decay_on=all",)),
    ],
)
def test_losses_are_those_of_replicated(
    run_bench: RunBench, records: Records, model: str, flags: tuple[str, ...]
) -> None:
    for loop in ("replicated", "pytorch"):
        words = (*FLAGS, f"--model={model}", "--weight_decay=1", *flags, f"--variable_update={loop}")
        done = run_bench(*words).succeeded()
        assert "total images/sec: " in done.stdout
    ours, theirs = records()
    assert len(set(losses_of(ours))) == 5, "it must train, or agreeing would say nothing"
    assert losses_of(theirs) == pytest.approx(losses_of(ours), rel=1e-3)
    assert theirs["status"] == "ok" and theirs["config"]["torch_version"] == torch.__version__
    assert ours["config"]["torch_version"] is None
    assert ours["identity"]["software_key"] == theirs["identity"]["software_key"], "one sweep gives one table"
    assert min(theirs["measurement"]["step_seconds"]) > 0
    for what in ("variables", "weights", "variable_bytes_per_device", "slot_bytes_per_device", "flops_per_image"):
        assert theirs["placement"][what] == ours["placement"][what], what
    assert "PyTorch:" in done.stdout and torch.__version__ in done.stdout


def test_threads_are_those_that_are_asked_for(
    run_bench: RunBench, records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        torch, "set_num_threads", lambda count: monkeypatch.setattr(torch, "get_num_threads", lambda: count)
    )
    assert run_bench(*FLAGS, "--model=mlp", "--variable_update=pytorch", "--num_intra_threads=3").status == 0
    assert records()[0]["placement"]["devices"] == "1 CPU, 3 threads"


# fp16 takes 16 s on a Xeon (6/207/2).
@pytest.mark.parametrize("precision", ["bf16", pytest.param("fp16", marks=pytest.mark.slow)])
def test_sixteen_bits_train_alike(run_bench: RunBench, records: Records, precision: str) -> None:
    for flags in (("--precision=fp32",), (f"--precision={precision}",)):
        run_bench(*FLAGS, "--model=resnet20", *flags, "--variable_update=pytorch").succeeded()
    exact, rounded = map(losses_of, records())
    assert rounded == pytest.approx(exact, rel=0.05) and rounded != exact


@pytest.mark.slow  # it compiles with the C++ compiler
@pytest.mark.process
def test_a_compiled_model_trains_alike(run_process: RunBench, records: Records) -> None:
    for flags in ((), ("--torch_compile",)):
        run_process(*FLAGS, "--model=resnet20", *flags, "--variable_update=pytorch").succeeded()
    eager, compiled = records()
    assert losses_of(compiled) == pytest.approx(losses_of(eager), rel=1e-3)
    assert eager["identity"]["config_key"] != compiled["identity"]["config_key"]
    assert compiled["placement"]["manager"].endswith("compiled by torch.compile")


@pytest.mark.slow  # PyTorch's compiler is imported
@pytest.mark.process
def test_without_a_compiler_the_error_says_so(run_process: RunBench) -> None:
    flags = (*FLAGS, "--model=mlp", "--variable_update=pytorch", "--torch_compile")
    done = run_process(*flags, CXX="/nonexistent", TORCHINDUCTOR_FORCE_DISABLE_CACHES="1")
    assert done.status == 2 and "It needs a C++ compiler" in done.stderr, done.stderr


def test_an_environment_that_turns_the_compiler_off_is_refused(run_bench: RunBench) -> None:
    flags = (*FLAGS, "--model=mlp", "--variable_update=pytorch", "--torch_compile")
    done = run_bench(*flags, TORCHDYNAMO_DISABLE="1")
    assert done.status == 2 and "with TORCHDYNAMO_DISABLE in the environment" in done.stderr, done.stderr


def _step(scaling: LossScaling | None, loss_factor: float) -> tuple[float, dict[str, float]]:
    """Takes a step of size 1 on a weight of 1 whose gradient is `loss_factor`; returns the weight and the numbers."""
    model = torch.nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        model.weight.fill_(1.0)
    optimizer = pytorch_step.make_optimizer(model, (), learning_rate=1.0, momentum=0.0, weight_decay=0.0)
    step = pytorch_step.make_step(
        lambda images: loss_factor * model(images),
        optimizer,
        torch.ones(1, 1),
        torch.zeros(1, dtype=torch.int64),
        device=torch.device("cpu"),
        precision="fp32",
        loss_scaling=scaling,
        label_smoothing=0.0,
    )
    _, staleness, numbers = step()
    assert staleness == 0
    return model.weight[0].item(), dict(numbers)


def test_the_loss_scale_does_not_change_the_update_and_overflow_skips_it() -> None:
    plain, _ = _step(None, 1.0)
    assert plain == pytest.approx(1.5)
    assert _step(LossScaling(128.0), 1.0) == (pytest.approx(1.5), {})
    scaled, numbers = _step(LossScaling(1024.0, increase_every=10), 1.0)
    assert (scaled, numbers) == (pytest.approx(1.5), {"loss_scales": 1024.0, "skipped_updates": 0.0})
    skipped, numbers = _step(LossScaling(1024.0, increase_every=10), math.inf)
    assert (skipped, numbers["skipped_updates"]) == (1.0, 1.0)


def test_decay_goes_through_the_momentum_and_leaves_other_weights_alone() -> None:
    model = torch.nn.Linear(1, 1)
    torch.nn.init.ones_(model.weight)
    torch.nn.init.ones_(model.bias)
    optimizer = pytorch_step.make_optimizer(model, ["weight"], learning_rate=0.1, momentum=0.9, weight_decay=0.5)
    for _ in range(2):
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    # 1 - 0.1 * 0.5 = 0.95, then 0.95 - (0.9 * 0.05 + 0.1 * 0.5 * 0.95)
    assert (model.weight.item(), model.bias.item()) == (pytest.approx(0.8575), 1.0)


def test_without_pytorch_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variable_update, "installed", lambda *names: None)
    for loop in PYTORCH_LOOPS:
        cluster = ("--local_cluster=worker:2",) if loop == "pytorch_ddp" else ()
        with pytest.raises(UsageError, match=r"pip install 'cnn-train-bench\[torch\]'"):
            resolve("--device=cpu", f"--variable_update={loop}", *cluster)
    assert resolve("--device=cpu", "--variable_update=replicated").variables.torch_version is None


def test_a_pytorch_that_cannot_be_imported_is_no_crash(run_bench: RunBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "benchmarks.run.pytorch_loop", None)
    monkeypatch.delattr("benchmarks.run.pytorch_loop", raising=False)
    done = run_bench(*FLAGS, "--model=mlp", "--variable_update=pytorch")
    assert done.status == 2 and "PyTorch is installed, and cannot be imported: " in done.stderr, done.stderr


def test_a_model_with_an_unknown_layer_is_refused_by_name(run_bench: RunBench) -> None:
    done = run_bench(*FLAGS, "--model=convnext_tiny", "--variable_update=pytorch")
    assert done.status == 2
    assert "cannot train convnext_tiny: its layer '" in done.stderr and "has no counterpart" in done.stderr


OWN_MODEL = """
import keras
L = keras.layers
def build(num_classes):
    images = keras.Input((16, 16, 3))
    x = L.Conv2D(8, 3, padding="same")(images)
    {body}
    top = L.Dense(num_classes, kernel_initializer="zeros")  # with which all logits would be 0
    return keras.Model(images, top(L.GlobalAveragePooling2D()(x)))
"""
# A ReLU whose input others need, images that are passed on, and weights that are not trained.
CONVERTED = """
    x = L.Add()([x, L.Conv2D(8, 3, padding='same')(L.Activation('relu')(x))])
    x = L.Concatenate()([L.Activation('relu')(images), images, x])
    x = L.Conv2D(4, 3, activation='relu', trainable=False)(x)
"""
REFUSED = {
    "x = L.LayerNormalization(axis=1)(L.Conv2D(16, 3, padding='same')(x))": "other logits (by ",
    "x = L.Conv2D(8, 3, dilation_rate=2)(x)": "is a Conv2D with dilation_rate, which has no counterpart",
    "x = L.Dense(16)(x)": "other logits (",
}


def _own_model(tmp_path: Path, body: str) -> str:
    path = tmp_path / "own.py"
    path.write_text(OWN_MODEL.format(body=body))
    return f"--model={path}:build"


@pytest.mark.usefixtures("facts_in_this_process")
def test_a_model_of_users_trains_alike(run_bench: RunBench, records: Records, tmp_path: Path) -> None:
    for loop in ("replicated", "pytorch"):
        run_bench(*FLAGS, _own_model(tmp_path, CONVERTED), f"--variable_update={loop}").succeeded()
    ours, theirs = records()
    assert len(set(losses_of(ours))) == 5 and losses_of(theirs) == pytest.approx(losses_of(ours), rel=1e-3)


@pytest.mark.usefixtures("facts_in_this_process")
@pytest.mark.parametrize(("body", "message"), REFUSED.items())
def test_models_that_would_be_others_in_pytorch_are_refused(
    run_bench: RunBench, tmp_path: Path, body: str, message: str
) -> None:
    done = run_bench(*FLAGS, _own_model(tmp_path, body), "--variable_update=pytorch")
    assert done.status == 2 and message in done.stderr, done.stderr
