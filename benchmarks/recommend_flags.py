"""The flags of the verb `recommend`."""

from __future__ import annotations

from benchmarks.config.flag import Flag, Groups
from benchmarks.config.run_flags import RUN_FLAGS

DEFAULT_TIME_LIMIT_SECONDS = 600.0
DEFAULT_OUTPUT_DIR = "out/recommend"
# It is about one process, and decides itself how long each run is.
_OTHER_GROUPS = ("Several processes", "How long", "Output")
_NOT_HERE = ("check_precision", "log_device_placement", "print_training_accuracy")

RECOMMEND_FLAGS: Groups = {
    "recommend: which settings train fastest here? What is given below is not varied": (
        Flag(
            "time_limit_seconds",
            float,
            f"for all runs together; none is begun that would not end by then (default {DEFAULT_TIME_LIMIT_SECONDS:g})",
        ),
        Flag("any_precision", bool, "try other precisions than fp32, too: they change the arithmetic"),
        Flag("fresh", bool, "search again, even if the answer to the same question is remembered"),
        Flag("output_dir", str, f"records and logs of all runs are kept there (default {DEFAULT_OUTPUT_DIR})"),
        *(flag for flag in RUN_FLAGS["Output"] if flag.name == "output_format"),
    ),
    **{
        title: [flag for flag in group if flag.name not in _NOT_HERE]
        for title, group in RUN_FLAGS.items()
        if title not in _OTHER_GROUPS
    },
}
