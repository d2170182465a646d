from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.config import config, flag, run_flags
from benchmarks.explain import data_flow
from benchmarks.process import tensorflow_setup
from tests.support.commands import Finished
from variable_mgr.catalog import MANAGERS


def _explained(*arguments: str) -> config.Config:
    return config.resolve(flag.parse(arguments, run_flags.RUN_FLAGS).values, lambda: 10**6)


def test_it_explains_more_gpus_than_there_are(run_bench: Callable[..., Finished]) -> None:
    done = run_bench("explain", "replicated", "--num_gpus=8", "--model=vgg16", "--all_reduce_spec=xring", "--onednn=on")
    assert done.status == 0, done.stderr
    assert "8 copies, one per tower" in done.stdout
    assert "553.4 MB" in done.stdout  # 138,361,641 weights of 4 bytes
    assert "7748.3 MB, 968.5 MB per tower" in done.stdout  # 2 * 7/8 of it each
    assert "batch of 512" in done.stdout
    assert "mean" in done.stdout


@pytest.mark.parametrize("word", ["replicate", "resnet50"])
def test_what_is_no_manager_is_refused(run_bench: Callable[..., Finished], word: str) -> None:
    done = run_bench("explain", word)
    assert done.status == 2
    assert f"no variable manager '{word}'" in done.stderr


@pytest.mark.parametrize("manager", MANAGERS)
def test_every_manager_can_be_explained(
    manager: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorflow_setup, "prepare", lambda *_: None)
    cluster = [f"--local_cluster={smallest}"] if (smallest := MANAGERS[manager].smallest_cluster) else []
    data_flow.show_data_flow(_explained("--model=trivial", "--num_gpus=2", f"--variable_update={manager}", *cluster))
    text = capsys.readouterr().out
    for fact in ("Configuration:", "Weights:", "Gradients:", "Applied at step t:", "Sent per step:", "tower 0"):
        assert fact in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["replicated", "--variable_update=independent"], "name two managers"),
        (["replicated", "--forward_only"], "leave it out"),
    ],
)
def test_contradictions_are_refused(run_bench: Callable[..., Finished], arguments: list[str], words: str) -> None:
    done = run_bench("explain", *arguments)
    assert done.status == 2 and words in done.stderr


def test_what_is_done_to_gradients_is_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorflow_setup, "prepare", lambda *_: None)
    modified = ("--gradient_repacking=4", "--compact_gradient_transfer", "--variable_update=replicated")
    data_flow.show_data_flow(_explained("--model=trivial", "--num_gpus=2", *modified))
    text = capsys.readouterr().out
    assert "packed into 4 equal chunks, sent as float16, reduced by" in text
    assert "rounded to float16" in text
    data_flow.show_data_flow(
        _explained("--model=trivial", "--num_gpus=2", "--variable_update=local_sgd", "--local_sgd_steps=1")
    )
    assert "as one device with a batch of 64" in capsys.readouterr().out


def test_delays_are_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorflow_setup, "prepare", lambda *_: None)
    data_flow.show_data_flow(_explained("--model=trivial", "--num_gpus=2", "--variable_update=staged"))
    assert "computed in step t-1 from weights read in step t-2" in capsys.readouterr().out


def _text(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    monkeypatch.setattr(tensorflow_setup, "prepare", lambda *_: None)
    data_flow.show_data_flow(_explained(*arguments))
    return capsys.readouterr().out


def test_when_dividing_dense_layers_pays(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    vgg = ("--model=vgg16", "--num_gpus=2", "--batch_size=2", "--device=cpu", "--variable_update=replicated")
    text = _text(capsys, monkeypatch, *vgg)
    # 14,714,688 weights of convolutions are left, sent 4 times; and by 2 towers, forward and back, for 4 images 25088
    # features and twice 4096 columns, and 1001 logits of the other tower's 2 images.
    megabytes = (4 * 4 * 14_714_688 + 2 * 4 * (4 * (25088 + 2 * 4096) + 2 * 1001)) / 1e6
    assert f"--fc_model_parallel sends {megabytes:.1f} MB per step instead of 2213.8 MB" in text
    assert "89% of the weights, 0.8% of the operations" in text
    assert "Divided" not in _text(capsys, monkeypatch, *vgg[:-1], "--variable_update=independent")
    small = _text(
        capsys, monkeypatch, "--model=resnet50", "--num_gpus=8", "--batch_size=512", "--variable_update=replicated"
    )
    assert "sends more, and would send less only up to a batch of 117" in small
    assert "columns" in _text(capsys, monkeypatch, *vgg, "--fc_model_parallel").rpartition("update")[2]


def test_asynchronous_towers_are_explained(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    text = _text(capsys, monkeypatch, "--model=trivial", "--num_gpus=2", "--nocross_replica_sync")
    assert "not plain SGD" in text and "about N-1 updates ago" in text and "an update per tower" in text


def test_one_tower_has_nobody_to_wait_for(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    text = _text(capsys, monkeypatch, "--model=trivial", "--nocross_replica_sync", "--device=cpu")
    assert "computed in step t itself" in text and "as one device with a batch of 32" in text


def test_divided_layers_are_not_on_the_host(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ("--model=vgg16", "--num_gpus=2", "--variable_update=parameter_server", "--fc_model_parallel")
    text = _text(capsys, monkeypatch, *given)
    assert "of the dense layers each tower holds some columns" in text
    assert "those of the dense layers stay on their tower" in text and "[columns]" in text
