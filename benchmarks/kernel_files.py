"""What Linux says in small files under /proc and /sys. What is missing or unreadable is None, never an error."""

from __future__ import annotations

import re
from pathlib import Path


def text(path: Path) -> str | None:
    """Returns what a file holds, without white space around it."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None


def number(path: Path) -> int | None:
    """Returns the whole number that is all a file holds."""
    found = text(path)
    return int(found) if found and re.fullmatch(r"[0-9]+", found) else None
