"""Keras models and their published figures. No module here handles devices, variable managers or timing.

`models.specs` imports without TensorFlow; `models.building` builds a model and calls it as a pure function.
"""
