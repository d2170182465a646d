"""The flags of the verbs that run two sides in turn: `ab` and `calibrate`."""

from __future__ import annotations

from benchmarks.config.flag import Flag, Groups
from benchmarks.gate_outputs import OUTPUT_FLAGS

_SUITE = Flag("suite", str, "a TOML file with a table [[grid]] per grid, which holds flags, as of a sweep")
_TIMEOUT = Flag(
    "round_timeout_seconds",
    float,
    "kill a run that takes longer, or two in turn that take twice as long (default 3600)",
)
_TURNS = Flag(
    "steps_in_turn",
    bool,
    "start both sides of a pair at once and have them measure in turn, 0.25 s each or a step, so that both see the "
    "machine alike, where that can be: on CPUs, with synthetic images (default true; false: one run after the other)",
)
_BASELINES = Flag(
    "baselines_dir", str, "where calibrate keeps what equal runs differ by, per machine (default results/baselines)"
)

AB_FLAGS: Groups = {
    "ab: is the candidate slower than the base? Fresh processes of both, in turn; status 1 if it is": (
        Flag("base", str, "a git revision of this suite, checked out for the time being"),
        Flag("candidate", str, "likewise (default: this suite as it is)"),
        Flag("base_command", str, "words that start a run, such as '/venv/bin/python /src/run_bench.py'"),
        Flag("candidate_command", str, "likewise; default of one side if the other is given: this suite as it is"),
        _SUITE,
        Flag(
            "threshold",
            float,
            "a drop matters from so many percent on (default 5, or twice what calibrate found, if that is more)",
        ),
        Flag("max_rounds", int, "pairs of rounds per configuration after which it ends undecided (default 15)"),
        Flag(
            "warmup_round",
            bool,
            "first run everything once on each side, uncounted; without it no turns are taken (default true)",
        ),
        _TURNS,
        _TIMEOUT,
        _BASELINES,
        Flag("output_dir", str, "has base/, candidate/ and warmup/, with records and logs (default out/ab)"),
    ),
    "What is said, and where": OUTPUT_FLAGS,
}
CALIBRATE_FLAGS: Groups = {
    "calibrate: how much do equal runs differ on this machine, and which drop can it show?": (
        Flag("rounds", int, "pairs of rounds per configuration (default 10)"),
        _SUITE,
        _TURNS,
        _TIMEOUT,
        _BASELINES,
        Flag("output_dir", str, "has base/ and candidate/, with records and logs (default out/calibrate)"),
    ),
}
