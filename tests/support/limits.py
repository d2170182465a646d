"""What CI accepts: how long a default test may take, and for which reasons a test may be skipped."""

# Seconds on an otherwise idle machine.
MOST_SECONDS = 10.0

# Node identifiers, without parameters, of default tests that may take longer, each with the reason.
LONG_TESTS: dict[str, str] = {}

# Regular expressions of reasons for which CI may skip a test. All others count as failures there.
ALLOWED_SKIPS = (
    "no NVIDIA GPU",
    "needs root",
    "no network can be made",
    "no Chromium",
)
