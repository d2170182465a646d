"""A tag is released only if it, the version and the changelog agree; its notes are that section of the changelog."""

from __future__ import annotations

import pytest

from deploy import release
from results.version import SUITE_VERSION

TAG = f"v{SUITE_VERSION}"
CHANGELOG = f"""# Changelog

## [Unreleased]

- Later.

## [{SUITE_VERSION}] - 2026-03-24

### Added

- This.

"""


@pytest.mark.parametrize("after", ["", "## [0.0.1] - 2026-01-01\n\n- Earlier.\n\n"])
def test_the_notes_are_the_section_of_the_version(after: str) -> None:
    assert release.notes(TAG, f"{CHANGELOG}{after}[0.0.1]: https://example.org\n") == "### Added\n\n- This.\n"


@pytest.mark.parametrize("tag", [SUITE_VERSION, "v9.9.9", f"{TAG}-rc1", ""])
def test_a_tag_other_than_the_version_is_refused(tag: str) -> None:
    with pytest.raises(release.NotReleasableError, match=f"tag v{SUITE_VERSION}, or change results/version.py"):
        release.notes(tag, CHANGELOG)


@pytest.mark.parametrize(
    "changelog",
    [
        "## [Unreleased]\n\n- This.\n",
        CHANGELOG.replace(" - 2026-03-24", ""),
        CHANGELOG.replace("### Added\n\n- This.\n", ""),
    ],
    ids=["no section", "no date", "no text"],
)
def test_a_version_without_a_dated_section_is_refused(changelog: str) -> None:
    with pytest.raises(release.NotReleasableError, match=r"CHANGELOG.md has no section"):
        release.notes(TAG, changelog)


@pytest.mark.parametrize("words", [(), ("v9.9.9",), (TAG, TAG)])
def test_a_refusal_is_one_sentence_and_status_2(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert release.main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith("release.py: ") and printed.err.count("\n") == 1
