"""The names of the variable managers, for the command line. Imports without TensorFlow.

A new manager is one file, one line here, and one line in `variable_mgr.factory`.
"""

from __future__ import annotations

MANAGERS = {
    "independent": "one full copy per tower, gradients not exchanged: the upper bound of scaling",
    "parameter_server": "one shared copy, read by every tower, updated once per step",
    "replicated": "one full copy per tower, every tower applies the same mean gradient",
}
