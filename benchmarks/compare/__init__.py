"""Comparisons: two versions in interleaved rounds, baselines, noise; the verbs of the gate."""
