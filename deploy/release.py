"""Prints the release notes of a tag, or why it cannot be released: `deploy/release.py v0.1.0`."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from results.version import SUITE_VERSION  # noqa: E402 - after the path to it

_USAGE_ERROR = 2


class NotReleasableError(Exception):
    """The tag, the version and the changelog contradict each other."""


def notes(tag: str, changelog: str) -> str:
    """Returns the section of the changelog for a tag, without its heading.

    Raises:
        NotReleasableError: the tag is not v and the version, or the version has no section with a date and text.
    """
    if tag != f"v{SUITE_VERSION}":
        raise NotReleasableError(
            f"the tag is '{tag}' and the version is {SUITE_VERSION}: tag v{SUITE_VERSION}, or change results/version.py"
        )
    heading = rf"^## \[{re.escape(SUITE_VERSION)}\] - \d{{4}}-\d{{2}}-\d{{2}}$"
    section = re.search(rf"{heading}\n(.*?)(?=^## |^\[[^\]]+\]: |\Z)", changelog, re.MULTILINE | re.DOTALL)
    if section is None or not section[1].strip():
        raise NotReleasableError(
            f"CHANGELOG.md has no section '## [{SUITE_VERSION}] - YYYY-MM-DD' with text: "
            "move what is under [Unreleased] there"
        )
    return section[1].strip() + "\n"


def main(argv: Sequence[str]) -> int:
    """Prints the notes of the tag in a command line, and returns the exit status."""
    if len(argv) != 1:
        print("release.py: give one tag, for example v0.1.0.", file=sys.stderr)
        return _USAGE_ERROR
    try:
        text = notes(argv[0], (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    except NotReleasableError as error:
        print(f"release.py: {error}.", file=sys.stderr)
        return _USAGE_ERROR
    print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
