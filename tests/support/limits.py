"""What CI accepts: how long a default test may take, and for which reasons a test may be skipped."""

# Seconds on an otherwise idle machine: three times what a default test should take, since machines differ threefold.
MOST_SECONDS = 30.0

# Node identifiers, without parameters, of default tests that may take longer, each with the reason.
LONG_TESTS = {
    "tests/test_docs.py::test_the_generated_tables_of_a_page_are_up_to_date": "187 published rates are predicted twice",
    "tests/processes/test_clusters.py::test_the_guides_four_commands": "four tasks start TensorFlow at once",
    "tests/verbs/test_pytorch.py::test_sixteen_bits_train_alike": "bf16 is slow on CPUs that hide AMX",
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
    "is for NHWC only",
    "the facts are those of TensorFlow",
    "no cuDNN is installed",
)
