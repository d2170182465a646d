"""What a user asked for and cannot have: a sentence as the last line of stderr, its exit status, and no result."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from benchmarks.errors import ExitStatus
from tests.support.commands import RunBench
from tests.support.nvidia import Machine, stand_in

# Command lines, and what the last line of stderr says of each.
WITHOUT_ARGUMENTS = [
    ("track", "track needs a subcommand. Subcommands: store, list, prune, check, history, calibrate."),
    ("compare", "compare: name two files of records, first the base, such as compare main/results.jsonl "),
    ("diff", "diff: name two records by their run ids, such as diff "),
    ("rerun", "rerun: name the record by its run id, such as rerun "),
    ("server", "server starts one task of a cluster: name it"),
    ("server --local_cluster=worker:2", "server starts one task of a cluster: name it"),
    ("data check", "name one directory, not 0"),
    ("data convert x", "data convert SRC DIR"),
    ("input --device=cpu", "pass --data_dir=DIR"),
    ("export_model", "export_model needs one of --train_dir=DIR and --checkpoint=PREFIX"),
    ("export_model --train_dir=a", "export_model needs --keras_file=FILE.keras, --saved_model_dir=DIR or both"),
]
WORDS = [
    ("--device=cpu fast", "'fast' is not a flag."),
    ("--print_config resnet50", "'resnet50' is not a flag. Flags are spelled"),
    ("--seed=1", "run has no flag --seed. Use --tf_random_seed."),
    ("report x --lr=1", "There is no flag --lr. See"),
    ("--device=cpu -- num_gpus=2", "'num_gpus=2' is not a flag. Did you mean --num_gpus=2?"),
    ("--device=cpu ' '", "' ' is not a flag. A backslash that continues a line must be its last character."),
    (r"--device=cpu '\' '#'", "is not a flag. A backslash that continues a line"),
    ("--model=trivial sweep", "'sweep' is a verb, which comes first, before all flags."),
    ("--device=cpu help", "'help' is a verb, which comes first"),
    ("NCCL_DEBUG=INFO --device=cpu", "'NCCL_DEBUG=INFO' sets an environment variable: write it before"),
    ("--device=cpu TF_X=1", "'TF_X=1' sets an environment variable: write it before the program, or after"),
    ("--num_gpus=2 1", "'1' is not a flag. Flags are spelled"),
    ("--device=cpu '--output_dir=out\r'", "has lines as on Windows"),
    ("recommend --wandb_project=demo", "recommend has no flag --wandb_project"),
    ("verify --wandb_project=demo", "verify has no flag --wandb_project"),
    ("doctor --wandb_project=demo", "doctor has no flag --wandb_project"),
    ("recommend --device=cpu --pipeline_stages=2", "no flag --pipeline_stages, which is one of a run"),
    ("recommend --device=cpu --train_dir=mine", "no flag --train_dir, which is one of a run"),
    ("scaling --suite=x.toml", "scaling has no flag --suite, which is one of sweep"),
    ("data check x --resize=3", "--resize, which is one of data make_imagenet or data convert."),
    ("data make_digits x --train_images=9", "--train_images, which is one of data make_"),
]
FILES = [
    ("--device=cpu --output_dir=/proc/here", "Results cannot be written to --output_dir=/proc/here"),
    ("data make_imagenet /proc/here", "cannot write to /proc/here"),
    ("data make_imagenet x --train_images=0", "nothing to write"),
    ("export_model --train_dir=a --keras_file=model.h5", "name a file FILE.keras"),
    ("export_model --train_dir=a --saved_model_dir=.", "--saved_model_dir=. exists: name a new directory"),
    ("export_model --train_dir=a --checkpoint=b", "export_model needs one of --train_dir=DIR and --checkpoint="),
]
CLUSTERS = [
    ("server --cluster_spec=local|localhost:2222", "but not which of its tasks this is: add --job_name"),
    ("--local_cluster=worker:2 --hosts=a,b --ssh", "give one of them"),
    ("--hosts=a,b", "--ssh"),
]
VALUES = [
    ("--data_dir=d --eval_during_training_at_specified_steps=5,x", "whole numbers above 0 with commas"),
    ("--data_dir=d --eval_during_training_at_specified_epochs=0", "numbers above 0 with commas"),
    ("--device=cpu --pipeline_stages=4 --num_gpus=2", "use --num_gpus=4"),
    ("--device=cpu --pipeline_stages=2 --num_gpus=2 --batch_size=4 --micro_batches=3", "use --micro_batches=2"),
    ("--device=cpu --pipeline_stages=2 --num_gpus=2 --batch_size=4 --micro_batches=9", "use --micro_batches=8"),
    ("explain replicated --device=cpu --batch_size=auto", "found by trying"),
    ("--device=cpu --batch_size=auto --local_cluster=ps:1,worker:2", "do not go with several processes"),
    ("--device=cpu --batch_size=auto --print_config", "do not go with --print_config"),
    ("--device=cpu --batch_size=auto --check_precision --precision=bf16", "do not go with --check_precision"),
    ("allreduce --device=cpu --num_gpus=1", "--num_gpus=2 or more"),
    ("allreduce --device=cpu --num_gpus=2 --all_reduce_spec=pscpu,nccl", "nccl moves data between NVIDIA GPUs"),
    ("allreduce --device=cpu --num_gpus=2 --min_bytes=lots", "'lots' is no size: give a number, such as"),
    ("allreduce --device=cpu --num_gpus=2 --min_bytes=1M --max_bytes=1K", "no power of two"),
    ("allreduce --device=cpu --num_gpus=0,2", "--num_gpus=0,2: pass one or more numbers"),
    ("allreduce --device=cpu --num_gpus=2,1000 --model=none", "--num_gpus=2,1000: graphs of so many devices"),
    ("allreduce --device=cpu --num_gpus=3,5 --all_reduce_spec=pscpu,rechd", "rechd halves the towers"),
    ("compare a b --threshold=0", "is out of range: it must be above 0 and at most 99"),
    ("compare a b --threshold=100", "is out of range: it must be above 0 and at most 99"),
]
WITHOUT_BREAKDOWN = [
    (f"doctor --device=cpu {where} {flag}", f"{name} belongs to the step-time breakdown, and {why} there is none")
    for where, why, flags in (
        ("--local_cluster=ps:1,worker:2", "with a cluster", ("--model=vgg16", "--budget_seconds=5", "--breakdown")),
        ("--nobreakdown", "with --nobreakdown", ("--model=vgg16", "--budget_seconds=5", "--output_dir=there")),
        ("--worker_hosts=a:1,b:1 --job_name=worker --task_index=0", "with a cluster", ("--output_dir=there",)),
    )
    for flag in flags
    for name in [flag.split("=")[0]]
]
SWEEPS = [
    ("sweep --device=cpu --model=vgg61", "Did you mean 'vgg16'?"),
    ("sweep --device=cpu --model=trivial,,vgg16", "an empty value between the commas"),
    ("sweep --device=cpu '--local_cluster=worker:2;'", "an empty value between the semicolons"),
    ("sweep --device=cpu --batch_size=1,2 --repeats=50001", "100,002 runs"),
    ("sweep --suite=nowhere.toml", "--suite=nowhere.toml cannot be read: No such file or directory. A suite"),
    ("ab --device=cpu", "set what to compare with"),
    ("ab --device=cpu --base=a --base_command=true", "--base and --base_command"),
    ("ab --device=cpu --base=a --json_file=a.x --junit_file=./a.x", "--json_file and --junit_file both name ./a.x"),
    ("ab --device=cpu '--base_command=nowhere --x'", "there is no program 'nowhere'"),
    ('ab --device=cpu --base_command="\'a"', "No closing quotation"),
    ("ab --base_command=true --train_dir=x", "each run would continue the training of the one before"),
    ("ab --base_command=true --wandb_project=demo", "--wandb_project=demo: runs that are compared in pairs are n"),
    ("track calibrate --wandb_project=demo", "--wandb_project=demo: runs that are compared in pairs are not sent"),
]
EXPLANATIONS = [
    ("explain replicate", "no variable manager 'replicate'. Did you mean 'replicated'?"),
    ("explain replicated --variable_update=independent", "name two managers"),
    ("explain replicated --forward_only", "leave it out"),
    ("explain --model=all --local_cluster=ps:1,worker:2", "--local_cluster is about one configuration"),
    ("explain --model=mlp,vgg16 --optimizer=adam", "--optimizer is about one configuration"),
    ("explain --model=mlp,vgg61", "Did you mean 'vgg16'"),
    ("explain --model=mlp,", "a name is empty"),
    ("explain --model=mlp,vgg16 --variable_update=keras_fit", "keras_fit is a reference training loop"),
    ("explain --model=mlp,vgg16 --device=cpu --num_gpus=3 --all_reduce_spec=rechd", "use xring instead"),
    ("explain --gpu=H100 --device=cpu", "--gpu=H100 and --device=cpu contradict each other"),
    ("explain --gpu=H100 --gpus=0,1", "--gpu=H100 and --gpus=0,1 contradict each other"),
    ("explain --gpu=H100 --peak_tflops=9", "--gpu and --peak_tflops are two ways to say the same"),
    ("explain --gpu=V100 --precision=bf16", "has no rate for --precision=bf16: use fp32, fp16."),
    ("explain '--gpu=RTX 6000'", " Edition, RTX 6000 Ada Generation, Quadro RTX 6000. Add a word of one of them."),
    ("explain --gpu=H1000", "'H1000' is no known GPU."),
    ("explain --list_models replicated", "leave out what is beside it"),
    ("explain replicated --output_format=json", "explain has JSON of --placement, or of several models"),
    ("explain --placement --device=cpu --num_batches=3", "--num_batches has no effect with --placement"),
    ("explain --placement --variable_update=keras_fit", "explain knows variable managers"),
    ("explain replicated --num_gpus=2 --device=cpu --model=trivial --fc_model_parallel", "fc1 has 1 column(s)"),
    ("--variable_update=replicated --num_gpus=2 --device=cpu --model=trivial --fc_model_parallel", "fc1 has 1 co"),
    ("--print_config --num_gpus=8 --forward_only --staged_vars", "--staged_vars"),
]
PREDICTIONS = [
    ("predict --hardware=H100 --num_gpus=9", "--num_gpus=9: give a number from 1 to 8"),
    ("predict --hardware=H100 --num_gpus=1,2 --hosts=2", "give one number"),
    ("predict --hardware=H100 --explain --output_format=json", "--explain draws in text"),
    ("predict --hardware=H100 --hosts=host_0,host_1", "--hosts=host_0,host_1: give a number"),
    ("predict --hardware=H100 --num_ps=2", "name the hosts, too"),
    ("predict --hardware=H100 --hosts=2 --variable_update=replicated", "works on one host only"),
    ("predict --hardware=H100 --variable_update=keras_fit", "reference training loop"),
    ("predict --hardware=K80 --precision=fp16", "has no rate for --precision=fp16"),
    ("predict --judge --model=vgg16", "leave --model out"),
    ("predict", "no GPU is here: pass --hardware="),
    ("verify --device=cpu --variable_update=keras_fit", "reference training loop: omit it"),
    ("verify --device=gpu", "--num_gpus=1 asks for 1 GPU; this machine has 0 NVIDIA GPUs"),
    ("verify --device=cpu --model=mlp,", "a name is empty"),
    ("verify --device=cpu --model=mlp --local_cluster=worker:2", "omit the cluster"),
    ("verify --device=cpu --num_gpus=2 --model=mlp --pipeline_stages=2", "--pipeline_stages divides the model"),
    (
        "verify --device=cpu --num_gpus=2 --model=mlp --variable_update=replicated --fc_model_parallel",
        "--fc_model_parallel divides",
    ),
]
WITHOUT_DATA = [
    ("export_model --train_dir=a --keras_file=m.keras", "There is no checkpoint a: pass a directory that has one"),
    ("track check", "out/results.jsonl: No such file or directory. Name files that runs have written"),
    ("report", "out/results.jsonl: No such file or directory. Name files that runs have written"),
    *(
        (f"{line} /dev/null", "/dev/null: there are no records in it")
        for line in ("track check", "track store", "track history", "diff a b", "rerun a", "publish public")
    ),
    ("data check nowhere", "--data_dir=nowhere does not exist"),
    ("--device=cpu --model=mlp --data_dir=.", "there is neither train-images-idx3-ubyte nor"),
]
OPTIONS = [*CLUSTERS, *VALUES, *WITHOUT_BREAKDOWN, *SWEEPS, *EXPLANATIONS, *PREDICTIONS]
REFUSED = [
    *((line, ExitStatus.USAGE, sentence) for line, sentence in [*WITHOUT_ARGUMENTS, *WORDS, *FILES, *OPTIONS]),
    *((line, ExitStatus.DATA, sentence) for line, sentence in WITHOUT_DATA),
]


@pytest.mark.parametrize(("line", "status", "sentence"), REFUSED, ids=[line for line, *_ in REFUSED])
def test_what_cannot_be_is_a_sentence_and_a_status(
    run_bench: RunBench,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    line: str,
    status: ExitStatus,
    sentence: str,
) -> None:
    """On a machine without GPUs."""
    stand_in(monkeypatch, Machine(0))
    done = run_bench(*shlex.split(line))
    assert (done.status, done.stdout) == (status, "") and sentence in done.stderr.splitlines()[-1], done
    assert "Traceback" not in done.stderr and {path.name for path in tmp_path.iterdir()} <= {"out"}
