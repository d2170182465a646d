"""Where variables live and how gradients travel. Knows nothing of models or timing.

Declares the flags of its modifiers. `catalog`, `modifiers`, `place`, `transfers`, `expected`,
`reductions.algorithm_catalog` and `reductions.all_reduce_spec` import without TensorFlow.
"""
