"""The flags of the verbs that judge: is this build slower than that one?"""

from __future__ import annotations

from benchmarks.config.flag import Flag, Groups
from benchmarks.gate_outputs import OUTPUT_FLAGS

COMPARE_FLAGS: Groups = {
    "compare BASE CANDIDATE: records of two builds, files or directories; status 1 if the candidate is slower": (
        Flag("threshold", float, "a drop matters from so many percent on (default 5)"),
        Flag("where", str, "only records with these values, such as model=vgg16,num_gpus=1 (columns of results.csv)"),
    ),
    "Output": OUTPUT_FLAGS,
}
