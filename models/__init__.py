"""Keras models and their published figures. Knows nothing of variable managers or timing.

`models.specs` imports without TensorFlow; `models.building` builds a model and calls it as a pure function.
"""
