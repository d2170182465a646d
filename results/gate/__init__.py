"""Is this build slower than that one? Reads records, and decides with known error rates. Imports no TensorFlow.

`decision` judges the rounds of one configuration, `trial` says when they are enough, `comparison` judges two sets of
records, `baseline_check` judges today's by `baselines`. Their results are `findings`,
which `views` show.
"""
