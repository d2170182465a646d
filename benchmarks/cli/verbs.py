"""All verbs, in the order of `--help`."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.cli import explain_verb, report_verb, run_verb, server_verb
from benchmarks.config.flag import Groups
from benchmarks.config.verb import Verb
from benchmarks.datasets import data_verb
from benchmarks.doctor import doctor_verb
from benchmarks.microbench import allreduce_verb, input_verb
from benchmarks.regression import ab_verb, baseline_verb, calibrate_verb, compare_verb
from benchmarks.sweep import grid, sweep_verb
from benchmarks.tune import recommend_verb
from benchmarks.verify import verify_verb

VERBS: Mapping[str, Verb] = {
    verb.name: verb
    for verb in (
        run_verb.VERB,
        sweep_verb.VERB,
        recommend_verb.VERB,
        ab_verb.VERB,
        calibrate_verb.VERB,
        report_verb.REPORT,
        report_verb.RERUN,
        report_verb.DIFF,
        compare_verb.VERB,
        baseline_verb.BASELINE,
        baseline_verb.CHECK,
        baseline_verb.HISTORY,
        verify_verb.VERB,
        doctor_verb.VERB,
        server_verb.VERB,
        allreduce_verb.VERB,
        input_verb.VERB,
        explain_verb.VERB,
        data_verb.VERB,
    )
}


def flags_of(verb: Verb) -> Groups:
    """Returns all flags that a verb takes, by title."""
    return grid.help_groups(verb.flags) if verb.takes == "lists" else verb.flags
