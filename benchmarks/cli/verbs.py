"""All verbs, as `--help` groups them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.checkpoints import export_verb
from benchmarks.cli import completion_verb, publish_verb, report_verb
from benchmarks.cluster import server_verb
from benchmarks.compare import ab_verb, baseline_verb, compare_verb
from benchmarks.config.verb import Verb
from benchmarks.data import data_verb, input_verb
from benchmarks.devices import devices_verb
from benchmarks.doctor import doctor_verb
from benchmarks.explain import explain_verb
from benchmarks.microbench import allreduce_verb
from benchmarks.option import Groups
from benchmarks.run import run_verb
from benchmarks.sweep import grid, scaling_verb, sweep_verb
from benchmarks.tune import recommend_verb
from benchmarks.verify import verify_verb

VERBS_BY_TITLE: Mapping[str, Sequence[Verb]] = {
    "Train": (
        run_verb.VERB,
        sweep_verb.VERB,
        scaling_verb.VERB,
        recommend_verb.VERB,
        export_verb.VERB,
    ),
    "Diagnose": (
        devices_verb.VERB,
        doctor_verb.VERB,
        verify_verb.VERB,
        explain_verb.VERB,
        allreduce_verb.VERB,
        input_verb.VERB,
        server_verb.VERB,
    ),
    "Data": (data_verb.VERB,),
    "Results": (
        report_verb.REPORT,
        report_verb.DIFF,
        report_verb.RERUN,
        publish_verb.VERB,
    ),
    "Is it slower than before": (
        ab_verb.AB,
        compare_verb.VERB,
        ab_verb.CALIBRATE,
        baseline_verb.BASELINE,
        baseline_verb.CHECK,
        baseline_verb.HISTORY,
    ),
    "Command line": (completion_verb.VERB,),
}
VERBS: Mapping[str, Verb] = {verb.name: verb for verbs in VERBS_BY_TITLE.values() for verb in verbs}


def flags_of(verb: Verb) -> Groups:
    """Returns all flags that a verb takes, by title."""
    return grid.help_groups(verb.flags) if verb.takes == "lists" else verb.flags
