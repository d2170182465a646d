"""What it takes to add something: each test extends a copy of the product as CONTRIBUTING says, and uses the copy."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import ROOT, USER_ENVIRONMENT, Finished, finished

pytestmark = [pytest.mark.slow, pytest.mark.process]
PRODUCT = ("run_bench.py", "benchmarks", "models", "results", "variable_mgr")


class Tree:
    """A copy of the product that a test extends."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.changed: set[str] = set()
        for name in PRODUCT:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, directory / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, directory / name)

    def add_file(self, path: str, text: str) -> None:
        """Writes a file that does not exist yet."""
        assert not (self.directory / path).exists(), path
        (self.directory / path).write_text(text)
        self.changed.add(path)

    def add_line(self, path: str, after: str, line: str) -> None:
        """Inserts a line after the only line that is `after`."""
        lines = (self.directory / path).read_text().splitlines()
        assert lines.count(after) == 1, f"{path} has {lines.count(after)} lines '{after}'"
        lines.insert(lines.index(after) + 1, line)
        (self.directory / path).write_text("\n".join(lines) + "\n")
        self.changed.add(path)

    def replace(self, path: str, old: str, new: str) -> None:
        """Replaces the only occurrence of `old`."""
        text = (self.directory / path).read_text()
        assert text.count(old) == 1, f"{path} has {text.count(old)} times '{old}'"
        (self.directory / path).write_text(text.replace(old, new))
        self.changed.add(path)

    def train(self, *words: str) -> dict[str, Any]:
        """Takes three small steps on two towers; returns the record."""
        small = ("--model=trivial", "--num_gpus=2", "--device=cpu", "--batch_size=2", "--num_batches=3")
        done = self.run(*small, *words)
        assert done.status == 0, done.stderr
        record: dict[str, Any] = json.loads((self.directory / "out" / "results.jsonl").read_text().splitlines()[-1])
        return record

    def run(self, *words: str) -> Finished:
        """Runs run_bench.py of the copy."""
        return finished([sys.executable, str(self.directory / "run_bench.py"), *words], self.directory, ENVIRONMENT)

    def python(self, code: str) -> str:
        """Runs code on the copy and returns what it prints."""
        done = finished([sys.executable, "-c", code], self.directory, ENVIRONMENT)
        assert done.status == 0, done.stderr
        return done.stdout


ENVIRONMENT = {name: value for name, value in USER_ENVIRONMENT.items() if name != "PYTHONPATH"}

TOY_MANAGER = '''
"""`toy`: one shared copy, updated by the mean gradient."""

import tensorflow as tf

from variable_mgr.manager import UpdateOp, Explanation
from variable_mgr.managers.one_copy import OneCopy


class Toy(OneCopy):
    def __init__(self, place, shared_devices, modifiers):
        super().__init__(place, shared_devices, asynchronous=False)

    def apply(self, updates, optimizer):
        names = list(updates[0].gradients)
        with tf.control_dependencies([tf.group(*self._reads.values())]):
            means = [tf.add_n([update.gradients[name] for update in updates]) / len(updates) for name in names]
            operations = optimizer.apply([self._shared[name] for name in names], means)
        for tower, update in enumerate(updates):
            operations += self._store_state(tower, update)
        return [UpdateOp(tf.group(*operations))]

    def explain(self, optimizer="sgd"):
        return Explanation("one toy copy", "averaged by a toy", "tower 0 -> [weights] <- tower 1")
'''


@pytest.fixture(scope="module")
def with_toy_manager(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """A tree with one more manager: one file, and one line of the catalog."""
    tree = Tree(tmp_path_factory.mktemp("manager"))
    tree.add_file("variable_mgr/managers/toy.py", TOY_MANAGER)
    line = '    "toy": Entry("toy", "Toy", "a toy of the tests", one_copy=True),'
    tree.add_line("variable_mgr/catalog.py", "MANAGERS = {", line)
    return tree


def test_a_manager_in_the_catalog_can_be_chosen(with_toy_manager: Tree) -> None:
    assert "toy," in with_toy_manager.run("run", "--help").stdout
    done = with_toy_manager.run("--print_config", "--variable_update=toy")
    assert done.status == 0, done.stderr
    assert json.loads(done.stdout)["variable_update"] == "toy"
    refused = with_toy_manager.run("--variable_update=toy", "--staged_vars")
    assert refused.status == 2 and "not with toy" in refused.stderr
    refused = with_toy_manager.run("--variable_update=toy", "--local_cluster=worker:2")
    assert refused.status == 2 and "toy works in one process only" in refused.stderr


def test_a_manager_in_the_catalog_is_explained(with_toy_manager: Tree) -> None:
    done = with_toy_manager.run("explain", "toy", "--model=trivial", "--num_gpus=2")
    assert done.status == 0, done.stderr
    for words in ("one toy copy", "averaged by a toy", "Sent per step:     unknown", "<- tower 1"):
        assert words in done.stdout


def test_a_manager_in_the_catalog_trains(with_toy_manager: Tree) -> None:
    record = with_toy_manager.train("--variable_update=toy")
    assert (record["status"], record["config"]["variable_update"]) == ("ok", "toy")
    assert record["placement"]["manager"] == "one toy copy; gradients averaged by a toy"


def test_a_manager_in_the_catalog_is_verified(with_toy_manager: Tree) -> None:
    """Against NumPy with each optimizer and each home of shared variables, and against the whole batch."""
    code = """
from benchmarks.process.tensorflow_setup import Devices
from benchmarks.verify import cases, comparisons
of_toy = [case for case in cases.cases() if case.manager == "toy"]
cases.cases = lambda: iter(of_toy)
for result in comparisons.results(Devices(num_devices=2)):
    print(result.case.title, result.case.reference, result.error is not None and result.passed, sep=", ")
"""
    assert with_toy_manager.python(code).splitlines() == [
        "toy variables on cpu, sgd, True",
        "toy variables on gpu, sgd, True",
        "toy variables on cpu, momentum, True",
        "toy variables on gpu, momentum, True",
        "toy, whole batch, True",
        "toy computing gradients without applying them, no change, True",
    ]


def test_an_option_of_a_manager_is_declared_listed_and_used(tmp_path: Path) -> None:
    """A factor of the mean gradient: at 0, nothing is learned."""
    tree = Tree(tmp_path)
    scaled = TOY_MANAGER.replace(
        "asynchronous=False)", "asynchronous=False)\n        self._scale = modifiers.toy_scale"
    )
    scaled = scaled.replace("/ len(updates) for", "* self._scale / len(updates) for")
    tree.add_file("variable_mgr/managers/toy.py", scaled)
    entry = '    "toy": Entry("toy", "Toy", "a toy of the tests", one_copy=True, modifiers=("toy_scale",)),'
    tree.add_line("variable_mgr/catalog.py", "MANAGERS = {", entry)
    option = '    toy_scale: float = option("toy: factor of the gradient", default=1.0, at_least=0)'
    tree.add_line("variable_mgr/modifiers.py", "    asynchronous: bool = False", option)
    assert len(tree.changed) == 3
    assert "--toy_scale=FLOAT" in tree.run("run", "--helpfull").stdout
    record = tree.train("--variable_update=toy", "--weight_decay=0", "--toy_scale=0")
    assert len(set(record["measurement"]["losses"])) == 1 and record["config"]["modifiers"]["toy_scale"] == 0.0


def test_a_tracker_is_a_sender_and_its_place_in_the_list(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    sender = "def send(run, target):\n    open(target, 'w').write(run.run_id)\n    return target\n"
    tree.add_file("benchmarks/trackers/to_csv.py", sender)
    listed = "benchmarks/trackers/tracker_list.py"
    tree.add_line(
        listed, "TRACKERS = (", '    Tracker("toy_file", "Toy", "csv", "write the id of the run into this file"),'
    )
    assert len(tree.changed) == 2
    record = tree.train(f"--toy_file={tmp_path / 'id'}")
    assert (tmp_path / "id").read_text() == record["identity"]["run_id"]


def test_a_model_is_one_file_and_one_line(tmp_path: Path) -> None:
    """The file and the line are those of the page about it."""
    page = (ROOT / "docs" / "howto" / "add-a-model.md").read_text()
    (text,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (line,) = re.findall(r"```text\n(.*?)\n```", page)
    tree = Tree(tmp_path)
    tree.add_file("models/cifar10_quick.py", text)
    tree.add_line("models/specs.py", '    "alexnet",', line)
    assert len(tree.changed) == 2
    record = tree.train("--model=cifar10_quick", "--variable_update=replicated")
    assert (record["status"], record["model"]["parameters"]) == ("ok", 145_578)
    assert tree.run("--print_config", "--model=cifar10_quik").status == 2


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


def test_a_verb_is_one_file_and_its_place_in_the_list(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.add_file("benchmarks/cli/toy_verb.py", TOY_VERB)
    listed = "benchmarks/cli/verbs.py"
    title = '    "Results and data": {'
    tree.add_line(listed, title, '        "toy": Listed("a toy of the tests", "cli.toy_verb:VERB"),')
    assert tree.changed == {"benchmarks/cli/toy_verb.py", listed}
    assert "  toy        a toy of the tests\n" in tree.run("--help").stdout
    assert "--times=INT" in tree.run("toy", "--help").stdout
    proposed = "from benchmarks.cli.completion_verb import proposals; print(proposals('run-bench toy --ti'))"
    assert tree.python(proposed) == "['--times=']\n"
    done = tree.run("toy", "hello", "--times=2")
    assert (done.status, done.stdout) == (0, "hello hello\n")
    refused = tree.run("toy", "--time=2")
    assert refused.status == 2 and "Did you mean '--times'?" in refused.stderr


def test_an_option_is_declared_and_used(tmp_path: Path) -> None:
    """A factor of the learning rate: at 0, nothing is learned. Help, range, default, record and key follow."""
    tree = Tree(tmp_path)
    tree.add_line(
        "benchmarks/training/options.py",
        "    schedule: Schedule | None = None",
        '    toy_factor: float = option("factor of the learning rate", default=1.0, at_least=0)',
    )
    tree.replace(
        "benchmarks/graph/run_graph.py",
        "training.learning_rate if rate",
        "training.toy_factor * training.learning_rate if rate",
    )
    assert len(tree.changed) == 2
    for verb in ("run", "sweep"):
        assert "--toy_factor=FLOAT" in tree.run(verb, "--helpfull").stdout
    assert json.loads(tree.run("--print_config", "--toy_factor=0.5").stdout)["toy_factor"] == 0.5
    assert tree.run("--toy_factor=x").status == tree.run("--toy_factor=-1").status == 2
    idle = tree.run("--print_config", "--forward_only", "--toy_factor=0.5")
    assert "--toy_factor=0.5 has no effect: --forward_only updates nothing." in idle.stdout
    refused = tree.run("--variable_update=keras_fit", "--toy_factor=0.5")
    assert refused.status == 2 and "--toy_factor=0.5 does not go with --variable_update=keras_fit" in refused.stderr
    record = tree.train("--weight_decay=0", "--toy_factor=0")
    assert len(set(record["measurement"]["losses"])) == 1
    assert record["config"]["toy_factor"] == 0.0 and "toy_factor" not in record["config_not_in_key"]


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


def test_a_measured_number_is_produced_stated_and_shown(tmp_path: Path) -> None:
    """The number of steps' batches so far, which is the number of a step."""
    tree = Tree(tmp_path)
    tree.add_line(
        "results/measurement.py",
        '    loss_scales: Annotated[Sequence[float], _of_step("first")] = []',
        '    toy_numbers: Annotated[Sequence[float], _of_step("mean")] = []',
    )
    tree.add_line(
        "results/columns.py",
        '    Column("kind"),',
        '    Column(_last("toy_numbers"), "last toy number", name="toy"),',
    )
    tree.add_line(
        "benchmarks/training/training_step.py",
        "    observed = Observed()",
        "    observed |= Observed(toy_numbers=tf.constant(7.0))",
    )
    assert len(tree.changed) == 3
    assert tree.train()["measurement"]["toy_numbers"] == [7.0] * 3
    header, row = (line.split(",") for line in (tmp_path / "out" / "results.csv").read_text().splitlines())
    assert row[header.index("toy")] == "7.0"
