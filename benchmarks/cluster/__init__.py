"""Clusters: which tasks there are, starting them, agreeing, noticing that one is lost."""
