"""What CI accepts: how long a default test may take, and for which reasons a test may be skipped."""

# Seconds on an otherwise idle machine.
MOST_SECONDS = 10.0

# Node identifiers, without parameters, of default tests that may take longer, each with the reason.
LONG_TESTS = {
    "tests/benchmarks/trackers/test_handover.py::test_mlflow_has_the_run_once_after_it_was_sent_twice": "starts MLflow "
    "three times, and makes a database",
    "tests/processes/test_clusters.py::test_ctrl_c_leaves_a_record_and_nobody": "four tasks start TensorFlow",
    "tests/processes/test_clusters.py::test_the_guides_four_commands": "four tasks start TensorFlow at once",
    "tests/processes/test_clusters.py::test_the_placement_of_a_cluster_is_that_of_all_tasks": "three tasks start",
    "tests/processes/test_library.py::test_the_cells_of_the_page_run_in_order": "three runs start TensorFlow",
    "tests/test_docs.py::test_what_a_page_names_exists": "the page of commands resolves some hundred",
    "tests/test_extensions.py::test_a_flag_is_declared_decided_and_used": "runs an extended copy",
    "tests/test_extensions.py::test_a_manager_in_the_catalog_is_verified": "runs an extended copy",
    "tests/test_extensions.py::test_a_manager_in_the_catalog_trains": "runs an extended copy",
    "tests/verbs/test_run_ends.py::test_a_batch_that_does_not_fit_is_a_record": "TensorFlow waits 10 s for memory",
}

# Regular expressions of reasons for which CI may skip a test. All others count as failures there.
ALLOWED_SKIPS = (
    "no NVIDIA GPU",
    "needs root",
    "no network can be made",
    "no memory group can be made",
    "no Chromium",
    "no (zsh|fish) here",
    "the fault cannot be injected here",
    "is for NHWC only",
)
