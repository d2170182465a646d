"""The kinds of rules on flags that involve more than one flag, and the function that applies them.

A rule is data: `rule_table` lists all of them, and one test goes through them. It names flags, and what they do not go
with, by terms:

    name           the flag has a value that is not empty, 0 or false
    noname         the flag is given as false
    name=a|b       the flag has one of these values, given or by default
    name!=a|b      it has another one
    ~name          the flag is given with another value than its default
    !name          the flag has no value
    @fact          what is decided before, see `FACTS`

A value of one flag that is impossible whatever the others are is refused by the flag's own range, see `option`; what
needs arithmetic on values is refused by the code that decides on them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from benchmarks.cluster.cluster_spec import Cluster
from benchmarks.config.run_flags import FLAGS
from benchmarks.data.sources.data_sets import SMALL_IMAGES, SYNTHETIC, SYNTHETIC_HOST
from benchmarks.errors import UsageError
from benchmarks.machine.hardware import Inventory
from benchmarks.option import spelled
from benchmarks.process.tensorflow_setup import Devices
from models.model_spec import ModelSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Known:
    """What is decided before the rules that ask for facts are applied.

    Attributes:
        cluster: the tasks; None for a single process.
        gpus: those that are used.
        assumed: the GPUs of a machine that need not exist, and what connects them; None: those of this machine.
        must_exist: whether these GPUs must exist on this machine.
        why_precision: why it is used; empty if a flag gives it.
        shares_devices: see `variable_update.shares_devices`.
        notices: sentences on how flags were understood.
    """

    spec: ModelSpec
    cluster: Cluster | None
    devices: Devices
    gpus: Inventory
    assumed: Inventory | None
    must_exist: bool
    data_name: str
    precision: str
    why_precision: str
    data_format: Literal["NHWC", "NCHW"]
    shares_devices: bool
    notices: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Fact:
    """What rules may ask for besides flags: words for a sentence, with `{model}` and `{data_name}`, and a test."""

    text: str
    holds: Callable[[Known], bool]


FACTS: Mapping[str, Fact] = {
    "@cpu": Fact("a run on CPUs", lambda run: not run.devices.on_gpu),
    "@gpu": Fact("a run on GPUs", lambda run: run.devices.on_gpu),
    "@cluster": Fact("several processes", lambda run: run.cluster is not None),
    "@alone": Fact("a single process", lambda run: run.cluster is None),
    "@servers": Fact("parameter servers", lambda run: run.cluster is not None and run.cluster.num_ps > 0),
    "@controller": Fact("a controller", lambda run: run.cluster is not None and run.cluster.controller is not None),
    "@synthetic": Fact("synthetic images", lambda run: run.data_name == SYNTHETIC),
    "@synthetic_host": Fact("synthetic images that are made on the host", lambda run: run.data_name == SYNTHETIC_HOST),
    "@small_images": Fact("{data_name}, whose images are small", lambda run: run.data_name in SMALL_IMAGES),
    "@mnist": Fact("MNIST", lambda run: run.data_name == "mnist"),
    "@nchw": Fact("the layout NCHW", lambda run: run.data_format == "NCHW"),
    "@nhwc_only": Fact("{model}, whose code builds or computes it in NHWC only", lambda run: not run.spec.nchw),
    "@fp32": Fact("arithmetic in fp32", lambda run: run.precision == "fp32"),
    "@no_conv1x1": Fact("{model}, which has no convolutions of one pixel", lambda run: not run.spec.has_conv1x1),
    "@no_larger_convolutions": Fact(
        "{model}, which has no larger convolutions", lambda run: not run.spec.has_larger_convolutions
    ),
    "@no_batch_norm": Fact("{model}, which has no batch normalisation", lambda run: not run.spec.has_batch_norm),
    "@not_resnet50": Fact("{model}", lambda run: run.spec.name != "resnet50"),
    "@no_resnet": Fact(
        "{model}, which is no ResNet for ImageNet",
        lambda run: not run.spec.name.startswith("resnet") or run.spec.data_name != "imagenet",
    ),
    "@workers": Fact("several workers", lambda run: run.cluster is not None and run.cluster.num_workers > 1),
    "@several_devices": Fact("several devices in a process", lambda run: run.devices.num_devices > 1),
    "@no_shared_devices": Fact("managers that share nothing within a process", lambda run: not run.shares_devices),
}


@dataclasses.dataclass(frozen=True)
class Situation:
    """What rules are applied to.

    Attributes:
        given: flag values by name; None: not given.
        facts: those that hold, each as sentences name it.
    """

    given: Mapping[str, Any]
    facts: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def holds(self, term: str) -> bool:
        """Returns whether a term is true here."""
        name, sign, values = _parts(term)
        if sign == "@":
            return term in self.facts
        if name not in FLAGS:
            return self.given[name.removeprefix("no")] is False
        value, usual = self.given[name], FLAGS[name].usual
        if values:
            value = usual if value is None else value
            return (spelled(value).lower() in values) == (sign == "=")
        return value not in (None, usual) if sign == "~" else bool(value) == (sign != "!")

    def spelled(self, term: str) -> str:
        """Returns a term as a user writes or understands it, such as `--optimizer=adam` or `several processes`."""
        name, sign, _ = _parts(term)
        if sign == "@":
            return self.facts[term]
        if name not in FLAGS:
            return f"--{name}"
        value = self.given[name]
        if FLAGS[name].kind is bool:
            return f"--{'no' if value is False else ''}{name}"
        if value is not None:
            return f"--{name}={spelled(value)}"
        usual = FLAGS[name].usual
        if usual is None:
            return f"the default of --{name} ({FLAGS[name].default_text})"
        return f"--{name}={spelled(usual)} (the default)"


def _parts(term: str) -> tuple[str, str, Sequence[str]]:
    """Returns the name in a term, its sign (one of `@`, `~`, `!`, `=`, `!=`, or none), and the values it names."""
    name, is_equal, values = term.partition("=")
    if is_equal:
        return name.removesuffix("!"), "!=" if name.endswith("!") else "=", values.lower().split("|")
    return (name[1:], name[0], ()) if name[0] in "@~!" else (name, "", ())


@dataclasses.dataclass(frozen=True)
class Rule:
    """Says what flags need, or do not go with.

    Attributes:
        flags: terms with blanks between them; the rule is about each.
        others: terms with blanks between them; see the kinds of rules.
        because: the reason, to follow a colon.
        instead: what to do, if it is more than to leave the flag out.
        when: terms with blanks between them; the rule holds only where all of them do.
    """

    flags: str
    others: str
    because: str
    _: dataclasses.KW_ONLY
    instead: str = ""
    when: str = ""

    @property
    def asks_for_facts(self) -> bool:
        """Whether flags alone do not decide it."""
        return "@" in f"{self.flags} {self.others} {self.when}"

    def problems(self, now: Situation) -> Iterator[tuple[str, str]]:
        """Yields each of `flags` that breaks the rule, and a sentence on it."""
        raise NotImplementedError


class Excludes(Rule):
    """None of `flags` goes with any of `others`."""

    def problems(self, now: Situation) -> Iterator[tuple[str, str]]:
        """Yields each flag that is there beside one of the others."""
        other = next(filter(now.holds, self.others.split()), None)
        for flag in filter(now.holds, self.flags.split() if other else ()):
            instead = self.instead or ("Leave it out." if str(other).startswith("@") else "Leave out one of them.")
            yield flag, f"{now.spelled(flag)} does not go with {now.spelled(str(other))}: {self.because}. {instead}"


class Needs(Rule):
    """Each of `flags` needs one of `others`."""

    def problems(self, now: Situation) -> Iterator[tuple[str, str]]:
        """Yields each flag that is there without any of the others."""
        if not any(map(now.holds, self.others.split())):
            needed = " or ".join(f"--{term}" for term in self.others.split())
            for flag in filter(now.holds, self.flags.split()):
                instead = self.instead or "Add that, or leave it out."
                yield flag, f"{now.spelled(flag)} needs {needed}: {self.because}. {instead}"


class NoEffect(Rule):
    """Any of `flags` does nothing where one of `others` holds. It is ignored with a notice, not refused.

    Scripts for tf_cnn_benchmarks pass such flags everywhere. A flag is refused instead (`Excludes`) if the result could
    be mistaken for one that it acted on.
    """

    def problems(self, now: Situation) -> Iterator[tuple[str, str]]:
        """Yields each flag that is given where it does nothing."""
        if any(map(now.holds, self.others.split())):
            for flag in self.flags.split():
                if now.given[flag] is not None:
                    yield flag, f"--{flag}={spelled(now.given[flag])} has no effect: {self.because}."


def apply(rules: Sequence[Rule], now: Situation, usual: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Returns the flag values without those that have no effect, and a notice for each that was dropped.

    `usual` has the defaults that hold here; a flag without effect that has its default passes silently.

    Raises:
        UsageError: a rule is broken.
    """
    acting, notices = dict(now.given), []
    for rule in rules:
        if all(map(now.holds, rule.when.split())):
            for flag, sentence in rule.problems(dataclasses.replace(now, given=dict(acting))):
                if not isinstance(rule, NoEffect):
                    raise UsageError(sentence)
                if acting[flag] != usual[flag]:
                    notices.append(sentence)
                acting[flag] = None
    return acting, tuple(notices)
