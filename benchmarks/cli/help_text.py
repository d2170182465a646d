"""The texts of `--help`, `--helpfull` and `--version`. No TensorFlow."""

from __future__ import annotations

import platform
import textwrap
from collections.abc import Mapping, Sequence

from benchmarks.cli.verbs import Listed
from benchmarks.config.flag import SHORT_FLAGS, presets
from benchmarks.config.run_flags import FLAGS
from benchmarks.config.verb import Verb
from benchmarks.machine.provenance import describe_software
from benchmarks.option import Groups
from results.version import SUITE_VERSION

_WIDTH = 80
_FLAGS_WIDTH = 23
_PROGRAM = "run_bench.py"
_FEW = 15
_EXAMPLES = (
    "--model=resnet50 --num_gpus=8 --variable_update=replicated",
    "sweep --model=resnet50,vgg16 --num_gpus=1,2,4,8",
    "ab --base=main --model=resnet50 --num_gpus=1",
)
_MOST_USED = (
    "model",
    "batch_size",
    "num_gpus",
    "device",
    "variable_update",
    "precision",
    "data_dir",
    "local_cluster",
    "num_batches",
    "output_dir",
)


def of_program(verbs: Mapping[str, Mapping[str, Listed]]) -> str:
    """Returns the short help: the verbs by title, examples, and where to find more."""
    lines = [
        "Benchmarks CNN training with TensorFlow on GPUs, hosts and CPUs, and shows what",
        "limits the speed.",
        "",
        f"usage: {_PROGRAM} [VERB] --flag=value ...",
    ]
    width = 2 + max(len(name) for group in verbs.values() for name in group)
    for title, group in verbs.items():
        lines += ["", title, *_columns([(name, listed.meaning) for name, listed in group.items()], width)]
    return "\n".join(
        [
            *lines,
            *_examples(_EXAMPLES),
            "",
            f"More: {_PROGRAM} help VERB     flags and examples of a verb, such as run",
            f"      {_PROGRAM} help --all    all verbs",
            f"      {_PROGRAM} --helpfull    all flags of a run",
            f"      {_PROGRAM} --version     versions of this suite, TensorFlow and Python",
            "      README.md and docs/        how to use it, and what it measures",
        ]
    )


def of_verb(verb: Verb, groups: Groups, *, full: bool) -> str:
    """Returns the help of a verb that takes these flags.

    Unless `full`, it describes only those that no run has, or of `run` those that most runs use.
    """
    flags = own = [flag for group in groups.values() for flag in group]
    if len(flags) > _FEW:
        of_run = FLAGS.values()
        own = [flag for flag in flags if (flag.name in _MOST_USED if verb.name == "run" else flag not in of_run)]
    words = " SUBCOMMAND ..." if verb.parts else f" {verb.words}" if verb.words else ""
    meaning = f"{verb.name}: {verb.meaning}" + (f". {verb.details}" if verb.details else "")
    name = "[run]" if verb.name == "run" else verb.name
    lines = [f"usage: {_PROGRAM} {name}{words}{' --flag=value ...' if flags else ''}", ""]
    lines += textwrap.wrap(meaning.replace("?.", "?"), _WIDTH)
    if verb.parts:
        width = 2 + max(len(part.name) for part in verb.parts)
        lines += ["", "Subcommands:", *_columns([(part.name, part.meaning) for part in verb.parts], width)]
    elif full:
        for title, group in groups.items():
            described = [(flag.spelling, flag.described()) for flag in group]
            lines += ["", f"{title}:", *_columns(described, _FLAGS_WIDTH)]
        lines += ["", f"Files of flags: --flagfile=FILE, --preset={'|'.join(presets())}"]
    elif flags:
        title = "Flags that most runs use" if verb.name == "run" else f"Flags of {verb.name}"
        described = [(flag.spelling, flag.described(brief=True)) for flag in own]
        lines += ["", f"{title}:", *_columns(described, _FLAGS_WIDTH)] if own else []
    if verb.name == "run":
        short = ", ".join(f"-{letter} {name.upper()}" for letter, name in SHORT_FLAGS.items())
        lines += ["", f"Short: {short}. Dashes may replace underscores."]
    lines += _examples(verb.examples)
    if verb.parts:
        lines += ["", f"More: {_PROGRAM} help {verb.parts[0].name}   its flags; so for the other subcommands"]
    elif not full and len(own) < len(flags):
        lines += ["", f"More: {_PROGRAM} {verb.name} --helpfull   all {len(flags)} flags"]
    return "\n".join(lines)


def versions() -> str:
    """Returns the versions of the suite, TensorFlow and Python, without an import of TensorFlow."""
    tensorflow = describe_software()["tensorflow_version"] or "not installed"
    return f"cnn-train-bench {SUITE_VERSION} (TensorFlow {tensorflow}, Python {platform.python_version()})"


def _columns(rows: Sequence[tuple[str, str]], width: int) -> list[str]:
    """Returns names, and what they mean, in two columns; a name that is too long has a line of its own."""
    lines, indent = [], " " * (width + 2)
    for name, meaning in rows:
        begin = f"  {name:{width}}"
        if len(name) >= width:
            lines.append(begin)
            begin = indent
        lines += textwrap.wrap(meaning, _WIDTH, initial_indent=begin, subsequent_indent=indent)
    return lines


def _examples(commands: Sequence[str]) -> list[str]:
    title = "Examples:" if len(commands) > 1 else "Example:"
    return ["", title, *(f"  {_PROGRAM} {command}" for command in commands)] if commands else []
