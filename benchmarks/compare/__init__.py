"""Comparisons: two versions in turn, baselines, noise; the verbs of the gate."""
