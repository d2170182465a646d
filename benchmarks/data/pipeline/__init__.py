"""Pipelines from files to the batches of each tower."""
