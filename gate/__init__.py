"""Is this build slower than that one? Reads records, decides with known error rates. Knows no TensorFlow.

`decision` judges the rounds of one configuration, `comparison` two sets of records, `baselines` and `history` a stored
past; `finding` is what they say, and the modules that are named after a format show it.
"""
