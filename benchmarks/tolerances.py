"""How far from the references arithmetic may be: largest differences, relative (absolute below 1). No TensorFlow."""

from __future__ import annotations

from variable_mgr.modifiers import Modifiers

EXACT = 1e-6
AFTER_CONVOLUTIONS = 1e-5
# Sums are rounded several times (by 2^-11 and 2^-8), and the steps of a trajectory amplify that: 7e-3 and 4.5e-2 were
# seen with 2 to 8 towers. Leaving the exchange out is off by 0.28 and more.
_ROUNDED = {"float32": EXACT, "float16": 1e-2, "bfloat16": 0.1}


def of(modifiers: Modifiers) -> float:
    """Returns the tolerance of gradients that travel so."""
    return _ROUNDED[modifiers.wire_dtype]
