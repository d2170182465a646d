"""The comparison with tf_cnn_benchmarks: rows, runs of both sides, and the table of docs/performance.md."""
