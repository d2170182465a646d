"""What is trained: Keras models and the facts about them. Knows nothing of devices, managers or timing.

`models.specs` imports without TensorFlow; `models.building` builds a model and calls it as a pure function.
"""
