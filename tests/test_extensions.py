"""What it takes to add something: a copy of the product is extended as CONTRIBUTING says, by one of each, and used."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import ROOT, USER_ENVIRONMENT, Finished, finished

pytestmark = [pytest.mark.slow, pytest.mark.process]
PRODUCT = ("run_bench.py", "benchmarks", "models", "results", "variable_mgr")
ENVIRONMENT = {name: value for name, value in USER_ENVIRONMENT.items() if name != "PYTHONPATH"}


class Tree:
    """A copy of the product that is extended; `changed` are the files of each addition."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.changed: dict[str, set[str]] = {}
        for name in PRODUCT:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, directory / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, directory / name)

    @contextlib.contextmanager
    def adding(self, what: str) -> Iterator[None]:
        """What is changed within belongs to this addition."""
        self._now = self.changed.setdefault(what, set())
        yield

    def add_file(self, path: str, text: str) -> None:
        """Writes a file that does not exist yet."""
        assert not (self.directory / path).exists(), path
        (self.directory / path).write_text(text)
        self._now.add(path)

    def add_line(self, path: str, after: str, line: str) -> None:
        """Inserts a line after the only line that is `after`."""
        self.replace(path, f"\n{after}\n", f"\n{after}\n{line}\n")

    def replace(self, path: str, old: str, new: str) -> None:
        """Replaces the only occurrence of `old`."""
        text = (self.directory / path).read_text()
        assert text.count(old) == 1, f"{path} has {text.count(old)} times '{old}'"
        (self.directory / path).write_text(text.replace(old, new))
        self._now.add(path)

    def train(self, *words: str) -> dict[str, Any]:
        """Takes three small steps on two towers; returns the record."""
        small = ("--model=trivial", "--num_gpus=2", "--device=cpu", "--batch_size=2", "--num_batches=3")
        self.run(*small, *words).succeeded()
        record: dict[str, Any] = json.loads((self.directory / "out" / "results.jsonl").read_text().splitlines()[-1])
        return record

    def run(self, *words: str) -> Finished:
        """Runs run_bench.py of the copy."""
        return finished([sys.executable, str(self.directory / "run_bench.py"), *words], self.directory, ENVIRONMENT)

    def python(self, code: str) -> str:
        """Runs code on the copy and returns what it prints."""
        done = finished([sys.executable, "-c", code], self.directory, ENVIRONMENT).succeeded()
        return done.stdout


# With an option of its own: at 0, nothing is learned.
TOY_MANAGER = '''
"""`toy`: one shared copy, updated by the mean gradient."""

import tensorflow as tf

from variable_mgr.manager import UpdateOp, Explanation
from variable_mgr.managers.one_copy import OneCopy


class Toy(OneCopy):
    def __init__(self, place, shared_devices, modifiers):
        super().__init__(place, shared_devices, asynchronous=False)
        self._scale = modifiers.toy_scale / len(place.towers)

    def apply(self, updates, optimizer):
        names = list(updates[0].gradients)
        with tf.control_dependencies([tf.group(*self._reads.values())]):
            means = [self._scale * tf.add_n([update.gradients[name] for update in updates]) for name in names]
            operations = optimizer.apply([self._shared[name] for name in names], means)
        for tower, update in enumerate(updates):
            operations += self._store_state(tower, update)
        return [UpdateOp(tf.group(*operations))]

    def explain(self, optimizer="sgd"):
        return Explanation("one toy copy", "averaged by a toy", "tower 0 -> [weights] <- tower 1")
'''
TOY_VERB = '''
"""`toy`: prints its words."""

from benchmarks.option import Flag
from benchmarks.config.verb import Verb
from benchmarks.console import say
from benchmarks.errors import ExitStatus


def run(given, command):
    say(" ".join([*given.words] * (given.values["times"] or 1)))
    return ExitStatus.OK


VERB = Verb("toy", {"A toy": (Flag("times", int, "how often"),)}, run, takes="words")
'''


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    made = Tree(tmp_path_factory.mktemp("product"))
    with made.adding("manager with an option"):
        made.add_file("variable_mgr/managers/toy.py", TOY_MANAGER)
        entry = '    "toy": Entry("toy", "Toy", "a toy of the tests", one_copy=True, modifiers=("toy_scale",)),'
        made.add_line("variable_mgr/catalog.py", "MANAGERS = {", entry)
        option = '    toy_scale: float = option("toy: factor of the gradient", default=1.0, at_least=0)'
        made.add_line("variable_mgr/modifiers.py", "    asynchronous: bool = False", option)
    with made.adding("model"):  # the file and the line are those of the page about it
        page = (ROOT / "docs" / "howto" / "add-a-model.md").read_text()
        (text,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
        (line,) = re.findall(r"```text\n(.*?)\n```", page)
        made.add_file("models/cifar10_quick.py", text)
        made.add_line("models/specs.py", '    "alexnet",', line)
    with made.adding("tracker"):
        sender = "def send(run, target):\n    open(target, 'w').write(run.run_id)\n    return target\n"
        made.add_file("benchmarks/trackers/to_csv.py", sender)
        line = '    Tracker("toy_file", "Toy", "csv", "write the id of the run into this file"),'
        made.add_line("benchmarks/trackers/tracker_list.py", "TRACKERS = (", line)
    with made.adding("verb"):
        made.add_file("benchmarks/cli/toy_verb.py", TOY_VERB)
        line = '        "toy": Listed("a toy of the tests", "cli.toy_verb:VERB"),'
        made.add_line("benchmarks/cli/verbs.py", '    "Results and data": {', line)
    with made.adding("option"):  # help, range, default, record and key follow
        option = '    toy_factor: float = option("factor of the learning rate", default=1.0, at_least=0)'
        made.add_line("benchmarks/training/options.py", "    schedule: Schedule | None = None", option)
        rate = "training.learning_rate if rate"
        made.replace("benchmarks/graph/run_graph.py", rate, f"training.toy_factor * {rate}")
    with made.adding("measured number"):
        scales = '    loss_scales: Annotated[Sequence[float], _of_step("first")] = []'
        made.add_line("results/measurement.py", scales, scales.replace("loss_scales", "toy_numbers"))
        column = '    Column(_last("toy_numbers"), "last toy number", name="toy"),'
        made.add_line("results/columns.py", '    Column("kind"),', column)
        number = "    observed |= Observed(toy_numbers=tf.constant(7.0))"
        made.add_line("benchmarks/training/training_step.py", "    observed = Observed()", number)
    return made


@pytest.mark.parametrize(
    ("what", "files"),
    [
        ("manager with an option", 3),
        ("model", 2),
        ("tracker", 2),
        ("verb", 2),
        ("option", 2),
        ("measured number", 3),
    ],
)
def test_an_addition_touches_so_many_files(tree: Tree, what: str, files: int) -> None:
    assert len(tree.changed[what]) == files


def test_the_model_of_the_page_passes_the_type_check(tree: Tree) -> None:
    command = [sys.executable, "-m", "mypy", f"--config-file={ROOT / 'setup.cfg'}", "models/cifar10_quick.py"]
    finished(command, tree.directory, ENVIRONMENT).succeeded()


def test_what_was_added_acts_in_a_run_and_is_in_its_record(tree: Tree, tmp_path: Path) -> None:
    record = tree.train("--model=cifar10_quick", "--variable_update=toy", f"--toy_file={tmp_path / 'id'}")
    assert (record["status"], record["config"]["variable_update"]) == ("ok", "toy")
    assert record["placement"]["manager"] == "one toy copy; gradients averaged by a toy"
    assert record["model"]["parameters"] == 145_578
    assert (tmp_path / "id").read_text() == record["identity"]["run_id"]
    assert record["measurement"]["toy_numbers"] == [7.0] * 3
    header, row = (line.split(",") for line in (tree.directory / "out" / "results.csv").read_text().splitlines())
    assert row[header.index("toy")] == "7.0"


@pytest.mark.parametrize("words", [("--variable_update=toy", "--toy_scale=0"), ("--toy_factor=0",)])
def test_an_option_acts(tree: Tree, words: tuple[str, ...]) -> None:
    """Without gradients, or without a learning rate, nothing is learned."""
    record = tree.train("--weight_decay=0", *words)
    assert len(set(record["measurement"]["losses"])) == 1
    config = record["config"]
    assert 0.0 in (config["toy_factor"], config["modifiers"]["toy_scale"])
    assert "toy_factor" not in record["config_not_in_key"]


def test_help_has_what_was_added(tree: Tree) -> None:
    assert "toy," in tree.run("run", "--help").stdout
    for verb in ("run", "sweep"):
        helped = tree.run(verb, "--helpfull").stdout
        assert "--toy_scale=FLOAT" in helped and "--toy_factor=FLOAT" in helped
    assert "  toy        a toy of the tests\n" in tree.run("--help").stdout
    assert "--times=INT" in tree.run("toy", "--help").stdout


@pytest.mark.parametrize(
    ("words", "status", "printed"),
    [
        (("--variable_update=toy",), 0, '"variable_update": "toy"'),
        (("--variable_update=toy", "--staged_vars"), 2, "not with toy"),
        (("--variable_update=toy", "--local_cluster=worker:2"), 2, "toy works in one process only"),
        (("--model=cifar10_quik",), 2, "Did you mean 'cifar10_quick'?"),
        (("--toy_factor=0.5",), 0, '"toy_factor": 0.5'),
        (("--toy_factor=x",), 2, "'x' is not a number"),
        (("--toy_factor=-1",), 2, "--toy_factor=-1.0 is out of range"),
        (("--forward_only", "--toy_factor=0.5"), 0, "--toy_factor=0.5 has no effect: --forward_only updates nothing."),
        (
            ("--variable_update=keras_fit", "--toy_factor=0.5"),
            2,
            "--toy_factor=0.5 does not go with --variable_update=keras_fit",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_was_added_is_resolved_and_refused_as_the_rest(
    tree: Tree, words: tuple[str, ...], status: int, printed: str
) -> None:
    done = tree.run("--print_config", *words)
    assert done.status == status, done.stderr
    assert printed in done.stdout + done.stderr


def test_a_manager_in_the_catalog_is_explained(tree: Tree) -> None:
    done = tree.run("explain", "toy", "--model=trivial", "--num_gpus=2").succeeded()
    for words in ("one toy copy", "averaged by a toy", "Sent per step:     unknown", "<- tower 1"):
        assert words in done.stdout


def test_a_manager_in_the_catalog_is_verified(tree: Tree) -> None:
    """Against NumPy with each optimizer and each home of shared variables, and against the whole batch."""
    code = """
from benchmarks.process.tensorflow_setup import Devices
from benchmarks.verify import cases, comparisons
of_toy = [case for case in cases.cases() if case.manager == "toy"]
cases.cases = lambda: iter(of_toy)
for result in comparisons.results(Devices(num_devices=2)):
    print(result.case.title, result.case.reference, result.error is not None and result.passed, sep=", ")
"""
    assert tree.python(code).splitlines() == [
        "toy variables on cpu, sgd, True",
        "toy variables on gpu, sgd, True",
        "toy variables on cpu, momentum, True",
        "toy variables on gpu, momentum, True",
        "toy, whole batch, True",
        "toy computing gradients without applying them, no change, True",
    ]


def test_a_verb_in_the_list_runs_and_is_completed(tree: Tree) -> None:
    proposed = "from benchmarks.cli.completion_verb import proposals; print(proposals('run-bench toy --ti'))"
    assert tree.python(proposed) == "['--times=']\n"
    done = tree.run("toy", "hello", "--times=2")
    assert (done.status, done.stdout) == (0, "hello hello\n")
    refused = tree.run("toy", "--time=2")
    assert refused.status == 2 and "Did you mean '--times'?" in refused.stderr


# Options that exist: the product files that name them, besides what passes a value on.
OPTIONS = {
    "label_smoothing": {
        "benchmarks/training/options.py",
        "benchmarks/graph/run_graph.py",
        "benchmarks/config/rule_table.py",  # PyTorch has it, other reference loops do not
        "benchmarks/run/pytorch_loop.py",
        "benchmarks/run/pytorch_step.py",
        "results/report/ranking.py",  # it trains differently
    },
    "max_ckpts_to_keep": {
        "benchmarks/checkpoints/options.py",
        "benchmarks/config/rule_table.py",
        "benchmarks/checkpoints/saving.py",
    },
    "resize_method": {
        "benchmarks/data/options.py",
        "benchmarks/config/rule_table.py",
        "benchmarks/data/pipeline/photo_decoding.py",
        "results/input_bottleneck.py",  # names it as advice
    },
}


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_is_named_where_it_is_declared_and_where_it_acts(name: str) -> None:
    files = (path for part in PRODUCT for path in (ROOT / part).rglob("*.py"))
    naming = {str(path.relative_to(ROOT)) for path in files if re.search(rf"\b{name}\b", path.read_text())}
    assert naming - {"benchmarks/option.py", "benchmarks/config/peer_flags.py"} <= OPTIONS[name]
