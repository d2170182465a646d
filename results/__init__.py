"""What comes out of a run: the record, its store, statistics and tables. Knows no TensorFlow.

For notebooks: `results.load("out").to_frame()`. These names are imported when they are first used, with pandas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from results.exchange.frame import Results, load

__all__ = ["Results", "load"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from results.exchange import frame

    return getattr(frame, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
