"""`--help`, `--helpfull`, `help VERB` and `--version`."""

from __future__ import annotations

import platform
import shlex

import pytest

from benchmarks.cli.verbs import FIRST_VERBS, NAMES, commands, flags_of, load
from benchmarks.config import flag, run_flags
from benchmarks.config.verb import Verb
from benchmarks.sweep import grid
from results.version import SUITE_VERSION
from tests.support.commands import RunBench


def test_the_first_screen_has_the_questions_a_dozen_verbs_and_examples(run_bench: RunBench) -> None:
    done = run_bench("--help")
    lines = done.stdout.splitlines()
    assert done.status == 0 and 24 <= len(lines) <= 40 and max(map(len, lines)) <= 80
    first = [name for verbs in FIRST_VERBS.values() for name in verbs]
    assert len(first) <= 12 and [name for name in NAMES if f"\n  {name} " in done.stdout] == first
    assert lines.index("Examples:") < 30
    for name in ("run", "sweep", "ab"):
        assert f"\n  run_bench.py {load(name).examples[0]}\n" in done.stdout
    for words in (*FIRST_VERBS, "--model=", "--helpfull", "help VERB", "help --all", "--version", "docs/"):
        assert words in " ".join(done.stdout.split())
    everything = run_bench("help", "--all").stdout
    assert all(f"\n  {name} " in everything for name in NAMES)
    assert run_bench("help").stdout == run_bench("-h").stdout == done.stdout
    assert run_bench("--model=vgg16", "--help").stdout == run_bench("--help=model").stdout == done.stdout
    of_check = run_bench("--help", "data", "check").stdout
    assert "data check" in of_check and of_check == run_bench("data", "check", "--help").stdout


@pytest.mark.parametrize("name", commands())
def test_the_help_of_a_verb_is_short_and_its_full_help_has_every_flag(run_bench: RunBench, name: str) -> None:
    verb, words = commands()[name], name.split()
    brief, full = run_bench(*words, "--help"), run_bench(*words, "--helpfull")
    assert brief.status == full.status == 0
    assert run_bench("help", *words).stdout == brief.stdout
    assert run_bench("help", *words, "--helpfull").stdout == full.stdout
    assert len(brief.stdout.splitlines()) <= 50 and verb.meaning in " ".join(brief.stdout.split())
    flags = [one for group in flags_of(verb).values() for one in group]
    unwrapped = " ".join(full.stdout.split())
    assert all(f"{one.spelling} {one.described()}" in unwrapped for one in flags)
    own = [one for one in flags if one not in sum(map(list, run_flags.RUN_FLAGS.values()), [])]
    assert all(f"  {one.spelling}" in brief.stdout for one in own)


@pytest.mark.parametrize("verb", [verb for verb in map(load, NAMES) if verb.parts], ids=lambda verb: verb.name)
def test_the_help_of_a_verb_with_subcommands_lists_them(run_bench: RunBench, verb: Verb) -> None:
    listed = run_bench("help", verb.name).stdout
    assert all(f"\n  {part.name} " in listed for part in verb.parts) and verb.examples[0] in listed
    assert run_bench(verb.name, "--help").stdout == listed


@pytest.mark.parametrize("name", commands())
def test_the_examples_of_a_verb_have_its_flags(name: str) -> None:
    verb = commands()[name]
    assert verb.examples
    for example in verb.examples:
        words = shlex.split(example)
        assert words[0].startswith("--") if name == "run" else example.startswith(name)
        words = words if name == "run" else words[len(name.split()) :]
        groups = grid.sweep_groups(verb.flags) if verb.takes == "lists" else verb.flags
        assert verb.takes == "words" or not flag.parse(words, groups).words


@pytest.mark.row("S0.7")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["hlep"], "There is no verb 'hlep'. Did you mean 'help'?"),
        (["help", "swep"], "There is no verb 'swep'. Did you mean 'sweep'?"),
        (["help", "nothing"], "There is no verb 'nothing'."),
        (["help", "track", "stor"], "track has no subcommand 'stor'. Did you mean 'store'?"),
        (["data"], "data needs a subcommand. Subcommands: make_imagenet, make_cifar10, make_mnist, make_digits, conv"),
        (["completion", "bsh"], "completion has no subcommand 'bsh'. Did you mean 'bash'? Subcommands: bash, zsh, fi"),
        (["check", "out"], "There is no verb 'check'. Did you mean 'track check' or 'data check'?"),
        (["export"], "There is no verb 'export'. Did you mean 'export_model'?"),
        (["--explain"], "--explain: explain is a verb, which comes first: run_bench.py explain replicated"),
        (["--explain=replicated", "--model=vgg16"], "explain is a verb, which comes first"),
        (["sweep", "--report"], "report is a verb, which comes first: run_bench.py report"),
        (["resnet50"], "'resnet50' is not a verb, but a value of --model: run_bench.py --model=resnet50"),
        (["input", "--nossh"], "input has no flag --nossh, which is one of a run."),
        (["verify", "--nothing"], "There is no flag --nothing."),
        (["sweep", "--warmup"], "sweep has no flag --warmup, which is one of ab. See sweep --helpfull."),
        (["hosts"], "'hosts' is not a verb, but a flag: --hosts="),
        (["model=vgg16"], "'model' is not a verb, but a flag: --model=NAME (what is trained: "),
    ],
)
def test_an_unknown_verb_is_refused(run_bench: RunBench, arguments: list[str], words: str) -> None:
    done = run_bench(*arguments)
    assert (done.status, done.stdout) == (2, "") and words in done.stderr


def test_the_versions_are_printed(run_bench: RunBench) -> None:
    for words in (["sweep", "--version"], ["--version=true"], ["version"]):
        assert run_bench(*words).stdout == run_bench("--version").stdout, words
    done = run_bench("--version").succeeded()
    assert done.stdout.startswith(f"cnn-train-bench {SUITE_VERSION} (TensorFlow 2.")
    assert done.stdout.endswith(f", Python {platform.python_version()})\n")
