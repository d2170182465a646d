"""What a run on GPUs does without flags: precision, batch, reduction and length, by what the driver shows of them."""

from __future__ import annotations

from pathlib import Path

import pynvml
import pytest

from benchmarks.config import config, flag, run_flags, usual_batch
from benchmarks.devices import options
from benchmarks.errors import UsageError
from benchmarks.machine import hardware
from models import specs
from results.environment import published_table
from results.record import key_of
from tests.support.nvidia import MACHINES, Card, Machine, stand_in

H100, A100, T4, V100 = "8 H100, NVSwitch", "8 A100, NVSwitch", "8 T4, PCIe", "2 V100, NVLink"
UNKNOWN = "no capability"
NVIDIA = "NVIDIA DeepLearningExamples RN50v1.5, 20.06: "
REPLICATED = "--variable_update=replicated"


def resolve(machine: Machine | str, monkeypatch: pytest.MonkeyPatch, *words: str) -> config.Config:
    stand_in(monkeypatch, MACHINES[machine] if isinstance(machine, str) else machine)
    return config.resolve(flag.parse(words, run_flags.RUN_FLAGS).values, hardware.count_gpus)


def without(*gpus: int) -> Machine:
    return Machine(8, lost=dict.fromkeys(gpus, pynvml.NVML_ERROR_GPU_IS_LOST))


@pytest.mark.parametrize("words", ["", "--num_gpus=2", "--device=auto --num_gpus=2", "--gpus=0"])
def test_gpus_that_do_not_answer_are_no_reason_for_the_cpu(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="^No GPU of this machine can be used: GPU 0 of the driver does not answer"):
        resolve(without(*range(8)), monkeypatch, *words.split())
    values = dict.fromkeys(("num_gpus", "gpus", "device", "virtual_gpus"))
    assert options.default_to_all(values, 0) == values, "nor for the verbs that use all devices"
    assert all(options.default_to_all({**values, "device": "cpu"}, gpus)["num_gpus"] == 2 for gpus in (0, 4))
    assert not resolve(without(*range(8)), monkeypatch, "--device=cpu").devices.on_gpu


def test_a_run_that_falls_back_to_the_cpu_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_in(monkeypatch, MACHINES[H100])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(options, "_AMD_GPU", tmp_path)

    def notices(*words: str) -> tuple[str, ...]:
        return config.resolve(flag.parse(words, run_flags.RUN_FLAGS).values, hardware.count_gpus).notices

    hidden, of_amd = notices()
    assert hidden.startswith("CUDA_VISIBLE_DEVICES='' hides all GPUs") and f"({tmp_path}) is not used" in of_amd
    assert not notices("--device=cpu")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "8")
    with pytest.raises(UsageError, match="^No GPU of this machine can be used: CUDA_VISIBLE_DEVICES='8' shows no GPU"):
        notices()


@pytest.mark.parametrize(
    ("words", "is_named"),
    [
        ("--num_gpus=2", True),
        ("--gpus=1", True),
        ("--num_gpus=1", False),
        ("--gpus=0,2", False),
        ("--device=cpu", False),
    ],
)
def test_a_gpu_that_others_use_is_named(words: str, is_named: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine([Card(used_gib=1), Card(used_gib=71), Card()])
    notices = resolve(machine, monkeypatch, *words.split()).notices
    in_use = [notice for notice in notices if notice.startswith("GPU 1 is in use: 71.0 of 140.0 GiB of its memory")]
    assert len(in_use) == is_named == ("in use" in " ".join(notices))


def test_workers_of_one_cluster_may_share_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("--local_cluster=worker:2", "--variable_update=collective_all_reduce", "--num_gpus=2", "--virtual_gpus=2")
    notices = resolve(Machine([Card(used_gib=71)]), monkeypatch, *words).notices
    assert "share GPUs" in " ".join(notices) and "in use" not in " ".join(notices)


def test_a_missing_gpu_is_named_where_it_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"has 7 NVIDIA GPUs .* \(GPU 3 of the driver does not answer"):
        resolve(without(3), monkeypatch, "--num_gpus=8")
    made = resolve(without(3), monkeypatch, "--gpus=0,5")
    assert "--gpus=0,5: a process uses one GPU unless --num_gpus says how many." in made.notices
    assert not any("a process uses" in each for each in resolve(H100, monkeypatch, "--gpus=5").notices)


@pytest.mark.parametrize(
    ("machine", "words", "precision", "reason"),
    [
        (H100, "--num_gpus=8", "tf32", "--precision=fp32 turns TF32 off"),
        (A100, "", "tf32", "TensorFlow's default on these GPUs"),
        (T4, "--num_gpus=8", "fp32", "compute capability 7.5 has no TF32; --precision=fp16 uses tensor cores"),
        (V100, "", "fp32", "compute capability 7.0 has no TF32"),
        ("A100 and T4", "", "tf32", "on these GPUs"),
        ("A100 and T4", "--num_gpus=2", "fp32", "compute capability 7.5"),
        ("A100 and T4", "--gpus=1", "fp32", "compute capability 7.5"),
        (UNKNOWN, "", "fp32", "is not known here, so TF32 is off; --precision=tf32"),
        (H100, "--device=cpu", "fp32", None),
        (H100, "--precision=fp32", "fp32", None),
        (H100, "--use_fp16", "fp16", None),
    ],
)
def test_the_precision_is_tensorflows_own(
    machine: str, words: str, precision: str, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = resolve(machine, monkeypatch, *words.split())
    assert made.computing.precision == made.runtime.precision == made.key_fields()["precision"] == precision
    assert (reason or "") in made.reasons.get("precision", "")
    assert ("precision" in made.reasons) == (reason is not None)


def test_a_variable_that_turns_tf32_off_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    made = resolve(H100, monkeypatch)
    assert (made.computing.precision, made.reasons["precision"]) == ("fp32", "NVIDIA_TF32_OVERRIDE=0 turns TF32 off")


@pytest.mark.parametrize(
    ("word", "precision"),
    [
        ("float32", "fp32"),
        ("Float16", "fp16"),
        ("bfloat16", "bf16"),
        ("AMP", "fp16"),
        ("mixed_bfloat16", "bf16"),
    ],
)
def test_other_words_for_a_precision_are_normalised(word: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = (resolve(H100, monkeypatch, f"--precision={name}") for name in (precision, word))
    assert ours == theirs and ours.computing.precision == precision


def test_what_was_chosen_by_default_is_equal_to_the_same_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = resolve(H100, monkeypatch, "--num_gpus=8", REPLICATED)
    same = ("--precision=tf32", "--batch_size=256", "--all_reduce_spec=nccl")
    given = resolve(H100, monkeypatch, "--num_gpus=8", REPLICATED, *same)
    assert key_of(chosen.key_fields()) == key_of(given.key_fields())
    assert set(chosen.reasons) == {"precision", "batch_per_device", "all_reduce_spec", "num_batches"}
    assert "num_devices" in resolve(H100, monkeypatch).reasons
    assert "num_devices" not in resolve(H100, monkeypatch, "--gpus=3").reasons
    assert set(given.reasons) == {"num_batches"}


@pytest.mark.parametrize(
    ("machine", "words", "reduction", "reason"),
    [
        (H100, "--num_gpus=8", "nccl", "NVLink between all GPUs; --all_reduce_spec=psgpu as tf_cnn_benchmarks"),
        (A100, "--num_gpus=2", "nccl", "NVLink between all GPUs"),
        (V100, "--num_gpus=2", "nccl", "NVLink between all GPUs"),
        (V100, "--num_gpus=1", "nccl", None),  # a curve of 1 and 2 has one reduction; here nothing is reduced
        (T4, "--num_gpus=8", "psgpu", "no NVLink between all GPUs, so as tf_cnn_benchmarks"),
        (UNKNOWN, "--num_gpus=2", "psgpu", "no NVLink between all GPUs"),
        (H100, "--num_gpus=8 --all_reduce_spec=psgpu", "psgpu", None),
        (H100, "--num_gpus=8 --local_parameter_device=cpu", "pscpu", None),
        (H100, "--num_gpus=8 --use_nccl=false", "psgpu", None),
        (H100, "--num_gpus=8 --hierarchical_copy", "hierarchical", None),
        (H100, "--num_gpus=4 --virtual_gpus=2", "psgpu", None),
        (H100, "--num_gpus=8 --forward_only", "psgpu", None),
        (
            H100,
            "--num_gpus=8 --compact_gradient_transfer --compact_gradient_dtype=bfloat16",
            "psgpu",
            None,
        ),
        (H100, "--num_gpus=2 --device=cpu", "pscpu", None),
        ("A100 with MIG", "", "psgpu", None),
    ],
)
def test_replicas_are_reduced_as_the_links_suggest(
    machine: str, words: str, reduction: str, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = resolve(machine, monkeypatch, REPLICATED, *words.split())
    assert made.key_fields()["modifiers"]["all_reduce_spec"] == reduction
    assert (reason or "") in made.reasons.get("all_reduce_spec", "")
    assert ("all_reduce_spec" in made.reasons) == (reason is not None)


@pytest.mark.parametrize(
    ("machine", "words", "batch", "reason"),
    [
        (H100, "", 256, f"{NVIDIA}A100 40 GB, TF32"),
        (A100, "--precision=bf16", 256, f"{NVIDIA}A100 40 GB, AMP"),
        (T4, "", 128, f"{NVIDIA}V100 16 GB, FP32"),
        (T4, "--precision=fp16", 256, f"{NVIDIA}V100 16 GB, AMP"),
        (H100, "--model=vgg16", 256, "its activations take 15 of 86 GB; --batch_size=auto finds"),
        (T4, "--model=resnet152", 32, "its activations take 5.6 of 16 GB"),
        ("A100 and T4", "--model=resnet152 --num_gpus=2", 32, "its activations take 5.6 of 16 GB"),
        (T4, "--model=resnet152 --use_fp16", 64, "its activations take 5.6 of 16 GB"),
        (T4, "--virtual_gpus=2 --num_gpus=2", 32, "its activations take 2.7 of 8 GB"),
        (T4, "--gpu_memory_frac=0.5", 32, "its activations take 2.7 of 8 GB"),
        (T4, "--gpu_memory_limit_mb=4000", 16, "its activations take 1.3 of 4 GB"),
        ("A100 with MIG", "--model=vgg16", 32, "its activations take 1.9 of 5 GB"),
        (H100, "--model=resnet20", 128, "the model's default"),
        (H100, "--device=cpu", 8, None),
        (H100, "--batch_size=7", 7, None),
    ],
)
def test_the_batch_is_of_the_model_the_memory_and_the_precision(
    machine: str, words: str, batch: int, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = resolve(machine, monkeypatch, *words.split())
    assert made.workload.batch_per_device == batch
    assert made.reasons.get("batch_per_device", "").startswith(reason or "")
    assert ("batch_per_device" in made.reasons) == (reason is not None)


def test_the_tables_of_batches_are_of_models_and_have_sources() -> None:
    names = set(specs.names())
    for row in published_table("batches"):
        assert row["model"] in names and row["bits"] in ("16", "32") and len(row["source"]) > 20
        assert int(row["batch_per_device"]) > 0 < float(row["memory_gb"])
    for row in published_table("activations"):
        assert row["model"] in names and 0 < float(row["kb_16_bits"]) and 0 < float(row["kb_32_bits"])


def test_one_image_is_the_least() -> None:
    batch, _ = usual_batch.usual_batch(specs.find_model("nasnetlarge"), "fp32", 1e6, on_gpu=True)
    assert batch == 1


@pytest.mark.parametrize(
    ("words", "at_least_seconds"),
    [
        ("", 20.0),
        ("--num_gpus=8 --variable_update=replicated --display_every=5", 20.0),
        ("--forward_only", 20.0),
        ("--num_batches=100", None),
        ("--num_epochs=1", None),
        ("--device=cpu", None),
        ("--train_dir=x", None),
        ("--data_dir=x --eval_during_training_every_n_steps=50", None),
        ("--deterministic", None),
    ],
)
def test_gpus_are_measured_for_20_seconds_at_least(
    words: str, at_least_seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = resolve(H100, monkeypatch, *words.split())
    assert made.length.at_least_seconds == at_least_seconds
    assert made.length.num_batches == (None if "epochs=1" in words else 100)
    assert ("20 s, but 100 to 20,000 steps" in made.reasons.get("num_batches", "")) == (at_least_seconds is not None)
    fixed = resolve(H100, monkeypatch, *words.split(), *([] if "num_" in words else ["--num_batches=100"]))
    assert made.key_fields() == fixed.key_fields(), "rates of both are compared"


def test_the_limits_of_the_length_are_whole_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    made = resolve(H100, monkeypatch, "--num_gpus=2", "--variable_update=local_sgd", "--local_sgd_steps=3")
    assert made.reasons["num_batches"].startswith("20 s, but 102 to 20,001 steps, ")


def test_a_configuration_can_be_counted_whatever_was_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep counts what is left of each."""
    saved = ("--data_dir=x", "--train_dir=y", "--save_model_steps=5")
    chosen, other = (resolve(H100, monkeypatch, "--model=resnet20", *words) for words in (saved, saved[:2]))
    assert chosen.reasons and chosen.data.pauses and len({chosen, chosen, other}) == 2
