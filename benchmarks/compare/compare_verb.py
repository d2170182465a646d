"""The verb `compare`: is the candidate slower than the base? Reads two files of records. No TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import record_files
from benchmarks.compare import outputs
from benchmarks.compare.outputs import OUTPUT_FLAGS
from benchmarks.config.verb import Verb
from benchmarks.errors import DataError, ExitStatus, UsageError
from benchmarks.option import Flag, Groups
from results.gate import comparison
from results.gate.comparison import UnlikeError
from results.gate.decision import QUIET_THRESHOLD


def run_compare(words: Sequence[str], values: Mapping[str, Any]) -> ExitStatus:
    """Compares the records of two files, and returns whether a configuration became slower.

    Raises:
        UsageError: the command line is wrong, the hardware differs, or an output cannot be written.
        DataError: a file cannot be read, or contains no records.
    """
    if len(words) != 2:
        raise UsageError(
            "compare: name two files of records, first the base, such as compare main/results.jsonl "
            f"branch/results.jsonl; {len(words)} were given."
        )
    threshold = outputs.threshold_of(values["threshold"])
    sides = []
    for word in words:
        (path,) = record_files.paths([word])
        records = record_files.load([path])
        if not records:
            raise DataError(f"{path}: there are no records in it. Name a file that runs have left.")
        sides.append(record_files.matching(records, values["where"]))
        if not sides[-1]:
            raise UsageError(f"--where={values['where']}: no record in {word} matches.")
    try:
        findings = comparison.compare(sides[0], sides[1], (words[0], words[1]), threshold or QUIET_THRESHOLD)
    except UnlikeError as error:
        raise UsageError(str(error)) from error
    return outputs.report(findings, values)


WHERE = Flag("where", str, "only such records: model=vgg16,num_gpus=1, or 'num_gpus > 1' (columns of results.csv)")
COMPARE_FLAGS: Groups = {
    "compare BASE CANDIDATE: records of two builds, files or directories; status 1 if the candidate is slower": (
        Flag("threshold", float, "smallest drop in percent that matters", default=100 * QUIET_THRESHOLD),
        WHERE,
    ),
    "Output": OUTPUT_FLAGS,
}


VERB = Verb(
    "compare",
    "is one file of records slower than another?",
    COMPARE_FLAGS,
    lambda given, command: run_compare(given.words, given.values),
    takes="words",
    words="BASE CANDIDATE",
    details="Exit status 1 if the candidate is slower, 3 if noise hides the answer.",
    examples=("compare main/results.jsonl branch/results.jsonl",),
)
