"""`--help`, `--helpfull`, `help VERB` and `--version`."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Callable

import pytest

from benchmarks.cli.verbs import VERBS, flags_of
from benchmarks.config import flag, run_flags
from benchmarks.sweep import grid
from results.version import SUITE_VERSION
from tests.support.commands import Finished
from variable_mgr import catalog

RunBench = Callable[..., Finished]


def test_the_short_help_fits_and_names_every_verb(run_bench: RunBench) -> None:
    done = run_bench("--help")
    lines = done.stdout.splitlines()
    assert done.status == 0 and len(lines) <= 75 and max(map(len, lines)) <= 80
    assert all(any(line.startswith(f"  {name} ") for line in lines) for name in VERBS)
    for words in ("--model=", "default: resnet50", "--helpfull", "help VERB", "--version", "docs/"):
        assert words in " ".join(done.stdout.split())
    assert run_bench("help").stdout == run_bench("-h").stdout == done.stdout
    assert run_bench("--model=vgg16", "--help").stdout == done.stdout


@pytest.mark.parametrize("name", VERBS)
def test_the_help_of_a_verb_is_short_and_its_full_help_has_every_flag(run_bench: RunBench, name: str) -> None:
    verb = VERBS[name]
    brief, full = run_bench(name, "--help"), run_bench(name, "--helpfull")
    assert brief.status == full.status == 0
    assert run_bench("help", name).stdout == brief.stdout
    assert run_bench("help", name, "--helpfull").stdout == full.stdout
    assert len(brief.stdout.splitlines()) <= 50 and verb.meaning in " ".join(brief.stdout.split())
    flags = [one for group in flags_of(verb).values() for one in group]
    assert all(f"  {one.spelling}\n" in full.stdout for one in flags)
    own = [one for one in flags if one not in sum(map(list, run_flags.RUN_FLAGS.values()), [])]
    assert all(f"  {one.spelling}" in brief.stdout for one in own)


@pytest.mark.parametrize("name", VERBS)
def test_the_examples_of_a_verb_have_its_flags(name: str) -> None:
    verb = VERBS[name]
    assert verb.examples
    for example in verb.examples:
        words = shlex.split(example)
        assert words.pop(0) == name if name != "run" else words[0].startswith("--")
        groups = grid.sweep_groups(verb.flags) if verb.takes == "lists" else verb.flags
        assert verb.takes == "words" or not flag.parse(words, groups).words


def test_the_full_help_of_run_explains_managers(run_bench: RunBench) -> None:
    words = " ".join(run_bench("--helpfull").stdout.split())
    assert ", ".join(catalog.MANAGERS) in words


@pytest.mark.row("S0.7")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["hlep"], "There is no verb 'hlep'. Did you mean 'help'?"),
        (["help", "swep"], "There is no verb 'swep'. Did you mean 'sweep'?"),
        (["help", "nothing"], "There is no verb 'nothing'."),
        (["--explain"], "--explain: explain is a verb, which comes first: run_bench.py explain replicated"),
        (["--explain=replicated", "--model=vgg16"], "explain is a verb, which comes first"),
        (["sweep", "--report"], "report is a verb, which comes first: run_bench.py report"),
        (["version"], "'version' is not a verb, but a flag: --version."),
        (["devices", "--num_batches=9"], "devices has no flag --num_batches, which is one of a run."),
        (["input", "--nossh"], "input has no flag --nossh, which is one of a run."),
        (["verify", "--nothing"], "There is no flag --nothing."),
        (["hosts"], "'hosts' is not a verb, but a flag: --hosts="),
        (["model=vgg16"], "'model' is not a verb, but a flag: --model=NAME (what is trained: "),
    ],
)
def test_an_unknown_verb_is_refused(run_bench: RunBench, arguments: list[str], words: str) -> None:
    done = run_bench(*arguments)
    assert (done.status, done.stdout) == (2, "") and words in done.stderr


def test_the_versions_are_printed(run_bench: RunBench) -> None:
    assert run_bench("sweep", "--version").stdout == run_bench("--version").stdout
    done = run_bench("--version")
    assert done.status == 0
    assert done.stdout.startswith(f"cnn-train-bench {SUITE_VERSION} (TensorFlow 2.")
    assert done.stdout.endswith(f", Python {platform.python_version()})\n")
