"""The flags of the verb `doctor`."""

from __future__ import annotations

from benchmarks.config.flag import Flag, Groups
from benchmarks.config.run_flags import RUN_FLAGS

DEFAULT_OUTPUT_DIR = "out/doctor"
_OF_RUN = ("model", "batch_size", "precision", "variable_update", "data_dir")
_OF_THE_LADDER = (
    *(flag for group in RUN_FLAGS.values() for flag in group if flag.name in _OF_RUN),
    Flag(
        "time_limit_seconds",
        float,
        "all rungs of the ladder share it (default 180); each gets what five steps need, at least",
    ),
    Flag("output_dir", str, f"records and logs of the ladder's runs are kept there (default {DEFAULT_OUTPUT_DIR})"),
)
OF_THE_LADDER = tuple(flag.name for flag in _OF_THE_LADDER)
_DEVICES = Flag("num_gpus", int, "devices (default of the ladder: all GPUs, or two logical CPU devices; else 1)")
DOCTOR_FLAGS: Groups = {
    "The ladder, without a cluster: runs that do more and more, and where the time goes": (
        Flag("ladder", bool, "climb it (default); --noladder only looks whether the machine is quiet"),
        *_OF_THE_LADDER,
    ),
    "Devices": [_DEVICES if flag.name == "num_gpus" else flag for flag in RUN_FLAGS["Devices"]],
    "Several processes": RUN_FLAGS["Several processes"],
    "Output": [flag for flag in RUN_FLAGS["Output"] if flag.name == "output_format"],
}
