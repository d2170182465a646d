"""What a user asked for and cannot have: a sentence as the last line of stderr, its exit status, and no result."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from benchmarks.errors import ExitStatus
from tests.support.commands import RunBench

USAGE, DATA = ExitStatus.USAGE, ExitStatus.DATA
WITHOUT_ARGUMENTS = [
    ("track", USAGE, "track needs a subcommand. Subcommands: store, list, prune, check, history, calibrate."),
    ("track check", DATA, "out/results.jsonl: No such file or directory. Name files that runs have written"),
    ("compare", USAGE, "compare: name two files of records, first the base, such as compare main/results.jsonl "),
    ("diff", USAGE, "diff: name two records by their run ids, such as diff "),
    ("report", DATA, "out/results.jsonl: No such file or directory. Name files that runs have written"),
    ("rerun", USAGE, "rerun: name the record by its run id, such as rerun "),
    ("server", USAGE, "server starts one task of a cluster: name it"),
    ("server --local_cluster=worker:2", USAGE, "server starts one task of a cluster: name it"),
    ("data check", USAGE, "name one directory, not 0"),
    ("data convert x", USAGE, "data convert SRC DIR"),
    ("input --device=cpu", USAGE, "pass --data_dir=DIR"),
    ("export_model", USAGE, "export_model needs one of --train_dir=DIR and --checkpoint=PREFIX"),
    ("export_model --train_dir=a", USAGE, "export_model needs --keras_file=FILE.keras, --saved_model_dir=DIR or both"),
]
WORDS = [
    ("--device=cpu fast", USAGE, "'fast' is not a flag."),
    ("--print_config resnet50", USAGE, "'resnet50' is not a flag. Flags are spelled"),
    ("--seed=1", USAGE, "run has no flag --seed. Use --tf_random_seed."),
    ("report x --lr=1", USAGE, "There is no flag --lr. See"),
    ("--device=cpu -- num_gpus=2", USAGE, "'num_gpus=2' is not a flag. Did you mean --num_gpus=2?"),
    ("--device=cpu ' '", USAGE, "' ' is not a flag. A backslash that continues a line must be its last character."),
    (r"--device=cpu '\' '#'", USAGE, "is not a flag. A backslash that continues a line"),
    ("--model=trivial sweep", USAGE, "'sweep' is a verb, which comes first, before all flags."),
    ("--device=cpu help", USAGE, "'help' is a verb, which comes first"),
    ("NCCL_DEBUG=INFO --device=cpu", USAGE, "'NCCL_DEBUG=INFO' sets an environment variable: write it before"),
    ("--device=cpu TF_X=1", USAGE, "'TF_X=1' sets an environment variable: write it before the program, or after"),
    ("--num_gpus=2 1", USAGE, "'1' is not a flag. Flags are spelled"),
    ("--device=cpu '--output_dir=out\r'", USAGE, "has lines as on Windows"),
    ("recommend --wandb_project=demo", USAGE, "recommend has no flag --wandb_project"),
    ("verify --wandb_project=demo", USAGE, "verify has no flag --wandb_project"),
    ("doctor --wandb_project=demo", USAGE, "doctor has no flag --wandb_project"),
    ("recommend --device=cpu --pipeline_stages=2", USAGE, "no flag --pipeline_stages, which is one of a run"),
    ("recommend --device=cpu --train_dir=mine", USAGE, "no flag --train_dir, which is one of a run"),
    ("scaling --suite=x.toml", USAGE, "scaling has no flag --suite, which is one of sweep"),
    ("data check x --resize=3", USAGE, "--resize, which is one of data make_imagenet or data convert."),
    ("data make_digits x --train_images=9", USAGE, "--train_images, which is one of data make_"),
]
FILES = [
    ("--device=cpu --output_dir=/proc/here", USAGE, "Results cannot be written to --output_dir=/proc/here"),
    ("data make_imagenet /proc/here", USAGE, "cannot write to /proc/here"),
    ("data make_imagenet x --train_images=0", USAGE, "nothing to write"),
    ("data check nowhere", DATA, "--data_dir=nowhere does not exist"),
    ("input --device=cpu --data_dir=nowhere", DATA, "--data_dir=nowhere does not exist"),
    ("--device=cpu --model=mlp --data_dir=.", DATA, "there is neither train-images-idx3-ubyte nor"),
    ("--device=cpu --model=resnet20 --data_name=mnist", USAGE, "resnet20 is for cifar10"),
    ("export_model --train_dir=a --keras_file=model.h5", USAGE, "name a file FILE.keras"),
    ("export_model --train_dir=a --saved_model_dir=.", USAGE, "--saved_model_dir=. exists: name a new directory"),
    (
        "export_model --train_dir=a --keras_file=m.keras",
        DATA,
        "There is no checkpoint a: pass a directory that has one",
    ),
    ("export_model --train_dir=a --checkpoint=b", USAGE, "export_model needs one of --train_dir=DIR and --checkpoint="),
]
CLUSTERS = [
    ("server --cluster_spec=local|localhost:2222", USAGE, "but not which of its tasks this is: add --job_name"),
    ("--variable_update=distributed_replicated", USAGE, "--local_cluster=ps:1,worker:2"),
    ("--local_cluster=worker:2 --variable_update=replicated", USAGE, "collective_all_reduce"),
    ("--hosts=a,b", USAGE, "--ssh"),
    ("--local_cluster=worker:2 --hosts=a,b --ssh", USAGE, "give one of them"),
]
SWEEPS = [
    ("sweep --device=cpu --repeats=0", USAGE, "--repeats=0 is out of range"),
    ("sweep --device=cpu --model=vgg61", USAGE, "Did you mean 'vgg16'?"),
    ("sweep --device=cpu --model=trivial,,vgg16", USAGE, "an empty value between the commas"),
    ("sweep --device=cpu '--local_cluster=worker:2;'", USAGE, "an empty value between the semicolons"),
    ("sweep --device=cpu --batch_size=1,2 --repeats=50001", USAGE, "100,002 runs"),
    ("sweep --suite=nowhere.toml", USAGE, "--suite=nowhere.toml cannot be read: No such file or directory. A suite"),
    ("ab --device=cpu", USAGE, "set what to compare with"),
    ("ab --device=cpu --base=a --base_command=true", USAGE, "--base and --base_command"),
    ("ab --device=cpu '--base_command=nowhere --x'", USAGE, "there is no program 'nowhere'"),
    ('ab --device=cpu --base_command="\'a"', USAGE, "No closing quotation"),
    ("ab --base_command=true --train_dir=x", USAGE, "each run would continue the training of the one before"),
    (
        "ab --base_command=true --wandb_project=demo",
        USAGE,
        "--wandb_project=demo: runs that are compared in pairs are n",
    ),
    (
        "track calibrate --wandb_project=demo",
        USAGE,
        "--wandb_project=demo: runs that are compared in pairs are not sent",
    ),
]
EXPLANATIONS = [
    ("explain replicate", USAGE, "no variable manager 'replicate'. Did you mean 'replicated'?"),
    ("explain replicated --variable_update=independent", USAGE, "name two managers"),
    ("explain replicated --forward_only", USAGE, "leave it out"),
    ("explain --model=all --local_cluster=ps:1,worker:2", USAGE, "--local_cluster is about one configuration"),
    ("explain --model=mlp,vgg16 --optimizer=adam", USAGE, "--optimizer is about one configuration"),
    ("explain --model=mlp,vgg61", USAGE, "Did you mean 'vgg16'"),
    ("explain --model=mlp,", USAGE, "a name is empty"),
    ("explain --model=mlp,vgg16 --variable_update=keras_fit", USAGE, "keras_fit is a reference training loop"),
    ("explain --model=mlp,vgg16 --device=cpu --num_gpus=3 --all_reduce_spec=rechd", USAGE, "use xring instead"),
    ("explain --gpu=H100 --device=cpu", USAGE, "--gpu=H100 and --device=cpu contradict each other"),
    ("explain --gpu=H100 --gpus=0,1", USAGE, "--gpu=H100 and --gpus=0,1 contradict each other"),
    ("explain --gpu=H100 --peak_tflops=9", USAGE, "--gpu and --peak_tflops are two ways to say the same"),
    ("explain --gpu=V100 --precision=bf16", USAGE, "has no rate for --precision=bf16: use fp32, fp16."),
    ("explain '--gpu=RTX 6000'", USAGE, "may be several GPUs: RTX 6000 Ada Generation, Quadro RTX 6000."),
    ("explain --gpu=H1000", USAGE, "'H1000' is no known GPU."),
    ("explain --peak_tflops=1e300", USAGE, "out of range: it must be above 0 and at most 1000000"),
    ("explain --list_models replicated", USAGE, "leave out what is beside it"),
    ("explain replicated --output_format=json", USAGE, "explain has JSON of --placement, or of several models"),
    ("explain --placement --device=cpu --num_batches=3", USAGE, "--num_batches has no effect with --placement"),
    ("explain --placement --variable_update=keras_fit", USAGE, "explain knows variable managers"),
    ("explain replicated --num_gpus=2 --device=cpu --model=trivial --fc_model_parallel", USAGE, "fc1 has 1 column(s)"),
    (
        "--variable_update=replicated --num_gpus=2 --device=cpu --model=trivial --fc_model_parallel",
        USAGE,
        "fc1 has 1 co",
    ),
    ("--print_config --num_gpus=8 --forward_only --staged_vars", USAGE, "--staged_vars"),
]
PREDICTIONS = [
    ("predict --hardware=H100 --num_gpus=9", USAGE, "--num_gpus=9: give a number from 1 to 8"),
    ("predict --hardware=H100 --num_gpus=1,2 --hosts=2", USAGE, "give one number"),
    ("predict --hardware=H100 --explain --output_format=json", USAGE, "--explain draws in text"),
    ("predict --hardware=H100 --hosts=host_0,host_1", USAGE, "--hosts=host_0,host_1: give a number"),
    ("predict --hardware=H100 --num_ps=2", USAGE, "name the hosts, too"),
    ("predict --hardware=H100 --hosts=2 --variable_update=replicated", USAGE, "works on one host only"),
    ("predict --hardware=H100 --variable_update=keras_fit", USAGE, "reference training loop"),
    ("predict --hardware=K80 --precision=fp16", USAGE, "has no rate for --precision=fp16"),
    ("predict --judge --model=vgg16", USAGE, "leave --model out"),
    ("predict", USAGE, "no GPU is here: pass --hardware="),
    ("verify --device=cpu --variable_update=keras_fit", USAGE, "reference training loop"),
    ("verify --device=cpu --model=mlp,", USAGE, "a name is empty"),
    ("verify --device=cpu --model=mlp --local_cluster=worker:2", USAGE, "omit the cluster"),
    ("verify --device=cpu --num_gpus=2 --model=mlp --pipeline_stages=2", USAGE, "--pipeline_stages divides the model"),
    (
        "verify --device=cpu --num_gpus=2 --model=mlp --variable_update=replicated --fc_model_parallel",
        USAGE,
        "--fc_model_parallel divides",
    ),
]
REFUSED = [*WITHOUT_ARGUMENTS, *WORDS, *FILES, *CLUSTERS, *SWEEPS, *EXPLANATIONS, *PREDICTIONS]


@pytest.mark.parametrize(("line", "status", "sentence"), REFUSED, ids=[line for line, *_ in REFUSED])
def test_what_cannot_be_is_a_sentence_and_a_status(
    run_bench: RunBench, tmp_path: Path, line: str, status: ExitStatus, sentence: str
) -> None:
    done = run_bench(*shlex.split(line))
    assert (done.status, done.stdout) == (status, "") and sentence in done.stderr.splitlines()[-1], done
    assert "Traceback" not in done.stderr and {path.name for path in tmp_path.iterdir()} <= {"out"}
