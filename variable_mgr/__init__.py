"""Where variables live and how gradients travel. Knows nothing of flags, models or timing.

`variable_mgr.catalog` and `variable_mgr.place` import without TensorFlow.
"""
