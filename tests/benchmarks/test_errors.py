from __future__ import annotations

from benchmarks.errors import headline


def test_the_headline_of_an_error_is_what_was_wrong() -> None:
    assert headline(ValueError("what\nelse")) == "what"
    assert headline(ValueError()) == ""
    several = "2 root error(s) found.\n  (0) INVALID_ARGUMENT: it broke\n\t [[{{node Assert}}]]\n  (1) and so on"
    assert headline(ValueError(several)) == "INVALID_ARGUMENT: it broke"
