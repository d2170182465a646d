"""The flags of the verbs about baselines: keeping them, checking against them, and their history."""

from __future__ import annotations

from benchmarks.config.flag import Flag, Groups
from benchmarks.gate_outputs import OUTPUT_FLAGS

BASELINES_DIR = "results/baselines"
_DIRECTORY = Flag("baselines_dir", str, f"where baselines are kept, to be committed (default {BASELINES_DIR})")
_WHERE = Flag("where", str, "only records with these values, such as model=vgg16,num_gpus=1 (columns of results.csv)")

BASELINE_FLAGS: Groups = {
    "baseline promote FILE ...: keep the ok runs of files; baseline list; baseline show KEY; baseline prune": (
        _DIRECTORY,
        Flag("where", str, f"promote: {_WHERE.help}"),
        Flag("keep", int, "prune: how many sessions of each configuration to keep (default 20)"),
    )
}
CHECK_FLAGS: Groups = {
    "check FILE ...: today's runs against the last 20 stored sessions; status 1 if something is slower": (
        Flag("threshold", float, "a drop matters from so many percent on (default 5, or twice the noise of sessions)"),
        _DIRECTORY,
    ),
    "Output": OUTPUT_FLAGS,
}
HISTORY_FLAGS: Groups = {
    "history [FILE ...]: the rate session by session, of baselines or of files": (
        _DIRECTORY,
        _WHERE,
        Flag("plot", str, "a .png or .svg file for a picture"),
        Flag("output_format", str, "what goes to stdout (default text)", ("text", "json")),
    )
}
