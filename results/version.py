"""The suite's own version, read by the packaging and by every record."""

SUITE_VERSION = "0.1.0"
