"""Is this build slower than that one? Reads records, decides with known error rates. Knows no TensorFlow.

`decision` judges the rounds of one configuration, `trial` says when they are enough, `comparison` judges two sets of
records, `baseline_check` today's against `baselines`; `finding` is what they say, and each `_view` shows it.
"""
