"""The pictures of the documentation are shown and small."""

from __future__ import annotations

import re
from pathlib import Path

from results import loading
from tests.support import docs
from tests.support.commands import ROOT

_SHOWN = re.compile(r"!\[[^\]]+\]\(([^)\s]+)\)|\bsrc(?:set)?=\"([^\"\s]+)\"")
IMAGES = ROOT / "docs" / "images"
_LARGEST_BYTES = {".svg": 60_000, ".png": 250_000}


def _shown() -> set[Path]:
    """Returns the files that pages show, as Markdown or as HTML."""
    found = ((page, _SHOWN.findall(page.read_text(encoding="utf-8"))) for page in docs.pages(ROOT))
    targets = ((page, target) for page, pairs in found for pair in pairs for target in filter(None, pair))
    return {(page.parent / target).resolve() for page, target in targets if "://" not in target}


def test_pages_show_every_picture_and_no_other() -> None:
    made = {path for path in IMAGES.iterdir() if path.suffix in _LARGEST_BYTES}
    shown = _shown()
    assert len(made) >= 15
    assert {path for path in shown if not path.is_file()} == set()
    assert made - shown == set()


def test_pictures_are_small() -> None:
    for path in IMAGES.iterdir():
        assert path.stat().st_size <= _LARGEST_BYTES.get(path.suffix, 1_000_000), path.name


def test_the_results_in_them_are_whole() -> None:
    loaded = loading.load(IMAGES / "results.jsonl")
    assert loaded.problems == [] and {record.status for record in loaded.records} == {"ok"}
