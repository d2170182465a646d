"""The flags of the verbs that read records: report, rerun, diff."""

from __future__ import annotations

from benchmarks.config.flag import Flag, Groups
from results import published

REPORT_FLAGS: Groups = {
    "report FILE ...: what records show; without --output, the headline table": (
        Flag("output", str, "a directory for report.html, report.md, results.csv and plots"),
        Flag("against", str, "published figures to be put beside", tuple(published.SOURCES)),
        Flag("where", str, "only records with these values, such as model=vgg16,status=ok (columns of results.csv)"),
    )
}
RERUN_FLAGS: Groups = {
    "rerun RUN_ID [FILE ...]: the exact command of a record again": (
        Flag("dry_run", bool, "print the command and stop"),
    )
}
DIFF_FLAGS: Groups = {"diff RUN_ID RUN_ID [FILE ...]: what differs between two runs": ()}
