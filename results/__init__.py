"""What comes out of a run: the record, its store, statistics and tables. Knows no TensorFlow."""
