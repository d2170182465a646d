"""`--settings=recommended`: finds the stored answer of `recommend` that fits a run, and applies it. No TensorFlow."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from benchmarks.config import flag
from benchmarks.config.flag import Groups
from benchmarks.config.run_flags import RUN_FLAGS, words
from benchmarks.errors import UsageError
from benchmarks.system import cache, hardware
from benchmarks.system.hardware import Inventory
from benchmarks.system.provenance import Provenance
from results.version import SUITE_VERSION

if TYPE_CHECKING:
    from benchmarks.config.config import Config

RECOMMENDED: Final = "recommended"
# `recommend` runs single processes, and chooses the length of each run.
_OTHER_GROUPS = ("Several processes", "How long", "Output")
_NOT_ASKED = ("check_precision", "log_device_placement", "print_training_accuracy", "verify_first", "settings")
# The flags of a run that a question to `recommend` may have.
ASKED: Groups = {
    title: [one for one in group if one.name not in _NOT_ASKED]
    for title, group in RUN_FLAGS.items()
    if title not in _OTHER_GROUPS
}
# Other flags that set the same.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "precision": ("use_fp16",),
    "xla": ("xla_compile",),
    "all_reduce_spec": ("hierarchical_copy", "use_nccl"),
    "gradient_repacking": ("agg_small_grads_max_bytes",),
}
# The flags that `recommend` varies, and the fields that they set. Those of a group belong together.
_VARIED: tuple[Mapping[str, str], ...] = (
    {name: name for name in ("data_format", "conv1x1_as_matmul", "filter_gradients_as_matmul")},
    {
        "variable_update": "variable_update",
        "local_parameter_device": "shared_on",
        "all_reduce_spec": "modifiers.all_reduce_spec",
        "gradient_repacking": "modifiers.gradient_repacking",
    },
    *({name: name} for name in ("xla", "onednn", "precision", "num_intra_threads", "num_inter_threads")),
    {"batch_size": "batch_per_device"},
)
_FIELDS = {name: field for group in _VARIED for name, field in group.items()}
# Settings for another batch or precision answer another question, even if the user's value wins.
_MUST_AGREE = ("batch_size", "precision")
# Fields that hardly change which settings are the fastest.
_MAY_DIFFER = set(
    "print_training_accuracy num_classes loss_scaling data_name pipelined_input input optimizer learning_rate schedule "
    "momentum hyperparameters lars_trust_coefficient clipping weight_decay weight_decay_on label_smoothing seed "
    "num_warmup_batches gpu_thread_mode force_gpu_compatible".split()
)
_MOST_NAMED = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Found:
    """A stored answer: its time (UTC), the flags that were asked with, those that were chosen, and the question."""

    time_utc: str
    fixed: Sequence[str]
    chosen: Mapping[str, str]
    question: Mapping[str, Any]


def stored(fixed: Mapping[str, str], arguments: Sequence[str], question: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what an entry of the cache must hold so that runs find it.

    Args:
        fixed: the flags of the question.
        arguments: the flags of the answer, which contain these.
        question: the key fields of the configuration that the fixed flags give.
    """
    chosen = dict(word.removeprefix("--").split("=", 1) for word in arguments)
    return {
        "suite_version": SUITE_VERSION,
        "fixed": words(fixed),
        "chosen": {name: value for name, value in chosen.items() if name not in fixed},
        "question": dict(question),
    }


def resolve(given: Mapping[str, Any], resolve_flags: Callable[[Mapping[str, Any]], Config]) -> Config:
    """Returns the configuration of a run with the flags of the newest answer that fits.

    A flag that is given keeps its value, and a batch or a precision that is given must be that of the answer.

    Args:
        given: flag values; None: not given.
        resolve_flags: turns flag values into a configuration.

    Raises:
        UsageError: there is no such answer, or there can be none.
    """
    given = {**given, "settings": None}
    usual = resolve_flags(given)
    if usual.cluster:
        raise UsageError(
            "--settings=recommended: recommend searches settings for one process, and this run has several: pass the "
            "flags themselves, such as --onednn=on, so that all tasks have the same."
        )
    if given["verify_first"] and given["variable_update"] is None:
        raise UsageError(
            "--verify_first verifies the manager that the flags name, and --settings=recommended may choose another: "
            "pass --variable_update, too."
        )
    run = _flat(json.loads(json.dumps(usual.key_fields(), default=str)))
    compared = [(answer, *_differences(answer, given, run)) for answer in _entries(usual.device == "gpu")]
    fitting = [(answer, near) for answer, wrong, near in compared if not wrong]
    if not fitting:
        raise UsageError(_nothing_fits(given, [(answer, wrong) for answer, wrong, _ in compared]))
    answer, near = max(fitting, key=lambda pair: (not pair[1], pair[0].time_utc))
    chosen = _without_given(answer.chosen, given)
    values = flag.parse(words(chosen), RUN_FLAGS).values
    found = resolve_flags({**given, **{name: values[name] for name in chosen}})
    notices = (*found.notices, *_notices(answer, given, chosen, near, usual))
    return dataclasses.replace(found, settings=RECOMMENDED, notices=notices)


def _entries(on_gpu: bool) -> Iterator[_Found]:
    """Yields the answers for this machine and software."""
    inventory = hardware.gpu_inventory() if on_gpu else Inventory()
    here = cache.machine(Provenance((), inventory, 0.0).identity({}))
    for time_utc, answer in cache.find_all(here):
        if answer.get("suite_version") != SUITE_VERSION:
            continue  # also those of --batch_size=auto
        try:
            yield _Found(
                time_utc=time_utc,
                fixed=[str(word) for word in answer["fixed"]],
                chosen={str(name): str(value) for name, value in answer["chosen"].items()},
                question=_flat(answer["question"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            cache.FILE.ignore(error)


def _differences(answer: _Found, given: Mapping[str, Any], run: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Returns how an answer is of another run, a phrase each, and the fields that differ but may do so."""
    fixed = {word.removeprefix("--").partition("=")[0] for word in answer.fixed}
    free = {
        field
        for name, field in _FIELDS.items()
        if not {name, *ALIASES.get(name, ())} & fixed and (name not in _MUST_AGREE or name in answer.chosen)
    }
    wrong, near = [], []
    for field in sorted({*answer.question, *run} - free):
        theirs, ours = answer.question.get(field), run.get(field)
        if theirs != ours and field.partition(".")[0] in _MAY_DIFFER:
            near.append(field)
        elif theirs != ours:
            wrong.append(f"{field} {theirs}, not {ours}")
    for name in _MUST_AGREE:
        theirs, ours = answer.chosen.get(name), str(run[_FIELDS[name]])
        if theirs not in (None, ours) and _is_given(name, given):
            wrong.append(f"{_FIELDS[name]} {theirs}, not {ours}")
    return wrong, near


def _is_given(name: str, given: Mapping[str, Any]) -> bool:
    return any(given[one] not in (None, "auto") for one in (name, *ALIASES.get(name, ())))


def _without_given(chosen: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, str]:
    """Returns the chosen flags without those that the user gave, and those that belong to one given otherwise."""
    kept: set[str] = set()
    for group in _VARIED:
        names = [name for name in group if name in chosen]
        if not any(_is_given(name, given) and not _is_same(name, chosen, given) for name in names):
            kept |= {name for name in names if not _is_given(name, given)}
    return {name: value for name, value in chosen.items() if name in kept}


def _is_same(name: str, chosen: Mapping[str, str], given: Mapping[str, Any]) -> bool:
    return words({name: given[name]}) == words({name: chosen[name]})


def _notices(
    answer: _Found, given: Mapping[str, Any], chosen: Mapping[str, str], near: Sequence[str], usual: Config
) -> Iterator[str]:
    """Yields what was applied and when it was found, and what the user should know about it."""
    flags = " ".join(words(chosen)) or "nothing else"
    asked = shlex.join(["run_bench.py", "recommend", *answer.fixed])
    yield f"--settings=recommended: {flags} (found on {answer.time_utc[:10]} by `{asked}`)."
    left = {name: answer.chosen[name] for name in answer.chosen.keys() - chosen.keys()}
    if others := " ".join(words({name: left[name] for name in sorted(left) if not _is_same(name, left, given)})):
        yield f"--settings=recommended: {others} was recommended, but the flags that you pass win."
    if near:
        yield (
            f"--settings=recommended: the search had other values of {', '.join(near[:_MOST_NAMED])}; with those of "
            "this run, other settings may be faster."
        )
    if chosen.get("batch_size", str(usual.batch_per_device)) != str(usual.batch_per_device):
        yield (
            f"--settings=recommended: a batch of {chosen['batch_size']} instead of {usual.batch_per_device} trains "
            f"differently: to keep it, pass --batch_size={usual.batch_per_device} to recommend and to the run."
        )
    if chosen.get("precision", usual.precision) != usual.precision:
        yield f"--settings=recommended: {chosen['precision']} changes the arithmetic: check it with --check_precision."


def _nothing_fits(given: Mapping[str, Any], others: Sequence[tuple[_Found, Sequence[str]]]) -> str:
    """Returns what to run first, and which answers come next."""
    names = [one.name for group in ASKED.values() for one in group]
    ask = shlex.join(["run_bench.py", "recommend", *words({name: given.get(name) for name in names})])
    newest_first = sorted(others, key=lambda pair: pair[0].time_utc, reverse=True)
    nearest = sorted(newest_first, key=lambda pair: len(pair[1]))[:_MOST_NAMED]
    near = "; ".join(f"that of {answer.time_utc[:10]} is for {', '.join(wrong)}" for answer, wrong in nearest)
    exists = f"no stored answer fits ({near})" if near else "no answer is stored for this machine and software"
    return f"--settings=recommended: {exists}. Run `{ask}` first, or leave the flag out."


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns a mapping without nested ones, whose entries are named `outer.inner`, and without empty values."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return {name: value for name, value in found.items() if value is not None}
