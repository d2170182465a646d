from __future__ import annotations

import dataclasses
import os
import pwd
from pathlib import Path

import pytest

from benchmarks import console
from benchmarks.cluster import restarts
from benchmarks.compare import ab_verb
from benchmarks.config import config, flag, run_flags
from benchmarks.config.config import Config
from benchmarks.errors import UsageError
from benchmarks.option import Flag
from benchmarks.sweep import grid, sweep_verb
from tests.support import docs


def test_an_empty_value_is_refused_or_ignored_with_a_notice(capsys: pytest.CaptureFixture[str]) -> None:
    for word in ("--model=", "--gpus=", "--local_cluster=", "--mlflow_uri= "):
        with pytest.raises(UsageError, match=f"{word.rstrip(' =')} is empty: give a value, or leave it out"):
            flag.parse([word], run_flags.RUN_FLAGS)
    console.warn_once.cache_clear()
    values = flag.parse(["--data_dir=", "--train_dir", "", "--batch_size=8"], run_flags.RUN_FLAGS).values
    assert {name: value for name, value in values.items() if value is not None} == {"batch_size": 8}
    warned = capsys.readouterr().err
    assert all(f"{name} is empty, so as if not given." in warned for name in ("--data_dir", "--train_dir"))


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("~/results", "{home}/results"),
        ("~", "{home}"),
        ("~root/x", f"{pwd.getpwnam('root').pw_dir}/x"),
        ("file:///data/a%20b", "/data/a b"),
        ("a/~/b", "a/~/b"),
        ("file:/data", "/data"),
        ("file://localhost/data", "/data"),
        ("with:colon", "with:colon"),
    ],
)
def test_a_path_means_what_it_means_to_a_shell(
    given: str, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / "flags"
    file.write_text(f"--train_dir={given}\n")
    parsed = flag.parse([f"--output_dir={given}", f"--flagfile={file}"], run_flags.RUN_FLAGS).values
    assert parsed["output_dir"] == parsed["train_dir"] == meant.format(home=tmp_path)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("gs://bucket/results", "--output_dir: gs://... is an address of another storage"),
        ("S3://key:secret@bucket", "--output_dir: S3://... is an address of another storage"),
        ("dbfs:/results", "dbfs://... is an address of another storage"),
        ("gs:/bucket/results", "gs://... is an address of another storage"),
        ("~nobody-of-this-name/x", "there is no user 'nobody-of-this-name' with a home directory"),
        ("$HOME/results", "only a shell replaces .NAME and takes away quotes, .*: write the path itself"),
        ("/data/${USER}", "only a shell replaces .NAME"),
        ("$(RESULTS)/run", "only a shell replaces .NAME"),  # of Kubernetes, if there is no such variable
        ("{{ results }}", "only a shell replaces .NAME"),
        ('"/results"', "only a shell replaces .NAME and takes away quotes"),
        (r"C:\results", "is a path of Windows. Write one of this system; in WSL, C:.* is /mnt/c/"),
        ("F:/results", "is a path of Windows"),
        (r"\\server\results", "is a path of Windows"),
        (r"%USERPROFILE%\results", "is a path of Windows"),
        ("`pwd`/results", "only a shell replaces .NAME"),
        ("results  # of today", "takes away quotes, comments and what ends a line"),
        ("results \\", "takes away quotes, comments and what ends a line"),
        ("\u201c/results\u201d", "takes away quotes"),  # of a web page
    ],
)
def test_a_path_that_is_not_on_this_host_is_refused(given: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        flag.parse([f"--output_dir={given}"], run_flags.RUN_FLAGS)
    assert "secret" not in str(caught.value)


def test_a_user_without_a_home_directory_is_told_to_set_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for a user id that /etc/passwd lacks
    with pytest.raises(UsageError, match="--output_dir: '~/x': this user has no home directory: set HOME"):
        flag.parse(["--output_dir=~/x"], run_flags.RUN_FLAGS)


@pytest.mark.parametrize(
    "lines",
    [
        "# a comment\n--xla\n--model=alexnet\n--num_gpus=2\n",
        "\ufeff# of an editor on Windows\r\n--xla\r\n--model=alexnet\r\n",
        "\ufeff--xla\n// a comment\n  --model = alexnet\n",
        "--xla true\n-m alexnet\n--num_gpus 2",
        "--preset=quick\n--model=alexnet\n--xla\n",
    ],
)
def test_a_flagfile_is_read(tmp_path: Path, lines: str) -> None:
    (tmp_path / "flags").write_text(lines)
    for words in ([f"--flagfile={tmp_path / 'flags'}"], ["--flagfile", str(tmp_path / "flags")]):
        parsed = flag.parse([*words, "--num_gpus=4"], run_flags.RUN_FLAGS)
        assert [parsed.values[name] for name in ("xla", "model", "num_gpus")] == ["jit", "alexnet", 4]


def test_a_command_in_a_flagfile_may_have_its_own_flags(tmp_path: Path) -> None:
    line = "--base_command=python run_bench.py --model=vgg16"
    (tmp_path / "flags").write_text(line)
    assert flag.read_files([f"--flagfile={tmp_path / 'flags'}"]) == [line]
    assert flag.parse([line], ab_verb.VERB.flags).values["base_command"] == line.partition("=")[2]


@pytest.mark.parametrize(
    "words",
    [
        ["--output_dir=a --model=vgg16"],
        ["--session_id", "a --model=vgg16"],
        ["--batch_size=3 --model=vgg16"],
        ["--xla --model=vgg16"],
    ],
)
def test_a_word_with_two_flags_is_refused(words: list[str]) -> None:
    with pytest.raises(UsageError, match="--model=vgg16' has several flags, or a flag and a comment: quote each"):
        flag.parse(words, run_flags.RUN_FLAGS)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff\xfe\x00", "flags cannot be read: 'utf-8' codec .* Name a text file with one --name=value per line"),
        (b"--flagfile=flags", "--flagfile=flags is a line of the file itself: take it out"),
        (b"--flagfile=", "--flagfile has no value: write --flagfile=FILE"),  # as from an empty variable
        (b"--preset\n--xla", "--preset has no value: write --preset=NAME"),
        (b"--xla\n--model=vgg16 --num_gpus 2", "--flagfile=flags: '--model=vgg16 --num_gpus 2' has several flags"),
        (b"--preset quik", "--preset=quik cannot be read: .* Did you mean 'quick'"),
    ],
)
def test_a_flagfile_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("flags").write_bytes(content)
    with pytest.raises(UsageError, match=words):
        flag.parse(["--flagfile=flags"], run_flags.RUN_FLAGS)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--modle=vgg16"], r"no flag --modle. Did you mean '--model'\?"),
        (["--zzzzz"], "no flag --zzzzz. See --help"),
        (["--run_mode=solo"], "no flag --run_mode. See --help"),  # not --trt_mode, which is refused, too
        (["--stacks=9"], "no flag --stacks. See --help"),  # its dashes do not make --hosts similar
        (["--lr=0.1"], "no flag --lr. Use --init_learning_rate. See --help"),
        (["-a", "resnet50"], "no flag --a. Use --model. See --help"),
        (["--data=/data"], "no flag --data. Use --data_dir. See --help"),
        (["--devices=2"], "no flag --devices. Use --num_gpus. See --help"),
        (["--no-cuda"], "no flag --nocuda. Use --device. See"),
        (
            ["--variable_update=replicate"],
            r"there is no 'replicate'. Did you mean 'replicated'\? Choices: collective_all_reduce",
        ),
        (
            ["--data_name=flowers"],
            "--data_name=flowers: photos of any classes are read as imagenet's, with their number",
        ),
        (["--fp16_loss_scale=dynamic"], "--fp16_loss_scale=dynamic: use --fp16_enable_auto_loss_scale"),
        (["--batch_size=many"], "--batch_size=many: 'many' is not a whole number, and not auto"),
        (["--num_batches=1.5"], "--num_batches=1.5: '1.5' is not a whole number"),
        (["--batch_size=32,64"], "'32,64' is not a whole number, and not auto. Lists are for `sweep`."),
        (["--optimizer=sgd,adam"], "there is no 'sgd,adam'.* Lists are for `sweep`."),
        (["--num_epoch=3"], r"no flag --num_epoch. Did you mean '--num_epochs'\?"),
        (["--momentum=much"], "--momentum=much: 'much' is not a number"),
        (["--forward_only=perhaps"], "--forward_only=perhaps: 'perhaps' is not true or false"),
        (
            ["--noforward_only=3"],
            "--noforward_only takes no value, such as 3. Write --noforward_only, or --forward_only=true",
        ),
        (["--noforward_only", "true"], "--noforward_only takes no value, such as true"),
        ([f"--batch_size={10**199}"], r"^--batch_size=10{49}\.\.\.0{50}: '10{49}\.\.\.0{50}' is not a whole number"),
        (["--data_name=coco"], "^--data_name=coco: no model of this suite is trained on it"),
        (["-np", "4"], "no flag --np. Use --cluster, as in `mpirun"),
        (["--flagfile=/nowhere/flags"], "/nowhere/flags"),
        (["--model"], "model"),
        (
            ["--output_dir", "--model=vgg16"],
            "--output_dir has no value: --model=vgg16 follows it. Write --output_",
        ),
        (["--num_gpus", "-xla"], "--num_gpus has no value: --xla follows it"),
    ],
)
def test_mistakes_are_explained(arguments: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        flag.parse(arguments, run_flags.RUN_FLAGS)


@pytest.mark.parametrize("given", [["--num_gpus=1", "-g", "2"], ["-num-gpus", "1", "--num_gpus=2", "--num_gpus=2"]])
def test_a_value_that_a_later_one_replaces_is_reported(
    given: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert flag.parse([*given, "--model=mlp", "--model=mlp"], run_flags.RUN_FLAGS).values["num_gpus"] == 2
    assert capsys.readouterr().err == "run_bench: Of --num_gpus, only the last value counts (2), not 1.\n"
    flag.parse(["--preset=quick", "--num_batches=7"], run_flags.RUN_FLAGS)
    assert capsys.readouterr().err == "", "a preset may be overridden without a notice"
    monkeypatch.setattr(restarts, "inherited", lambda: restarts.Attempts("a run"))
    flag.parse(given, run_flags.RUN_FLAGS)
    assert capsys.readouterr().err == "", "the command that has started this task has reported it"


@pytest.mark.parametrize(
    ("given", "same"),
    [
        (["--sync"], ["--cross_replica_sync=true"]),
        (["--async"], ["--nocross_replica_sync"]),
        (["--async=false"], ["--cross_replica_sync"]),
        (["--async", "--nosync", "--nocross_replica_sync"], ["--nocross_replica_sync"]),
        (["--task_id=1", "--task_index=1"], ["--task_index=1"]),
        (["--use_fp16", "--precision=fp16"], ["--precision=fp16"]),
        (["--nouse_fp16"], []),
        (["--use_fp16", "1", "--xla=yes", "--forward_only", "ON"], ["--precision=fp16", "--xla=jit", "--forward_only"]),
        (["--xla", "0", "--forward_only=no"], ["--xla=off", "--noforward_only"]),
        (["--nouse_fp16", "--precision=bf16"], ["--precision=bf16"]),
        (["--xla_compile"], ["--xla=jit"]),
        (["--noxla_compile"], []),
        (["--xla=False", "--xla_compile=True"], ["--xla"]),
        (["--xla=True", "--xla_compile=False"], ["--xla"]),
        (["--num_batches=0", "--num_epochs=160"], ["--num_epochs=160"]),
        (["--num_batches=7", "--num_epochs=0"], ["--num_batches=7"]),
        (["--nohierarchical_copy", "--all_reduce_spec=xring"], ["--all_reduce_spec=xring"]),
    ],
)
def test_another_spelling_is_the_same_value(given: list[str], same: list[str]) -> None:
    values = flag.parse(given, run_flags.RUN_FLAGS).values
    assert values == flag.parse(same, run_flags.RUN_FLAGS).values
    assert not {one.name for one in run_flags.FLAGS.values() if one.same_as} & set(values)


@pytest.mark.parametrize(
    "given",
    [
        ("--async=true", "--sync=true"),
        ("--async=true", "--cross_replica_sync=true"),
        ("--task_id=1", "--task_index=0"),
        ("--use_fp16=true", "--precision=bf16"),
        ("--hierarchical_copy=true", "--all_reduce_spec=xring"),
        ("--hierarchical_copy=false", "--all_reduce_spec=hierarchical"),
    ],
)
def test_two_spellings_with_different_values_are_refused(given: tuple[str, str]) -> None:
    with pytest.raises(UsageError, match=f"^{given[0]} and {given[1]} contradict each other: drop one of them.$"):
        flag.parse(given, run_flags.RUN_FLAGS)


def test_a_spelling_out_of_range_is_refused_as_the_flag() -> None:
    with pytest.raises(UsageError, match="--task_index=-1 is out of range"):
        flag.parse(["--task_id=-1"], run_flags.RUN_FLAGS)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("--whole=0", r"--whole=0 is out of range: it must be at least 1 and at most 1000000000000 \(of apples\)\."),
        ("--share=0", r"--share=0.0 is out of range: it must be above 0 and at most 1 \(of pears\)\."),
        ("--share=1.5", "--share=1.5 is out of range"),
        ("--share=nan", "--share=nan is out of range"),
    ],
)
def test_a_number_out_of_its_range_is_refused(given: str, words: str) -> None:
    table = {
        "": (
            Flag("whole", int, "of apples", ("auto",), at_least=1),
            Flag("share", float, "of pears", above=0, at_most=1),
        )
    }
    assert flag.parse(["--whole=auto", "--share=1"], table).values == {"whole": "auto", "share": 1.0}
    assert flag.parse(["--whole=1"], table).values["share"] is None
    with pytest.raises(UsageError, match=words):
        flag.parse([given], table)


# Other flags that a flag needs to have an effect; without them it is refused.
WITH = {
    "compact_gradient_dtype": ("--compact_gradient_transfer", "--variable_update=replicated"),
    "agg_small_grads_max_group": ("--agg_small_grads_max_bytes=9", "--variable_update=replicated"),
    "fp16_inc_loss_scale_every_n": ("--precision=fp16", "--fp16_enable_auto_loss_scale"),
    "local_sgd_steps": ("--variable_update=local_sgd",),
    "num_ps": ("--cluster=slurm",),
    "server_port": ("--cluster=slurm",),
    "distort_color_in_yiq": ("--distortions",),
    "private_network": ("--local_cluster=ps:1,worker:2", "--variable_update=distributed_replicated"),
    "virtual_gpus": ("--device=gpu",),
}


def _is_value(one: Flag) -> bool:
    return one.default_text in one.words or isinstance(one.default, int | float)


@pytest.mark.parametrize("one", [one for one in run_flags.FLAGS.values() if _is_value(one)], ids=lambda one: one.name)
def test_a_flag_with_its_default_changes_nothing(one: Flag, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PROCID": "0", "NTASKS": "1", "JOB_NODELIST": "a", "TASKS_PER_NODE": "1"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    words = [*WITH.get(one.name, ()), "--data_dir=x"]

    def resolved(*given: str) -> Config:
        values = flag.parse([*words, *given], run_flags.RUN_FLAGS).values
        return dataclasses.replace(config.resolve(values, lambda: 1), notices=(), reasons={})

    assert resolved(f"--{one.name}={one.default_text}") == resolved()


@pytest.mark.parametrize("name", flag.presets())
def test_every_preset_is_a_grid_that_can_be_run(name: str) -> None:
    parsed = flag.parse(
        [f"--preset={name}", "--num_gpus=1", *docs.also_given(name)], grid.sweep_groups(sweep_verb.SWEEP_FLAGS)
    )
    cells = grid.cells([{**grid.of_flags(parsed.values), "device": ["cpu"]}], lambda: 0)
    assert cells and all(cell.config for cell in cells), "flags after it override it"
