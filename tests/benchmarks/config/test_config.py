from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.config import config, outside_models
from benchmarks.data.options import InputOptions
from benchmarks.errors import UsageError
from benchmarks.training import computing
from results.record import key_of
from tests.support.nvidia import Card, Machine, stand_in
from tests.support.settings import resolve
from variable_mgr.modifiers import Modifiers


def test_tf32_is_a_mode_of_onednn_on_cpus_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(computing, "has_instructions", lambda *_: True)
    monkeypatch.setattr(computing, "onednn_mode", lambda *_: None)
    assert resolve("--device=cpu", "--precision=tf32").runtime.fpmath == "BF16"
    assert resolve("--device=cpu", "--precision=bf16").runtime.fpmath is None
    assert resolve("--device=gpu", "--precision=tf32", gpus=1).runtime.fpmath is None


NORM, PINNED, NAME = "runtime.batchnorm_persistent", "devices.force_gpu_compatible", "data.data_name"


@pytest.mark.row("G4.4")
@pytest.mark.parametrize(
    ("words", "gpus", "decided"),
    [
        ("", 0, {"devices.device": "cpu", "workload.data_format": "NHWC", "workload.batch_per_device": 8}),
        ("", 0, {"variables.shared_on": "cpu", "length.num_warmup_batches": 3, NORM: None}),
        ("", 4, {"devices.device": "gpu", "workload.data_format": "NCHW", "workload.batch_per_device": 64}),
        ("", 4, {"variables.shared_on": "gpu", "length.num_warmup_batches": 10, NORM: True, PINNED: False}),
        ("", 4, {"devices.num_devices": 1, "workload.model": "resnet50", "length.num_batches": 100}),
        ("--output_dir=", 0, {"output.output_dir": "out"}),
        ("--device=CPU --num_gpus=5", 1, {"devices.device": "cpu", "batch_global": 40, NORM: None}),
        ("--num_gpus=5 --local_cluster=worker:2 --variable_update=local_sgd", 5, {"batch_global": 640}),
        ("--num_gpus=4 --virtual_gpus=2", 2, {"devices.virtual_gpus": 2}),
        ("--num_gpus=2 --virtual_gpus=auto", 1, {"devices.virtual_gpus": 2}),
        ("--num_gpus=3 --virtual_gpus=auto", 2, {"devices.virtual_gpus": 2}),
        ("--num_gpus=2 --virtual_gpus=auto", 8, {"devices.virtual_gpus": 1}),
        ("--num_gpus=2 --virtual_gpus=auto --device=auto", 0, {"devices.device": "cpu"}),
        ("--num_gpus=2 --device=auto", 2, {"devices.device": "gpu"}),
        ("--nobatchnorm_persistent", 1, {NORM: False}),
        ("--nobatchnorm_persistent", 0, {NORM: None}),
        ("--force_gpu_compatible", 1, {PINNED: True}),
        ("--data_name=synthetic_host", 1, {PINNED: True}),
        ("--data_dir=x", 1, {PINNED: True, NAME: "imagenet", "data.pipelined_input": True}),
        ("--data_dir=x --noforce_gpu_compatible", 1, {PINNED: False}),
        ("--data_dir=x --force_gpu_compatible", 0, {PINNED: False}),
        ("--data_dir=x", 0, {"length.num_warmup_batches": 10}),
        ("--data_name=synthetic_host", 0, {"length.num_warmup_batches": 3}),
        ("--model=mlp", 0, {NAME: "synthetic"}),
        ("--data_dir=x --model=mlp", 0, {NAME: "mnist"}),
        ("--data_dir=x --model=resnet20", 0, {"workload.num_classes": 10}),
        ("--data_dir=x --nopipelined_input", 0, {"data.pipelined_input": False}),
        ("--optimizer=momentum --init_learning_rate=0.5", 0, {"training.learning_rate": 0.5}),
    ],
)
def test_what_is_decided(words: str, gpus: int, decided: dict[str, object]) -> None:
    made = resolve(*words.split(), gpus=gpus)
    assert {field: operator.attrgetter(field)(made) for field in decided} == decided


def test_workers_that_share_gpus_divide_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    split = ("--num_gpus=2", "--virtual_gpus=2", "--variable_update=collective_all_reduce")
    two = (*split, "--local_cluster=worker:2")
    made = resolve(*two, gpus=1)
    assert made.devices.gpu_memory_fraction == 0.45
    assert made.notices == ("2 workers share GPUs, so each takes at most 0.45 of their memory: --gpu_memory_frac.",)
    started = resolve(*two, "--job_name=worker", "--task_index=1", "--worker_hosts=a:1,a:2", gpus=1)
    assert started.devices.gpu_memory_fraction == 0.45
    assert resolve(*two, "--gpu_memory_frac=0.3", gpus=1).devices.gpu_memory_fraction == 0.3
    with pytest.raises(UsageError, match=r"^--gpu_memory_frac=0.6: 2 workers share GPUs, .* at most 0.45"):
        resolve(*two, "--gpu_memory_frac=0.6", gpus=1)
    by_hand = (*split[2:], "--num_gpus=1", "--worker_hosts=a:1,a:2,a:3", "--job_name=worker", "--task_index=0")
    assert resolve(*by_hand, gpus=4).devices.gpu_memory_fraction == 0.3
    for own in (
        resolve(*split, gpus=1),
        resolve(*two[2:], "--num_gpus=2", gpus=4),  # each gets two whole ones
        resolve(*two, "--gpu_memory_limit_mb=1000", gpus=1),
        resolve(*by_hand, "--gpus=1", gpus=4),
        resolve(*by_hand[:2], "--worker_hosts=a:1,b:1", *by_hand[3:], gpus=4),
        resolve(*two[2:], "--num_gpus=2", "--device=cpu"),
    ):
        assert own.devices.gpu_memory_fraction is None and not own.notices
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert resolve(*by_hand, gpus=1).devices.gpu_memory_fraction is None


COLLECTIVE, NCCL = ["--variable_update=collective_all_reduce"], ["--variable_update=nccl"]
BFLOAT16 = ["--compact_gradient_transfer", "--compact_gradient_dtype=bfloat16"]


@pytest.mark.row("S0.10", "S2.7")
@pytest.mark.fault(
    "R10",
    "GPUs that the machine does not have",
    survives="a sentence that counts those that it has, before anything runs",
)
@pytest.mark.parametrize(
    ("arguments", "gpus", "words"),
    [
        (["--model=resnet50,vgg16"], 0, "--model=resnet50,vgg16: a run has one model. Lists are for `sweep`."),
        (["--num_gpus=8"], 0, "--num_gpus=8 asks for 8 GPUs; this machine has 0 NVIDIA GPUs .*--device=cpu"),
        (["--device=gpu"], 0, "--device=gpu asks for 1 GPU; .* for 1 logical CPU device\\."),
        (["--num_gpus=2", "--gpus=1"], 4, "asks for 2 GPUs; --gpus=1 names 1\\. Ask for fewer"),
        (["--gpus=0,7"], 4, "names GPU 7; this machine has 4"),
        (["--gpus=0,0"], 4, "different GPUs"),
        (["--gpus=a"], 4, "such as --gpus=0,2"),
        (["--gpus=0", "--device=auto"], 0, "names GPU 0; this machine has 0"),
        (["--model=mlp", "--num_classes=1000", "--data_dir=x"], 0, "mnist has 10 classes"),
        (
            ["--data_name=mnist", "--data_dir=x"],
            0,
            r"resnet50 is for imagenet \(224.* for mnist: lenet_mnist, mlp\.",
        ),
        (["--data_name=synthetic", "--data_dir=x"], 0, "drop one of them"),
        (
            ["--eval", "--train_dir=x", "--data_dir=x", "--data_split=train"],
            0,
            "--eval, which takes the validation set",
        ),
        (["--data_dir=https://me:secret@host/x"], 0, "^--data_dir: https://... is an address of another storage"),
        (["--variable_update=nccl", "--device=cpu"], 0, "nccl moves data between NVIDIA GPUs only"),
        (["--variable_update=nccl", "--num_gpus=2", "--virtual_gpus=2"], 1, "nccl needs a physical GPU"),
        (["--agg_small_grads_max_group=3"], 0, "acts only with --agg_small_grads_max_bytes"),
        (["--variable_update=replicated", "--use_nccl", "--all_reduce_spec=xring"], 0, "each choose a reduction"),
        ([*COLLECTIVE, "--num_gpus=2", *BFLOAT16, "--all_reduce_spec=nccl"], 2, "not bfloat16: use float16"),
        ([*COLLECTIVE, "--num_gpus=2", "--virtual_gpus=2", *BFLOAT16], 1, "TensorFlow's collectives take .* not bfl"),
        (
            ["--variable_update=replicated", "--all_reduce_spec=collective", "--num_gpus=2", *BFLOAT16],
            2,
            "on GPUs, .* not bfloat16: .* --all_reduce_spec=psgpu",
        ),
        ([*NCCL, "--num_gpus=2", *BFLOAT16, "--precision=fp16"], 2, "or omit --compact_gradient_transfer"),
    ],
)
def test_what_cannot_be_is_refused_with_the_way_out(arguments: list[str], gpus: int, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        resolve(*arguments, gpus=gpus)


@pytest.mark.parametrize(
    ("flags_given", "threads"),
    [
        ([], (None, 0)),
        (["--gpu_thread_mode=global"], ("global", 0)),
        (["--gpu_thread_mode=gpu_private", "--per_gpu_thread_count=3"], ("gpu_private", 3)),
        (["--gpu_thread_mode=GPU_SHARED", "--per_gpu_thread_count=3"], ("gpu_shared", 3)),
        (["--data_dir=x"], ("gpu_private", 0)),
        (["--data_dir=x", "--per_gpu_thread_count=3"], ("gpu_private", 3)),
        (["--data_dir=x", "--gpu_thread_mode=global"], ("global", 0)),
        (["--per_gpu_thread_count=2"], ("gpu_private", 2)),
        (["--per_gpu_thread_count=2", "--gpu_thread_mode=global"], ("global", 0)),
    ],
)
def test_threads_of_gpus_are_tensorflows_unless_data_is_read(flags_given: list[str], threads: object) -> None:
    chosen = resolve("--num_gpus=2", *flags_given, gpus=2)
    assert (chosen.devices.gpu_thread_mode, chosen.devices.per_gpu_thread_count) == threads
    assert (chosen.key_fields() == resolve("--num_gpus=2", gpus=2).key_fields()) == (not flags_given)


@pytest.mark.parametrize(
    ("words", "gpus", "notice"),
    [
        ("", 1, "--per_gpu_thread_count=2: with --gpu_thread_mode=gpu_private, as in tf_cnn_benchmarks."),
        ("--gpu_thread_mode=global", 1, "--per_gpu_thread_count=2 has no effect: --gpu_thread_mode is global."),
        ("--gpu_thread_mode=gpu_shared", 1, None),
        ("--data_dir=x", 1, None),
    ],
)
def test_a_number_of_threads_alone_as_in_old_scripts_is_a_notice(words: str, gpus: int, notice: str | None) -> None:
    notices = resolve("--per_gpu_thread_count=2", *words.split(), gpus=gpus).notices
    assert [one for one in notices if "thread" in one] == ([notice] if notice else [])


def test_the_users_variables_win_over_defaults_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_GPU_THREAD_MODE", "global")
    monkeypatch.setenv("TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT", "False")
    made = resolve("--data_dir=x", gpus=1)
    assert (made.devices.gpu_thread_mode, made.computing.batchnorm_persistent) == ("global", False)
    made = resolve("--data_dir=x", "--gpu_thread_mode=gpu_shared", "--batchnorm_persistent", gpus=1)
    assert (made.devices.gpu_thread_mode, made.computing.batchnorm_persistent) == ("gpu_shared", True)


PASCAL, HOPPER = Card(capability=(6, 0)), Card(capability=(9, 0))


@pytest.mark.parametrize(
    ("flags_given", "cards", "layout"),
    [
        (["--data_format=NCHW"], [HOPPER], "NCHW"),
        ([], [HOPPER, PASCAL], "NHWC"),
        (["--num_gpus=2"], [HOPPER, PASCAL], "NCHW"),
        (["--gpus=1"], [HOPPER, PASCAL], "NCHW"),
        (["--num_gpus=2", "--virtual_gpus=2"], [HOPPER, PASCAL], "NHWC"),
    ],
)
def test_the_layout_is_that_of_the_fastest_kernels_of_the_gpus_that_are_used(
    monkeypatch: pytest.MonkeyPatch, flags_given: list[str], cards: list[Card], layout: str
) -> None:
    stand_in(monkeypatch, Machine(cards))
    assert resolve("--precision=fp16", *flags_given, gpus=2).workload.data_format == layout


def test_a_data_set_without_its_directory_is_synthetic_and_says_so() -> None:
    made = resolve("--data_name=imagenet")
    assert made.data.data_name == "synthetic"
    assert "synthetic" in made.notices[0]


@pytest.mark.parametrize(
    ("change", "moves"),
    [
        ("--batch_size=4", True),
        ("--use_fp16 --fp16_loss_scale=64", True),
        ("--use_fp16 --check_precision", False),
        ("--data_dir=x --nopipelined_input", True),
        ("--num_intra_threads=1", True),
        ("--precision=bf16", True),
        ("--conv1x1_as_matmul", True),
        ("--fused_bn", False),
        ("--num_batches=7", False),
        ("--display_every=3", False),
        ("--time_limit_seconds=9", False),
    ],
)
def test_the_key_holds_what_can_move_the_number(change: str, moves: bool) -> None:
    *others, _ = words = change.split()
    assert (resolve(*others).key_fields() != resolve(*words).key_fields()) == moves


@pytest.mark.parametrize(
    ("arguments", "manager", "modifiers"),
    [
        (["--variable_update=staged"], "parameter_server", {"staged_vars": True}),
        (
            ["--variable_update=replicated", "--all_reduce_spec=PSCPU#1:32768:XRing#2"],
            "replicated",
            {"all_reduce_spec": "pscpu:32K:xring#2"},
        ),
        (
            ["--variable_update=replicated", "--hierarchical_copy", "--variable_consistency=relaxed"],
            "replicated",
            {"all_reduce_spec": "hierarchical", "relaxed_consistency": True},
        ),
        (
            ["--variable_update=collective_all_reduce", "--gradient_repacking=4", "--compact_gradient_transfer"],
            "collective_all_reduce",
            {"gradient_repacking": 4, "compact_gradient_transfer": True},
        ),
    ],
)
def test_managers_and_modifiers(arguments: list[str], manager: str, modifiers: dict) -> None:
    made = resolve("--device=cpu", "--num_gpus=2", *arguments)
    assert made.variables.variable_update == manager
    assert made.variables.modifiers == Modifiers(**modifiers)


def test_workers_that_share_gpus_reduce_around_a_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    workers = ("--worker_hosts=localhost:7001,localhost:7002", "--job_name=worker", "--task_index=0")
    assert resolve(*COLLECTIVE, *workers, "--device=gpu", gpus=1).variables.modifiers.all_reduce_spec is None
    assert resolve(*COLLECTIVE, *workers, "--gpus=0", gpus=2).variables.modifiers.uses_nccl
    with pytest.raises(UsageError, match=r"^--all_reduce_spec=nccl: NCCL needs a whole GPU .* workers share GPUs"):
        resolve(*COLLECTIVE, *workers, "--device=gpu", "--all_reduce_spec=nccl", gpus=1)


@pytest.mark.row("G1.3")
def test_every_flag_of_the_input_reaches_the_pipeline() -> None:
    chosen = resolve(
        "--data_dir=x", "--data_split=validation", "--image_crop=distorted", "--nofuse_decode_and_crop",
        "--resize_method=round_robin", "--distortions", "--nodistort_color_in_yiq",
        "--datasets_parallel_interleave_cycle_length=3", "--datasets_shuffle_records=17",
        "--datasets_parallel_calls=-1",
        "--datasets_prefetch_buffer_size=5", "--datasets_num_private_threads=6", "--datasets_autotune_cpu_budget=4",
        "--datasets_sloppy_parallel_interleave",
    ).data.input  # fmt: skip
    usual = InputOptions()
    unchanged = {f.name for f in dataclasses.fields(usual) if getattr(chosen, f.name) == getattr(usual, f.name)}
    assert unchanged == {"crop", "decode_scaling", "cache", "on_bad_record"}
    assert resolve("--data_dir=x", "--decode_scaling").data.input == dataclasses.replace(usual, decode_scaling=True)
    assert resolve("--data_dir=x", "--nodatasets_use_prefetch").data.input == dataclasses.replace(
        usual, prefetch_batches=0
    )
    assert resolve("--data_dir=x", "--datasets_use_caching").data.input == dataclasses.replace(usual, cache="records")
    assert resolve("--data_dir=x", "--forward_only").data.input == dataclasses.replace(usual, crop="central")


@pytest.mark.parametrize(
    ("flags", "measured", "warmup", "notices"),
    [
        ((), 100, 4, []),
        (("--local_sgd_steps=16",), 112, 16, []),
        (("--local_sgd_steps=3", "--num_batches=9", "--num_warmup_batches=7"), 9, 7, []),
        (("--num_batches=10",), 12, 4, ["--num_batches=10 becomes 12"]),
        (("--num_warmup_batches=1",), 100, 4, ["--num_warmup_batches=1 becomes 4"]),
        (("--local_sgd_steps=1", "--num_batches=7", "--num_warmup_batches=0"), 7, 0, []),
        (("--forward_only", "--num_batches=7"), 7, 3, []),
        (("--num_epochs=1",), None, 4, []),
    ],
)
def test_local_sgd_is_measured_in_whole_rounds_after_its_first_averaging(
    flags: Sequence[str], measured: int | None, warmup: int, notices: Sequence[str]
) -> None:
    found = resolve("--device=cpu", "--num_gpus=2", "--variable_update=local_sgd", *flags)
    assert (found.length.num_batches, found.length.num_warmup_batches) == (measured, warmup)
    said = [notice for notice in found.notices if "becomes" in notice]
    assert [notice.partition(":")[0] for notice in said] == notices


@pytest.mark.parametrize(
    ("flags", "pauses"),
    [
        ((), None),
        (("--train_dir=t",), None),
        (("--train_dir=t", "--save_model_steps=5"), {"save_model_steps": 5}),
        (("--eval_during_training_every_n_steps=2",), {"eval_every_steps": 2}),
        (("--train_dir=t", "--summary_verbosity=1", "--save_summaries_steps=3"), {"save_summaries_steps": 3}),
    ],
)
def test_pauses_are_in_the_key_of_runs_that_read_images(flags: Sequence[str], pauses: Any) -> None:
    plain = ("--device=cpu", "--model=trivial_cifar10")
    reading = (*plain, "--data_dir=cifar")
    found = resolve(*reading, *flags)
    assert found.data.pauses == pauses
    assert (key_of(found.key_fields()) == key_of(resolve(*reading).key_fields())) is (pauses is None)
    if "--eval_during_training_every_n_steps=2" not in flags:
        assert key_of(resolve(*plain, *flags).key_fields()) == key_of(resolve(*plain).key_fields())


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        (f"--num_batches={'9' * 5000}", r"'9+\.\.\.9+' is not a whole number"),
        (f"--num_batches=0x{'f' * 5000}", "is not a whole number"),
        (f"--batch_size={'9' * 5000}", "is not a whole number, and not auto"),
        ("--start_timeout_seconds=1e300", "and at most 1000000000 "),
        ("--gpus=\u00b2", "by their numbers"),
        ("--num_gpus=1000000000", "at most 1,024 devices"),
        ("--profile_steps=\u00b2:3", "the first and the last step"),
        (f"--output_dir={'a' * 300}", "cannot be the path of a file"),
        ("--output_dir=file:///a%00b", "cannot be the path of a file"),
        ("--trace_file=-", "--trace_file=-: '-' is not a file: use /dev/stdin or /dev/stdout, or ./-"),
        (f"--{'9' * 5000}", "no flag with so long a name"),
    ],
)
def test_odd_text_is_a_sentence(word: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        resolve(word, gpus=1)


def test_what_flags_alone_contradict_is_refused_before_code_is_executed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config.outside_models, "find_any_model", lambda *_: pytest.fail("the model was looked for"))
    for words in (("--num_batches=1", "--num_epochs=1"), ("--ssh",), ("--deterministic", "--async")):
        with pytest.raises(UsageError):
            resolve("--model=net.py:build", *words)


def test_a_model_that_cannot_be_built_is_built_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    built = []

    def refuse(*arguments: object) -> None:
        built.append(arguments)
        raise UsageError("it cannot be built")

    monkeypatch.setattr(outside_models, "_probe", refuse)
    (tmp_path / "net.py").touch()
    for _ in range(2):  # --print_config tries with any number of GPUs, too
        with pytest.raises(UsageError, match="it cannot be built"):
            resolve(f"--model={tmp_path}/net.py:build")
    assert len(built) == 1
