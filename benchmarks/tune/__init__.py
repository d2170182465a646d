"""`recommend` and `--batch_size=auto`: searches for the fastest settings."""
