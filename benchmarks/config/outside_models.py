"""Models that other code builds: `keras:NAME`, `path/to/file.py:function`, `package.module:function`. No TensorFlow.

Another process finds their facts, once for each version of the code; they are kept in the user's cache directory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib.util
import json
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.console import progress, warn
from benchmarks.data.sources.data_sets import DATA_SETS, SYNTHETIC
from benchmarks.errors import UsageError, did_you_mean
from benchmarks.machine import provenance
from benchmarks.machine.cache import CacheFile
from benchmarks.process import subprocesses
from models import applications, specs
from models.applications import APPLICATION
from models.model_spec import BACKGROUND_CLASSES, IMAGENET_CLASSES, NUM_CHANNELS, ModelSpec
from results.loading import read_small
from results.masking import without_secrets
from results.record import key_of
from results.text import first_few

_FILE = CacheFile("models.json", "facts of models")
_OTHERS = (
    "Use keras:NAME for a model of keras.applications, path/to/file.py:function or package.module:function for another."
)
_NO_CODE = re.compile(r"\.(keras|h5|hdf5|pb|ipynb)(:|$)")
_PROBE = "benchmarks.explain.model_probe"
AROUND_ANSWER = b"\0"  # the code may print, too
# Building takes seconds; an import of the user's may take longer.
_LIMIT_SECONDS = 600.0
# With it the loss of every model of keras.applications that was tried falls in the first steps.
_LEARNING_RATE = 0.01
# On a CPU and a GPU: operations of the forward passes of a default batch, in GFLOP; and the largest batch.
_ON_CPU, _ON_GPU = (64.0, 32), (512.0, 256)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """What a process that has built a model knows of it. Other attributes are those of `ModelSpec`.

    Attributes:
        outputs: number of its logits.
        takes_classes: its number of logits can be chosen.
        parameters: trainable ones, with so many logits.
        sources: digests of the files of the user's code, by path, and of the variables that it names, by `$NAME`.
    """

    image_size: int
    channels: int
    outputs: int
    takes_classes: bool
    parameters: int = 0
    is_checked: bool = True
    gflop_per_image: float = 0.0
    has_conv1x1: bool = False
    has_batch_norm: bool = False
    has_larger_convolutions: bool = False
    nchw: bool = True
    ignored: Sequence[str] = ()
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict)


_NOT_IN_SPEC = ("outputs", "takes_classes", "sources")


def find_any_model(name: str, data_name: str | None = None, num_classes: int | None = None) -> ModelSpec:
    """Returns the spec of any model. `models.specs.find_model` then knows it, also if other code builds it.

    Args:
        name: a value of --model.
        data_name: of a data set, for which the model may have a variant.
        num_classes: that are wanted, for the facts of a model that can have any number.

    Raises:
        UsageError: the model does not exist, or cannot be built.
    """
    if _NO_CODE.search(name):
        raise UsageError(
            f"--model={name} names a file that is no Python code. Write a function that returns its model, such as "
            "def build(): return keras.models.load_model('FILE', compile=False), and pass path/to/file.py:build."
        )
    if ":" not in name and not name.endswith(".py"):
        if "," in name:
            raise UsageError(f"--model={name}: a run has one model. Lists are for `sweep`.")
        try:
            return specs.find_model(name, data_name)
        except specs.UnknownModelError as error:
            of_keras = {specs.plain_name(application): application for application in applications_of_keras()}
            if other := of_keras.get(specs.plain_name(name.rpartition(".")[2])):
                raise UsageError(f"There is no model '{name}'. Did you mean 'keras:{other}'?") from error
            raise UsageError(f"{error} {_OTHERS}") from error
    name = _checked(name)
    facts = _facts(name, classes_wanted(data_name, num_classes))
    if isinstance(facts, UsageError):
        raise facts
    spec = outside_spec(name, facts, *_data_set(facts, data_name))
    if is_code(name) and (file := file_of(name)):
        spec = dataclasses.replace(spec, code=provenance.file_at_commit(file.absolute(), tuple(facts.sources)))
    specs.register(spec)
    return spec


def names_in(text: str) -> list[str]:
    """Returns the names in a value of --model that may have several. Raises UsageError if one is empty."""
    names = text.split(",")
    if not all(map(str.strip, names)):
        raise UsageError(f"--model={text}: a name is empty; write names with commas between them.")
    return names


def notices(spec: ModelSpec) -> list[str]:
    """Returns sentences on what training leaves out that the code of a model asks for, and on what was not checked."""
    unchecked = (
        f"--model={spec.name}: the CPU could not compute its outputs, so it was not checked that they are logits and "
        "that no operation scales the images."
    )
    ignored = (
        f"--model={spec.name}: ignored in training: {first_few(spec.ignored, ', ')}. --optimizer and other flags "
        "choose how to train, --weight_decay applies to all weights but vectors, and --initial_weights loads weights; "
        "the rest has no counterpart."
    )
    return [*([] if spec.is_checked else [unchecked]), *([ignored] if spec.ignored else [])]


def classes_wanted(data_name: str | None, num_classes: int | None) -> int:
    """Returns the number of classes that a model is asked for; None: not given."""
    usual = DATA_SETS[data_name].classes if data_name in DATA_SETS else IMAGENET_CLASSES
    return usual if num_classes in (None, BACKGROUND_CLASSES) else num_classes


def is_code(name: str) -> bool:
    """Returns whether a value of --model names a function, whose code is executed to find its facts."""
    return ":" in name and not name.lower().startswith(APPLICATION)


def file_of(name: str) -> Path | None:
    """Returns the file that defines the function of a value of --model; None: it is no file of a user's, or unknown."""
    place, _, _ = name.rpartition(":")
    if not (place and is_code(name)):
        return None
    if place.endswith(".py"):
        return Path(os.path.expanduser(place))
    stem = Path(*place.split("."))
    folders = [Path(folder) for folder in (*os.environ.get("PYTHONPATH", "").split(os.pathsep), os.getcwd()) if folder]
    files = [file for folder in folders for file in (folder / f"{stem}.py", folder / stem / "__init__.py")]
    return next((file for file in files if file.is_file()), None)


def applications_of_keras() -> list[str]:
    """Returns the names of all models of `keras.applications`, without importing Keras."""
    keras = importlib.util.find_spec("keras")
    where = keras and keras.submodule_search_locations
    listing = Path(where[0]) / "applications" / "__init__.py" if where else Path()
    try:
        return re.findall(r"\b([A-Z]\w+) as \1\b", listing.read_text(encoding="utf-8"))
    except OSError:
        return []


def _checked(name: str) -> str:
    """Returns the name, in Keras' spelling if it is Keras'.

    Raises:
        UsageError: there is no such model, file or module.
    """
    if name.lower().startswith(APPLICATION):
        wanted, known = name[len(APPLICATION) :], applications_of_keras()
        spelling = {application.lower(): application for application in known}
        if wanted.lower() not in spelling:
            raise UsageError(
                f"--model={name}: keras.applications has no model '{wanted}'.{did_you_mean(wanted, spelling)} Its "
                f"models: {', '.join(known)}."
            )
        return APPLICATION + spelling[wanted.lower()]
    place, _, function = name.rpartition(":")
    if not place or ":" in place or not function.isidentifier():
        raise UsageError(f"--model={name} names no function. {_OTHERS}")
    if not place.endswith(".py"):
        return name
    file = os.path.expanduser(place)
    if not Path(file).is_file():
        raise UsageError(f"--model={name}: the file {file} does not exist (in {os.getcwd()}).")
    return f"{file}:{function}"


@functools.cache
def _code() -> dict[str, Any]:
    """Returns what facts of models depend on beside the models' own code: versions, and the code that finds facts."""
    software, root = provenance.describe_software(), subprocesses.RUN_BENCH.parent
    finding = ("training/flop_count.py", "training/model_facts.py", "explain/probed_model.py")
    files = [*sorted(root.glob("models/*.py")), *(root / "benchmarks" / name for name in finding)]
    digests = {str(path.relative_to(root)): digest_of(str(path)) for path in files}
    return {**{name: software[name] for name in ("keras_version", "tensorflow_version")}, "digests": digests}


@functools.cache
def _facts(name: str, num_classes: int) -> Facts | UsageError:
    """Returns facts of a model, or why it cannot be built: a failure, too, may have taken minutes."""
    try:
        return find_facts_in(Path.cwd(), os.environ.get("PYTHONPATH", ""), name, num_classes)
    except UsageError as error:
        return error


def find_facts_in(directory: Path, python_path: str, name: str, num_classes: int) -> Facts:
    """Returns the facts of a model as a run in that directory, with that PYTHONPATH, would find them.

    They come from the cache if the code is still the same.

    Raises:
        UsageError: the model cannot be built there.
    """
    places = [] if name.startswith(APPLICATION) else [str(directory), python_path]
    key = key_of({"model": name, "num_classes": num_classes, "places": places, "code": _code()})
    saved = _FILE.saved(key, Facts)
    if saved and all(digest_of(path) == digest for path, digest in saved.sources.items()):
        return saved
    facts = _probe(name, num_classes, directory, python_path)
    _FILE.put(key, {"model": name, **dataclasses.asdict(facts)})
    return facts


def digest_of(source: str) -> str | None:
    """Returns the digest of a file, or of the value of an environment variable `$NAME`; None: the file is missing."""
    try:
        if source.startswith("$"):
            return hashlib.sha256(repr(os.environ.get(source[1:])).encode()).hexdigest()
        return hashlib.sha256(read_small(Path(source))).hexdigest()
    except OSError:
        return None


def _probe(name: str, num_classes: int, directory: Path, python_path: str) -> Facts:
    """Builds a model in a process of its own, which sees no GPU, and returns its facts.

    Raises:
        UsageError: it cannot be built, or is not one that can be trained here.
    """
    if is_code(name):
        warn(f"--model={name}: its code is executed now, in a separate process, to find its images and classes.")
    words = [sys.executable, "-m", _PROBE, name, str(num_classes)]
    root = str(subprocesses.RUN_BENCH.parent)
    variables = {
        "CUDA_VISIBLE_DEVICES": "-1",
        "PYTHONPATH": os.pathsep.join(filter(None, [root, python_path])),
        "PYTHONSAFEPATH": "1",
    }
    progress.begin(f"building {name}, for at most {_LIMIT_SECONDS:g} s")
    ended, output = subprocesses.captured(words, _LIMIT_SECONDS, variables=variables, directory=directory)
    progress.end()
    answers: dict[str, Any] = {}
    with contextlib.suppress(ValueError):  # it died before it could answer
        _, answer, _ = output.rsplit(AROUND_ANSWER, 2)
        answers = json.loads(answer)
    if "facts" in answers:
        return Facts(**answers["facts"])
    if "refused" in answers:
        raise UsageError(f"--model={name}: {answers['refused']}")
    with tempfile.NamedTemporaryFile(prefix="cnn_bench_model_", suffix=".log", delete=False) as whole:
        whole.write(output)
    how = f"it took longer than {_LIMIT_SECONDS:g} s" if ended.timed_out else f"its process {ended.in_words()}"
    reason = answers.get("error") or how
    (reason,) = without_secrets([reason])
    raise UsageError(
        f"--model={name}: the model cannot be built: {reason}. {_hidden_package(reason)}The whole output: "
        f"{shlex.quote(whole.name)}"
    )


def _hidden_package(reason: str) -> str:
    """Returns a sentence if code may have looked for a package of its own that has the name of one of this suite."""
    named = re.match(
        r"(?:ModuleNotFound|Import|Attribute)Error: .*'(benchmarks|models|results|variable_mgr)[.']", reason
    )
    if not named:
        return ""
    return f"'{named[1]}' is a package of this suite, which hides another with that name: rename yours. "


def _data_set(facts: Facts, wanted: str | None) -> tuple[str, int]:
    """Returns the data set that a model with these facts is for, the wanted one if it fits, and its classes.

    Photos fit any number of classes. Other images are synthetic.
    """
    own = (facts.image_size, facts.channels, facts.outputs)
    fitting = [name for name, small in DATA_SETS.items() if (small.side, len(small.mean), small.classes) == own]
    if fitting and (wanted in fitting or not facts.takes_classes or facts.channels != NUM_CHANNELS):
        return fitting[0], facts.outputs
    if facts.channels == NUM_CHANNELS:
        return "imagenet", IMAGENET_CLASSES if facts.outputs == BACKGROUND_CLASSES else facts.outputs
    return SYNTHETIC, facts.outputs


def outside_spec(name: str, facts: Facts, data_name: str = "imagenet", classes: int = IMAGENET_CLASSES) -> ModelSpec:
    """Returns the spec of a model with these facts, for a data set of so many classes."""
    title = f"{name.removeprefix(APPLICATION)} of keras.applications" if name.startswith(APPLICATION) else "own model"
    of_probe = {field: value for field, value in vars(facts).items() if field not in _NOT_IN_SPEC}
    return ModelSpec(
        name=name,
        title=title,
        build=applications.builder(name),
        data_name=data_name,
        classes=classes,
        outputs=None if facts.takes_classes else facts.outputs,
        digest=key_of({"files": sorted(facts.sources.values())}) if facts.sources else None,
        batch_on_gpu=_batch(facts.gflop_per_image, *_ON_GPU),
        batch_on_cpu=_batch(facts.gflop_per_image, *_ON_CPU),
        learning_rate=_LEARNING_RATE,
        source="counted in the built model",
        **of_probe,
    )


def _batch(gflop_per_image: float, gflop: float, largest: int) -> int:
    batch = 1
    while batch < largest and 2 * batch * gflop_per_image <= gflop:
        batch *= 2
    return batch
